"""The one table of settings. Flags, TOML keys, validation and the JSON Schema are all made from it.

A setting named `window_min` is the flag `--window-min` and the key `window_min` in the table
`[defaults.speculative]` or `[models.NAME.speculative]`; its default is what `RunPlan()` holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import Any, Protocol

from engine.config.kinds import Address, Choice, Items, Kind, Number, Switch, Text, TokenBias, Whole, closest
from engine.config.plan import STRATEGIES, WINDOW_POLICIES, RunPlan
from engine.protocol.messages import WireType

# Tables of the file below [defaults] and [models.NAME], with what each is about.
TABLES = {
    "": "model",
    "topology": "where the layers run",
    "compute": "how local stages compute",
    "speculative": "speculation",
    "generation": "the answer",
}

_SECTION_OF_TABLE = {
    "topology": "topology",
    "compute": "compute",
    "speculative": "speculation",
    "generation": "generation",
}


@dataclass(frozen=True)
class Setting:
    """One thing that can be set. `path` leads to its field of `RunPlan`."""

    name: str
    table: str
    path: str
    kind: Kind
    help: str
    flag: str

    @property
    def default(self) -> Any:
        """The value of a plan in which nothing was set."""
        value = value_of(RunPlan(), self)
        return value.value if isinstance(value, Enum) else value

    @property
    def key(self) -> str:
        """How the setting is written below `[defaults]`."""
        return f"{self.table}.{self.name}" if self.table else self.name


def value_of(plan: RunPlan, setting: Setting) -> Any:
    """What a plan holds for a setting."""
    return reduce(getattr, setting.path.split("."), plan)


class Described(Protocol):
    """Something that can be set."""

    @property
    def kind(self) -> Kind:
        """What it may hold."""

    @property
    def help(self) -> str:
        """What it means."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean ...?` for a word that is not known, or which words are."""
    words = list(known)
    close = closest(word, words)
    return f"did you mean {close}?" if close else f"known: {', '.join(words)}"


def nearest_setting(word: str, known: Mapping[str, Described]) -> str:
    """`nearest` among settings; the one that may have been meant is told with what it takes."""
    close = closest(word, known)
    takes = f" It takes {known[close].kind.allowed}" if close else ""
    return nearest(word, known) + takes


def _setting(table: str, name: str, kind: Kind, text: str, *, path: str = "", flag: str = "") -> Setting:
    full_path = f"{_SECTION_OF_TABLE[table]}.{path or name}" if table else name
    return Setting(name, table, full_path, kind, text, flag or "--" + name.replace("_", "-"))


_MODEL = (
    _setting(
        "",
        "model",
        Text("NAME|FILE|DIR", is_file=True),
        "model to run: demo, a [models.NAME], a GGUF file, or the folder of a package",
    ),
)

_TOPOLOGY = (
    _setting("topology", "stages", Whole(1, 64), "local stages, cut so that their measured cost is balanced"),
    _setting(
        "topology",
        "split",
        Items(Whole(1), ascending=True),
        "first layers of stages 1.. instead of balanced cuts",
    ),
    _setting(
        "topology",
        "remote",
        Items(Address(), repeated=True),
        "a running stage, instead of local ones; give one for each stage after the first, in order. "
        "Further URLs after a comma are its standbys",
        flag="--stage",
    ),
    _setting("topology", "fingerprint", Text("HEX"), "run no other model than the one of this fingerprint"),
    _setting(
        "topology",
        "use_nodes",
        Switch(),
        "instead of local stages: ask, time and probe the machines of [[nodes]], and have them serve layers",
    ),
    _setting(
        "topology",
        "tls_ca",
        Text("FILE", is_file=True),
        "certificates to trust for stages at wss://, instead of the system's",
    ),
    _setting(
        "topology",
        "wire",
        Choice(tuple(WireType)),
        "how activations travel; only f32 gives exactly the model's answer",
    ),
    _setting(
        "topology",
        "emulate_rtt_ms",
        Number(0, 60_000, "MS"),
        "delay every link by this round trip",
        path="emulation.rtt_ms",
    ),
    _setting(
        "topology",
        "emulate_jitter_ms",
        Number(0, 60_000, "MS"),
        "and by up to this much more, at random",
        path="emulation.jitter_ms",
    ),
    _setting(
        "topology",
        "emulate_mbps",
        Number(0, 1_000_000, "MBPS"),
        "limit every link to this many megabits a second (0: no limit)",
        path="emulation.mbps",
    ),
    _setting(
        "topology",
        "emulate_seed",
        Whole(0, 2**63 - 1),
        "seed of the jitter",
        path="emulation.seed",
    ),
)

