"""The speculation panel: what was drafted, what was right, what it wins, and why the policy chose it."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from engine.client.sanitize import one_line
from engine.events import WindowSent
from engine.view import Rejection, Request, ViewState
from skippy_tui import figures
from skippy_tui.paint import ORIGIN_NAMES, bar, drafted_by, ordinal, percent, quoted, sparkline
from skippy_tui.widgets.panel import Panel

LABEL = 10  # columns of the words on the left
POSITIONS_SHOWN = 16
ENDS_WIDTH = 20  # of the figures of the first and the last position
REJECTIONS_SHOWN = 3
TWO_COLUMNS = 72  # columns from which two figures share a line
GAP = 2  # between them
# What the policy's words for its choice mean; others are shown as they are.
REASONS = {
    "measuring": "to learn what a token costs",
    "plain": "the next token, without drafts",
    "one window": "one window at a time is fastest",
    "windows in turn": "one window after the other is fastest",
    "pipelined": "windows follow without awaiting replies",
    "drafts behind": "drafted meanwhile, sent behind the token",
    "probe": "a trial, to learn what it costs",
    "cooldown": "a pause after a wrong draft",
}


class SpeculationPanel(Panel):
    """Redrawn from the state by the main screen."""

    HELP = """
### Speculation
**accepted** counts, over the whole answer, the drafts of each source that were confirmed among all that
were sent, those that an earlier wrong draft made useless included; drafts under way are not confirmed
yet. **over time** is that share in consecutive groups of the newest windows,
**position** the share at the 1st, 2nd, … draft of a window, **width** the drafts per window.

Drafts of the model's own head (MTP) come in a reply, or behind it: then the next token leaves at once, in a
window of **0 drafts**, and the drafts follow in windows that hold nothing else, mostly one each, so that
all of them are the 1st of theirs.

