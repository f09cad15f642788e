"""What is asked: prompts by category, from JSON lines.

A line is an object with `category` and `prompt` (a text) or `turns` (a list of texts, each answered before
the next is asked), and perhaps an `id`. SPEED-Bench files load unchanged: their `question_id` is the id, and
what else their lines hold is ignored.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from engine.config.settings import nearest
from engine.errors import UsageError

BUILTIN = "builtin"
BUILTIN_FILE = Path(__file__).parent / "data" / "workloads.jsonl"

COPYABLE = ("copy", "rename", "list")
"""Categories whose answers repeat much of the prompt or of themselves; the text of all others is novel."""

_NOT_FETCHED = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
"""What SPEED-Bench has in place of prompts whose licence does not let it publish them."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One conversation to be had. `turns` are what the user says."""

    id: str
    category: str
    turns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Suite:
    """Workloads, and a fingerprint of exactly these."""

    name: str
    workloads: tuple[Workload, ...]

    @property
    def categories(self) -> list[str]:
        """In the order of their first workload."""
        return list(dict.fromkeys(workload.category for workload in self.workloads))

    @property
    def fingerprint(self) -> str:
        content = [(one.id, one.category, one.turns) for one in self.workloads]
        return hashlib.sha256(orjson.dumps(content)).hexdigest()[:16]


def load_suite(name: str, *, categories: Collection[str] = (), limit: int = 0) -> Suite:
    """The suite `builtin` or a file of JSON lines.

    Only `categories`, unless there are none given; of each at most `limit` workloads, 0 being all of them.
    Raises UsageError naming the line.
    """
    path = BUILTIN_FILE if name == BUILTIN else Path(name).expanduser()
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"cannot read the suite {name}: {error.strerror}") from error
    workloads = [_workload(line, f"{path.name} line {number}") for number, line in _numbered(lines)]
    known = list(dict.fromkeys(workload.category for workload in workloads))
    for category in categories:
        if category not in known:
            raise UsageError(f"{path.name} has no category {category!r}", hint=nearest(category, known))
    chosen = _first_of_each(workloads, set(categories) or set(known), limit)
    if not chosen:
        raise UsageError(f"{path.name} holds no workload")
    if len({workload.id for workload in chosen}) < len(chosen):
        raise UsageError(f"{path.name} gives one id to several workloads")
    return Suite(name, tuple(chosen))


def _numbered(lines: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def _first_of_each(workloads: Sequence[Workload], categories: Collection[str], limit: int) -> list[Workload]:
    taken: dict[str, int] = defaultdict(int)
    chosen = []
    for workload in workloads:
        if workload.category in categories and (not limit or taken[workload.category] < limit):
            taken[workload.category] += 1
            chosen.append(workload)
    return chosen


def _workload(line: bytes, where: str) -> Workload:
    try:
        data: Any = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"{where} is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{where} must be an object")
    category = data.get("category")
    if not isinstance(category, str) or not category:
        raise UsageError(f"{where} needs a category, a text")
    name = data.get("id", data.get("question_id", where.rpartition(" ")[2]))
    return Workload(id=str(name), category=category, turns=_turns(data, where))


def _turns(data: dict[str, Any], where: str) -> tuple[str, ...]:
    turns = [data["prompt"]] if "prompt" in data else data.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise UsageError(f"{where} needs a prompt, a text, or turns, a list of texts")
    if any(_NOT_FETCHED in turn for turn in turns):
        raise UsageError(
            f"{where} stands for a prompt that SPEED-Bench does not publish",
            hint="prepare the file with NVIDIA's specdec_bench, which fetches them from their sources",
        )
    return tuple(turns)
