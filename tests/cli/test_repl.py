"""The REPL on a terminal: a chat, its commands, Ctrl+C, and an engine that dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import OpenTerminal
from tests.cli.programs import Terminal

CTRL_C = "\x03"
CTRL_D = "\x04"
ALT_ENTER = "\x1b\r"
# The editor switches bracketed paste on when it shows its prompt, and off when a line is sent.
READY = "\x1b[?2004h"
SENT = "\x1b[?2004l"


@pytest.fixture
def repl(terminal: OpenTerminal) -> Terminal:
    screen = terminal()
    screen.expect(
        "demo: 30 layers in 2 stages, context 4096, strategy auto, exact. :help lists the commands."
    )
    return screen


def enter(screen: Terminal, text: str) -> None:
    """Type a line once the prompt is there."""
    screen.expect(READY)
    screen.type(f"{text}\r")


def ask(screen: Terminal, text: str, answer: str | None = None) -> None:
    """Type a line and wait for the answer, which begins a line of its own."""
    enter(screen, text)
    screen.expect(f"{SENT}{text if answer is None else answer}\r\n")


def test_it_greets_answers_and_leaves(repl: Terminal) -> None:
    ask(repl, "one two")
    repl.expect("42.0 tok/s, a token in 20.0 ms (p95 30.0)")
    enter(repl, ":quit")
    assert repl.wait() == 0


def test_the_greeting_and_the_help_break_between_words(terminal: OpenTerminal) -> None:
    screen = terminal(columns=60)
    screen.expect("context 4096, strategy auto,\r\nexact. :help lists the commands.\r\n", READY)
    screen.type(":help\r")
    screen.expect(SENT)
    begin = screen.seen.rindex(SENT) + len(SENT)
    screen.expect("stops an answer.\r\n")
    end = screen.seen.index("stops an answer.\r\n")
    shown = screen.seen[begin:end].splitlines()
    assert max(map(len, shown)) <= 60
    assert any(line.startswith(":stats ") and line.endswith(" figures of the last") for line in shown)


def test_nodes_are_named_at_the_start_and_in_the_figures(terminal: OpenTerminal) -> None:
    screen = terminal("--model", "on-nodes")
    screen.expect("node den, layers 15:30: ready, received 2.5 MB")
    screen.expect("node shed: left out: nothing listens at shed:1")
    ask(screen, "one two")
    screen.expect("node    den, layers 15:30: ready, received 2.5 MB", "node    shed: left out")


def test_ctrl_d_leaves(repl: Terminal) -> None:
    repl.expect(READY)
    repl.type(CTRL_D)
    assert repl.wait() == 0


def test_a_turn_reuses_the_turns_before_it(repl: Terminal) -> None:
    ask(repl, "first words")
    assert "were in the caches" not in repl.seen
    ask(repl, "second")
    repl.expect("2 of 5 prompt tokens were in the caches")
    ask(repl, ":clear", "a new chat")
    ask(repl, "third")
    repl.expect("tokens  1 prompt, 1 answer (stop)")


def test_settings_and_strategy_change_without_a_restart(repl: Terminal) -> None:
    ask(repl, ":set max_tokens 1", "max_tokens = 1")
    ask(repl, "one two", "one")
    ask(repl, ":strategy mtp-suffix", "strategy mtp-suffix")
    ask(repl, "three", "three")
    repl.expect("spec    mtp-suffix")
    enter(repl, ":set temperature hot")
    repl.expect("skippy-prompt: --temperature must be a number between 0 and 100, not 'hot'")
    enter(repl, ":set stages 3")
    repl.expect("skippy-prompt: stages cannot change while the engine runs; start again with --stages")
    enter(repl, ":sett")
    repl.expect("there is no command :sett; did you mean :set?")


def test_a_mistyped_command_names_the_one_that_was_meant(repl: Terminal) -> None:
    enter(repl, ":quitt")
    repl.expect("there is no command :quitt; did you mean :quit?")
    enter(repl, ":exi")
    repl.expect("did you mean :exit?")


def test_a_command_after_a_slash_is_no_prompt_but_another_word_is(repl: Terminal) -> None:
    enter(repl, "/strategy mtp")
    repl.expect("skippy-prompt: commands begin with : here; type :strategy\r\n")
    enter(repl, "/quit")
    repl.expect("skippy-prompt: commands begin with : here; type :quit\r\n")
    ask(repl, "/etc/hosts holds what")
    enter(repl, ":stats")
    repl.expect("so far: 1 answers")


def test_prompts_are_numbered_and_can_be_asked_again(repl: Terminal) -> None:
    ask(repl, "one two")
    ask(repl, "three")
    enter(repl, ":history")
    repl.expect("   1  one two\r\n   2  three\r\n")
    enter(repl, ":rerun 1")
    repl.expect(f"{SENT}one two\r\n")
    enter(repl, ":rerun 9")
    repl.expect(":rerun needs a number from 1 to 2")


def test_noappend_begins_a_chat_with_every_prompt_until_append(repl: Terminal) -> None:
    ask(repl, "first words")
    ask(repl, ":noappend", "every prompt begins a new chat")
    ask(repl, "second")
    repl.expect("tokens  1 prompt")
    ask(repl, "third")
    repl.expect("tokens  1 prompt")
    ask(repl, ":append", "prompts continue the chat")
    ask(repl, "fourth")
    repl.expect("tokens  3 prompt")


def test_prompts_as_json_keep_their_lines_and_their_chats_apart(repl: Terminal) -> None:
    ask(repl, "first words")
    enter(repl, r':prompt-json "one" "a\nb"')
    repl.expect(f"{SENT}a\r\nb\r\n", "tokens  2 prompt")
    enter(repl, ':prompt-json "two" "c"')
    repl.expect(f"{SENT}c\r\n", "tokens  1 prompt")
    enter(repl, ':prompt-json "one" "d"')
    repl.expect(f"{SENT}d\r\n", "tokens  5 prompt")
    enter(repl, ":prompt-json one")
    repl.expect("skippy-prompt: :prompt-json needs a prompt as a JSON text")


def test_the_last_answer_is_saved(repl: Terminal, tmp_path: Path) -> None:
    enter(repl, ":save answer.txt")
    repl.expect("there is no answer yet; ask something first")
    ask(repl, "one two")
    ask(repl, ":save answer.txt", "the last answer is in answer.txt")
    assert (tmp_path / "answer.txt").read_text() == "one two"
    enter(repl, ":save missing/answer.txt")
    repl.expect("cannot write missing/answer.txt: No such file or directory")


def test_the_end_of_a_log_is_shown(repl: Terminal, tmp_path: Path) -> None:
    (tmp_path / "state" / "skippy" / "log" / "stage-1.log").write_text("early\nlate \x1b[2J\nlast\n")
    enter(repl, ":logs stage-1 2")
    repl.expect(f"{SENT}late ␛[2J\r\nlast\r\n")
    enter(repl, ":logs stage-9")
    repl.expect("there is no log stage-9; did you mean stage-1?")


def test_the_history_outlives_the_process(repl: Terminal, terminal: OpenTerminal) -> None:
    ask(repl, "remember me")
    ask(repl, "remember me")
    enter(repl, ":quit")
    assert repl.wait() == 0
    later = terminal()
    enter(later, ":history")
    later.expect("   1  remember me\r\n")
    enter(later, 3 * "\x1b[A")  # up, beyond :history and :quit
    later.expect(f"{SENT}remember me\r\n")
    assert "   2  remember me" not in later.seen


def test_several_lines_are_one_prompt(repl: Terminal) -> None:
    enter(repl, f"one{ALT_ENTER}two")
    repl.expect(f"{SENT}one\r\ntwo\r\n")
    enter(repl, '"""\rthree\rfour"""')
    repl.expect(f"{SENT}three\r\nfour\r\n")


def test_the_system_message_begins_a_new_chat(repl: Terminal) -> None:
    ask(repl, ":system be very brief", "system message: be very brief")
    ask(repl, "one")
    repl.expect("tokens  4 prompt")
    ask(repl, ":system none", "system message: none")


def test_ctrl_c_stops_an_answer_and_keeps_it(repl: Terminal) -> None:
    enter(repl, ":set max_tokens 1000000")
    repl.expect("max_tokens = 1000000")
    enter(repl, "endless")
    repl.expect("word word word")
    repl.type(CTRL_C)
    repl.expect("(cancelled)")
    ask(repl, "and on")
    enter(repl, ":quit")
    assert repl.wait() == 0


def test_ctrl_c_at_the_prompt_leaves_the_second_time(repl: Terminal) -> None:
    warning = "Ctrl+C again or :quit leaves"
    repl.expect(READY)
    repl.type(CTRL_C)
    repl.expect(warning)
    ask(repl, "still here")
    repl.expect(READY)
    repl.type(CTRL_C)
    repl.expect(warning, READY)
    repl.type(CTRL_C)
    assert repl.wait() == 130


def test_a_dead_engine_is_named_and_the_next_prompt_starts_another(repl: Terminal) -> None:
    ask(repl, ":set max_tokens 2", "max_tokens = 2")
    enter(repl, "die")
    repl.expect("skippy-prompt: the engine was killed by signal 9; see ")
    enter(repl, "one two three")
    repl.expect("one two\r\n", "tokens  3 prompt, 2 answer (length)")
    enter(repl, ":quit")
    assert repl.wait() == 0


def test_figures_of_all_answers(repl: Terminal) -> None:
    ask(repl, "one two")
    enter(repl, ":stats")
    repl.expect("so far: 1 answers of 2 tokens")
    repl.expect("1 of 2 drafts right")


def test_control_sequences_of_an_answer_do_not_reach_the_terminal(repl: Terminal) -> None:
    ask(repl, "an attack", "an ␛]0;title␇")
    assert "\x1b]0;" not in repl.seen


def test_an_engine_that_does_not_start_ends_the_repl(terminal: OpenTerminal, tmp_path: Path) -> None:
    screen = terminal("--model", "failing")
    assert screen.wait() == 1
    assert "skippy-prompt: the model is broken; try another one" in screen.seen
