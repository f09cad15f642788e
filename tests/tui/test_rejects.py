"""Rejected drafts: the panel names the newest, a screen steps through all of them and says why."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from textual.widgets import OptionList

from engine.client.requests import GenerateRequest
from engine.events import Event, RequestStarted, WindowDone
from engine.view import Rejection, Request
from skippy_tui import demo
from skippy_tui.paint import drafted_by, quoted
from skippy_tui.screens.rejects import RejectsScreen, story
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
            assert quoted(rejection.drafted) in row
            assert quoted(rejection.actual) in row
            assert drafted_by(rejection) in row
        await driver.press("down")
        story = driver.shown("#rejects-story")
        assert f"MTP guessed {quoted(before.drafted)}" in story
        assert f"The model itself says {quoted(before.actual)}" in story
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
            assert f"{quoted(rejection.drafted)} → {quoted(rejection.actual)}" in shown


@pytest.mark.parametrize(
    ("place", "width", "stale", "told"),
    [
        (0, 1, 0, "Nothing else was in vain."),
        (0, 1, 2, "In vain: 2 windows already sent."),
        (1, 3, 0, "In vain: 1 draft after it in its window."),
        (0, 3, 1, "In vain: 2 drafts after it in its window and 1 window already sent."),
    ],
)
def test_the_story_ends_with_what_was_in_vain(place: int, width: int, stale: int, told: str) -> None:
    rejection = Rejection(0, " wrong", " right", "mtp", place, width, stale)
    request = Request(
        RequestStarted(
            request="r", prompt_tokens=1, reused=0, strategy="mtp", seed=0, temperature=0.0, max_tokens=9
        )
    )
    assert str(story(rejection, request)).endswith(told)
