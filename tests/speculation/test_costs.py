"""Learning what windows cost."""

from __future__ import annotations

import pytest

from engine.protocol.messages import StageTime
from engine.speculation.costs import LONG_CATCH_UP, OPTIMISM, CostModel, RowCosts


def times(*compute_ms: float, queue_ms: float = 0.0) -> tuple[StageTime, ...]:
    return tuple(
        StageTime(stage, round(queue_ms * 1000), round(ms * 1000)) for stage, ms in enumerate(compute_ms)
    )


def test_between_measured_rows_it_is_linear() -> None:
    costs = RowCosts(growth=1.0)
    costs.observe(1, 10.0)
    costs.observe(5, 30.0)
    assert costs.table(5) == [0.0, 10.0, 15.0, 20.0, 25.0, 30.0]


def test_further_rows_are_expected_to_cost_a_little_less_than_those_so_far() -> None:
    costs = RowCosts(growth=1.0)
    costs.observe(1, 10.0)
    assert costs.table(3)[2:] == pytest.approx([10 + 10 * OPTIMISM, 10 + 20 * OPTIMISM])
    costs.observe(2, 14.0)
    assert costs.table(4)[3:] == pytest.approx([14 + 4 * OPTIMISM, 14 + 8 * OPTIMISM])


def test_a_single_row_is_a_part_of_what_was_measured_for_many() -> None:
    compute, network = RowCosts(growth=1.0), RowCosts(growth=0.0)
    for costs in (compute, network):
        costs.observe(4, 20.0)
    assert compute.table(4)[1:] == pytest.approx([5.0, 10.0, 15.0, 20.0])
    assert network.table(4)[1:] == pytest.approx([20.0] * 4)


def test_more_rows_never_cost_less() -> None:
    costs = RowCosts(growth=1.0)
    costs.observe(2, 30.0)
    costs.observe(4, 20.0)
    assert costs.table(4) == sorted(costs.table(4))


def test_a_single_hiccup_counts_little() -> None:
    costs = RowCosts(growth=1.0)
    for _ in range(10):
        costs.observe(1, 10.0)
    costs.observe(1, 1000.0)
    assert costs.table(1)[1] < 15.0


def test_a_lasting_change_is_followed() -> None:
    costs = RowCosts(growth=1.0)
    for ms in [10.0] * 10 + [20.0] * 20:
        costs.observe(1, ms)
    assert costs.table(1)[1] == pytest.approx(20.0, rel=0.02)


def test_the_rest_of_the_way_is_network() -> None:
    model = CostModel()
    model.observe_window(1, times(4.0, 6.0, queue_ms=1.0), 32.0)
    loop = model.times(1)
    assert loop.loop[1] == pytest.approx(4 + 6 + 20)  # 32 less the computes and the two queues
    assert loop.slowest[1] == pytest.approx(6.0)
    assert loop.first[1] == pytest.approx(4.0)


def test_drafting_is_no_part_of_a_windows_rows() -> None:
    model = CostModel()
    model.observe_window(1, times(4.0, 9.0), 33.0, head_ms=3.0)
    assert model.times(1).slowest[1] == pytest.approx(6.0)
    assert model.times(1).loop[1] == pytest.approx(4 + 6 + 20)


def test_a_draft_is_a_share_of_a_step_until_measured() -> None:
    model = CostModel()
    model.observe_window(1, times(4.0, 6.0), 30.0)
    assert model.draft_ms(2) == pytest.approx(2 * 0.2 * 10.0)
    model.observe_drafting(2, 5.0, skipped=2)
    assert model.draft_ms(4) == pytest.approx(10.0)
    assert model.draft_ms(0) == 0.0


def test_a_long_catch_up_says_nothing_about_the_price_of_drafts() -> None:
    model = CostModel()
    model.observe_window(1, times(4.0, 6.0), 30.0)
    model.observe_drafting(1, 50.0, skipped=LONG_CATCH_UP + 1)
    assert model.draft_ms(1) == pytest.approx(2.0)


def test_the_price_of_catching_up_is_learnt_from_a_long_one() -> None:
    model = CostModel()
    model.observe_window(1, times(4.0, 6.0), 30.0)
    assert model.catch_up_ms(LONG_CATCH_UP) == 0.0
    assert model.catch_up_ms(100) == pytest.approx(100 * 0.02 * 10.0)
    model.observe_drafting(1, 52.0, skipped=100)
    assert model.catch_up_ms(200) == pytest.approx(200 * 0.5)


