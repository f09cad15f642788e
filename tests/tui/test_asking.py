"""Asking, stopping, asking again, and what becomes of it when the engine fails."""

from __future__ import annotations

from dataclasses import replace

from engine.client.requests import GenerateRequest
from engine.config.plan import GenerationDefaults, RunPlan
from engine.errors import EngineLost
from engine.events import EventsDropped, Notice, RequestFinished
from engine.protocol.messages import SamplingSettings
from skippy_tui import demo
from skippy_tui.widgets.answer_text import AnswerText
from skippy_tui.widgets.speculation import SpeculationPanel
from skippy_tui.widgets.tokens import TokenFlow
from tests.tui.driving import ANSWER, Driver, first_half, running


async def test_an_answer_is_shown_and_kept_and_the_next_prompt_carries_it() -> None:
    async with running() as driver:
        await driver.write("first prompt")
        await driver.write("second prompt")
        assert driver.messages == ["first prompt", ANSWER, "second prompt", ANSWER]
        roles = [message["role"] for message in driver.requests[1]["messages"]]
        assert roles == ["user", "assistant", "user"]
        assert driver.requests[0]["session"] == driver.requests[1]["session"]
        assert driver.app.main.prompt.text == ""
        (kept,) = driver.store.summaries()
        assert (kept.title, kept.turns) == ("first prompt", 4)
        assert driver.store.load(kept.id).turns[1].result["timings"]["predicted_n"] > 5


async def test_escape_stops_and_keeps_the_partial_answer() -> None:
    async with running(hold=first_half) as driver:
        await driver.write("a prompt")
        await driver.press("escape")
        partial = driver.messages[1]
        assert partial
        assert ANSWER.startswith(partial)
        assert driver.client.sent[-1]["op"] == "cancel"
        (kept,) = driver.store.summaries()
        assert driver.store.load(kept.id).turns[1].content == partial
        assert not driver.app.controller.busy


async def test_escape_stops_also_before_the_engine_is_ready() -> None:
    async with running(startup=demo.starting()) as driver:
        await driver.write("a prompt")
        assert driver.app.controller.busy
        await driver.press("escape")
        assert not driver.app.controller.busy
        assert driver.requests == []
        assert "stopped before the engine was ready" in driver.failures[0]


async def test_a_prompt_that_is_written_while_the_engine_loads_is_answered_once_it_is_ready() -> None:
    async with running(startup=demo.starting()) as driver:
        await driver.write("early")
        driver.client.put(*demo.ready()[4:])
        await driver.settle()
        assert driver.messages == ["early", ANSWER]


async def test_a_second_prompt_waits_in_the_prompt_while_an_answer_comes() -> None:
    async with running(hold=first_half) as driver:
        await driver.write("first")
        await driver.write("second")
        assert driver.app.main.prompt.text == "second"
        assert "Esc stops it" in driver.said[-1]
        assert len(driver.requests) == 1


async def test_retry_asks_again_and_says_when_nothing_would_change() -> None:
    async with running() as driver:
        await driver.write("a prompt")
        await driver.press("f5")
        assert "temperature is 0" in driver.said[-1]
        assert driver.messages == ["a prompt", ANSWER]
        assert driver.requests[1]["messages"] == driver.requests[0]["messages"]


async def test_retry_of_a_sampled_answer_takes_another_seed() -> None:
    sampled = RunPlan(generation=GenerationDefaults(sampling=SamplingSettings(temperature=0.8, seed=7)))
    async with running(plan=sampled) as driver:
        await driver.write("a prompt")
        await driver.write("/retry")
        assert [request["sampling"]["seed"] for request in driver.requests] == [7, 8]


async def test_edit_takes_the_last_prompt_back_into_the_prompt() -> None:
    async with running() as driver:
        await driver.write("one")
        await driver.write("two")
        await driver.press("f6")
        assert driver.app.main.prompt.text == "two"
        assert driver.messages == ["one", ANSWER]
        await driver.write("/clear")
        await driver.write("/edit")
        assert "there is no prompt to edit" in driver.said[-1]


async def test_a_lost_engine_is_one_line_and_the_next_prompt_starts_another() -> None:
    async with running(hold=first_half) as driver:
        await driver.write("a prompt")
        driver.client.die(EngineLost("the engine was killed by signal 9", hint="see the log"))
        await driver.settle()
        assert driver.failures == ["✕ the engine was killed by signal 9; see the log"]
        assert ANSWER.startswith(driver.messages[1])
        await driver.write("again")
        assert driver.client.opened == 2
        assert len(driver.requests) == 2


async def test_a_refused_prompt_says_why() -> None:
    def refuse(request: GenerateRequest) -> list:
        notice = Notice(level="error", code="context", message="too long", hint="shorten it")
        return [notice, RequestFinished(request=request.request, finish_reason="error")]

    async with running(script=refuse) as driver:
        await driver.write("a prompt")
        assert driver.failures == ["✕ too long; shorten it"]
        assert driver.messages == ["a prompt"]


async def test_warnings_are_told_and_dropped_events_stand_in_the_status_line() -> None:
    async with running() as driver:
        driver.client.put(
            Notice(level="warning", code="fallback", message="replies take the lane backwards"),
            EventsDropped(count=7),
        )
        await driver.settle()
        driver.app.show_notices()
        assert driver.said == ["replies take the lane backwards"]
        assert "7 events dropped" in driver.shown("#status")


