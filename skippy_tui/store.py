"""Chats on disk: one SQLite file in the data folder, with a versioned schema.

Every call is short and may be made from any thread. Opening an older file brings it up to date; a newer one
is refused rather than damaged.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from engine.errors import SkippyError
from skippy_tui.conversation import Conversation, Turn

# Each script leads from the version before it to its own, counting from 1. Never change a released one.
SCHEMA = (
    """
    CREATE TABLE chats (
        id TEXT PRIMARY KEY, title TEXT NOT NULL, system TEXT NOT NULL, model TEXT NOT NULL,
        created REAL NOT NULL, updated REAL NOT NULL
    );
    CREATE TABLE turns (
        chat TEXT NOT NULL REFERENCES chats(id) ON DELETE CASCADE, position INTEGER NOT NULL,
        role TEXT NOT NULL, content TEXT NOT NULL, result BLOB NOT NULL,
        PRIMARY KEY (chat, position)
    );
    CREATE INDEX chats_by_time ON chats(updated DESC);
    """,
    """
    CREATE TABLE prompts (id INTEGER PRIMARY KEY, text TEXT NOT NULL);
    CREATE TABLE preferences (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    """,
)
PROMPTS_KEPT = 1000


class StoreError(SkippyError):
    """The chats cannot be read or kept."""

    code = "store"


@dataclass(frozen=True, slots=True)
class Summary:
    """A chat in a list. `excerpt` is where a search found its words."""

    id: str
    title: str
    updated: float
    turns: int
    excerpt: str = ""


class Store:
    """The chats, prompts and preferences of one person."""

    def __init__(self, path: Path | str, clock: Callable[[], float] = time.time) -> None:
        """Open or create; `:memory:` keeps nothing. Raises StoreError."""
        self.path = path
        self._clock = clock
        self._lock = threading.Lock()
        try:
            if isinstance(path, Path):
                path.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(path, check_same_thread=False, timeout=3.0)
            self._base.execute("PRAGMA foreign_keys = ON")
            self._upgrade()
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"cannot open the chats in {path}: {error}") from error

    def close(self) -> None:
        self._base.close()

    def _upgrade(self) -> None:
        version = self._base.execute("PRAGMA user_version").fetchone()[0]
        if version > len(SCHEMA):
            raise StoreError(
                f"{self.path} was written by a newer version ({version}, known: {len(SCHEMA)})",
                hint="install that version again, or move the file away",
            )
        for number, script in enumerate(SCHEMA[version:], version + 1):
            self._base.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")

    # -- chats ---------------------------------------------------------------------------------------

    def save(self, chat: Conversation) -> Conversation:
        """Keep a chat as it is now; returns it with its times."""
        now = self._clock()
        chat = replace(chat, created=chat.created or now, updated=now)
        with self._lock, self._writing():
            self._base.execute(
                "INSERT INTO chats VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                "title = excluded.title, system = excluded.system, model = excluded.model, "
                "updated = excluded.updated",
                (chat.id, chat.title, chat.system, chat.model, chat.created, chat.updated),
            )
            self._base.execute("DELETE FROM turns WHERE chat = ?", (chat.id,))
            self._base.executemany(
                "INSERT INTO turns VALUES (?, ?, ?, ?, ?)",
                [
                    (chat.id, position, turn.role, turn.content, orjson.dumps(turn.result))
                    for position, turn in enumerate(chat.turns)
                ],
            )
        return chat

    def load(self, id: str) -> Conversation | None:
        """A chat with all its turns."""
        with self._lock, self._writing():
            row = self._base.execute("SELECT * FROM chats WHERE id = ?", (id,)).fetchone()
            turns = self._base.execute(
                "SELECT role, content, result FROM turns WHERE chat = ? ORDER BY position", (id,)
            ).fetchall()
        if row is None:
            return None
        kept = tuple(Turn(role, content, orjson.loads(result)) for role, content, result in turns)
        return Conversation(row[0], row[1], row[2], row[3], row[4], row[5], kept)

    def rename(self, id: str, title: str) -> None:
        with self._lock, self._writing():
            self._base.execute("UPDATE chats SET title = ? WHERE id = ?", (title, id))

    def delete(self, id: str) -> None:
        with self._lock, self._writing():
            self._base.execute("DELETE FROM chats WHERE id = ?", (id,))

    def summaries(self, words: str = "", limit: int = 200) -> list[Summary]:
        """The newest chats; with `words`, those whose title or text holds every one of them."""
        conditions, values = [], []
        for word in words.split():
            pattern = _holding(word)
            conditions.append(
                "(title LIKE ? ESCAPE '\\' OR EXISTS (SELECT 1 FROM turns t WHERE t.chat = chats.id "
                "AND t.content LIKE ? ESCAPE '\\'))"
            )
            values += [pattern, pattern]
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        query = (
            "SELECT id, title, updated, (SELECT count(*) FROM turns t WHERE t.chat = chats.id) "
            f"FROM chats {where} ORDER BY updated DESC, rowid DESC LIMIT ?"
        )
        with self._lock, self._writing():
            rows = self._base.execute(query, (*values, limit)).fetchall()
            return [Summary(id, title, at, n, self._excerpt(id, words)) for id, title, at, n in rows]

    def _excerpt(self, chat: str, words: str) -> str:
        first = words.split()[0] if words.split() else ""
        if not first:
            return ""
        row = self._base.execute(
            "SELECT content FROM turns WHERE chat = ? AND content LIKE ? ESCAPE '\\' LIMIT 1",
            (chat, _holding(first)),
        ).fetchone()
        if row is None:
            return ""
        at = max(row[0].lower().find(first.lower()) - 20, 0)
        return " ".join(row[0][at : at + 60].split())

    # -- prompts and preferences ---------------------------------------------------------------------

    def add_prompt(self, text: str) -> None:
        """Remember a prompt; the same one twice in a row is kept once."""
        with self._lock, self._writing():
            newest = self._base.execute("SELECT text FROM prompts ORDER BY id DESC LIMIT 1").fetchone()
            if newest is not None and newest[0] == text:
                return
            self._base.execute("INSERT INTO prompts (text) VALUES (?)", (text,))
            self._base.execute(
                "DELETE FROM prompts WHERE id <= (SELECT max(id) FROM prompts) - ?", (PROMPTS_KEPT,)
            )

    def prompts(self) -> list[str]:
        """Remembered prompts, oldest first."""
        with self._lock, self._writing():
            return [row[0] for row in self._base.execute("SELECT text FROM prompts ORDER BY id")]

    def preference(self, name: str, default: str = "") -> str:
        with self._lock, self._writing():
            row = self._base.execute("SELECT value FROM preferences WHERE name = ?", (name,)).fetchone()
        return default if row is None else row[0]

    def set_preference(self, name: str, value: str) -> None:
        with self._lock, self._writing():
            self._base.execute(
                "INSERT INTO preferences VALUES (?, ?) "
                "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (name, value),
            )

    def _writing(self) -> _Transaction:
        return _Transaction(self._base, self.path)


def _holding(word: str) -> str:
    """The pattern of LIKE for texts that hold a word as it is."""
    escaped = word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"


class _Transaction:
    """Commits, or rolls back and says what went wrong in one line."""

    def __init__(self, base: sqlite3.Connection, path: Path | str) -> None:
        self._base = base
        self._path = path

    def __enter__(self) -> None:
        self._base.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._base.__exit__(kind, error, trace)  # type: ignore[arg-type]
        if isinstance(error, sqlite3.Error):
            raise StoreError(f"cannot use the chats in {self._path}: {error}") from error
