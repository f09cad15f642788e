"""Keys, slash commands and screens: each does what its line in the table says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.events import Key, Paste
from textual.keys import _character_to_key
from textual.widgets import Input, OptionList, RichLog
from textual.widgets._footer import FooterKey
from textual.widgets._toast import Toast, ToastRack

from engine.config.plan import RunPlan, SpeculationPlan
from engine.config.ui import UiPlan
from engine.errors import UsageError
from engine.events import EngineState
from skippy_tui import demo
from skippy_tui.commands import COMMANDS, parse
from skippy_tui.conversation import Conversation, Turn
from skippy_tui.keys import KeyParser
from skippy_tui.logbook import LogBook
from skippy_tui.screens.chats import ChatsScreen
from skippy_tui.screens.compare import CompareScreen
from skippy_tui.screens.help import USAGE_WIDTH, HelpScreen
from skippy_tui.screens.history import HistoryScreen
from skippy_tui.screens.log import LogScreen
from skippy_tui.screens.rejects import RejectsScreen
from skippy_tui.screens.settings import SettingsList, SettingsScreen
from skippy_tui.screenshots import NOW
from skippy_tui.widgets.messages import AnswerMessage, Message, PromptMessage, answer_figures
from skippy_tui.widgets.speculation import SpeculationPanel
from skippy_tui.widgets.tokens import TokenFlow
from tests.conformance.tiny import TinyModel
from tests.tui.driving import ANSWER, Driver, first_half, running


async def test_every_key_of_the_table_is_bound_and_every_command_is_in_the_palette() -> None:
    async with running() as driver:
        bound = {binding.binding.key for binding in driver.app.main.active_bindings.values()}
        keys = {command.key for command in COMMANDS.values() if command.key}
        assert keys <= bound
        assert len(keys) == sum(bool(command.key) for command in COMMANDS.values())
        await driver.press("ctrl+p")
        entries = driver.app.screen.query_one(OptionList).option_count
        assert entries >= len(COMMANDS) - 1


def test_every_usage_fits_its_column_of_the_help() -> None:
    assert [command.usage for command in COMMANDS.values() if len(command.usage) >= USAGE_WIDTH] == []


async def test_no_key_stands_twice_in_the_footer_whatever_has_the_focus() -> None:
    async with running() as driver:
        await driver.write("a prompt")
        for focused in (driver.app.main.prompt, *driver.app.main.query(Message)):
            focused.focus()
            await driver.settle()
            shown = [(key.key_display, key.description) for key in driver.app.main.query(FooterKey)]
            keys, words = zip(*shown, strict=True)
            assert len(set(keys)) == len(keys)
            assert len(set(words)) == len(words)


async def test_dialogs_open_by_key_and_by_command_and_their_keys_close_them() -> None:
    closing = {
        HistoryScreen: ("history", ["escape"]),
        ChatsScreen: ("chats", ["escape"]),
        CompareScreen: ("compare", ["f4", "q"]),
        SettingsScreen: ("settings", ["f2"]),
        RejectsScreen: ("rejects", ["ctrl+o", "q"]),
        LogScreen: ("log", ["f12", "q"]),
        HelpScreen: ("help", ["f1", "q"]),
        CommandPalette: ("palette", ["escape"]),
    }
    async with running() as driver:
        await driver.write("a prompt")
        for screen, (name, keys) in closing.items():
            await driver.write(f"/{name}")
            for number, key in enumerate(keys):
                if number:
                    await driver.press(COMMANDS[name].key)
                assert isinstance(driver.app.screen, screen)
                await driver.press(key)
                assert driver.app.screen is driver.app.main


async def test_commands_that_have_a_key_do_the_same_when_they_are_written() -> None:
    async with running(hold=first_half, size=(120, 40)) as driver:
        main = driver.app.main
        await driver.write("a prompt")
        await driver.write("/tokens")
        assert main.query_one("#all-tokens", TokenFlow).display
        await driver.write("/tokens")
        await driver.write("/panels")
        assert not main.query_one("#panels").display
        await driver.write("/stop")
        assert not driver.app.controller.busy
        await driver.write("/copy")
        assert driver.app.clipboard == driver.messages[1]
        driver.client.go_on()
        await driver.write("/strategy")
        assert driver.client.values["strategy"] == "disabled"
        theme = driver.app.theme
        await driver.write("/theme")
        assert driver.app.theme != theme
        await driver.write("/new")
        assert driver.messages == []
        await driver.write("/code")
        assert "there is no answer yet" in driver.said[-1]


@pytest.mark.parametrize("text", ["Repeat: it, j, k", "Write more", "Hello", "edit", "9 lives", "(why)?"])
async def test_what_is_typed_at_a_message_is_written_in_the_prompt_and_does_nothing_else(text: str) -> None:
    async with running() as driver:
        await driver.write("a prompt")
        for focused in driver.app.main.query(Message):
            focused.focus()
            await driver.settle()
            for key in text:  # as fast as a paste without brackets
                driver.app.post_message(Key(_character_to_key(key), key))
            await driver.settle()
            assert driver.app.main.prompt.text == text
            assert driver.app.main.prompt.has_focus
            driver.app.main.prompt.set_text("")
        assert driver.messages == ["a prompt", ANSWER]
        assert len(driver.requests) == 1
        assert driver.app.clipboard == ""


async def test_a_paste_at_a_message_goes_to_the_prompt() -> None:
    async with running() as driver:
        await driver.write("a prompt")
        driver.app.main.query_one(AnswerMessage).focus()
        await driver.settle()
        driver.app.post_message(Paste("two\nlines"))
        await driver.settle()
        assert driver.app.main.prompt.text == "two\nlines"
        driver.app.post_message(Paste(" more"))
        await driver.settle()
        assert driver.app.main.prompt.text == "two\nlines more"


async def test_messages_are_walked_through_and_escape_returns_to_the_prompt() -> None:
    async with running() as driver:
        await driver.write("a prompt")
        driver.app.main.query_one(PromptMessage).focus()
        await driver.press("j")
        assert isinstance(driver.app.main.focused, AnswerMessage)
        await driver.press("k")
        assert isinstance(driver.app.main.focused, PromptMessage)
        await driver.press("escape")
        assert driver.app.main.prompt.has_focus
        assert driver.messages == ["a prompt", ANSWER]


async def test_an_edit_can_be_given_up_and_what_was_being_written_comes_back() -> None:
    async with running() as driver:
        await driver.write("a prompt")
        prompt = driver.app.main.prompt
        await driver.press(*"new")
        await driver.press("f6")
        await driver.press("x")
        assert (driver.messages, prompt.text) == ([], "a promptx")
        driver.app.main.draw()
        assert "Esc gives the turn back" in str(prompt.border_subtitle)
        await driver.press("escape")
        assert (driver.messages, prompt.text) == (["a prompt", ANSWER], "new")
        driver.app.main.draw()
        assert not prompt.border_subtitle
        await driver.press("escape")
        assert (driver.messages, prompt.text) == (["a prompt", ANSWER], "new")


async def test_an_edit_that_is_asked_replaces_the_turn() -> None:
    async with running() as driver:
        await driver.write("a prompt")
        await driver.press(*"new")
        await driver.press("f6")
        await driver.press("x", "enter")
        assert driver.messages == ["a promptx", ANSWER]
        assert driver.app.main.prompt.text == "new"
        await driver.press("escape")
        assert driver.messages == ["a promptx", ANSWER]


async def test_arrows_choose_among_suggestions_and_in_lists() -> None:
    async with running() as driver:
        for text in ("one", "two", "three"):
            await driver.write(text)
        await driver.press("/", "s", "down", "down", "up", "tab")
        names = [name for name in COMMANDS if name.startswith("s")]
        assert driver.app.main.prompt.text.strip() == f"/{names[1]}"
        await driver.press("ctrl+r", "down", "ctrl+r", "up", "enter")
        assert driver.app.main.prompt.text == "two"
        await driver.press("f2", "right", "right", "left")
        assert driver.app.controller.plan.speculation.strategy == "disabled"


async def test_palette_runs_a_choice() -> None:
    async with running() as driver:
        await driver.press("ctrl+p", *"ngram-suffix")
        await driver.pilot.pause(0.3)  # the palette gathers its hits in a task of its own
        await driver.press("enter", "enter")
        assert driver.app.controller.plan.speculation.strategy == "ngram-suffix"


def test_unknown_and_incomplete_commands_name_the_next_step() -> None:
    with pytest.raises(UsageError, match="did you mean strategy"):
        parse("/strategi mtp")
    with pytest.raises(UsageError, match="/seed N"):
        parse("/seed")


async def test_mistakes_are_one_line_and_two_slashes_are_a_prompt() -> None:
    async with running() as driver:
        await driver.write("/nonsense")
        await driver.write("/strategy mtpp")
        await driver.write("/set strategy mtpp")
        assert driver.said.pop() == driver.said[-1]
        assert driver.said.pop().endswith("not 'mtpp'; did you mean mtp?")
        await driver.write("/seed many")
        assert "there is no command /nonsense" in driver.said[0]
        assert "must be a whole number" in driver.said[1]
        await driver.write("//etc is a folder")
        assert driver.messages[0] == "/etc is a folder"


@pytest.mark.parametrize("key", ["ctrl+j", "shift+enter", "alt+enter"])
async def test_new_line_keys_begin_a_line(key: str) -> None:
    async with running() as driver:
        await driver.press("a", key, "b", "enter")
        assert driver.messages[0] == "a\nb"


async def test_up_and_down_walk_through_earlier_prompts_and_back_to_what_was_written() -> None:
    async with running() as driver:
        await driver.write("one")
        await driver.write("two")
        prompt = driver.app.main.prompt
        prompt.set_text("new")
        seen = []
        for key in ("up", "up", "down", "down"):
            await driver.press(key)
            seen.append(prompt.text)
        assert seen == ["two", "one", "two", "new"]


async def test_escape_and_a_letter_that_come_together_stop_the_answer_and_write_the_letter() -> None:
    async with running(hold=first_half) as driver:
        await driver.write("a prompt")
        driver.app.post_message(Key("alt+b", "b"))
        await driver.settle()
        assert not driver.app.controller.busy
        assert ANSWER.startswith(driver.messages[1])
        assert driver.app.main.prompt.text == "b"


async def test_escape_closes_the_list_of_commands_and_only_then_stops_the_answer() -> None:
    async with running(hold=first_half) as driver:
        await driver.write("a prompt")
        await driver.press("/", "s")
        assert driver.app.main.prompt.suggestions.display
        await driver.press("escape")
        assert not driver.app.main.prompt.suggestions.display
        assert driver.app.controller.busy
        await driver.press("escape")
        assert not driver.app.controller.busy


async def test_alt_with_an_arrow_moves_by_words_in_what_is_being_written() -> None:
    async with running(hold=first_half) as driver:
        await driver.write("a prompt")
        driver.app.main.prompt.set_text("two words")
        driver.app.post_message(Key("alt+b", "b"))  # as many terminals send it
        await driver.settle()
        await driver.press("x")
        assert driver.app.main.prompt.text == "two xwords"
        assert driver.app.controller.busy


@pytest.mark.parametrize(
    ("read", "keys"),
    [
        ("\x1bx", ["alt+x"]),
        ("\x1b/s", ["alt+slash", "s"]),
        ("\x1b1", ["alt+1"]),
        ("\x1bb", ["alt+b"]),
        ("\x1b[A", ["up"]),
        ("\x1bOP", ["f1"]),
        ("\x1b[1;3D", ["alt+left"]),
        ("\x1b\x7f", ["ctrl+w"]),
    ],
)
def test_what_terminals_send_is_read_as_one_key_or_as_alt_with_one(read: str, keys: list[str]) -> None:
    assert [event.key for event in KeyParser().feed(read)] == keys


async def test_history_search_takes_a_prompt() -> None:
    async with running() as driver:
        await driver.write("about lighthouses")
        await driver.write("about pipelines")
        await driver.press("ctrl+r")
        assert isinstance(driver.app.screen, HistoryScreen)
        await driver.press(*"light", "enter")
        assert driver.app.main.prompt.text == "about lighthouses"


async def test_completion_of_commands_and_their_arguments() -> None:
    async with running() as driver:
        prompt = driver.app.main.prompt
        await driver.press("/", "s", "t", "r", "tab")
        assert prompt.text == "/strategy "
        await driver.press(*"mtp-su", "tab", "enter")
        assert driver.client.values["strategy"] == "mtp-suffix"
        await driver.press(*"/sett", "enter")
        assert isinstance(driver.app.screen, SettingsScreen)


async def test_a_command_that_is_typed_at_once_is_run_as_it_stands() -> None:
    async with running() as driver:
        for key in "/seed 12":
            driver.app.post_message(Key("space" if key == " " else _character_to_key(key), key))
        driver.app.post_message(Key("enter", None))
        await driver.settle()
        assert driver.app.controller.plan.generation.sampling.seed == 12


async def test_copying() -> None:
    async with running() as driver:
        await driver.write("a prompt")
        await driver.press("f7")
        assert driver.app.clipboard == ANSWER
        await driver.press("f8")
        assert driver.app.clipboard.startswith("print(1)")
        driver.app.main.query_one(PromptMessage).focus()
        await driver.press("c")
        assert driver.app.clipboard == "a prompt"
        await driver.press("down")
        assert isinstance(driver.app.main.focused, AnswerMessage)
        await driver.press("b")
        assert driver.app.clipboard.startswith("print(1)")


async def test_saving_and_exporting(tmp_path: object) -> None:
    async with running() as driver:
        await driver.write("/save nowhere.md")
        assert "there is no answer yet" in driver.said[-1]
        await driver.write("a prompt")
        await driver.write(f"/save {tmp_path}/answer.md")
        await driver.write(f"/export markdown {tmp_path}/chat.md")
        await driver.write(f"/export {tmp_path}/chat.json")
        await driver.write("/export jsn")
        assert driver.said[-1] == "there is no format jsn; did you mean json?"
        await driver.write(f"/export {tmp_path}/missing/chat.md")
        assert "cannot write" in driver.said[-1]
    folder = Path(str(tmp_path))
    assert (folder / "answer.md").read_text() == ANSWER
    assert (folder / "chat.md").read_text().startswith("# a prompt\n\n## You\n\na prompt\n\n## Skippy")
    exported = json.loads((folder / "chat.json").read_text())
    assert [turn["role"] for turn in exported["turns"]] == ["user", "assistant"]
    assert (exported["created"], exported["updated"]) == (NOW, NOW)


async def test_stats_stand_in_the_chat() -> None:
    async with running() as driver:
        await driver.write("a prompt")
        await driver.write("/stats")
        assert "MTP" in driver.remarks[0]
        assert "stage 1" in driver.remarks[0]


async def test_the_panel_the_footer_and_the_stats_say_the_same_of_drafts() -> None:
    async with running(size=(120, 40)) as driver:
        await driver.write("a prompt")
        await driver.write("/stats")
        result = driver.app.controller.conversation.turns[-1].result
        counts = result["speculative"]
        assert counts["pipeline"]["stale_windows"]
        panel = str(driver.app.main.query_one(SpeculationPanel).content)
        for source, name in (("mtp", "MTP"), ("ngram", "n-gram")):
            proposed, accepted = counts["by_source"][source].values()
            if proposed:
                assert f"{accepted}/{proposed} " in panel
                assert f"{accepted} of {proposed}" in driver.remarks[0]
                assert f"{name} {accepted / proposed:.0%}" in answer_figures(result)


async def test_compare_says_whether_the_token_ids_agree() -> None:
    async with running() as driver:
        await driver.write("/compare what is new")
        assert isinstance(driver.app.screen, CompareScreen)
        assert [request["strategy"] for request in driver.requests] == ["disabled", "auto"]
        assert "token ids agree" in driver.shown("#verdict")
        await driver.press("escape")
        assert driver.app.screen is driver.app.main
        assert driver.messages == []


async def test_chats_are_resumed_renamed_and_deleted() -> None:
    async with running() as driver:
        for number in range(2):
            turns = (Turn("user", f"prompt {number}"), Turn("assistant", "an answer"))
            driver.store.save(Conversation(id=str(number), title=f"chat {number}", turns=turns))
        await driver.press("f3")
        assert isinstance(driver.app.screen, ChatsScreen)
        await driver.press(*"chat 0", "enter")
        assert driver.messages == ["prompt 0", "an answer"]
        await driver.write("/rename the first one")
        assert driver.store.load("0").title == "the first one"
        await driver.press("f3", "down", "f6")
        driver.app.screen.query_one(Input).value = "another title"
        await driver.press("enter", "f8", "escape")
        assert len(driver.store.summaries()) == 1
        await driver.press("ctrl+n")
        assert driver.messages == []
        await driver.write("/chats zzzz")
        option = driver.app.screen.query_one(OptionList).get_option_at_index(0)
        assert str(option.prompt) == "no chat with the words zzzz"
        await driver.press("enter")
        assert driver.messages == []


async def test_system_message_of_a_chat() -> None:
    async with running() as driver:
        await driver.write("/system Be brief.")
        await driver.write("a prompt")
        assert driver.requests[0]["messages"][0] == {"role": "system", "content": "Be brief."}
        await driver.write("/system")
        assert driver.said[-1] == "system message: Be brief."


async def test_live_controls_take_effect_on_the_next_window_or_answer() -> None:
    async with running() as driver:
        await driver.press("ctrl+s")
        assert driver.client.values["strategy"] == "disabled"
        await driver.write("/width 2 6")
        await driver.write("/depth 3")
        assert driver.client.values["window_min"] == 2
        assert driver.client.values["window_max"] == 6
        assert driver.client.values["pipeline_depth"] == 3
        assert "from the next window on" in driver.said[-1]
        assert "rtt" not in driver.shown("#status")
        await driver.write("/rtt 20")
        assert driver.client.emulation.rtt_ms == 20
        assert "rtt +20 ms" in driver.shown("#status")
        assert "from the next answer on" in driver.said[-1]
        assert "the whole prompt is read again" in driver.said[-1]
        assert driver.client.opened == 1
        await driver.write("/temperature 0.7")
        await driver.write("/seed 9")
        await driver.write("/set top-p 0.9")
        await driver.write("a prompt")
        sampling = driver.requests[0]["sampling"]
        assert (sampling["temperature"], sampling["seed"], sampling["top_p"]) == (0.7, 9, 0.9)


async def test_what_only_a_new_engine_can_take_on_starts_one(tmp_path: Path) -> None:
    async with running() as driver:
        await driver.write("/set stages 3")
        TinyModel("other", "llama", {"block_count": 4, "embedding_length": 64}).write_metadata(
            tmp_path / "other.gguf"
        )
        await driver.write(f"/model {tmp_path}/other.gguf")
        assert driver.client.opened == 3
        assert driver.plans[1].topology.stages == 3
        assert driver.plans[2].model.endswith("other.gguf")
        await driver.write("a prompt")
        assert driver.messages == ["a prompt", ANSWER]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("/model /nofile.gguf", "model /nofile.gguf does not exist; give a .gguf file, or 'demo'"),
        ("/set stages 40", "--stages 40 is not possible"),
        ("/set split 10,50", "--split 10,50 does not cut 30 layers"),
    ],
)
async def test_what_cannot_work_leaves_the_engine_running(line: str, text: str) -> None:
    async with running() as driver:
        await driver.write(line)
        assert text in driver.said[-1]
        assert driver.client.opened == 1
        assert driver.app.controller.plan == RunPlan()
        await driver.write("a prompt")
        assert driver.messages == ["a prompt", ANSWER]


async def test_an_engine_that_does_not_start_after_a_change_gives_way_to_the_one_before() -> None:
    def startup(plan: RunPlan) -> list:
        fails = plan.topology.stages == 3
        return [EngineState(at=1.0, state="failed", detail="no memory")] if fails else demo.ready()

    async with running(startup_of=startup) as driver:
        await driver.write("/set stages 3")
        await driver.settle()
        assert driver.failures == ["✕ no memory; the engine with demo is started again"]
        assert [plan.topology.stages for plan in driver.plans] == [2, 3, 2]
        await driver.write("a prompt")
        assert driver.messages == ["a prompt", ANSWER]


async def test_without_an_engine_that_worked_the_way_out_is_named() -> None:
    failed = [EngineState(at=1.0, state="failed", detail="no memory")]
    async with running(failed) as driver:
        await driver.write("/set stages 3")
        await driver.settle()
        assert driver.failures == ["✕ no memory; /model demo runs the default model"]


async def test_settings_screen_changes_by_arrows_and_by_typing() -> None:
    async with running() as driver:
        await driver.press("f2", "right")
        assert driver.client.values["strategy"] == "disabled"
        options = driver.app.screen.query_one(SettingsList)
        options.highlighted = options.get_option_index("generation:max_tokens")
        await driver.press("enter")
        driver.app.screen.query_one(Input).value = "none"
        await driver.press("enter")
        assert "must be a whole number" in driver.shown("#settings-help")
        driver.app.screen.query_one(Input).value = "99"
        await driver.press("enter", "escape")
        assert driver.app.controller.plan.generation.max_tokens == 99
        assert driver.app.screen is driver.app.main


async def test_themes_change_and_are_remembered() -> None:
    async with running() as driver:
        await driver.write("/theme paper")
        assert driver.app.theme == "paper"
        assert driver.store.preference("theme") == "paper"
        await driver.press("f9")
        assert driver.app.theme == "violet"
        await driver.write("/theme gone")
        assert "there is no theme gone" in driver.said[-1]


async def test_tokens_and_panels_come_and_go() -> None:
    async with running(hold=first_half, size=(120, 40)) as driver:
        await driver.write("a prompt")
        await driver.press("ctrl+t")
        assert driver.app.main.query_one("#all-tokens", TokenFlow).display
        assert not driver.app.main.chat.display
        await driver.press("ctrl+t", "ctrl+g")
        assert driver.app.main.chat.display
        assert not driver.app.main.query_one("#panels").display
        await driver.press("ctrl+g")
        assert driver.app.main.query_one("#panels").display


async def test_the_app_begins_as_the_configuration_says() -> None:
    ui = UiPlan(theme="papr", tokens=True, panels=False)
    async with running(hold=first_half, size=(120, 40), ui=ui) as driver:
        main = driver.app.main
        assert main.query_one("#all-tokens", TokenFlow).display
        assert not main.query_one("#panels").display
        assert "there is no theme papr; did you mean paper?" in driver.said
        await driver.press("ctrl+g", "ctrl+t")
        assert main.query_one("#panels").display
        assert main.chat.display


async def test_hidden_panels_stay_hidden_when_the_terminal_gets_narrow() -> None:
    async with running(size=(120, 40)) as driver:
        await driver.press("ctrl+g")
        await driver.pilot.resize_terminal(80, 24)
        await driver.settle()
        assert driver.app.main.chat.display
        assert not driver.app.main.query_one("#panels").display


async def test_help_begins_with_what_has_the_focus() -> None:
    async with running() as driver:
        await driver.write("a prompt")
        await driver.press("f1")
        assert isinstance(driver.app.screen, HelpScreen)
        assert "The prompt" in driver.app.screen._texts()[0]
        await driver.press("escape")
        driver.app.main.query_one(AnswerMessage).focus()
        await driver.press("question_mark")
        assert "A message" in driver.app.screen._texts()[0]
        await driver.press("escape")
        assert driver.app.screen is driver.app.main


async def test_log_follows_native_output() -> None:
    async with running() as driver:
        driver.app.logbook = LogBook()
        driver.app.logbook.add("native", "before")
        await driver.press("f12")
        assert isinstance(driver.app.screen, LogScreen)
        driver.app.logbook.add("native", "after \x1b[2J")
        driver.app.screen._read()
        await driver.settle()
        lines = [line.text for line in driver.app.screen.query_one(RichLog).lines]
        assert any("before" in line for line in lines)
        assert any("after ␛[2J" in line for line in lines)


async def test_page_keys_scroll_and_following_stops_until_the_end_is_reached() -> None:
    async with running(script=demo.answer) as driver:
        await driver.write("a prompt")
        chat = driver.app.main.chat
        assert chat.scroll_y == chat.max_scroll_y > 0
        await driver.press("pageup")
        assert chat.scroll_y < chat.max_scroll_y
        await driver.press("pagedown", "pagedown")
        assert chat.scroll_y == chat.max_scroll_y


async def test_ctrl_c_stops_and_twice_with_nothing_to_stop_leaves() -> None:
    async with running(hold=first_half) as driver:
        await driver.write("a prompt")
        await driver.press("ctrl+c")
        assert not driver.app.controller.busy
        assert driver.app.is_running
        await driver.press("ctrl+c")
        assert driver.said[-1] == "Ctrl+C again leaves"
        await driver.pilot.press("ctrl+c")
        assert driver.app.return_code == 130


@pytest.mark.parametrize("keys", [("ctrl+q",), ("ctrl+d",), ("/", "q", "u", "i", "t", "enter")])
async def test_leaving(keys: tuple[str, ...]) -> None:
    async with running() as driver:
        await driver.pilot.press(*keys)
        await driver.pilot.pause()
        assert driver.app.return_code == 0


@pytest.mark.parametrize("width", [40, 60, 80])
async def test_settings_show_their_values_at_every_width(width: int) -> None:
    plan = RunPlan(speculation=SpeculationPlan(strategy="ngram-suffix"))
    async with running(size=(width, 24), plan=plan) as driver:
        await driver.press("f2")
        await driver.settle()
        screen = driver.app.export_screenshot().replace("&#160;", " ")
        assert "ngram-suffix" in screen
        options = driver.app.screen.query_one(SettingsList)
        room = options.scrollable_content_region.width
        for option in options.options:
            assert option.disabled or len(str(option.prompt)) <= room


async def test_toasts_are_few_told_once_and_cover_neither_the_prompt_nor_the_list_of_commands() -> None:
    async with running(toasts=True) as driver:
        for text in ("one", "two", "three", "three", "four", "five", "four"):
            driver.app.say(text)
        await driver.pilot.press("/")
        await driver.pilot.pause()
        toasts = toasts_of(driver)
        assert [str(toast.render()) for toast in toasts] == ["three", "five", "four"]
        bottom = max(toast.region.bottom for toast in toasts)
        assert bottom <= driver.app.main.prompt.suggestions.region.y
        assert min(toast.region.y for toast in toasts) >= 1  # below the status line


async def test_toasts_stand_beside_the_panels() -> None:
    async with running(size=(120, 40), toasts=True) as driver:
        await driver.write("a prompt")
        driver.app.say("something that is told")
        await driver.pilot.pause(0.2)
        (toast,) = toasts_of(driver)
        assert 1 <= toast.region.right <= driver.app.main.query_one("#panels").region.x


async def test_a_toast_stands_above_a_dialog() -> None:
    async with running(toasts=True) as driver:
        await driver.write("a prompt")
        await driver.press("ctrl+o")
        driver.app.say("words " * 100)
        await driver.pilot.pause(0.2)
        (toast,) = toasts_of(driver)
        assert 1 <= toast.region.bottom <= driver.app.screen.query_one(".dialog").region.y


def toasts_of(driver: Driver) -> list[Toast]:
    """Those on the top screen, in their order; queries pass them over."""
    rack = driver.app.screen.get_child_by_type(ToastRack)
    return [toast for toast in rack.walk_children() if isinstance(toast, Toast)]
