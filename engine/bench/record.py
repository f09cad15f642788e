"""The record of a run: a JSON line for what is measured, where and by which call, then one per measurement.

A line is on disk before the next measurement begins, so a run that was killed goes on where it was. What was
measured with other settings is never mixed in.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from engine.bench.measurement import Measurement
from engine.errors import SkippyError, UsageError

FILE_NAME = "measurements.jsonl"
_CALL = "call"  # in the first line; it is not compared, as other options may mean the same


class Record:
    """Open for appending; `measurements` are those of before and those of now."""

    def __init__(
        self, folder: Path, head: Mapping[str, Any], *, resume: bool, call: Mapping[str, Any] | None = None
    ) -> None:
        """`head` says what is measured and where; a resumed run must have begun with the same.

        `call` is kept for `recorded_call`.
        Raises UsageError if the folder holds a run and none is to be resumed, or one with another head.
        """
        self.path = folder / FILE_NAME
        self.measurements: list[Measurement] = []
        self._done: set[tuple[int, str, str]] = set()
        exists = self.path.exists() and self.path.stat().st_size > 0
        if exists and not resume:
            raise UsageError(f"{folder} holds a run already", hint="add --resume, or name another --out")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lines = self._complete_lines() if exists else []
            if lines:
                _check_head(head, _parsed(lines[0], 1, self.path), self.path)
            for number, line in enumerate(lines[1:], start=2):
                self._keep(Measurement.from_dict(_parsed(line, number, self.path)))
            self._file = self.path.open("ab")
        except OSError as error:
            raise SkippyError(f"cannot write to {folder}: {error.strerror or error}") from error
        if not lines:
            self._append(head if call is None else {**head, _CALL: call})

    def __enter__(self) -> Record:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def holds(self, round: int, workload: str, arm: str) -> bool:
        return (round, workload, arm) in self._done

    def add(self, measurement: Measurement) -> None:
        """Keep a measurement; it is on disk when this returns."""
        self._append(asdict(measurement))
        self._keep(measurement)

    def _keep(self, measurement: Measurement) -> None:
        self.measurements.append(measurement)
        self._done.add(measurement.key)

    def _append(self, data: Mapping[str, Any]) -> None:
        try:
            self._file.write(orjson.dumps(data) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise SkippyError(f"cannot write {self.path}: {error.strerror or error}") from error

    def _complete_lines(self) -> list[bytes]:
        """The lines of a file; one that a kill has cut off is removed from it."""
        content = self.path.read_bytes()
        complete = content[: content.rfind(b"\n") + 1]
        if len(complete) < len(content):
            with self.path.open("r+b") as file:
                file.truncate(len(complete))
        return complete.splitlines()


def recorded_call(folder: Path) -> dict[str, Any]:
    """The options with which the run in a folder began; empty if it did not keep them, or there is no run."""
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            line = file.readline()
    except OSError:
        return {}  # whoever opens the record says what is wrong
    call = _parsed(line, 1, path).get(_CALL, {}) if line.endswith(b"\n") else {}
    return call if isinstance(call, dict) else {}


def _parsed(line: bytes, number: int, path: Path) -> dict[str, Any]:
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"{path} line {number} is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path} line {number} is no object")
    return data


def _check_head(head: Mapping[str, Any], before: Mapping[str, Any], path: Path) -> None:
    ours = orjson.loads(orjson.dumps(head))
    for name in sorted({*ours, *before} - {_CALL}):
        if ours.get(name) != before.get(name):
            raise UsageError(
                f"{path.parent} was measured with {name} {before.get(name)!r}, not {ours.get(name)!r}",
                hint="use the same settings, or name another --out",
            )
