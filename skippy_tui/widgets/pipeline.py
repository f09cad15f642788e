"""The pipeline panel: one row for each stage, and what the stages did during the last moments."""

from __future__ import annotations

from collections.abc import Callable

from textual.content import Content

from engine.client.sanitize import one_line
from engine.view import Stage, ViewState, quantile
from skippy_tui import figures
from skippy_tui.paint import milliseconds, seconds, shortened, timeline_row
from skippy_tui.widgets.panel import Panel
from skippy_tui.widgets.welcome import STAGE_SIGNS

LAYERS_WIDTH = 7
FIGURES_WIDTH = 25  # p50, p95, wait, hop, kv


class PipelinePanel(Panel):
    """Redrawn from the state by the main screen.

    `age` tells how long ago a moment of the engine's clock was.
    """

    HELP = """
### Pipeline
One row for each stage: its layers, where it runs, and in milliseconds **p50** and **p95** of its
compute time for a window, the time windows **wait** in its queue, and the time of one **hop** to it;
**kv** is how full its cache is.

The timeline shows when each stage was computing. Neighbouring windows differ in shade; `▒` is stale
work, a window that a rejected draft made useless; `░` is where windows in flight should be by now; the
empty track is idle time.
"""

    def __init__(self, age: Callable[[float], float]) -> None:
        super().__init__(id="pipeline", title="pipeline", classes="panel")
        self._age = age

    def draw(self, state: ViewState) -> None:
        """Show the stages and the newest windows."""
        width = max(self.content_size.width, 40)
        stages = sorted(state.stages.items())
        if not stages:
            self.show([Content.styled("No stage has been started yet.", "$foreground-muted")])
            return
        context = state.model.context if state.model is not None else 0
        measured_hop = figures.hop_ms(state.request) if state.request is not None else 0.0
        is_gone = state.engine is not None and state.engine.state in ("failed", "stopped")
        lines = [_head(width)]
        for index, stage in stages:
            lines.append(_stage_row(index, stage, context, measured_hop, width, is_gone))
            if stage.state.state in ("unreachable", "restarting"):
                lines.append(self._trouble(stage, width))
        lines.extend(_timeline(state, width))
        self.show(lines)

    def _trouble(self, stage: Stage, width: int) -> Content:
        since = seconds(max(self._age(stage.state.at), 0.0))
        reason = one_line(stage.state.reason)
        text = f"  {stage.state.state} for {since}" + (f": {reason}" if reason else "")
        return Content.styled(text if len(text) <= width else text[: width - 1] + "…", "$text-error")


def _place_width(width: int) -> int:
    return max(width - 2 - LAYERS_WIDTH - FIGURES_WIDTH - 2, 6)


def _head(width: int) -> Content:
    names = f"  {'layers':<{LAYERS_WIDTH}}{'where':<{_place_width(width)}}"
    figures_names = "".join(f"{name:>5}" for name in ("p50", "p95", "wait", "hop", "kv"))
    return Content.styled(names + figures_names, "$foreground-muted")


def _stage_row(
    index: int, stage: Stage, context: int, measured_hop: float, width: int, is_gone: bool
) -> Content:
    state = stage.state
    room = _place_width(width)
    first, end = state.layers
    restarts = f" ↻{state.restarts}" if state.restarts else ""
    where = shortened(one_line(state.where), room - 1 - len(restarts)) + restarts
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
    shown_state = "unreachable" if is_gone else state.state  # nobody is left to tell
    sign, style = STAGE_SIGNS.get(shown_state, ("○", "$foreground-muted"))
    return Content.assemble(
        (f"{index} ", "bold"),
        f"{first}–{end - 1}".ljust(LAYERS_WIDTH),
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
        idle = [
            Content.assemble((f"{i} ", "bold"), timeline_row((), 0, 1, columns)) for i in sorted(state.stages)
        ]
        return [Content(""), Content.styled("no window yet", "$foreground-muted"), *idle, _legend(0)]
    span_ms = figures.timeline_span_ms(request)
    cell = span_ms / 1000 / columns
    # The right edge moves in whole cells, so that what stands does not shimmer.
    end = (int(figures.newest_moment(request) / cell) + 1) * cell
    start = end - span_ms / 1000
    spans = figures.timeline(request, start, end)
    flying = len(request.in_flight)
    title = f"the last {span_ms} ms" if span_ms < 1000 else f"the last {span_ms // 1000} s"
    right = f"{flying} in flight"
    lines = [
        Content(""),
        Content.assemble(
            (title, "$foreground-muted"),
            " " * max(width - len(title) - len(right), 1),
            (right, "$foreground-muted"),
        ),
    ]
    for index in sorted(state.stages):
        of_stage = [span for span in spans if span.stage == index]
        lines.append(Content.assemble((f"{index} ", "bold"), timeline_row(of_stage, start, end, columns)))
    lines.append(_legend(request.stale_windows))
    return lines


def _legend(stale: int) -> Content:
    return Content.assemble(
        "  ",
        ("█", "$window-even"),
        ("█", "$window-odd"),
        (" useful  ", "$foreground-muted"),
        ("▒", "$error"),
        (f" stale {stale}  ", "$foreground-muted"),
        ("░", "$foreground-muted on $track"),
        (" in flight  ", "$foreground-muted"),
        (" ", "on $track"),
        (" idle", "$foreground-muted"),
    )
