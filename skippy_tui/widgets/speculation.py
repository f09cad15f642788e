"""The speculation panel: what was drafted, what was right, what it wins, and why the policy chose it."""

from __future__ import annotations

from textual.content import Content

from engine.client.sanitize import one_line
from engine.view import Request, ViewState
from skippy_tui import figures
from skippy_tui.paint import ORIGIN_NAMES, bar, ordinal, percent, sparkline
from skippy_tui.widgets.panel import Panel

LABEL = 10  # columns of the words on the left
POSITIONS_SHOWN = 16


class SpeculationPanel(Panel):
    """Redrawn from the state by the main screen."""

    HELP = """
### Speculation
**accepted** counts, over the whole answer, the drafts of each source that were confirmed among all that
were sent, those that an earlier wrong draft made useless included; drafts under way are not confirmed
yet. **over time** is that share in consecutive groups of the newest windows,
**position** the share at the 1st, 2nd, … draft of a window, **width** the drafts per window. **plain**
is an *estimate* of what plain decoding would reach, from what one row cost on the stages during this
very answer. **policy** says what was chosen for the newest window, and why.
"""

    def __init__(self) -> None:
        super().__init__(id="speculation", title="speculation", classes="panel")

    def draw(self, state: ViewState) -> None:
        """Show the figures of the newest answer."""
        width = max(self.content_size.width, 40)
        notes = state.model.notes if state.model is not None else ()
        lines = _idle() if state.request is None else _lines(state.request, width)
        lines.extend(Content.styled(one_line(note), "$text-warning") for note in notes)
        self.show(lines)


def _idle() -> list[Content]:
    """The same lines without figures: the panel must not jump when the first answer comes."""
    labels = (
        "accepted",
        "",
        "over time",
        "position",
        "",
        "width",
        "a window",
        "",
        "speed",
        "plain",
        "",
        "policy",
        "",
    )
    return [_row(label, ("–" if label else "", "$foreground-muted")) for label in labels]


def _row(label: str, *parts: str | tuple[str, str] | Content) -> Content:
    return Content.assemble((label.ljust(LABEL), "$foreground-muted"), *parts)


def _lines(request: Request, width: int) -> list[Content]:
    lines = _sources(request, width)
    lines += [_over_time(request, width), _positions(request), Content("")]
    lines.append(_widths(request, width))
    lines.append(
        _row(
            "a window",
            f"{figures.mean_committed(request):4.1f} tokens",
            f"   drafted in {percent(figures.propose_rate(request))}",
        )
    )
    return [*lines, Content(""), *_speed(request), Content(""), *_policy(request, width)]


def _sources(request: Request, width: int) -> list[Content]:
    used = ("draft", "ngram") if "draft" in request.by_source else ("mtp", "ngram")
    lines = []
    for number, source in enumerate(used):
        count = request.by_source.get(source)
        label = "accepted" if number == 0 else ""
        name = ORIGIN_NAMES[source].ljust(7)
        if count is None or not count.proposed:
            lines.append(_row(label, (name, "$foreground-muted"), ("   –", "$foreground-muted")))
            continue
        figure = f" {count.accepted:>4}/{count.proposed:<4}"
        room = max(width - LABEL - len(name) - 5 - len(figure), 6)
        style = f"$origin-{source}"
        share = bar(count.rate, room, style)
        lines.append(_row(label, (name, style), percent(count.rate), " ", share, figure))
    return lines


def _over_time(request: Request, width: int) -> Content:
    columns = max(width - LABEL - 5, 8)
    rates = figures.acceptance_over_time(request, columns)
    total = request.total
    overall = percent(total.rate) if total.proposed else "   –"
    return _row("over time", (sparkline(rates, columns, top=1.0), "$success"), " ", overall)


def _positions(request: Request) -> Content:
    counts = request.by_position[:POSITIONS_SHOWN]
    if not counts:
        return _row("position", ("–", "$foreground-muted"))
    rates = [count.rate if count.proposed else None for count in counts]
    ends = f"  1st {percent(counts[0].rate)}"
    if len(counts) > 1:
        ends += f"  {ordinal(len(counts))} {percent(counts[-1].rate)}" if len(counts) > 3 else ""
    return _row("position", (sparkline(rates, len(rates), top=1.0), "$primary"), (ends, "$foreground-muted"))


def _widths(request: Request, width: int) -> Content:
    widths = request.widths[-figures.RECENT :]
    now = widths[-1] if widths else 0
    mean = sum(widths) / len(widths) if widths else 0.0
    text = f"now {now:>2}  mean {mean:4.1f}  "
    columns = max(width - LABEL - len(text), 8)
    return _row("width", text, (sparkline(widths, columns), "$accent"))


def _speed(request: Request) -> list[Content]:
    now = request.tokens_per_second if request.finished is not None else figures.speed_now(request)
    plain = figures.plain_estimate(request)
    mean = "" if request.finished is not None else f"   mean {request.tokens_per_second:5.1f}"
    lines = [_row("speed", (f"{now:5.1f} tok/s", "bold"), (mean, "$foreground-muted"))]
    if not plain:
        return [*lines, _row("plain", ("not known yet", "$foreground-muted"))]
    ratio = request.tokens_per_second / plain
    gain = f"   ×{ratio:.1f}" if request.tokens_per_second else ""
    style = "$text-success" if ratio >= 1.0 else "$text-warning"
    return [
        *lines,
        _row("plain", f"{plain:5.1f} tok/s ", ("estimate", "italic $foreground-muted"), (gain, style)),
    ]


def _policy(request: Request, width: int) -> list[Content]:
    """Two lines, whatever is to be said: the panel must not jump."""
    sent = max(request.in_flight.values(), key=lambda window: window.window, default=None)
    if sent is None and request.windows:
        sent = request.windows[-1].sent
    if sent is None:
        return [_row("policy", ("–", "$foreground-muted")), Content("")]
    choice = f"{sent.width} draft{'' if sent.width == 1 else 's'}, {sent.in_flight} in flight"
    reason = one_line(request.reason) or "–"
    room = max(width - LABEL, 10)
    return [
        _row("policy", choice),
        _row("", (reason if len(reason) <= room else reason[: room - 1] + "…", "$foreground-muted")),
    ]
