"""The pipeline panel: one row for each stage, and what the stages did during the last moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.content import Content

from engine.cli.report import node_step
from engine.client.sanitize import one_line
from engine.events import NodeState
from engine.view import Stage, ViewState, quantile
from skippy_tui import figures
from skippy_tui.paint import DRAFTING, milliseconds, seconds, shortened, timeline_row
from skippy_tui.widgets.panel import Panel
from skippy_tui.widgets.welcome import STAGE_SIGNS, UNKNOWN_SIGN, node_row

LAYERS_WIDTH = 7
FIGURES_WIDTH = 25  # p50, p95, wait, hop, kv
DRAFT_WIDTH = 6  # of one more figure, where there is room
WIDE = 64  # columns from which there is
GAP = 3  # at least, between what stands at both ends of a line


class PipelinePanel(Panel):
    """Redrawn from the state by the main screen.

    `age` tells how long ago a moment of the engine's clock was.
    """

    HELP = """
### Pipeline
One row for each stage: its layers (`15:30` are those from 15 to 29), where it runs, and in
milliseconds **p50** and **p95** of its compute time for a window, the time windows **wait** in its
queue, and the time of one **hop** to it; **draft** is the median time of one draft of the model's own
head (MTP), which runs on the last stage and is no part of p50 and p95; where there is no room for a
column, it stands above the timeline.
**kv** is how full its cache is. Below a stage stands what its node is doing while it is not ready, below
all of them the nodes that serve no layers, and why.

