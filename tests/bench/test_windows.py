"""What a record keeps of an answer's windows, from its events."""

from __future__ import annotations

from engine.bench.windows import Window, WindowLog, unpacked
from engine.events import DraftReceived, Event, WindowDone, WindowSent


def sent(window: int, rows: int) -> WindowSent:
    return WindowSent(request="r", window=window, epoch=0, start=0, rows=rows, width=rows - 1)


def done(window: int, *compute_us: int, stale: bool = False, drafted: int = 0, draft_us: int = 0) -> Event:
    stages = tuple((stage, 7, us, 100) for stage, us in enumerate(compute_us))
    return WindowDone(
        request="r",
        window=window,
        epoch=0,
        stale=stale,
        accepted=0,
        width=0,
        elapsed_ms=1.0,
        stages=stages,
        drafted=drafted,
        draft_us=draft_us,
    )


def drafted(window: int, drafts: int, draft_us: int) -> Event:
    return DraftReceived(request="r", window=window, epoch=0, drafted=drafts, draft_us=draft_us)


def logged(*events: Event) -> WindowLog:
    log = WindowLog()
    for event in events:
        log.add(event)
    return log


FIRST = (1, 0, 0, 0, 0, 0, 0)


def test_the_end_of_the_prompt_is_kept_without_what_it_took() -> None:
    first = sent(5, 1), done(5, 90_000, 80_000, drafted=1, draft_us=900)
    log = logged(*first, sent(6, 2), done(6, 11_000, 15_000, drafted=2, draft_us=3_000))
    assert log.windows == [FIRST, (2, 1, 0, 0, 2, 0, 3_000, 11_000, 12_000)]
    opening, window = unpacked(log.windows)
    assert opening == Window(1, 0, False, False, 0, False, 0.0, ())
    assert window == Window(2, 1, False, False, 2, False, 3.0, (11.0, 12.0))
    assert log.compute_ms == 26.0


def test_a_window_tells_after_which_reply_it_was_sent() -> None:
    """Two follow each other; the first one's reply makes both that follow it, and the second, stale."""
    events = [sent(0, 1), done(0, 1, 1), sent(1, 3), sent(2, 2), done(1, 1, 1), sent(3, 1)]
    log = logged(*events, done(2, 1, stale=True), sent(4, 2), done(3, 1, 1), done(4, 1, 1))
    assert [(window.rows, window.after, window.stale) for window in unpacked(log.windows)] == [
        (1, 0, False),
        (3, 1, False),
        (2, 1, True),
        (1, 2, False),
        (2, 3, False),
    ]


def test_a_draft_behind_a_reply_belongs_to_its_window_and_not_to_what_that_was_computed_in() -> None:
    log = logged(
        *(sent(0, 1), done(0, 90_000, 80_000), drafted(0, 2, 6_000)),
        *(sent(1, 1), done(1, 11_000, 12_000), drafted(1, 1, 4_000)),
    )
    assert log.windows == [(1, 0, 0, 0, 2, 1, 6_000), (1, 1, 1, 0, 1, 1, 4_000, 11_000, 12_000)]
    assert unpacked(log.windows)[1] == Window(1, 1, True, False, 1, True, 4.0, (11.0, 12.0))
    assert log.compute_ms == 33.0  # both drafts took the time of the only window


def test_a_window_tells_whether_it_was_sent_after_the_reply_or_after_the_draft_behind_it() -> None:
    log = logged(
        *(sent(0, 1), done(0, 1, 1), sent(1, 1), drafted(0, 2, 1), sent(2, 1), sent(3, 1)),
        *(done(1, 1, 1), sent(4, 1), done(2, 1, 1), done(3, 1, 1), done(4, 1, 1)),
    )
    assert [(window.after, window.joins) for window in unpacked(log.windows)] == [
        (0, False),
        (1, False),
        (1, True),
        (1, True),
        (2, False),
    ]


def test_windows_without_a_reply_and_what_comes_of_unknown_windows_are_left_out() -> None:
    events = [sent(0, 1), done(0, 1, 1), drafted(8, 1, 1), sent(1, 2), sent(2, 3), done(2, 1, 1)]
    log = logged(*events, done(3, 1, 1), drafted(3, 1, 1))
    assert log.windows == [FIRST, (3, 1, 0, 0, 0, 0, 0, 1, 1)]


def test_without_windows_nothing_was_computed() -> None:
    assert (logged().windows, logged().compute_ms) == ([], 0.0)
    assert logged(sent(0, 1), done(0, 9, 9)).compute_ms == 0.0
