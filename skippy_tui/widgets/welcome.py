"""What the chat shows while it is empty: what is loading, and what can be done."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.widgets import Static

from engine.cli.report import node_step
from engine.client.sanitize import one_line
from engine.events import NodeState
from engine.view import ViewState
from skippy_tui.paint import bar

BAR_WIDTH = 44
KEY_WIDTH = 10
HINTS = (
    ("Enter", "asks, Ctrl+J begins a new line"),
    ("/", "lists commands, Tab completes them"),
    ("Ctrl+S", "changes the strategy, at once"),
    ("Ctrl+T", "shows where every token came from"),
    ("Ctrl+O", "shows which drafts were rejected, and why"),
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
UNKNOWN_SIGN = ("○", "$foreground-muted")


class Welcome(Container):
    """Redrawn from the state by the main screen."""

    def __init__(self) -> None:
        super().__init__(id="welcome")
        self._text = Static()

    def compose(self) -> ComposeResult:
        yield self._text

    def draw(self, state: ViewState) -> None:
        """Show how far the engine has come."""
        lines = _lines(state)
        if not _has_failed(state):
            room = max(self.size.height - len(lines) - 1, 0)  # hints give way to news
            lines += [Content(""), *_hints()[:room]]
        self._text.update(Content("\n").join(lines))


def _has_failed(state: ViewState) -> bool:
    return state.engine is not None and state.engine.state == "failed"


def _lines(state: ViewState) -> list[Content]:
    engine, model = state.engine, state.model
    lines = [
        Content.styled("skippy", "bold $primary"),
        Content.styled("one model over several machines, every token in sight", "$foreground-muted"),
        Content(""),
    ]
    if engine is not None and _has_failed(state):
        lines += [Content.assemble(("✕ ", "$text-error"), one_line(engine.detail)), Content("")]
        lines.append(Content.styled("The next prompt tries again; F12 shows the log.", "$foreground-muted"))
        return lines
    if engine is not None and engine.state == "ready" and model is not None:
        lines += [Content.assemble((one_line(model.name), "bold"), " is ready"), Content("")]
    else:
        lines += _progress(state)
    return [*lines, *_stages(state)]


def _progress(state: ViewState) -> list[Content]:
    """Always two lines, so that nothing jumps while things load."""
    engine = state.engine
    doing = one_line(engine.detail or engine.state) if engine is not None else "starting"
    if engine is None or engine.fraction < 0:
        return [Content(f"{doing} …"), bar(0.0, BAR_WIDTH, "$primary")]
    return [Content(f"{doing} {engine.fraction:4.0%}"), bar(engine.fraction, BAR_WIDTH, "$primary")]


def _stages(state: ViewState) -> list[Content]:
    """Stages, with what is being done on their nodes; then nodes that have no stage."""
    lines = []
    for index, stage in sorted(state.stages.items()):
        first, end = stage.state.layers
        node = state.node_of(stage.state.layers)
        where = one_line(stage.state.where if node is None else node.name)
        text = f" stage {index}  {f'layers {first}:{end}'.ljust(14)}{where}"
        step = f"  {one_line(node_step(node))}" if node is not None else ""
        sign = STAGE_SIGNS.get(stage.state.state, UNKNOWN_SIGN)
        lines.append(Content.assemble(sign, text, (step, "$foreground-muted")))
    return [*lines, *map(node_row, state.nodes_without_stage)]


def node_row(node: NodeState) -> Content:
    """A node that has no stage: asked, measured, or left out and why."""
    sign = ("✕", "$error") if node.state == "left-out" else ("○", "$warning")
    step = (f"  {one_line(node_step(node))}", "$foreground-muted")
    return Content.assemble(sign, f" {one_line(node.name)}", step)


def _hints() -> list[Content]:
    return [
        Content.assemble((key.ljust(KEY_WIDTH), "bold $accent"), (does, "$foreground-muted"))
        for key, does in HINTS
    ]
