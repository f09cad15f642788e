"""The same prompt plain and with speculation, side by side: how fast, and do the token ids agree?"""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from engine.client.sanitize import one_line
from engine.errors import SkippyError
from engine.view import Request
from skippy_tui import figures
from skippy_tui.controller import Controller
from skippy_tui.throttle import Throttle
from skippy_tui.widgets.follow import FollowScroll
from skippy_tui.widgets.messages import AnswerMessage

TICK_SECONDS = 1 / 12


class Side(Vertical):
    """One of the two answers."""

    def __init__(self, title: str) -> None:
        super().__init__(classes="side")
        self.border_title = title
        self.request_id = ""
        self.request: Request | None = None
        self._drawn = 0

    def compose(self) -> ComposeResult:
        answer = AnswerMessage()
        answer.can_focus = False
        with FollowScroll():
            yield answer
        yield Static("waits for its turn", classes="side-figures")

    def draw(self, request: Request) -> None:
        """Show the answer as far as it is."""
        self.request = request
        fresh = request.tokens[self._drawn :]
        self._drawn += len(fresh)
        self.query_one(AnswerMessage).append("".join(token.text for token in fresh))
        rate = request.tokens_per_second if request.finished is not None else figures.speed_now(request)
        total = request.total
        drafts = f"   drafts right {total.rate:4.0%}" if total.proposed else ""
        self.query_one(".side-figures", Static).update(
            Content.assemble((f"{rate:5.1f} tok/s", "bold"), f"   {len(request.tokens)} tokens{drafts}")
        )


class CompareScreen(ModalScreen[None]):
    """Runs both answers, one after the other, as the engine has one set of caches."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f4,q", "close", "Close"),
        Binding("up", "scroll_both(-1)", "Up", show=False),
        Binding("down", "scroll_both(1)", "Down", show=False),
    ]

    def __init__(self, controller: Controller, prompt: str) -> None:
        super().__init__()
        self._controller = controller
        self._prompt = prompt
        self._current: Side | None = None
        self._throttle = Throttle()

    def compose(self) -> ComposeResult:
        strategy = self._controller.strategy
        with Vertical(classes="dialog wide", id="compare") as dialog:
            dialog.border_title = "compare"
            dialog.border_subtitle = "Esc closes"
            yield Static(
                Content.assemble(("prompt  ", "$foreground-muted"), one_line(self._prompt)),
                id="compare-prompt",
            )
            with Horizontal():
                yield Side("plain")
                yield Side("auto" if strategy == "disabled" else strategy)
            yield Static(
                Content.styled("both answers use the same settings but the strategy", "$foreground-muted"),
                id="verdict",
            )

    def on_mount(self) -> None:
        self.set_interval(TICK_SECONDS, self._tick)
        self.run_worker(self._run(), exclusive=True)

    async def action_close(self) -> None:
        if self._current is not None and self._current.request_id:
            await self._controller.feed.cancel(self._current.request_id)
        self.dismiss()

    def action_scroll_both(self, step: int) -> None:
        for scroll in self.query(FollowScroll):
            scroll.scroll_relative(y=step, animate=False)

    def _tick(self) -> None:
        request = self._controller.feed.state.request
        if self._current is None or request is None or request.id != self._current.request_id:
            return
        if self._throttle.ready():
            self._current.draw(request)

    async def _run(self) -> None:
        plain, speculative = self.query(Side)
        strategy = str(speculative.border_title)
        try:
            first = await self._answer(plain, "disabled")
            second = await self._answer(speculative, strategy)
        except SkippyError as error:
            self._say(Content.assemble(("✕ ", "$text-error"), one_line(str(error))))
            return
        self._say(verdict(first, second))

    async def _answer(self, side: Side, strategy: str) -> Request:
        self._current = side

        def started(request: str) -> None:
            side.request_id = request

        answered = await self._controller.answer_once(self._prompt, strategy, f"compare-{strategy}", started)
        side.draw(answered)
        self._current = None
        return answered

    def _say(self, text: Content) -> None:
        self.query_one("#verdict", Static).update(text)


def verdict(plain: Request, speculative: Request) -> Content:
    """Whether the token ids agree, and what speculation won."""
    first = [token.id for token in plain.tokens]
    second = [token.id for token in speculative.tokens]
    shorter = min(len(first), len(second))
    differs = next((i for i in range(shorter) if first[i] != second[i]), shorter)
    slow, fast = plain.tokens_per_second, speculative.tokens_per_second
    gain = f"   ×{fast / slow:.2f} as fast ({slow:.1f} → {fast:.1f} tok/s)" if slow else ""
    if first == second:
        return Content.assemble(("✓ ", "$text-success"), f"all {len(first)} token ids agree", (gain, "bold"))
    if differs == shorter:
        return Content.assemble(
            ("≈ ", "$text-warning"),
            f"the first {shorter} token ids agree, then one answer ends",
            (gain, "bold"),
        )
    left, right = plain.tokens[differs].text, speculative.tokens[differs].text
    return Content.assemble(
        ("≠ ", "$text-error"),
        f"token ids differ from token {differs + 1} on: ‘{one_line(left)}’ and ‘{one_line(right)}’",
        (gain, "bold"),
    )
