"""Figures of the panels, from windows with known times."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from engine.client.requests import GenerateRequest
from engine.events import DraftReceived, RequestStarted, TokensCommitted, WindowDone, WindowSent
from engine.reducer import apply
from engine.view import Series, ViewState
from skippy_tui import demo, figures
from skippy_tui.paint import bar, ordinal, sparkline, timeline_row
from skippy_tui.screens.compare import verdict


def state_of(events: list) -> ViewState:
    state = ViewState()
    for event in events:
        state = apply(event, state)
    return state


def plain_window(
    number: int, at: float, rows: int = 1, accepted: int = 0, compute: tuple = (4000, 6000)
) -> list:
    """A window of two stages that takes its compute and 10 ms of way."""
    names = {"request": "r", "window": number, "epoch": 0, "width": rows - 1}
    sources = (("mtp", rows - 1),) if rows > 1 else ()
    stages = tuple((i, 0, microseconds, number) for i, microseconds in enumerate(compute))
    elapsed = sum(compute) / 1000 + 10
    return [
        WindowSent(at=at, start=number, rows=rows, sources=sources, **names),
        TokensCommitted(
            at=at + elapsed / 1000,
            request="r",
            window=number,
            tokens=tuple((0, "target", "x") for _ in range(accepted + 1)),
        ),
        WindowDone(
            at=at + elapsed / 1000,
            stale=False,
            accepted=accepted,
            elapsed_ms=elapsed,
            stages=stages,
            **names,
        ),
    ]


def started() -> RequestStarted:
    return RequestStarted(
        at=0.0, request="r", prompt_tokens=1, reused=0, strategy="auto", seed=0, temperature=0.0, max_tokens=9
    )


def test_the_plain_estimate_of_a_plain_answer_is_its_own_speed() -> None:
    events = [started()]
    for number in range(20):
        events += plain_window(number, at=number * 0.02)
    request = state_of(events).request
    assert figures.plain_estimate(request) == pytest.approx(50.0)
    assert figures.speed_now(request) == pytest.approx(50.0)


def test_the_plain_estimate_extrapolates_to_one_row_where_none_was_sent() -> None:
    events = [started()]
    for number, rows in enumerate((2, 3, 4, 5, 3, 2)):
        compute = (3000 + 1000 * rows, 5000 + 1000 * rows)
        events += plain_window(number, at=number * 0.05, rows=rows, compute=compute)
    # One row costs 4 + 6 ms and the way 10 ms, as in the plain answer.
    assert figures.plain_estimate(state_of(events).request) == pytest.approx(50.0)


def test_acceptance_by_source_splits_a_window_where_its_sources_meet() -> None:
    sent = WindowSent(
        at=0.0, request="r", window=0, epoch=0, start=0, rows=6, width=5, sources=(("mtp", 2), ("ngram", 3))
    )
    done = WindowDone(
        at=0.1, request="r", window=0, epoch=0, stale=False, accepted=3, width=5, elapsed_ms=100.0
    )
    request = state_of([started(), sent, done]).request
    assert figures.acceptance_over_time(request, 10, "mtp") == [1.0]
    assert figures.acceptance_over_time(request, 10) == [0.6]
    assert figures.acceptance_over_time(request, 10, "ngram") == [pytest.approx(1 / 3)]
    assert figures.mean_committed(request) == 4


def test_spans_lie_inside_their_window_in_the_order_of_the_stages() -> None:
    request = GenerateRequest(request="r", prompt="x")
    shown = state_of([*demo.ready(), *demo.answer(request)]).request
    for window in shown.windows:
        spans = figures.window_spans(window)
        assert [span.stage for span in spans] == ([0] if window.done.stale else [0, 1])
        edges = [window.sent.at, *(edge for span in spans for edge in (span.start, span.end))]
        assert edges == sorted(edges)
        assert edges[-1] <= window.done.at + 1e-9


def draft_behind(number: int, at: float) -> DraftReceived:
    return DraftReceived(at=at, request="r", window=number, epoch=0, drafted=2, draft_us=7000)


def test_the_last_stage_drafts_where_its_window_ends_also_when_the_draft_is_in_the_reply() -> None:
    sent, _, done = plain_window(0, at=0.0)  # 4 and 6 ms of compute, and a hop of 5 ms
    behind = state_of([started(), sent, done, draft_behind(0, at=0.027)]).request
    spans = [(span.stage, span.kind, span.start, span.end) for span in figures.timeline(behind, 0.0, 1.0)]
    assert spans == [
        (0, "useful", 0.0, pytest.approx(0.004)),
        (1, "useful", pytest.approx(0.009), pytest.approx(0.015)),
        (1, "draft", pytest.approx(0.015), pytest.approx(0.022)),
    ]
    within = state_of([started(), sent, replace(done, drafted=1, draft_us=2000)]).request
    spans = [(span.stage, span.kind, span.start, span.end) for span in figures.timeline(within, 0.0, 1.0)]
    assert spans[1:] == [
        (1, "useful", pytest.approx(0.009), pytest.approx(0.013)),
        (1, "draft", pytest.approx(0.013), pytest.approx(0.015)),
    ]


def test_every_token_is_counted_with_one_window_however_drafts_travel() -> None:
    request = GenerateRequest(request="r", prompt="x")
    shown = state_of([*demo.ready(), *demo.answer(request)]).request
    kinds = {(window.sent.rows - window.sent.width, window.sent.width > 1) for window in shown.windows}
    assert kinds == {(1, False), (1, True), (0, False), (0, True)}  # tokens, and drafts behind them or alone
    assert sum(figures.committed(window) for window in shown.windows) == len(shown.tokens)


def test_the_plain_estimate_leaves_out_drafting_and_what_stages_only_passed_on() -> None:
    events = [started()]
    for number in range(20):
        sent, _, done = plain_window(number, at=number * 0.02, compute=(4000, 9000))
        events += [sent, replace(done, drafted=1, draft_us=3000, elapsed_ms=23.0)]
        passed = plain_window(100 + number, at=number * 0.02)
        events += [passed[0], replace(passed[-1], stale=True, stages=passed[-1].stages[:1])]
    assert figures.plain_estimate(state_of(events).request) == pytest.approx(50.0)


def test_windows_in_flight_are_pending_and_never_lead_into_the_future() -> None:
    events = [started(), *plain_window(0, at=0.0), *plain_window(1, at=0.1)[:1]]
    request = state_of(events).request
    pending = [span for span in figures.timeline(request, 0.0, 0.106) if span.kind == "pending"]
    assert [span.stage for span in pending] == [0]
    assert pending[0].end <= 0.106


def test_figures_of_an_answer_without_windows_are_zero() -> None:
    request = state_of([started()]).request
    assert (
        figures.speed_now(request) == figures.plain_estimate(request) == figures.propose_rate(request) == 0.0
    )
    assert figures.acceptance_over_time(request, 10) == []
    assert figures.timeline(request, 0.0, 1.0) == []


@pytest.mark.parametrize("fraction", [-1.0, 0.0, 0.01, 0.5, 0.999, 1.0, 7.0])
def test_pictures_have_fixed_widths(fraction: float) -> None:
    assert bar(fraction, 20, "$primary").cell_length == 20
    assert len(sparkline([fraction, None], 12)) == 12
    rng = random.Random(1)
    spans = [
        figures.Span(0, start, start + rng.random() / 5, i, kind)
        for i, kind in enumerate(("useful", "stale", "pending"))
        if (start := rng.random() - 0.2) is not None
    ]
    assert timeline_row(spans, 0.0, 1.0, 30).cell_length == 30


def test_ordinals_are_written_as_people_write_them() -> None:
    numbers = (1, 2, 3, 4, 11, 12, 13, 16, 21, 22, 112)
    expected = "1st 2nd 3rd 4th 11th 12th 13th 16th 21st 22nd 112th"
    assert " ".join(map(ordinal, numbers)) == expected


def test_compare_names_the_first_token_that_differs() -> None:
    request = GenerateRequest(request="r", prompt="x")
    plain = state_of([*demo.ready(), *demo.answer(request, "one two three")]).request
    other = state_of([*demo.ready(), *demo.answer(request, "one two three")]).request
    assert "all 3 token ids agree" in str(verdict(plain, other))
    changed = replace(other, tokens=Series([*other.tokens[:2], replace(other.tokens[2], id=99, text="four")]))
    assert "differ from token 3 on: ‘three’ and ‘four’" in str(verdict(plain, changed))
    shorter = replace(other, tokens=Series(other.tokens[:2]))
    assert "the first 2 token ids agree" in str(verdict(plain, shorter))
