"""What a record keeps of an answer's windows, from its events."""

from __future__ import annotations

from engine.bench.windows import Window, WindowLog, unpacked
from engine.events import Event, WindowDone, WindowSent


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


def test_windows_are_kept_without_the_end_of_the_prompt() -> None:
    log = WindowLog()
    events = [sent(5, 1), done(5, 90_000, 80_000, drafted=1, draft_us=900), sent(6, 2)]
    for event in [*events, done(6, 11_000, 15_000, drafted=2, draft_us=3_000)]:
        log.add(event)
    assert log.windows == [(2, 0, 0, 2, 3_000, 11_000, 12_000)]
    assert unpacked(log.windows) == [Window(2, 0, False, 2, 3.0, (11.0, 12.0))]
    assert log.compute_ms == 26.0


def test_a_window_tells_after_which_reply_it_was_sent() -> None:
    """Two follow each other; the first one's reply makes both that follow it, and the second, stale."""
    log = WindowLog()
    events = [sent(0, 1), done(0, 1, 1), sent(1, 3), sent(2, 2), done(1, 1, 1), sent(3, 1)]
    for event in [*events, done(2, 1, stale=True), sent(4, 2), done(3, 1, 1), done(4, 1, 1)]:
        log.add(event)
    assert [(window.rows, window.after, window.stale) for window in unpacked(log.windows)] == [
        (3, 0, False),
        (2, 0, True),
        (1, 1, False),
        (2, 2, False),
    ]


def test_windows_without_a_reply_and_replies_to_unknown_windows_are_left_out() -> None:
    log = WindowLog()
    for event in [sent(0, 1), done(0, 1, 1), sent(1, 2), sent(2, 3), done(2, 1, 1), done(3, 1, 1)]:
        log.add(event)
    assert [window.rows for window in unpacked(log.windows)] == [3]


def test_without_windows_nothing_was_computed() -> None:
    log = WindowLog()
    assert (log.windows, log.compute_ms) == ([], 0.0)