def test_tables_follow_what_is_learnt() -> None:
    model = CostModel()
    assert not model.known
    model.observe_window(1, times(4.0), 5.0)
    assert model.known
    assert model.only_single_rows
    before = model.times(4).loop[4]
    model.observe_window(4, times(6.0), 7.0)
    assert not model.only_single_rows
    assert model.times(4).loop[4] < before


def test_a_prefill_chunk_or_a_calibration_run_counts_as_well() -> None:
    model = CostModel()
    model.observe_window(1, times(10.0, 10.0), 21.0)
    model.observe_stage(0, 11, 20.0)
    assert model.times(6).first[6] == pytest.approx(15.0)
    assert model.only_single_rows  # the other stage has not shown what a second row costs


def test_the_first_window_of_other_rows_is_measured_apart() -> None:
    """On a GPU, 1 row takes 2 ms and 3 rows 3 ms, and 4 ms more after a window of another number of rows."""
    costs = RowCosts(growth=1.0)
    for rows, ms, since in ((1, 6.0, 0), (1, 2.0, 2), (3, 7.0, 0), (3, 3.0, 2), (1, 6.0, 0)):
        costs.observe(rows, ms, since_change=since)
    assert costs.switch_ms == pytest.approx(4.0)
    assert costs.table(3)[1:] == pytest.approx([2.0, 2.5, 3.0])


def test_rows_that_were_only_ever_first_are_reckoned_without_the_change() -> None:
    costs = RowCosts(growth=1.0)
    for rows, ms, since in ((1, 2.0, 2), (4, 7.5, 0), (1, 6.0, 0)):
        costs.observe(rows, ms, since_change=since)
    assert costs.table(4)[4] == pytest.approx(3.5)
    costs.observe(
        8, 1.0, since_change=0
    )  # a change that cost nothing this time: still no cheaper than one row
    assert costs.table(8)[1] == pytest.approx(2.0)


def test_a_model_tells_first_windows_by_their_rows() -> None:
    model = CostModel()
    for rows, ms in ((1, 5.0), (1, 2.0), (2, 6.0), (2, 3.0), (1, 5.0), (1, 2.0)):
        model.observe_window(rows, times(ms, ms), 2 * ms + 1)
    assert model.switch_ms == pytest.approx(2 * 3.0)
    assert model.times(2).loop[1:] == pytest.approx([5.0, 7.0])


def test_the_second_window_may_be_dear_as_well() -> None:
    """As with CUDA graphs: the first batch of other rows runs without one, the second one makes it."""
    model = CostModel()
    for rows in (1, 2, 1, 2, 1):
        for more in (4.0, 7.0, 0.0, 0.0, 0.0, 0.0):
            model.observe_window(rows, times(1.0 + rows + more), 5.0 + rows + more)
    assert model.switch_ms == pytest.approx(4.0 + 7.0, rel=0.01)
    assert model.times(2).slowest[1:] == pytest.approx([2.0, 3.0])


def test_windows_in_company_tell_only_of_rows_that_were_not_measured_alone() -> None:
    model = CostModel()
    model.observe_window(1, times(4.0, 6.0), 12.0)
    for _ in range(10):
        model.observe_window(1, times(8.0, 12.0), 30.0, accompanied=True)
    for _ in range(10):
        model.observe_window(4, times(14.0, 20.0), 70.0, accompanied=True)
    assert model.times(4).slowest[1] == pytest.approx(6.0)
    assert model.times(4).slowest[4] == pytest.approx(20.0)
    for _ in range(3):
        model.observe_window(4, times(10.0, 15.0), 30.0)
    assert model.times(4).slowest[4] == pytest.approx(15.0)


def test_a_stream_shows_how_much_longer_a_stage_takes_in_company() -> None:
    model = CostModel()
    model.observe_window(1, times(4.0, 6.0), 12.0)
    assert model.crowding(1) == 1.0
    model.observe_spacing(1, times(4.0, 6.0, queue_ms=0.1), 60.0)  # the stage was idle between the two
    assert model.crowding(1) == 1.0
    model.observe_spacing(1, times(8.0, 12.0, queue_ms=11.0), 12.0)
    assert model.crowding(1) == pytest.approx(2.0)
    assert model.crowding(4) == pytest.approx(2.0)  # the least that is known
    model.observe_spacing(1, times(4.0, 6.0, queue_ms=6.0), 3.0)
    assert model.crowding(1) >= 1.0
