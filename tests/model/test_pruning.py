"""The slices on a disk keep within their bound, and nobody's slice is taken away from him."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.compute.embedding import EmbeddingTable
from engine.compute.options import ComputeOptions
from engine.compute.stage import Stage
from engine.model.cache import put_in_place
from engine.model.file import ModelFile
from engine.model.lock import locked_now
from engine.model.pruning import in_use, keep_within, make_room, mark_used
from engine.model.slices import ensure_slice, slices_folder
from tests.faults.tiny_llama import write_tiny_llama

SIZE = 1000
DAY = 86_400.0


def used(path: Path, days: float) -> None:
    """Have a slice last used so long ago."""
    moment = time.time() - days * DAY
    os.utime(path.with_name(f"{path.name}.use.lock"), (moment, moment))


def kept(folder: Path, name: str, days: float) -> Path:
    """A slice of `SIZE` bytes in the cache."""
    target = folder / name / "layers-0-1.gguf"
    target.parent.mkdir(parents=True)
    unfinished = target.with_suffix(".tmp")
    unfinished.write_bytes(bytes(SIZE))
    put_in_place(unfinished, target, "hash", "source")
    mark_used(target)
    used(target, days)
    return target


@pytest.fixture
def slices(tmp_path: Path) -> list[Path]:
    """Three slices, the one that was not used for longest last."""
    return [kept(tmp_path, name, days) for name, days in (("a", 1), ("b", 2), ("c", 3))]


def there(slices: list[Path]) -> str:
    return "".join(path.parent.name for path in slices if path.exists())


@pytest.mark.parametrize(
    ("most", "coming", "stay"),
    [
        (3 * SIZE, 0, "abc"),
        (3 * SIZE - 1, 0, "ab"),
        (3 * SIZE, 1, "ab"),
        (2 * SIZE, SIZE, "a"),
        (1, 0, ""),
        (0, SIZE, "abc"),  # no bound
    ],
)
def test_what_was_not_used_for_longest_goes_first(
    slices: list[Path], tmp_path: Path, most: int, coming: int, stay: str
) -> None:
    keep_within(tmp_path, most, coming)
    assert there(slices) == stay
    records = [path.parent.name for path in tmp_path.rglob("*.json")]
    assert "".join(sorted(records)) == stay


def test_a_slice_that_is_used_again_is_the_last_to_go(slices: list[Path], tmp_path: Path) -> None:
    mark_used(slices[2])
    used(slices[2], 0.5)
    keep_within(tmp_path, SIZE)
    assert there(slices) == "c"


def test_what_goes_is_told_in_the_log(
    slices: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "skippy.cache")
    keep_within(tmp_path, 2 * SIZE)
    (record,) = caplog.records
    assert record.getMessage() == "removed c/layers-0-1.gguf: 0.00 GiB, not used for 72.0 h"


@contextmanager
def held_by_another_process(code: str, path: Path) -> Iterator[None]:
    """Another process that holds something of a slice inside this context."""
    program = f"import sys, pathlib\npath = pathlib.Path(sys.argv[1])\n{code}:\n print(flush=True)\n input()"
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        yield
        process.communicate(b"\n", timeout=20)
    assert process.returncode == 0


USES = "from engine.model.pruning import in_use\nwith in_use(path)"
MAKES = "from engine.model.lock import locked\nwith locked(path.with_name(path.name + '.lock'), print)"


@pytest.mark.parametrize("code", [USES, MAKES], ids=["uses", "makes"])
def test_what_another_process_uses_or_makes_stays(
    slices: list[Path], tmp_path: Path, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    with held_by_another_process(code, slices[2]):
        used(slices[2], 3)
        keep_within(tmp_path, SIZE)
        assert there(slices) == "c"
        keep_within(tmp_path, SIZE // 2)
        assert there(slices) == "c"
        assert "slices in use take more than" in caplog.text
    keep_within(tmp_path, SIZE // 2)
    assert there(slices) == ""


def test_whoever_has_just_found_a_slice_may_load_it(slices: list[Path], tmp_path: Path) -> None:
    mark_used(slices[2])
    keep_within(tmp_path, 1)
    assert there(slices) == "c"


def test_several_may_use_a_slice_and_the_last_one_counts(slices: list[Path], tmp_path: Path) -> None:
    with in_use(slices[0]):
        with in_use(slices[0]):
            pass
        used(slices[0], 1)
        keep_within(tmp_path, 1)
        assert there(slices) == "a"


def test_a_slice_without_a_trace_of_its_use_is_as_old_as_its_file(slices: list[Path], tmp_path: Path) -> None:
    slices[0].with_name(f"{slices[0].name}.use.lock").unlink()
    moment = time.time() - 9 * DAY
    os.utime(slices[0], (moment, moment))
    keep_within(tmp_path, 2 * SIZE)
    assert there(slices) == "bc"


def test_what_has_come_in_of_a_slice_counts_and_goes_unless_somebody_receives_it(
    slices: list[Path], tmp_path: Path
) -> None:
    part = tmp_path / "a" / "layers-1-2.gguf.part"
    part.write_bytes(bytes(SIZE))
    moment = time.time() - 9 * DAY
    os.utime(part, (moment, moment))
    with locked_now(part.with_suffix(".lock")):
        keep_within(tmp_path, 3 * SIZE)
        assert part.exists()
        assert there(slices) == "ab"
    keep_within(tmp_path, 2 * SIZE)
    assert not part.exists()
    assert there(slices) == "ab"


def test_room_on_the_disk_is_made_if_there_can_be_enough(
    slices: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.model.pruning.free_bytes", lambda folder: 500)
    make_room(tmp_path, 500)
    assert there(slices) == "abc"
    make_room(tmp_path, 3 * SIZE + 501)  # more than all of them are
    assert there(slices) == "abc"
    make_room(tmp_path, SIZE + 501)
    assert there(slices) == "a"


def test_a_stage_keeps_its_slice_for_as_long_as_it_is_loaded(tmp_path: Path) -> None:
    model = ModelFile.open(write_tiny_llama(tmp_path / "tiny.gguf"))
    slice_ = ensure_slice(model, 0, 3, cache_dir=tmp_path)
    folder = slices_folder(tmp_path)
    stage = Stage(slice_, ComputeOptions(64, 1, 1), embeddings=EmbeddingTable(model))
    used(slice_.path, 1)
    keep_within(folder, 1)
    assert slice_.path.exists()
    stage.close()
    keep_within(folder, 1)
    assert not slice_.path.exists()
    assert ensure_slice(model, 0, 3, cache_dir=tmp_path) == slice_  # cut again when it is wanted
