"""A chat: its turns, and how it is written out."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

UNTITLED = "New chat"
TITLE_LENGTH = 60

_ENDINGS = {
    "cancelled": "stopped",
    "length": "cut at max tokens",
    "context": "context full",
    "error": "failed",
}


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. Of an answer, `result` is the engine's JSON result without its text and token ids."""

    role: str  # user | assistant
    content: str
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat as it is kept. `created` and `updated` are seconds since 1970."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    title: str = UNTITLED
    system: str = ""
    model: str = ""
    created: float = 0.0
    updated: float = 0.0
    turns: tuple[Turn, ...] = ()

    def with_turn(self, turn: Turn) -> Conversation:
        """With one more message; the first prompt gives the title."""
        title = self.title
        if title == UNTITLED and turn.role == "user":
            title = title_of(turn.content)
        return replace(self, title=title, turns=(*self.turns, turn))

    def without_last(self, role: str) -> Conversation:
        """Up to, and without, the last message of a role."""
        positions = [i for i, turn in enumerate(self.turns) if turn.role == role]
        return replace(self, turns=self.turns[: positions[-1]]) if positions else self

    def last(self, role: str) -> Turn | None:
        """The last message of a role."""
        return next((turn for turn in reversed(self.turns) if turn.role == role), None)

    def messages(self) -> list[dict[str, str]]:
        """What the model is given. An answer that ended before its first token is left out."""
        return [{"role": turn.role, "content": turn.content} for turn in self.turns if turn.content]


def title_of(prompt: str) -> str:
    """The beginning of a prompt, on one line."""
    line = " ".join(prompt.split())
    return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1].rstrip() + "…"


def ending_of(result: Mapping[str, Any]) -> str:
    """How an answer ended, in words; empty if it came to its end."""
    return _ENDINGS.get(result.get("finish_reason", ""), "")


def to_markdown(conversation: Conversation) -> str:
    """The chat as a Markdown document."""
    names = {"user": "You", "assistant": "Skippy"}
    parts = [f"# {conversation.title}"]
    if conversation.system:
        parts.append(f"*System: {conversation.system}*")
    for turn in conversation.turns:
        parts.append(f"## {names[turn.role]}\n\n{turn.content.strip()}")
        figures = _figures_of(turn.result)
        if figures:
            parts.append(f"*{figures}*")
    return "\n\n".join(parts) + "\n"


def _figures_of(result: Mapping[str, Any]) -> str:
    """One line: what an answer cost, and how it ended unless by itself."""
    parts = []
    timings = result.get("timings")
    if timings:
        speed = timings.get("predicted_per_second") or 0.0
        parts += [result.get("strategy", ""), f"{timings['predicted_n']} tokens", f"{speed:.1f} tok/s"]
    parts.append(ending_of(result))
    return ", ".join(filter(None, parts))


def to_json(conversation: Conversation) -> str:
    """The chat as JSON: everything that is kept of it."""
    return orjson.dumps(conversation, option=orjson.OPT_INDENT_2).decode() + "\n"


def code_blocks(markdown: str) -> Sequence[str]:
    """The texts of the fenced code blocks; one that is still open counts."""
    pattern = re.compile(r"^(`{3,}|~{3,})[^\n]*\n(.*?)(?:^\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
    return [match[2] for match in pattern.finditer(markdown)]
