"""The status line at the top, and the one line that the panels fold into where they do not fit."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from engine.client.sanitize import one_line
from engine.config.plan import RunPlan
from engine.view import Request, ViewState
from skippy_tui import figures
from skippy_tui.conversation import ending_of
from skippy_tui.paint import DRAFTING, ORIGIN_NAMES, milliseconds, seconds, shortened
from skippy_tui.widgets.panel import Panel
from skippy_tui.widgets.welcome import STAGE_SIGNS, UNKNOWN_SIGN

GAP = "   "
WIDE = 100  # columns from which there is room for the time to the first token


class StatusLine(Panel):
    """Model, strategy, stages, context, seed; speed on the right."""

    def __init__(self) -> None:
        super().__init__(id="status")

    def draw(self, state: ViewState, plan: RunPlan, strategy: str, title: str) -> None:
        """Show as much as fits: what matters most goes last."""
        width = max(self.content_size.width, 20)
        right = _speed(state, width)
        room = width - right.cell_length - len(GAP)
        left = _fitting(_parts(state, plan, strategy, title), room)
        gap = " " * max(width - left.cell_length - right.cell_length, 1)
        self.show([Content.assemble(left, gap, right)])


def _parts(state: ViewState, plan: RunPlan, strategy: str, title: str) -> list[tuple[int, Content]]:
    """(rank, text) from left to right; where there is little room, the highest ranks go first."""
    model, request, engine = state.model, state.request, state.engine
    parts: list[tuple[int, Content]] = [(3, Content.styled("skippy", "bold $primary"))]
    name = one_line(model.name) if model is not None else plan.model
    parts.append((1, Content.styled(shortened(name, 28), "bold")))
    if engine is not None and engine.state != "ready":
        style = "$text-error" if engine.state in ("failed", "stopped") else "$text-warning"
        detail = engine.state if engine.fraction < 0 else f"{engine.state} {engine.fraction:.0%}"
        return [*parts, (0, Content.styled(detail, style))]
    parts.append((0, Content.styled(strategy, "$accent")))
    parts.append((4, Content(f"{len(state.stages)} stage{'' if len(state.stages) == 1 else 's'}")))
    emulated = plan.topology.emulation
    if emulated.rtt_ms:
        parts.append((3, Content.styled(f"rtt +{emulated.rtt_ms:g} ms", "$text-warning")))
    used = request.started.prompt_tokens + len(request.tokens) if request is not None else 0
    if model is not None:
        style = "$text-warning" if used > 0.9 * model.context else ""
        parts.append((3, Content.styled(f"ctx {used}/{model.context}", style)))
        sampling = plan.generation.sampling
        if sampling.temperature > 0:
            parts.append((5, Content(f"T {sampling.temperature:g} seed {sampling.seed}")))
        else:
            parts.append((6, Content("greedy")))
        parts.append((7, Content.styled("exact" if model.exact else "not exact", "$foreground-muted")))
    if state.totals.events_dropped:
        parts.append((0, Content.styled(f"{state.totals.events_dropped} events dropped", "$text-warning")))
    if title:
        parts.append((8, Content.styled(shortened(title, 30), "$foreground-muted italic")))
    return parts


def _fitting(parts: Sequence[tuple[int, Content]], room: int) -> Content:
    kept = list(parts)
    while len(kept) > 1:
        line = Content(GAP).join([text for _, text in kept])
        if line.cell_length <= room:
            return line
        kept.remove(max(kept, key=lambda part: part[0]))
    return kept[0][1] if kept else Content("")


def _speed(state: ViewState, width: int) -> Content:
    request = state.request
    if request is None:
        return Content("")
    if request.finished is None and not request.tokens:
        if request.prefill_total and request.prefill_done < request.prefill_total:
            return Content.styled(
                f"prompt {request.prefill_done}/{request.prefill_total}", "$foreground-muted"
            )
        return Content.styled("thinking …", "$foreground-muted")
    rate = _rate(request)
    if not rate:  # of an answer that ended with its first token, or before it
        return Content.styled(
            ending_of(request.finished.result) if request.finished else "", "$foreground-muted"
        )
    known = request.ttft_ms is not None and width >= WIDE
    first = f"first {seconds((request.ttft_ms or 0.0) / 1000)}   " if known else ""
    return Content.assemble((first, "$foreground-muted"), (f"{rate:5.1f} tok/s", "bold"))


def _rate(request: Request) -> float:
    return request.tokens_per_second if request.finished is not None else figures.speed_now(request)


class FoldedPanels(Panel):
    """Both panels on one line."""

    def __init__(self) -> None:
        super().__init__(id="folded")

    def draw(self, state: ViewState) -> None:
        """Show what fits."""
        width = max(self.content_size.width, 20)
        parts = [*_speculation(state.request), *_stages(state), *_drafting(state)]
        line = Content("")
        for part in parts:
            longer = Content(GAP).join([line, part]) if line.plain else part
            if longer.cell_length > width:
                break
            line = longer
        self.show([line])


def _speculation(request: Request | None) -> list[Content]:
    if request is None:
        return []
    parts: list[Content] = []
    plain = figures.plain_estimate(request)
    if plain and request.tokens_per_second:
        parts.append(
            Content.styled(f"×{request.tokens_per_second / plain:.1f} plain (estimate)", "$foreground-muted")
        )
    for source, total in request.by_source.items():
        if total.proposed:
            text = f"{ORIGIN_NAMES.get(source, source)} {total.rate * 100:3.0f}%"
            parts.append(Content.styled(text, f"$origin-{source}" if source in ORIGIN_NAMES else ""))
    if request.widths:
        depth = len(request.in_flight) if request.finished is None else 0
        parts.append(Content(f"w {request.widths[-1]}×{max(depth, 1)}"))
    return parts


def _stages(state: ViewState) -> list[Content]:
    if not state.stages:
        return []
    parts: list[str | tuple[str, str]] = [("stages ", "$foreground-muted")]
    for number, (_, stage) in enumerate(sorted(state.stages.items())):
        sign, style = STAGE_SIGNS.get(stage.state.state, UNKNOWN_SIGN)
        parts += [" " if number else "", (sign, style)]
        if len(stage.timings):
            parts.append(milliseconds(stage.compute_ms(0.5)))
    return [
        Content.assemble(
            *parts, (" ms", "$foreground-muted") if any(len(s.timings) for s in state.stages.values()) else ""
        )
    ]


def _drafting(state: ViewState) -> list[Content]:
    """What the model's own head takes for a draft."""
    draft_ms = max((stage.draft_ms() for stage in state.stages.values()), default=0.0)
    return [Content.assemble((DRAFTING, "$accent"), f" {milliseconds(draft_ms)} ms")] if draft_ms else []
