"""Chats on disk: kept, found, upgraded, and never damaged."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from skippy_tui.conversation import UNTITLED, Conversation, Turn, to_json, to_markdown
from skippy_tui.store import PROMPTS_KEPT, SCHEMA, Store, StoreError


def chat(id: str, *texts: str) -> Conversation:
    conversation = Conversation(id=id)
    for number, text in enumerate(texts):
        conversation = conversation.with_turn(Turn(("user", "assistant")[number % 2], text))
    return conversation


def test_a_chat_comes_back_as_it_was(tmp_path: Path) -> None:
    kept = Conversation(id="a", system="Be brief.", model="m").with_turn(Turn("user", "hello"))
    kept = kept.with_turn(Turn("assistant", "hi", {"timings": {"predicted_n": 1}}))
    store = Store(tmp_path / "chats.db", clock=lambda: 5.0)
    saved = store.save(kept)
    assert (saved.created, saved.updated) == (5.0, 5.0)
    store.close()
    again = Store(tmp_path / "chats.db").load("a")
    assert again.turns == kept.turns
    assert (again.title, again.system, again.model, again.updated) == ("hello", "Be brief.", "m", 5.0)


def test_saving_again_replaces_the_turns_and_keeps_the_time_of_the_first(tmp_path: Path) -> None:
    times = iter((1.0, 2.0))
    store = Store(tmp_path / "chats.db", clock=lambda: next(times))
    store.save(chat("a", "one", "two", "three"))
    store.save(chat("a", "one"))
    again = store.load("a")
    assert [turn.content for turn in again.turns] == ["one"]
    assert (again.created, again.updated) == (1.0, 2.0)


def test_search_wants_every_word_in_title_or_text_and_shows_where() -> None:
    store = Store(":memory:")
    store.save(chat("a", "about lighthouses", "a keeper lived there"))
    store.save(chat("b", "about 100% pipelines", "windows fly"))
    assert [found.id for found in store.summaries()] == ["b", "a"]
    assert [found.id for found in store.summaries("about keeper")] == ["a"]
    assert [found.id for found in store.summaries("100%")] == ["b"]
    assert store.summaries("10_%") == []
    assert "keeper" in store.summaries("keeper")[0].excerpt


def test_renaming_and_deleting() -> None:
    store = Store(":memory:")
    store.save(chat("a", "one"))
    store.rename("a", "other")
    assert store.summaries()[0].title == "other"
    store.delete("a")
    assert store.summaries() == []
    assert store.load("a") is None


def test_prompts_are_kept_in_order_without_repeats_up_to_a_limit() -> None:
    store = Store(":memory:")
    for text in ("a", "a", "b", "a"):
        store.add_prompt(text)
    assert store.prompts() == ["a", "b", "a"]
    for number in range(PROMPTS_KEPT + 10):
        store.add_prompt(str(number))
    assert len(store.prompts()) == PROMPTS_KEPT


@pytest.mark.parametrize("version", range(len(SCHEMA)))
def test_files_of_every_earlier_version_are_brought_up_to_date(version: int, tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    with sqlite3.connect(path) as base:
        for script in SCHEMA[:version]:
            base.executescript(script)
        base.execute(f"PRAGMA user_version = {version}")
        if version:
            base.execute("INSERT INTO chats VALUES ('a', 'old', '', '', 1, 1)")
    store = Store(path)
    store.set_preference("theme", "paper")
    store.save(chat("b", "new"))
    assert {found.title for found in store.summaries()} == ({"old", "new"} if version else {"new"})
    assert store.preference("theme") == "paper"


def test_a_file_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    with sqlite3.connect(path) as base:
        base.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer version"):
        Store(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    path.write_text("this is no database, it is a text that is long enough to be looked at")
    with pytest.raises(StoreError, match="cannot open the chats"):
        Store(path)


def test_exports_hold_every_turn() -> None:
    conversation = chat("a", "one", "two")
    assert to_markdown(conversation) == "# one\n\n## You\n\none\n\n## Skippy\n\ntwo\n"
    result = {"finish_reason": "cancelled", "strategy": "auto", "timings": {"predicted_n": 3}}
    stopped = chat("b", "one").with_turn(Turn("assistant", "tw", result))
    assert to_markdown(stopped).endswith("tw\n\n*auto, 3 tokens, 0.0 tok/s, stopped*\n")
    assert '"content": "two"' in to_json(conversation)
    assert Conversation().title == UNTITLED