_COMPUTE = (
    _setting(
        "compute", "threads", Whole(0, 1024), "threads of each local stage (0: share the cores among them)"
    ),
    _setting("compute", "exact", Switch(), "one thread for single rows, so that speculation changes no bit"),
    _setting("compute", "gpu_layers", Whole(-1, 10_000), "layers on the GPU (-1: all)"),
    _setting("compute", "gpu_device", Whole(-1, 255), "the only GPU to use, counted from 0 (-1: all)"),
    _setting("compute", "context", Whole(16, 2**20), "tokens of context", flag="--ctx"),
    _setting("compute", "sequences", Whole(1, 64), "conversations held in the caches at the same time"),
    _setting("compute", "prefill_rows", Whole(1, 4096), "prompt tokens of one prefill chunk"),
    _setting(
        "compute",
        "slice_cache_gib",
        Number(0, 1_000_000, "GIB"),
        "most that slices may take on the disk, also those that nodes were sent; the ones not used for "
        "longest are removed first, none that is in use (0: no bound)",
    ),
)

_SPECULATION = (
    _setting("speculative", "strategy", Choice(STRATEGIES), "where drafts come from"),
    _setting("speculative", "window_policy", Choice(WINDOW_POLICIES), "how the width of a window is chosen"),
    _setting("speculative", "window_min", Whole(1, 256), "fewest draft tokens of a window"),
    _setting("speculative", "window_max", Whole(1, 256), "most draft tokens of a window"),
    _setting("speculative", "pipeline_depth", Whole(1, 64), "most windows in flight"),
    _setting(
        "speculative", "draft_max", Whole(1, 64), "most tokens of one draft of the model's own head (MTP)"
    ),
    _setting("speculative", "draft_min", Whole(0, 64), "shorter drafts are not used"),
    _setting(
        "speculative", "reject_cooldown_tokens", Whole(0, 100_000), "plain tokens after a rejected MTP draft"
    ),
    _setting(
        "speculative",
        "suppress_cooldown_draft_limit",
        Whole(0, 100_000),
        "drafts that a cooldown drops before it lets them through again",
    ),
    _setting("speculative", "ngram_min", Whole(1, 64), "shortest match of an n-gram proposal"),
    _setting("speculative", "ngram_max", Whole(1, 64), "longest match of an n-gram proposal"),
    _setting("speculative", "ngram_max_proposal", Whole(1, 1024), "most tokens of an n-gram proposal"),
    _setting(
        "speculative",
        "ngram_static_file",
        Text("FILE", is_file=True),
        "n-gram counts to read (ngram-cache)",
    ),
    _setting(
        "speculative",
        "ngram_dynamic_file",
        Text("FILE", is_file=True),
        "n-gram counts to read and to save (ngram-cache)",
    ),
    _setting("speculative", "extension_initial", Whole(1, 1024), "n-gram tokens after an MTP draft at first"),
    _setting("speculative", "extension_max", Whole(1, 1024), "n-gram tokens after an MTP draft at most"),
    _setting(
        "speculative",
        "tail_backoff_proposals",
        Whole(0, 100_000),
        "proposals without n-gram tokens after such a token was rejected",
    ),
    _setting(
        "speculative",
        "draft_model",
        Text("NAME|FILE", is_file=True),
        "small model of the same vocabulary for the strategy draft: demo, a [models.NAME], or a GGUF file",
    ),
)

_GENERATION = (
    _setting("generation", "max_tokens", Whole(1, 2**20), "most tokens of the answer"),
    _setting("generation", "temperature", Number(0, 100), "0 is greedy", path="sampling.temperature"),
    _setting("generation", "top_k", Whole(0, 2**20), "0 is off", path="sampling.top_k"),
    _setting("generation", "top_p", Number(0, 1), "1 is off", path="sampling.top_p"),
    _setting("generation", "min_p", Number(0, 1), "0 is off", path="sampling.min_p"),
    _setting("generation", "repeat_penalty", Number(0.01, 100), "1 is off", path="sampling.repeat_penalty"),
    _setting(
        "generation",
        "repeat_last_n",
        Whole(-1, 2**20),
        "tokens that the penalties look back at (-1: all)",
        path="sampling.repeat_last_n",
    ),
    _setting(
        "generation",
        "presence_penalty",
        Number(-100, 100),
        "0 is off",
        path="sampling.presence_penalty",
    ),
    _setting(
        "generation",
        "frequency_penalty",
        Number(-100, 100),
        "0 is off",
        path="sampling.frequency_penalty",
    ),
    _setting(
        "generation",
        "logit_bias",
        Items(TokenBias(), repeated=True),
        "add BIAS to the logit of a token",
        path="sampling.logit_bias",
    ),
    _setting(
        "generation", "seed", Whole(0, 2**63 - 1), "the same seed gives the same text", path="sampling.seed"
    ),
    _setting(
        "generation",
        "grammar",
        Text("GBNF"),
        "grammar that the answer has to follow",
        path="sampling.grammar",
    ),
    _setting("generation", "stop", Items(Text(), repeated=True), "text that ends the answer and is left out"),
    _setting("generation", "system", Text(), "system message"),
    _setting("generation", "raw", Switch(), "the prompt as it is, without the model's chat template"),
)

SETTINGS: dict[str, Setting] = {
    setting.name: setting for setting in (*_MODEL, *_TOPOLOGY, *_COMPUTE, *_SPECULATION, *_GENERATION)
}


def settings_of(table: str) -> list[Setting]:
    """The settings of one table, in order."""
    return [setting for setting in SETTINGS.values() if setting.table == table]
