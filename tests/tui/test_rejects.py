"""Rejected drafts: the panel names the newest, a screen steps through all of them and says why."""

from __future__ import annotations

from collections.abc import Sequence

from textual.widgets import OptionList

from engine.client.requests import GenerateRequest
from engine.events import Event, WindowDone
from skippy_tui import demo
from skippy_tui.screens.rejects import RejectsScreen
from skippy_tui.widgets.speculation import SpeculationPanel
from tests.tui.driving import Driver, running


def at_second_rejection(events: Sequence[Event]) -> int:
    """Hold an answer behind its second rejected draft."""
    return [i for i, event in enumerate(events) if isinstance(event, WindowDone) and event.rejected][1] + 1


def rows(driver: Driver) -> list[str]:
    options = driver.app.screen.query_one(OptionList)
    return [str(options.get_option_at_index(i).prompt) for i in range(options.option_count)]


async def test_every_rejected_draft_can_be_stepped_through_and_says_why() -> None:
    async with running(script=demo.answer) as driver:
        await driver.write("a prompt")
        await driver.press("ctrl+o")
        assert isinstance(driver.app.screen, RejectsScreen)
        request = driver.app.controller.feed.state.request
        assert len(rows(driver)) == len(request.rejections) > 2
        newest, before = request.rejections[-1], request.rejections[-2]
        for rejection, row in ((newest, rows(driver)[0]), (before, rows(driver)[1])):
            assert f"{rejection.token + 1} " in row
            assert f"‘{rejection.drafted}’" in row
            assert f"‘{rejection.actual}’" in row
            assert f"MTP {rejection.place + 1}/{rejection.width}" in row
        await driver.press("down")
        story = driver.shown("#rejects-story")
        assert f"MTP guessed ‘{before.drafted}’" in story
        assert f"The model itself says ‘{before.actual}’" in story
        # What the answer holds there is what the model said.
        assert request.tokens[before.token].text == before.actual
        await driver.press("escape")
        assert driver.app.screen is driver.app.main


async def test_the_highlight_stays_on_its_draft_while_more_are_rejected() -> None:
    async with running(script=demo.answer, hold=at_second_rejection) as driver:
        await driver.write("a prompt")
        await driver.write("/rejects")
        first = rows(driver)
        await driver.press("down")
        driver.client.go_on()
        await driver.settle()
        driver.app.screen.read()
        await driver.settle()
        assert len(rows(driver)) > len(first) == 2
        assert rows(driver)[-2:] == first
        assert driver.app.screen.query_one(OptionList).highlighted == len(rows(driver)) - 1


async def test_without_a_rejected_draft_it_says_so() -> None:
    def plain(request: GenerateRequest) -> list[Event]:
        return demo.answer(request, "all plain", speculate=False)

    async with running(script=plain) as driver:
        await driver.press("ctrl+o")
        assert "there is no answer yet" in driver.said[-1]
        await driver.write("a prompt")
        await driver.press("ctrl+o")
        assert "no draft of this answer has been rejected" in driver.said[-1]
        assert driver.app.screen is driver.app.main


async def test_the_panel_names_the_newest_rejected_drafts() -> None:
    async with running(script=demo.answer, size=(120, 40)) as driver:
        await driver.write("a prompt")
        shown = str(driver.app.main.query_one(SpeculationPanel).content)
        request = driver.app.controller.feed.state.request
        for rejection in request.rejections[-3:]:
            assert f"‘{rejection.drafted}’ → ‘{rejection.actual}’" in shown