async def test_control_sequences_of_a_model_are_shown_and_not_obeyed() -> None:
    evil = "title \x1b]0;gone\x07 clip \x1b]52;c;eA==\x07 clear \x1b[2J and \x9b2J"

    async with running(script=lambda request: demo.answer(request, evil, speculate=False)) as driver:
        await driver.write("a prompt")
        screen = driver.app.export_screenshot()
        assert "␛" in screen
        assert not any(ord(c) < 32 and c not in "\n\t" for c in screen)
        assert "\x9b" not in screen


async def test_emoji_and_cjk_that_tokens_split_come_out_whole() -> None:
    def split(request: GenerateRequest) -> list:
        events = demo.answer(request, "a b c d", speculate=False)
        texts = iter(["", "👩‍💻 ", "", "日本", " end", "", ""])
        changed = [
            replace(event, tokens=tuple((i, origin, next(texts)) for i, origin, _ in event.tokens))
            if event.kind == "tokens"
            else event
            for event in events[:-1]
        ]
        return [*changed, demo.finished(request.request, changed)]

    async with running(script=split) as driver:
        await driver.write("a prompt")
        assert driver.messages[1].startswith("👩‍💻 日本")
        assert "\ufffd" not in driver.app.export_screenshot()


async def test_resizing_while_an_answer_comes_loses_nothing() -> None:
    async with running(demo.ready(), demo.answer, first_half, size=(120, 40)) as driver:
        await driver.write("a prompt")
        for width in (60, 120):
            await driver.pilot.resize_terminal(width, 40)
            driver.client.go_on(20)
            await driver.settle()
        driver.client.go_on()
        await driver.settle()
        assert driver.messages == ["a prompt", demo.ANSWER]
        assert driver.app.main.query_one("#panels").display
        screen = driver.app.export_screenshot().replace("&#160;", " ")
        assert "rounding happens once" in screen


async def test_a_growing_answer_is_followed_and_loses_nothing_when_the_terminal_changes() -> None:
    text = "".join(f"Paragraph {i} of a long answer, which fills a line or two.\n\n" for i in range(40))

    def shown_words(driver: Driver) -> list[str]:
        lines = driver.app.main.query_one(AnswerText).lines
        return " ".join(line.text for line in lines).split()

    async with running(
        script=lambda request: demo.answer(request, text), hold=first_half, size=(120, 40)
    ) as driver:
        await driver.write("a prompt")
        chat = driver.app.main.chat
        assert chat.scroll_y == chat.max_scroll_y > 0
        await driver.pilot.resize_terminal(60, 24)
        driver.client.go_on(100)
        await driver.settle()
        assert shown_words(driver) == driver.messages[1].split()
        assert chat.scroll_y == chat.max_scroll_y > 0
        await driver.pilot.resize_terminal(120, 40)
        driver.client.go_on()
        await driver.settle()
        assert driver.messages[1] == text
        assert shown_words(driver) == text.split()
        assert chat.scroll_y == chat.max_scroll_y > 0


async def test_what_the_mouse_selects_of_an_answer_is_copied() -> None:
    async with running() as driver:
        await driver.write("a prompt")
        await driver.pilot.mouse_down(AnswerText, offset=(1, 0))
        await driver.pilot.hover(AnswerText, offset=(6, 0))
        await driver.pilot.mouse_up(AnswerText, offset=(6, 0))
        await driver.press("ctrl+c")
        assert driver.app.clipboard.strip() == "Yes, i"


async def test_what_is_typed_right_after_enter_begins_another_prompt() -> None:
    async with running(hold=first_half) as driver:
        await driver.press("a", "enter", "b")
        assert driver.messages[0] == "a"
        assert driver.app.main.prompt.text == "b"


async def test_a_new_chat_shows_no_figure_of_the_one_before() -> None:
    async with running(size=(120, 40)) as driver:
        main = driver.app.main
        await driver.settle()
        before = main_figures(driver)
        await driver.write("a prompt")
        assert main_figures(driver) != before
        assert "last reject" in str(main.query_one("#strip", TokenFlow).border_subtitle)
        await driver.press("ctrl+n")
        main.draw()
        assert main_figures(driver) == before
        for flow in main.query(TokenFlow):
            assert not flow.border_subtitle
            assert not flow.render_line(0).text.strip()


async def test_an_answer_that_is_stopped_before_its_first_token_says_so() -> None:
    async with running(hold=lambda events: 1, size=(120, 40)) as driver:
        await driver.write("a prompt")
        await driver.press("escape")
        assert driver.messages == ["a prompt", ""]
        assert driver.shown("AnswerMessage .figures") == "stopped"
        assert driver.app.main.query_one(".figures").display
        driver.app.main.draw_figures()
        assert "tok/s" not in driver.shown("#status")
        assert "tok/s" not in str(driver.app.main.query_one(SpeculationPanel).content)
        await driver.write("/stats")
        await driver.write("/copy")
        assert "there is no answer yet" in driver.said[-1]
        driver.client._hold = None
        await driver.write("another")
        assert [message["content"] for message in driver.requests[1]["messages"]] == ["a prompt", "another"]


def main_figures(driver: Driver) -> list[str]:
    """The status line and both panels."""
    driver.app.main.draw_figures()
    return [driver.shown(selector) for selector in ("#status", "#speculation", "#pipeline")]