**plain** is an *estimate* of what plain decoding would reach, from what one row cost on the stages during
this very answer. **policy** says what was chosen for the newest window, and why. **rejected** are the
newest wrong drafts, with what the model said instead; **Ctrl+O** steps through all of them.
"""

    def __init__(self) -> None:
        super().__init__(id="speculation", title="speculation", classes="panel")

    def draw(self, state: ViewState) -> None:
        """Show the figures of the newest answer."""
        width = max(self.content_size.width, 40)
        notes = state.model.notes if state.model is not None else ()
        lines = _idle(width) if state.request is None else _lines(state.request, width)
        lines.extend(Content.styled(one_line(note), "$text-warning") for note in notes)
        self.show(lines)


def _idle(width: int) -> list[Content]:
    """The same lines without figures: the panel must not jump when the first answer comes."""
    pairs = [("accepted", ""), ("over time", "position"), ("width", "a window"), ("speed", "plain")]
    below = ["policy", "", "rejected", *[""] * (REJECTIONS_SHOWN - 1)]
    return _arranged(
        [(_empty(left), _empty(right)) for left, right in pairs], [_empty(label) for label in below], width
    )


def _empty(label: str) -> Content:
    return _row(label, ("–" if label else "", "$foreground-muted"))


def _lines(request: Request, width: int) -> list[Content]:
    room = _room(width)
    pairs = [
        _sources(request, room),
        (_over_time(request, room), _positions(request, room)),
        (_widths(request, room), _per_window(request)),
        _speed(request),
    ]
    return _arranged(pairs, [*_policy(request, width), *_rejections(request, width)], width)


def _room(width: int) -> int:
    """Columns of one figure."""
    return (width - GAP) // 2 if width >= TWO_COLUMNS else width


def _arranged(
    pairs: Sequence[tuple[Content, Content]], below: Sequence[Content], width: int
) -> list[Content]:
    """Pairs side by side where there is room, else one below the other in groups."""
    if width >= TWO_COLUMNS:
        room, gap = _room(width), " " * GAP
        beside = [left.truncate(room, pad=True) + gap + right.truncate(room) for left, right in pairs]
        return [*beside, *below]
    accepted, over_time, widths, speed = pairs
    policy, rejected = below[:-REJECTIONS_SHOWN], below[-REJECTIONS_SHOWN:]
    groups = ([*accepted, *over_time], widths, speed, policy, rejected)
    return [line for group in groups for line in (Content(""), *group)][1:]


def _row(label: str, *parts: str | tuple[str, str] | Content) -> Content:
    return Content.assemble((label.ljust(LABEL), "$foreground-muted"), *parts)


def _sources(request: Request, width: int) -> tuple[Content, Content]:
    first, second = ("draft", "ngram") if "draft" in request.by_source else ("mtp", "ngram")
    return _source(request, first, "accepted", width), _source(request, second, "", width)


def _source(request: Request, source: str, label: str, width: int) -> Content:
    count = request.by_source.get(source)
    name = ORIGIN_NAMES[source].ljust(7)
    if count is None or not count.proposed:
        return _row(label, (name, "$foreground-muted"), ("   –", "$foreground-muted"))
    figure = f" {count.accepted:>4}/{count.proposed:<4}"
    room = max(width - LABEL - len(name) - 5 - len(figure), 4)
    style = f"$origin-{source}"
    return _row(label, (name, style), percent(count.rate), " ", bar(count.rate, room, style), figure)


def _over_time(request: Request, width: int) -> Content:
    columns = max(width - LABEL - 5, 8)
    rates = figures.acceptance_over_time(request, columns)
    total = request.total
    overall = percent(total.rate) if total.proposed else "   –"
    return _row("over time", (sparkline(rates, columns, top=1.0), "$success"), " ", overall)


def _positions(request: Request, width: int) -> Content:
    counts = request.by_position[: min(POSITIONS_SHOWN, width - LABEL - ENDS_WIDTH)]
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


def _per_window(request: Request) -> Content:
    tokens = f"{figures.mean_committed(request):4.1f} tokens"
    return _row("a window", tokens, f"  drafted {percent(figures.propose_rate(request))}")


def _speed(request: Request) -> tuple[Content, Content]:
    """What is reached, and what plain decoding would reach."""
    now = request.tokens_per_second if request.finished is not None else figures.speed_now(request)
    plain = figures.plain_estimate(request)
    mean = "" if request.finished is not None else f"   mean {request.tokens_per_second:5.1f}"
    speed = (
        _row("speed", (f"{now:5.1f} tok/s", "bold"), (mean, "$foreground-muted")) if now else _empty("speed")
    )
    if not plain:
        return speed, _row("plain", ("not known yet", "$foreground-muted"))
    ratio = request.tokens_per_second / plain
    gain = f"  ×{ratio:.1f}" if request.tokens_per_second else ""
    style = "$text-success" if ratio >= 1.0 else "$text-warning"
    estimate = ("estimate", "italic $foreground-muted")
    return speed, _row("plain", f"{plain:5.1f} tok/s ", estimate, (gain, style))


def _policy(request: Request, width: int) -> list[Content]:
    """Two lines, whatever is to be said: the panel must not jump."""
    sent = max(request.in_flight.values(), key=lambda window: window.window, default=None)
    if sent is None and request.windows:
        sent = request.windows[-1].sent
    if sent is None:
        return [_row("policy", ("–", "$foreground-muted")), Content("")]
    choice = f"{sent.width} draft{'' if sent.width == 1 else 's'}, {sent.in_flight} in flight"
    reason = _row("", (one_line(_why(sent, request.reason)) or "–", "$foreground-muted"))
    return [_row("policy", choice), reason.truncate(width, ellipsis=True)]


def _why(sent: WindowSent, reason: str) -> str:
    if sent.draft_later and not sent.width:
        return "the next token at once; drafts may follow"
    return REASONS.get(reason, reason)


def _rejections(request: Request, width: int) -> list[Content]:
    """The newest ones, in as many lines as there may be, so that nothing jumps."""
    newest = [rejection_line(item) for item in reversed(request.rejections[-REJECTIONS_SHOWN:])]
    lines = newest or [Content.styled("–", "$foreground-muted")]
    lines += [Content("")] * (REJECTIONS_SHOWN - len(lines))
    return [
        _row("rejected" if number == 0 else "", line.truncate(width - LABEL, ellipsis=True))
        for number, line in enumerate(lines)
    ]


def rejection_line(rejection: Rejection) -> Content:
    """`‘ total’ → ‘ amount’  n-gram 3/7`."""
    return Content.assemble(
        (quoted(rejection.drafted), "$error strike"),
        " → ",
        quoted(rejection.actual),
        (f"  {drafted_by(rejection)}", "$foreground-muted"),
    )
