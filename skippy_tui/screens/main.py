"""The main screen: chat, tokens, panels, prompt. Redrawn a few times a second, never per event."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.events import Key, Paste
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer

from engine.config.ui import UiPlan
from engine.view import ViewState
from skippy_tui.commands import bindings, suggestions
from skippy_tui.compositor import SparingCompositor
from skippy_tui.controller import Controller
from skippy_tui.throttle import Throttle
from skippy_tui.widgets.chat import Chat
from skippy_tui.widgets.panels import Panels
from skippy_tui.widgets.pipeline import PipelinePanel
from skippy_tui.widgets.prompt import Prompt, Suggestions
from skippy_tui.widgets.speculation import SpeculationPanel
from skippy_tui.widgets.status import FoldedPanels, StatusLine
from skippy_tui.widgets.tokens import TokenFlow

if TYPE_CHECKING:
    from skippy_tui.app import SkippyApp

WIDE = 100  # columns from which the panels stand beside the chat
TALL = 32  # rows from which the newest tokens stand below it
TICK_SECONDS = 1 / 12
FIGURES_SECONDS = 0.4  # between two drawings of figures: what changes more often cannot be read
IDLE_EVERY = 8  # drawings: how often ages are redrawn while nothing happens


class MainScreen(Screen[None]):
    """Everything that is seen all the time."""

    app: SkippyApp
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(),
        Binding("question_mark", "app.command('help')", "Help", show=False),
        Binding("ctrl+c", "interrupt", "Copy, stop or leave", show=False, priority=True),
        Binding("ctrl+d", "leave_if_empty", "Leave", show=False, priority=True),
        Binding("pageup", "scroll_chat(-1)", "Scroll up", show=False, priority=True),
        Binding("pagedown", "scroll_chat(1)", "Scroll down", show=False, priority=True),
    ]

    def __init__(
        self,
        controller: Controller,
        age: Callable[[float], float],
        clock: Callable[[], float],
        ui: UiPlan,
    ) -> None:
        super().__init__()
        self._compositor = SparingCompositor()
        self.set_class(ui.tokens, "-tokens")
        self.set_class(not ui.panels, "-no-panels")
        # Kept, since looking for them would cost the length of the chat at every drawing.
        self.chat = Chat()
        self.prompt = Prompt()
        self._status = StatusLine()
        self._folded = FoldedPanels()
        self._speculation = SpeculationPanel()
        self._pipeline = PipelinePanel(age)
        self._flows = (
            TokenFlow(clock, whole=True, id="all-tokens"),
            TokenFlow(clock, whole=False, id="strip"),
        )
        self._controller = controller
        self._drawn: ViewState | None = None
        self._figures_drawn: ViewState | None = None
        self._figures_at = 0.0
        self._plan_drawn: object = None
        self._draw_number = 0
        self._throttle = Throttle()

    def compose(self) -> ComposeResult:
        yield self._status
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield self.chat
                yield from self._flows
            with Panels(id="panels") as self._panels:
                yield self._speculation
                yield self._pipeline
        yield self._folded
        yield Suggestions()
        yield self.prompt
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self._flows[1].can_focus = False
        self.prompt.focus()
        self.set_interval(TICK_SECONDS, self.tick)
        self.call_after_refresh(self.draw)

    # -- drawing ---------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Draw if it is time to."""
        if self._throttle.ready():
            self.draw()

    def draw(self) -> None:
        """Draw what changed since the last time. Nothing changed: nothing is done."""
        self._draw_number += 1
        self.prompt.show_editing(self._controller.editing)
        state = self._controller.feed.state
        if state is not self._drawn:
            self._drawn = state
            self._draw_answer(state)
        elif self._flashing():
            self._draw_tokens(state)
        if self._figures_are_due(state):
            self.draw_figures()

    def draw_figures(self) -> None:
        """Redraw status, panels and welcome."""
        state, plan = self._controller.feed.state, self._controller.plan
        self._figures_at = time.monotonic()
        self._figures_drawn, self._plan_drawn = state, (plan, self._controller.conversation.title)
        self._status.draw(state, plan, self._controller.strategy, self._title())
        self.chat.draw_welcome(state)
        if self._panels.display:
            self._speculation.draw(state)
            self._pipeline.draw(state)
        if self._folded.display:
            self._folded.draw(state)

    def _figures_are_due(self, state: ViewState) -> bool:
        if self._plan_drawn != (self._controller.plan, self._controller.conversation.title):
            return True
        request = state.request
        if state is not self._figures_drawn:
            # Starting, ending and loading are shown at once, figures of a running answer at a readable rate.
            steady = request is not None and request.finished is None and len(request.tokens) > 0
            return not steady or time.monotonic() - self._figures_at >= FIGURES_SECONDS
        troubled = any(stage.state.state in ("unreachable", "restarting") for stage in state.stages.values())
        return troubled and self._draw_number % IDLE_EVERY == 0

    def _title(self) -> str:
        conversation = self._controller.conversation
        return conversation.title if conversation.turns else ""

    def _draw_answer(self, state: ViewState) -> None:
        request = state.request
        if request is not None and request.id == self._controller.request_id:
            self.chat.draw(request)
        self._draw_tokens(state)

    def _draw_tokens(self, state: ViewState) -> None:
        for flow in self._flows:
            if flow.display:
                flow.draw(state.request)

    def _flashing(self) -> bool:
        return any(flow.display and flow.flashing for flow in self._flows)

    def on_resize(self) -> None:
        self._fit()

    def on_screen_resume(self) -> None:
        self._fit()  # the terminal may have changed while another screen was above

    def _fit(self) -> None:
        """Choose the layout for the size of the terminal, then draw for the new widths."""
        width, height = self.app.size
        self.set_class(width < WIDE, "-narrow")
        self.set_class(width >= WIDE, "-wide")
        self.set_class(height < TALL, "-short")
        self.call_after_refresh(self.draw_figures)
        self.call_after_refresh(self._draw_tokens, self._controller.feed.state)

    # -- what is shown ---------------------------------------------------------------------------------

    def toggle_tokens(self) -> None:
        """The answer as text, or as tokens."""
        self.toggle_class("-tokens")
        self.call_after_refresh(self._draw_tokens, self._controller.feed.state)

    def toggle_panels(self) -> None:
        """Hide or show the panels; where they do not fit beside the chat, they take its place."""
        self.toggle_class("-no-panels" if self.has_class("-wide") else "-only-panels")
        self.call_after_refresh(self.draw_figures)

    # -- keys ------------------------------------------------------------------------------------------

    def action_scroll_chat(self, pages: int) -> None:
        target: Widget = self._flows[0] if self.has_class("-tokens") else self.chat
        if self._panels.has_focus or not self.query_one("#left").display:
            target = self._panels
        target.scroll_relative(y=pages * max(target.size.height - 2, 1), animate=False)

    async def action_interrupt(self) -> None:
        """Ctrl+C: copy what is selected, else stop the answer, else leave when pressed twice."""
        selected = self.get_selected_text() or self.prompt.selected_text
        if selected:
            self.app.copy_to_clipboard(selected)
            self.app.say("copied")
        elif not await self._controller.stop():
            self.app.leave_when_pressed_twice()

    async def action_leave_if_empty(self) -> None:
        if self.prompt.text:
            self.prompt.action_delete_right()
        else:
            self.app.exit()

    def on_key(self, event: Key) -> None:
        """What is typed anywhere belongs into the prompt, unless it is a key of what has the focus."""
        # Of keys that come together, those after the first one have still been sent to the old focus.
        if event.character is None or not event.is_printable:
            return
        if self.focused is self.prompt or event.key not in self.active_bindings:
            event.stop()
            self.set_focus(self.prompt)
            self.prompt.insert(event.character)

    def on_paste(self, event: Paste) -> None:
        """A paste belongs there as well."""
        if self.focused is not self.prompt:
            event.stop()
            self.set_focus(self.prompt)
            self.prompt.insert(event.text)

    def on_prompt_edited(self, event: Prompt.Edited) -> None:
        self.query_one(Suggestions).offer(event.text, suggestions(self.app, event.text))

    async def on_prompt_submitted(self, event: Prompt.Submitted) -> None:
        self.app.submit(event.text)
