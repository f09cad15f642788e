"""Suites: the one in the package, SPEED-Bench's files, and files with faults."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import orjson
import pytest

from engine.bench.workloads import load_suite
from engine.errors import UsageError


def suite_file(folder: Path, *lines: object) -> str:
    path = folder / "suite.jsonl"
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return str(path)


def test_the_builtin_suite_has_eight_categories_of_six_prompts_or_more() -> None:
    counts = Counter(workload.category for workload in load_suite("builtin").workloads)
    assert set(counts) == {
        *("coding", "reasoning", "summarisation", "chat", "writing", "copy", "rename", "list"),
    }
    assert min(counts.values()) >= 6


def test_a_speed_bench_line_loads_unchanged(tmp_path: Path) -> None:
    line = {
        "question_id": "7f3a",
        "category": "roleplay",
        "sub_category": "game",
        "turns": ["Who are you?", "And why?"],
        "source": "somewhere",
        "src_id": "12",
        "difficulty": "easy",
        "multiturn": True,
    }
    (workload,) = load_suite(suite_file(tmp_path, line)).workloads
    assert (workload.id, workload.category, workload.turns) == (
        "7f3a",
        "roleplay",
        ("Who are you?", "And why?"),
    )


def test_categories_and_a_limit_choose_workloads(tmp_path: Path) -> None:
    lines = [{"id": f"{c}{n}", "category": c, "prompt": "x"} for c in ("a", "b", "c") for n in range(3)]
    suite = load_suite(suite_file(tmp_path, *lines), categories=["c", "a"], limit=2)
    assert [workload.id for workload in suite.workloads] == ["a0", "a1", "c0", "c1"]


def test_another_prompt_is_another_fingerprint(tmp_path: Path) -> None:
    one = load_suite(suite_file(tmp_path, {"category": "a", "prompt": "x"})).fingerprint
    assert load_suite(suite_file(tmp_path, {"category": "a", "prompt": "y"})).fingerprint != one


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ({"prompt": "x"}, "line 1 needs a category"),
        ({"category": "a"}, "line 1 needs a prompt"),
        ({"category": "a", "turns": []}, "line 1 needs a prompt"),
        ({"category": "a", "turns": [1]}, "line 1 needs a prompt"),
        (["a"], "line 1 must be an object"),
        (
            {
                "category": "rag",
                "turns": [
                    "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH: x",
                ],
            },
            "does not publish",
        ),
    ],
)
def test_a_faulty_line_is_named(tmp_path: Path, line: object, cause: str) -> None:
    with pytest.raises(UsageError, match=cause):
        load_suite(suite_file(tmp_path, line))


def test_an_unknown_category_names_the_nearest(tmp_path: Path) -> None:
    name = suite_file(tmp_path, {"category": "coding", "prompt": "x"})
    with pytest.raises(UsageError, match="did you mean coding"):
        load_suite(name, categories=["codign"])
