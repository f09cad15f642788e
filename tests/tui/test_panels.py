"""The panels: everything fits 80x24 or can be scrolled to, and nodes stand beside their stages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual.geometry import Size

from engine.client.requests import GenerateRequest
from engine.events import DraftReceived, NodeState, StageState
from skippy_tui import demo
from skippy_tui.paint import DRAFTING, milliseconds
from skippy_tui.widgets.panels import Panels
from skippy_tui.widgets.pipeline import PipelinePanel
from skippy_tui.widgets.speculation import SpeculationPanel
from tests.tui.driving import Driver, first_half, running


def stages(count: int) -> list[StageState]:
    """So many stages of the demo's layers."""
    cuts = [30 * i // count for i in range(count + 1)]
    return [
        StageState(at=1.0, index=i, state="ready", layers=(cuts[i], cuts[i + 1]), where=f"10.0.0.{i}:9000")
        for i in range(count)
    ]


def shows_the_end(driver: Driver) -> bool:
    """Whether the last line of the timeline is on the screen."""
    pipeline = driver.app.main.query_one(PipelinePanel)
    return pipeline.region.bottom <= driver.app.main.query_one(Panels).region.bottom


async def test_the_big_view_shows_both_panels_with_the_whole_timeline_at_80x24() -> None:
    async with running(script=demo.answer, hold=first_half) as driver:
        await driver.write("a prompt")
        await driver.press("ctrl+g")
        panels = driver.app.main.query_one(Panels)
        assert panels.max_scroll_y == 0
        assert panels.region.contains_region(driver.app.main.query_one(SpeculationPanel).region)
        assert panels.region.contains_region(driver.app.main.query_one(PipelinePanel).region)
        assert "the last" in str(driver.app.main.query_one(PipelinePanel).content)


@pytest.mark.parametrize(("size", "keys"), [((80, 24), ("ctrl+g",)), ((120, 40), ())])
async def test_what_the_head_takes_for_a_draft_stands_beside_its_stage(
    size: tuple[int, int], keys: tuple[str, ...]
) -> None:
    async with running(script=demo.answer, hold=first_half, size=size) as driver:
        await driver.write("a prompt")
        await driver.press(*keys)
        draft_ms = milliseconds(driver.app.controller.feed.state.stages[1].draft_ms())
        shown = driver.shown("#pipeline")
        first, second = (line for line in shown.splitlines() if line[:4] in ("0 0:", "1 14"))
        if size == (80, 24):
            assert f" {draft_ms} " in second
            assert " – " in first
            assert f"{DRAFTING} drafts" in shown
        else:
            assert f"{DRAFTING} {draft_ms} ms a draft" in shown


async def test_the_folded_line_ends_with_what_a_draft_takes_where_that_fits() -> None:
    async with running(script=demo.answer, hold=first_half, size=(90, 24)) as driver:
        await driver.write("a prompt")
        draft_ms = milliseconds(driver.app.controller.feed.state.stages[1].draft_ms())
        assert driver.shown("#folded").rstrip().endswith(f"{DRAFTING} {draft_ms} ms")


async def test_an_emulated_round_trip_has_its_place_in_the_header_beside_context_and_speed() -> None:
    async with running(script=demo.answer, hold=first_half, size=(80, 24)) as driver:
        assert "rtt" not in driver.shown("#status")
        await driver.write("/rtt 20")
        await driver.write("a prompt")
        shown = driver.shown("#status")
        assert all(part in shown for part in ("rtt +20 ms", " auto ", "ctx ", " tok/s")), shown


async def test_the_policy_says_that_a_token_does_not_wait_for_its_drafts() -> None:
    events = demo.answer(GenerateRequest(request="r", prompt="x"))
    first_draft = next(i for i, event in enumerate(events) if isinstance(event, DraftReceived))
    async with running(script=demo.answer, hold=lambda _: first_draft, size=(120, 40)) as driver:
        await driver.write("a prompt")
        assert "0 drafts, 1 in flight" in driver.shown("#speculation")
        assert "the next token at once; drafts may follow" in driver.shown("#speculation")
        driver.client.go_on(2)  # the draft, and a window of it
        await driver.settle()
        assert "1 draft, 2 in flight" in driver.shown("#speculation")
        assert "drafted meanwhile, sent behind the token" in driver.shown("#speculation")


async def test_more_stages_than_fit_are_scrolled_to_and_a_scrollbar_tells() -> None:
    async with running([*demo.ready(), *stages(5)]) as driver:
        await driver.press("ctrl+g")
        panels = driver.app.main.query_one(Panels)
        assert panels.show_vertical_scrollbar
        assert not shows_the_end(driver)
        await driver.press("pagedown")
        assert shows_the_end(driver)


@pytest.mark.parametrize(("size", "overflows"), [((120, 24), True), ((120, 40), False)])
async def test_beside_the_chat_the_panels_take_the_focus_only_to_be_scrolled(
    size: tuple[int, int], overflows: bool
) -> None:
    async with running(size=size) as driver:
        await driver.press("shift+tab")
        panels = driver.app.main.query_one(Panels)
        assert panels.has_focus == overflows
        await driver.press("pagedown")
        assert (panels.scroll_y > 0) == overflows
        assert panels.size.height < Size(*size).height


async def test_the_welcome_stays_where_it_is_while_lines_come_and_go() -> None:
    async with running(demo.starting()) as driver:
        before = driver.app.main.query_one("#welcome Static").region
        driver.client.put(
            NodeState(name="a-machine-with-a-long-name", url="", state="left-out", detail="x" * 40)
        )
        await driver.settle()
        after = driver.app.main.query_one("#welcome Static").region
        assert (after.x, after.width) == (before.x, before.width)


@pytest.mark.parametrize("keys", [(), ("ctrl+g",)], ids=["welcome", "panel"])
async def test_nodes_are_shown_with_their_progress_while_the_engine_starts(keys: tuple[str, ...]) -> None:
    async with running(demo.placing()) as driver:
        await driver.press(*keys)
        selector = "#pipeline" if keys else "#welcome Static"
        shown = driver.shown(selector)
        assert "den" in shown
        assert "receiving 67% of 47.2 MB" in shown
        assert "loading" in shown
        assert "shed  left out: nothing listens at 10.0.0.9:9555" in shown


async def test_a_node_that_is_ready_is_where_its_stage_runs_and_one_that_is_gone_says_so() -> None:
    node = NodeState(at=1.0, name="den", url="ws://den:1", state="ready", layers=demo.LAYERS[1])
    async with running([*demo.ready(), node], size=(120, 40)) as driver:
        assert "den" in driver.shown("#pipeline")
        assert demo.PLACES[1] not in driver.shown("#pipeline")
        driver.client.put(*demo.unreachable())
        await driver.settle()
        assert "unreachable for" in driver.shown("#pipeline")
        again = replace(node, at=2.0, state="checking", done=8_000_000, total=32_000_000)
        driver.client.put(again)
        await driver.settle()
        assert "checking 25% of 32.0 MB" in driver.shown("#pipeline")
