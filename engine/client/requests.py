"""What a front end may ask an engine for: JSON objects on the local link, told apart by `op`.

Both ends use these classes. Reading one checks everything and raises `UsageError` naming the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from engine.config.plain import from_plain
from engine.config.plan import STRATEGIES, GenerationDefaults, RunPlan
from engine.config.settings import SETTINGS, Setting, value_of
from engine.errors import UsageError
from engine.protocol.messages import LinkEmulation, SamplingSettings

ROLES = ("system", "user", "assistant")
MAX_STOPS = 32


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Answer a chat (`messages` of role and content) or continue a raw `prompt`: exactly one of the two.

    Requests of one `session` share a prefix, so that only what is new has to be computed. `resume` are the
    tokens of this very answer that are known already, from an engine that was lost: the answer goes on after
    them and counts them, and its events tell only what is new.
    """

    op: ClassVar[str] = "generate"

    request: str  # an id chosen by the front end; every event of the answer carries it
    messages: tuple[dict[str, str], ...] = ()
    prompt: str | None = None
    session: str = ""
    max_tokens: int = GenerationDefaults().max_tokens
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    stop: tuple[str, ...] = ()
    strategy: str = ""  # empty: the engine's
    resume: tuple[int, ...] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GenerateRequest:
        """Read and check; raises UsageError."""
        request = from_plain(cls, {key: value for key, value in data.items() if key != "op"}, cls.op)
        request.check()
        return request

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {"op": self.op, **asdict(self)}

    def check(self) -> None:
        """Raise UsageError, naming the field, for a request that cannot be answered."""
        if not self.request:
            raise UsageError("generate.request must not be empty")
        if bool(self.messages) == (self.prompt is not None):
            raise UsageError("generate needs either messages or a prompt")
        for i, message in enumerate(self.messages):
            _check_message(message, f"generate.messages[{i}]")
        if len(self.stop) > MAX_STOPS or "" in self.stop:
            raise UsageError(f"generate.stop must hold at most {MAX_STOPS} texts, none of them empty")
        if self.strategy and self.strategy not in STRATEGIES:
            raise UsageError(
                f"generate.strategy must be one of {', '.join(STRATEGIES)}, not {self.strategy!r}"
            )
        if len(self.resume) > self.max_tokens or any(token < 0 for token in self.resume):
            raise UsageError("generate.resume must hold token ids, at most max_tokens of them")
        _check_ranges(self)


def _check_message(message: Mapping[str, Any], name: str) -> None:
    if set(message) != {"role", "content"} or not isinstance(message["content"], str):
        raise UsageError(f"{name} must hold a role and a content, both texts")
    if message["role"] not in ROLES:
        raise UsageError(f"{name}.role must be one of {', '.join(ROLES)}, not {message['role']!r}")


def _check_ranges(request: GenerateRequest) -> None:
    """The limits of the table of settings hold for requests as well."""
    asked = GenerationDefaults(request.max_tokens, request.sampling, request.stop)
    plan = RunPlan(generation=asked)
    for setting in SETTINGS.values():
        if _is_checked(setting):
            try:
                setting.kind.check(value_of(plan, setting))
            except ValueError as error:
                raise UsageError(f"generate.{setting.path.partition('.')[2]} {error}") from error


def _is_checked(setting: Setting) -> bool:
    return setting.name == "max_tokens" or setting.path.startswith("generation.sampling.")


def cancel_request(request: str) -> dict[str, Any]:
    """Stop an answer; what it has so far is kept."""
    return {"op": "cancel", "request": request}


def set_request(values: Mapping[str, Any]) -> dict[str, Any]:
    """Change settings of speculation (names as in `SpeculationPlan`) from the next window on."""
    return {"op": "set", "values": dict(values)}


def emulate_request(emulation: LinkEmulation) -> dict[str, Any]:
    """Delay every link like this from the next answer on."""
    return {"op": "emulate", "values": asdict(emulation)}


def emulation_of(values: Any) -> LinkEmulation:
    """The emulation of such a request. Raises UsageError naming the field."""
    emulation = from_plain(LinkEmulation, values, "emulate")
    plan = RunPlan(topology=replace(RunPlan().topology, emulation=emulation))
    for setting in SETTINGS.values():
        if setting.path.startswith("topology.emulation."):
            try:
                setting.kind.check(value_of(plan, setting))
            except ValueError as error:
                raise UsageError(f"emulate.{setting.path.rpartition('.')[2]} {error}") from error
    return emulation