The timeline shows when each stage was computing. Neighbouring windows differ in shade; `▚` is drafting,
for a window's reply or behind it, while the next token is on its way; `▒` is stale work, a window that
a rejected draft made useless; `░` is where windows in flight should be by now; the empty track is idle
time.
"""

    def __init__(self, age: Callable[[float], float]) -> None:
        super().__init__(id="pipeline", title="pipeline", classes="panel")
        self._age = age

    def draw(self, state: ViewState) -> None:
        """Show the stages and the newest windows."""
        width = max(self.content_size.width, 40)
        stages = sorted(state.stages.items())
        waiting = [_clipped(node_row(node), width) for node in state.nodes_without_stage]
        if not stages:
            self.show(waiting or [Content.styled("No stage has been started yet.", "$foreground-muted")])
            return
        context = state.model.context if state.model is not None else 0
        measured_hop = figures.hop_ms(state.request) if state.request is not None else 0.0
        is_gone = state.engine is not None and state.engine.state in ("failed", "stopped")
        lines = [_head(width)]
        for index, stage in stages:
            node = state.node_of(stage.state.layers)
            lines.append(_stage_row(index, stage, node, context, measured_hop, width, is_gone))
            if stage.state.state in ("unreachable", "restarting"):
                lines.append(self._trouble(stage, width))
            if node is not None and node.state != "ready":
                step = Content.styled(f"  {one_line(node_step(node))}", "$text-warning")
                lines.append(_clipped(step, width))
        lines.extend([*waiting, *_timeline(state, width)])
        self.show(lines)

    def _trouble(self, stage: Stage, width: int) -> Content:
        since = seconds(max(self._age(stage.state.since or stage.state.at), 0.0))
        reason = one_line(stage.state.reason)
        text = f"  {stage.state.state} for {since}" + (f": {reason}" if reason else "")
        return _clipped(Content.styled(text, "$text-error"), width)


def _clipped(line: Content, width: int) -> Content:
    return line.truncate(width, ellipsis=True)


def _place_width(width: int) -> int:
    return max(width - 2 - LAYERS_WIDTH - FIGURES_WIDTH - 2 - (DRAFT_WIDTH if width >= WIDE else 0), 6)


def _head(width: int) -> Content:
    names = f"  {'layers':<{LAYERS_WIDTH}}{'where':<{_place_width(width)}}"
    figures_names = "".join(f"{name:>5}" for name in ("p50", "p95", "wait", "hop", "kv"))
    if width >= WIDE:
        figures_names = f"{'draft':>{DRAFT_WIDTH}}" + figures_names
    return Content.styled(names + figures_names, "$foreground-muted")


def _stage_row(
    index: int,
    stage: Stage,
    node: NodeState | None,
    context: int,
    measured_hop: float,
    width: int,
    is_gone: bool,
) -> Content:
    state = stage.state
    room = _place_width(width)
    first, end = state.layers
    restarts = f" ↻{state.restarts}" if state.restarts else ""
    place = one_line(state.where if node is None else node.name)
    where = shortened(place, room - 1 - len(restarts)) + restarts
    waits = quantile(sorted(timing.queue_us for timing in stage.timings[-200:]), 0.5) / 1000
    known = len(stage.timings) > 0
    one_way = state.rtt_ms / 2 or measured_hop
    hop = f"{milliseconds(one_way):>5}" if index and one_way else f"{'–':>5}"
    fill = f"{stage.kv_tokens / context:5.0%}" if context else f"{'–':>5}"
    measured = (
        f"{milliseconds(stage.compute_ms(0.5)):>5}{milliseconds(stage.compute_ms(0.95)):>5}{milliseconds(waits):>5}"
        if known
        else f"{'–':>5}{'–':>5}{'–':>5}"
    )
    if width >= WIDE:
        drafting = milliseconds(stage.draft_ms()) if stage.drafting_us else "–"
        measured = f"{drafting:>{DRAFT_WIDTH}}" + measured
    shown_state = "unreachable" if is_gone else state.state  # nobody is left to tell
    sign, style = STAGE_SIGNS.get(shown_state, UNKNOWN_SIGN)
    return Content.assemble(
        (f"{index} ", "bold"),
        f"{first}:{end}".ljust(LAYERS_WIDTH),
        where.ljust(room),
        measured,
        hop,
        fill,
        (f" {sign}", style),
    )


def _timeline(state: ViewState, width: int) -> list[Content]:
    request = state.request
    columns = max(width - 2, 8)
    if request is None:
        rows = [_window_row(index, (), 0, 1, columns) for index in sorted(state.stages)]
        return _with_legend("no window yet", rows, _legend(0, 0), 0.0, width)
    span_ms = figures.timeline_span_ms(request)
    cell = span_ms / 1000 / columns
    # The right edge moves in whole cells, so that what stands does not shimmer.
    end = (int(figures.newest_moment(request) / cell) + 1) * cell
    start = end - span_ms / 1000
    spans = figures.timeline(request, start, end)
    title = f"the last {span_ms} ms" if span_ms < 1000 else f"the last {span_ms // 1000} s"
    rows = [
        _window_row(index, [span for span in spans if span.stage == index], start, end, columns)
        for index in sorted(state.stages)
    ]
    draft_ms = max(stage.draft_ms() for stage in state.stages.values())
    legend = _legend(request.stale_windows, len(request.in_flight))
    return _with_legend(title, rows, legend, draft_ms, width)


def _window_row(index: int, spans: Sequence[figures.Span], start: float, end: float, columns: int) -> Content:
    return Content.assemble((f"{index} ", "bold"), timeline_row(spans, start, end, columns))


def _with_legend(
    title: str, rows: Sequence[Content], legend: Content, draft_ms: float, width: int
) -> list[Content]:
    """The legend stands beside the title where there is room, else below the rows, and only what it says of
    drafting beside the title."""
    head = Content.styled(title, "$foreground-muted")
    whole = Content.assemble(_drafting("drafts  "), legend) if draft_ms else legend
    if width - head.cell_length - whole.cell_length >= GAP:
        return [_apart(head, whole, width), *rows]
    if draft_ms:
        head = _apart(head, _drafting(f"{milliseconds(draft_ms)} ms a draft"), width)
    return [Content(""), head, *rows, Content.assemble("  ", legend)]


def _apart(left: Content, right: Content, width: int) -> Content:
    return Content.assemble(left, " " * max(width - left.cell_length - right.cell_length, GAP), right)


def _drafting(text: str) -> Content:
    return Content.assemble((DRAFTING, "$accent"), (f" {text}", "$foreground-muted"))


def _legend(stale: int, flying: int) -> Content:
    return Content.assemble(
        ("█", "$window-even"),
        ("█", "$window-odd"),
        (" useful  ", "$foreground-muted"),
        ("▒", "$error"),
        (f" {stale} stale  ", "$foreground-muted"),
        ("░", "$foreground-muted on $track"),
        (f" {flying} in flight  ", "$foreground-muted"),
        (" ", "on $track"),
        (" idle", "$foreground-muted"),
    )
