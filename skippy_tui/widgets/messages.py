"""Messages of a chat: prompts, answers that may still grow, and lines about what went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widget import MountError, Widget
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownStream

from engine.client.sanitize import one_line
from skippy_tui.answer import Part, Pieces
from skippy_tui.paint import ORIGIN_NAMES, seconds
from skippy_tui.widgets.markdown import model_markdown, shown


class Message(Vertical, can_focus=True):
    """A message that can be focused, and then copied or asked again."""

    HELP = """
### A message
Tab and Shift+Tab, or the arrow keys, go from one message to the next.
`c` copies it, `b` copies its last code block. On a prompt `e` edits the last one and asks again; on an answer
`r` asks for another one.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "copy_message", "Copy"),
        Binding("b", "copy_code", "Copy code"),
        Binding("up,k", "app.focus_previous", "Previous", show=False),
        Binding("down,j", "app.focus_next", "Next", show=False),
    ]

    @property
    def text(self) -> str:
        """The text as it was written."""
        raise NotImplementedError

    def action_copy_message(self) -> None:
        self.app.run_command("copy", self.text)  # type: ignore[attr-defined]

    def action_copy_code(self) -> None:
        self.app.run_command("code", self.text)  # type: ignore[attr-defined]


class PromptMessage(Message):
    """What a person asked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "app.command('edit')", "Edit and resend"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    @property
    def text(self) -> str:
        return self._text

    def compose(self) -> ComposeResult:
        yield Static(Content(shown(self._text)), classes="prompt-text")


class AnswerMessage(Message):
    """What the model answered. Grows by `append`; `finish` adds its figures."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "app.command('retry')", "Regenerate"),
    ]

    def __init__(self, text: str = "", result: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._texts = [text]
        self._result = result
        self._pieces = Pieces()
        self._waiting: list[str] = []
        self._more = asyncio.Event()
        self._drawing: asyncio.Task[None] | None = None
        self._stream: MarkdownStream | None = None
        self._awaited = Static("waiting for the engine …", classes="figures")
        self._markdowns: list[Markdown] = []  # pieces that grew here, in order
        self._shelf = Static(classes="shelf")  # as high as the pieces that it stands for
        self._shelved = 0  # of the pieces

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def compose(self) -> ComposeResult:
        text = self.text
        if text:
            yield from _whole_pieces(text)
        if self._result is not None:
            yield _figures_line(self._result)
        elif not text:
            yield self._awaited

    # -- what is far above -----------------------------------------------------------------------------

    def shelve(self, keep: int) -> None:
        """Take all pieces but the last `keep` out of the layout, whose cost grows with what it holds."""
        last = max(len(self._markdowns) - keep, 0)
        if last <= self._shelved:
            return
        if not self._shelf.is_attached:
            self.mount(self._shelf, before=0)
        fresh = self._markdowns[self._shelved : last]
        height = sum(piece.outer_size.height for piece in fresh)
        before = self._shelf.styles.height
        self._shelf.styles.height = height + (int(before.value) if before is not None else 0)
        for piece in fresh:
            piece.display = False
        self._shelved = last

    def unshelve(self) -> None:
        """Put every piece back in its place."""
        if self._shelved:
            for piece in self._markdowns[: self._shelved]:
                piece.display = True
            self._shelved = 0
            self._shelf.styles.height = 0

    @property
    def is_drawn(self) -> bool:
        """Whether everything that was appended can be seen."""
        drawn = sum(len(markdown.source) for markdown in self.query(Markdown))
        return not self._waiting and drawn >= len(shown(self.text))

    def tell(self, text: str) -> None:
        """Say what the answer waits for; gone with its first text."""
        self._awaited.update(Content(text))

    def append(self, text: str) -> None:
        """Add text; it is drawn soon, together with what follows closely."""
        if not text:
            return
        self._awaited.display = False
        self._texts.append(text)
        self._waiting.append(shown(text))
        self._more.set()
        if self._drawing is None:
            self._drawing = asyncio.create_task(self._draw())

    async def finish(self, result: Mapping[str, Any]) -> None:
        """Draw what is left, then the figures of the answer."""
        if self._drawing is not None:
            self._drawing.cancel()
            await asyncio.wait({self._drawing})
            self._drawing = None
        await self._draw_waiting()
        if self._stream is not None:
            await self._stream.stop()
            self._stream = None
        if self.is_attached and answer_figures(result):
            await self.mount(_figures_line(result))

    async def on_unmount(self) -> None:
        if self._drawing is not None:
            self._drawing.cancel()
        if self._stream is not None:
            with suppress(MountError, asyncio.CancelledError):  # what is left to draw has no place any more
                await self._stream.stop()
            self._stream = None

    async def _draw(self) -> None:
        while True:
            await self._more.wait()
            # Shielded: a cancelled drawing would lose the text it holds.
            await asyncio.shield(asyncio.ensure_future(self._draw_waiting()))

    async def _draw_waiting(self) -> None:
        self._more.clear()
        text = "".join(self._waiting)
        self._waiting.clear()
        if not self.is_attached:
            return  # the app is leaving
        for part in self._pieces.feed(text) if text else ():
            if part.begins or self._stream is None:
                await self._begin_piece(part)
            assert self._stream is not None
            await self._stream.write(part.text)

    async def _begin_piece(self, part: Part) -> None:
        if self._stream is not None:
            await self._stream.stop()
            self._stream.markdown_widget.set_class(part.amid_fence, "cut")
        markdown = model_markdown()
        await self.mount(markdown)
        self._markdowns.append(markdown)
        self._stream = Markdown.get_stream(markdown)


def _whole_pieces(text: str) -> list[Markdown]:
    """Every piece of a text that grows no more."""
    texts: list[str] = [""]
    cut: list[bool] = []
    for part in Pieces().feed(shown(text)):
        if part.begins:
            texts.append(part.text)
            cut.append(part.amid_fence)
        else:
            texts[-1] += part.text
    pieces = [model_markdown(piece) for piece in texts]
    for piece, is_cut in zip(pieces, cut, strict=False):
        piece.set_class(is_cut, "cut")
    return pieces


def _figures_line(result: Mapping[str, Any]) -> Widget:
    return Static(Content(answer_figures(result)), classes="figures")


def answer_figures(result: Mapping[str, Any]) -> str:
    """One line about an answer: how long, how fast, and what was drafted right."""
    parts = []
    timings = result.get("timings") or {}
    if timings:
        parts.append(f"{timings.get('predicted_n', 0)} tokens")
        if timings.get("predicted_per_second"):
            parts.append(f"{timings['predicted_per_second']:.1f} tok/s")
        if timings.get("ttft_ms") is not None:
            parts.append(f"first after {seconds(timings['ttft_ms'] / 1000)}")
        if timings.get("prompt_reused_n"):
            parts.append(f"{timings['prompt_reused_n']} of {timings['prompt_n']} prompt tokens reused")
    sources = (result.get("speculative") or {}).get("by_source") or {}
    for source, count in sources.items():
        if count.get("proposed"):
            parts.append(f"{ORIGIN_NAMES.get(source, source)} {count['accepted'] / count['proposed']:.0%}")
    reason = result.get("finish_reason", "")
    endings = {
        "cancelled": "stopped",
        "length": "cut at max tokens",
        "context": "context full",
        "error": "failed",
    }
    if reason in endings:
        parts.append(endings[reason])
    return " · ".join(parts)


class FailureMessage(Static):
    """Why there is no answer, and the next step: one line."""

    def __init__(self, text: str) -> None:
        super().__init__(Content.assemble(("✕ ", "$text-error"), one_line(text)))


class RemarkMessage(Static):
    """Something the app says in the chat itself: the output of a command."""

    def __init__(self, text: str | Content) -> None:
        super().__init__(text if isinstance(text, Content) else Content(text))
