"""Measured tables in Markdown pages: between marks, so that the command that measured them renews them."""

from __future__ import annotations

from pathlib import Path

from engine.errors import SkippyError, UsageError, reason_of


class Page:
    """The place for tables in a page: between `<!-- NAME: begin -->` and `<!-- NAME: end -->`."""

    def __init__(self, path: Path, name: str) -> None:
        """Raises UsageError if there is no such page, or no such place in it."""
        self.path = path
        self._begin, self._end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        text = self._read()
        if not 0 <= text.find(self._begin) < text.find(self._end):
            raise UsageError(
                f"{path} has no place for the tables", hint=f"put {self._begin} and {self._end} into it"
            )

    def write(self, tables: str) -> None:
        """Put tables in place of those that were there. Raises SkippyError."""
        before, _, rest = self._read().partition(self._begin)
        after = rest.partition(self._end)[2]
        try:
            self.path.write_text(f"{before}{self._begin}\n{tables.strip()}\n{self._end}{after}", "utf-8")
        except OSError as error:
            raise SkippyError(f"cannot write {self.path}: {error.strerror or error}") from error

    def _read(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {self.path}: {reason_of(error)}") from error


def page_of(path: str | None, name: str) -> Page | None:
    """The page that `--write` names, if it does."""
    return Page(Path(path).expanduser(), name) if path is not None else None
