"""Chat templates: the Jinja program in a model's metadata that turns messages into a prompt.

A template comes from whoever made the file. It runs in Jinja's sandbox, which refuses the attributes and
calls that lead out of it. The sizes of the template, of what it writes and of what it repeats are bounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import SkippyError
from engine.model.file import ModelFile

MAX_TEMPLATE_CHARACTERS = 1 << 18
MAX_PROMPT_CHARACTERS = 1 << 24
MAX_REPEATED_ITEMS = 1 << 16
MAX_ERROR_CHARACTERS = 300
_HINT = "use --raw to send the text without a template"


class TemplateError(SkippyError):
    """The model's chat template cannot be used."""

    code = "chat-template"


class ChatTemplate:
    """A compiled template. Raises TemplateError for a source that is no template."""

    def __init__(self, source: str, *, bos: str, eos: str) -> None:
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise TemplateError(f"the chat template has {len(source)} characters", hint=_HINT)
        self._tokens = {"bos_token": bos, "eos_token": eos}
        with _explained():
            self._template = _environment().from_string(source)

    def render(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """The prompt for `messages` (dicts with `role` and `content`).

        Raises TemplateError with the template's own words if it does not accept them (roles that do not
        alternate, say), and for anything the sandbox refuses.
        """
        values = {"messages": messages, "tools": None, "documents": None, **self._tokens}
        parts, length = [], 0
        with _explained():
            for part in self._template.generate(values, add_generation_prompt=add_generation_prompt):
                parts.append(part)
                length += len(part)
                if length > MAX_PROMPT_CHARACTERS:
                    raise SecurityError(f"it writes more than {MAX_PROMPT_CHARACTERS} characters")
        return "".join(parts)


def template_of(model: ModelFile) -> ChatTemplate | None:
    """The chat template of a model, or None if it has none."""
    source = model.metadata.get("tokenizer.chat_template")
    if not isinstance(source, str) or not source.strip():
        return None
    return ChatTemplate(source, bos=_token_text(model, "bos"), eos=_token_text(model, "eos"))


def _token_text(model: ModelFile, name: str) -> str:
    tokens = model.metadata.get("tokenizer.ggml.tokens", ())
    index = model.metadata.get(f"tokenizer.ggml.{name}_token_id", -1)
    return str(tokens[index]) if isinstance(index, int) and 0 <= index < len(tokens) else ""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with repetition kept small and powers, which no template needs, refused."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise SecurityError("powers are not allowed")
        sequence, times = (right, left) if isinstance(left, int) else (left, right)
        if isinstance(sequence, str | list | tuple) and len(sequence) * times > MAX_REPEATED_ITEMS:
            raise SecurityError(f"repetition makes more than {MAX_REPEATED_ITEMS} items")
        return super().call_binop(context, operator, left, right)


class _GenerationTag(Extension):
    """`{% generation %}` marks what the model said, for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> _Sandbox:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models have seen it in training: the standard library's spacing, and no HTML escapes."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


@contextmanager
def _explained() -> Iterator[None]:
    """Whatever a template raises, in one line."""
    try:
        yield
    except Exception as error:
        raise TemplateError(f"chat template: {str(error)[:MAX_ERROR_CHARACTERS]}", hint=_HINT) from error
