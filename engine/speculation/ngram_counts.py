"""Counts of which token followed which n-gram, and the file they are kept in.

The file format is that of llama.cpp's lookup caches, little endian, one record per n-gram: four int32 tokens
(shorter n-grams end in -1), the int32 number of followers, then an int32 token and an int32 count for each.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from engine.errors import ConfigError

LONGEST_NGRAM = 4
STATIC_NGRAM = 2  # the static tier holds n-grams of this size

_RECORD = struct.Struct("<5i")
_FOLLOWER = struct.Struct("<2i")


class Followers:
    """How often each token followed one n-gram.

    `best` is the first token that reached the highest count. `after`, for n-grams of the largest size: the
    followers of the n-gram that is shifted by it, once both were counted from one text.
    """

    __slots__ = ("after", "best", "best_count", "counts", "total")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.total = 0
        self.best = -1
        self.best_count = 0
        self.after: Followers | None = None

    def add(self, token: int, count: int = 1) -> None:
        """Count `token` as a follower."""
        new = self.counts.get(token, 0) + count
        self.counts[token] = new
        self.total += count
        if new > self.best_count:
            if token != self.best:
                self.best, self.after = token, None
            self.best_count = new


class NgramCounts:
    """Followers of the n-grams of `smallest` to `largest` tokens, 1 <= smallest <= largest <= 4."""

    def __init__(self, smallest: int = 1, largest: int = LONGEST_NGRAM) -> None:
        self.sizes = range(smallest, largest + 1)
        self._followers: dict[tuple[int, ...], Followers] = {}

    def __len__(self) -> int:
        return len(self._followers)

    def get(self, ngram: tuple[int, ...]) -> Followers | None:
        """The followers of an n-gram, or None."""
        return self._followers.get(ngram)

    def items(self) -> Iterator[tuple[tuple[int, ...], Followers]]:
        """Every n-gram with its followers."""
        yield from self._followers.items()

    def count(self, text: Sequence[int], start: int) -> None:
        """Count the tokens of `text` from position `start` on as followers of the n-grams before them."""
        followers, largest = self._followers, self.sizes[-1]
        before = followers.get(tuple(text[start - 1 - largest : start - 1])) if start > largest else None
        for end in range(start, len(text)):
            token = text[end]
            entry = None
            for size in self.sizes:
                if size > end:
                    break
                ngram = tuple(text[end - size : end])
                entry = followers.get(ngram)
                if entry is None:
                    entry = followers[ngram] = Followers()
                entry.add(token)
            if before is not None and before.best == text[end - 1]:
                before.after = entry
            before = entry

    def merge(self, other: NgramCounts) -> None:
        """Add the counts of `other`."""
        for ngram, theirs in other.items():
            mine = self._followers.setdefault(ngram, Followers())
            for token, count in theirs.counts.items():
                mine.add(token, count)

    def to_bytes(self) -> bytes:
        """The content of a lookup cache file."""
        parts = []
        for ngram, entry in self._followers.items():
            padded = (*ngram, *(-1,) * (LONGEST_NGRAM - len(ngram)))
            parts.append(_RECORD.pack(*padded, len(entry.counts)))
            parts.extend(_FOLLOWER.pack(token, count) for token, count in entry.counts.items())
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> NgramCounts:
        """Read a lookup cache file; raises ConfigError when it is not one."""
        counts = cls()
        offset = 0
        while offset < len(data):
            offset = counts._read_record(data, offset)
        return counts

    def _read_record(self, data: bytes, offset: int) -> int:
        if offset + _RECORD.size > len(data):
            raise ConfigError(f"n-gram file is cut off in the record at byte {offset}")
        fields: tuple[int, ...] = _RECORD.unpack_from(data, offset)
        n_followers = fields[-1]
        ngram = tuple(token for token in fields[:-1] if token != -1)
        body = offset + _RECORD.size
        end = body + n_followers * _FOLLOWER.size
        if not ngram or min(ngram) < 0 or n_followers <= 0 or end > len(data):
            raise ConfigError(f"n-gram file has a damaged record at byte {offset}")
        entry = self._followers.setdefault(ngram, Followers())
        for token, count in _FOLLOWER.iter_unpack(data[body:end]):
            if token < 0 or count <= 0:
                raise ConfigError(f"n-gram file has a damaged record at byte {offset}")
            entry.add(token, count)
        return end
