"""What the chat shows while it is empty: what is loading, and what can be done."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.widgets import Static

from engine.client.sanitize import one_line
from engine.view import ViewState
from skippy_tui.paint import bar

BAR_WIDTH = 44
KEY_WIDTH = 10
HINTS = (
    ("Enter", "asks, Ctrl+J begins a new line"),
    ("/", "lists commands, Tab completes them"),
    ("Ctrl+S", "changes the strategy, at once"),
    ("Ctrl+T", "shows where every token came from"),
    ("F1", "helps, Ctrl+P finds every action"),
    ("Ctrl+Q", "leaves"),
)
STAGE_SIGNS = {
    "ready": ("●", "$success"),
    "busy": ("●", "$accent"),
    "starting": ("○", "$warning"),
    "restarting": ("○", "$warning"),
    "unreachable": ("✕", "$error"),
}


class Welcome(Container):
    """Redrawn from the state by the main screen."""

    def __init__(self) -> None:
        super().__init__(id="welcome")
        self._text = Static()

    def compose(self) -> ComposeResult:
        yield self._text

    def draw(self, state: ViewState) -> None:
        """Show how far the engine has come."""
        self._text.update(Content("\n").join(_lines(state)))


def _lines(state: ViewState) -> list[Content]:
    engine, model = state.engine, state.model
    lines = [
        Content.styled("skippy", "bold $primary"),
        Content.styled("one model over several machines, every token in sight", "$foreground-muted"),
        Content(""),
    ]
    if engine is not None and engine.state == "failed":
        lines += [Content.assemble(("✕ ", "$text-error"), one_line(engine.detail)), Content("")]
        lines.append(Content.styled("The next prompt tries again; F12 shows the log.", "$foreground-muted"))
        return lines
    if engine is not None and engine.state == "ready" and model is not None:
        lines += [Content.assemble((one_line(model.name), "bold"), " is ready"), Content("")]
    else:
        lines += _progress(state)
    return [*lines, *_stages(state), Content(""), *_hints()]


def _progress(state: ViewState) -> list[Content]:
    """Always two lines, so that nothing jumps while things load."""
    engine = state.engine
    doing = one_line(engine.detail or engine.state) if engine is not None else "starting"
    if engine is None or engine.fraction < 0:
        return [Content(f"{doing} …"), bar(0.0, BAR_WIDTH, "$primary")]
    return [Content(f"{doing} {engine.fraction:4.0%}"), bar(engine.fraction, BAR_WIDTH, "$primary")]


def _stages(state: ViewState) -> list[Content]:
    lines = []
    for index, stage in sorted(state.stages.items()):
        sign, style = STAGE_SIGNS.get(stage.state.state, ("○", "$foreground-muted"))
        first, end = stage.state.layers
        layers = f"layers {first}–{end - 1}".ljust(14)
        where = one_line(stage.state.where)
        lines.append(Content.assemble((sign, style), f" stage {index}  {layers}{where}"))
    return lines


def _hints() -> list[Content]:
    return [
        Content.assemble((key.ljust(KEY_WIDTH), "bold $accent"), (does, "$foreground-muted"))
        for key, does in HINTS
    ]
