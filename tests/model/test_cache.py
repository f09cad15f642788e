"""The cache holds whole, undamaged files only, whatever happens to those who write it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import CacheError
from engine.model import cache
from engine.model.file import ModelFile
from engine.model.slices import SliceFile, ensure_slice
from tests.model.gguf_files import write_small_model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_small_model(tmp_path / "small.gguf")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def cut(source: Path, directory: Path, progress: Callable[[int, int], None] | None = None) -> SliceFile:
    return ensure_slice(ModelFile.open(source), 1, 3, cache_dir=directory, progress=progress)


def files_in(directory: Path) -> set[str]:
    """Names of the files that hold or held data (lock files stay, and hold none)."""
    return {path.name for path in directory.rglob("*") if path.is_file() and path.suffix != ".lock"}


class Builds:
    """A progress callback that counts finished builds."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, done: int, total: int) -> None:
        self.count += done == total


def test_a_slice_is_built_once(source: Path, directory: Path) -> None:
    builds = Builds()
    first = cut(source, directory, builds)
    inode = first.path.stat().st_ino
    assert cut(source, directory, builds) == first
    assert first.path.stat().st_ino == inode
    assert builds.count == 1
    assert files_in(directory) == {first.path.name, f"{first.path.name}.json"}


@pytest.mark.parametrize("where", ["header", "middle", "last byte"])
def test_a_changed_byte_is_noticed_and_the_slice_made_anew(where: str, source: Path, directory: Path) -> None:
    path = cut(source, directory).path
    good = path.read_bytes()
    at = {"header": 5, "middle": len(good) // 2, "last byte": len(good) - 1}[where]
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([good[at] ^ 0xFF]))
    assert cut(source, directory).path.read_bytes() == good


def test_a_truncated_slice_is_made_anew(source: Path, directory: Path) -> None:
    path = cut(source, directory).path
    good = path.read_bytes()
    os.truncate(path, len(good) - 100)
    assert cut(source, directory).path.read_bytes() == good


@pytest.mark.parametrize("record", [b"", b"{", b"[]", b'{"sha256": 1}', None])
def test_a_slice_without_its_record_is_made_anew(record: bytes | None, source: Path, directory: Path) -> None:
    path = cut(source, directory).path
    beside = path.with_name(path.name + ".json")
    beside.unlink() if record is None else beside.write_bytes(record)
    builds = Builds()
    cut(source, directory, builds)
    assert builds.count == 1


def test_a_slice_with_another_time_of_change_is_hashed_and_kept(source: Path, directory: Path) -> None:
    path = cut(source, directory).path
    os.utime(path)
    builds = Builds()
    cut(source, directory, builds)
    stamp = path.stat().st_mtime_ns
    cut(source, directory, builds)
    assert builds.count == 0
    assert path.stat().st_mtime_ns == stamp  # the second time the new stamp was believed


def test_new_weights_under_the_same_header_make_a_new_slice(source: Path, directory: Path) -> None:
    old = cut(source, directory)
    before = old.path.read_bytes()
    write_small_model(source, seed=1)
    new = cut(source, directory)
    assert new.fingerprint == old.fingerprint
    assert new.path.read_bytes() != before


BUILD = """
import sys
from pathlib import Path
from engine.model.file import ModelFile
from engine.model.slices import ensure_slice
model = ModelFile.open(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
steps = []
ensure_slice(model, 1, 3, cache_dir=Path(sys.argv[2]), progress=lambda done, total: steps.append(done))
print("built" if steps else "found")
"""

STOP_HALFWAY = """
import sys
from pathlib import Path
from engine.model.file import ModelFile
from engine.model.slices import ensure_slice

def halfway(done, total):
    if done > total // 2:
        print("halfway", flush=True)
        sys.stdin.readline()

ensure_slice(ModelFile.open(Path(sys.argv[1])), 1, 3, cache_dir=Path(sys.argv[2]), progress=halfway)
"""


def start(script: str, source: Path, directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, str(source), str(directory)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_concurrent_processes_build_once(source: Path, directory: Path) -> None:
    processes = [start(BUILD, source, directory) for _ in range(4)]
    assert [first_line(process) for process in processes] == ["ready"] * 4
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\\n")
        process.stdin.flush()
    results = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert sorted(results) == ["built", "found", "found", "found"]
    assert len(files_in(directory)) == 2


def test_a_killed_writer_leaves_nothing_that_matters(source: Path, directory: Path) -> None:
    process = start(STOP_HALFWAY, source, directory)
    assert first_line(process) == "halfway"
    assert any(name.endswith(".tmp") for name in files_in(directory))
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    other = ensure_slice(ModelFile.open(source), 0, 1, cache_dir=directory)
    assert files_in(directory) == {other.path.name, f"{other.path.name}.json"}
    assert cut(source, directory).path.is_file()


def test_the_file_of_a_living_writer_is_left_alone(source: Path, directory: Path) -> None:
    process = start(STOP_HALFWAY, source, directory)
    assert first_line(process) == "halfway"
    ensure_slice(ModelFile.open(source), 0, 1, cache_dir=directory)
    assert any(name.endswith(".tmp") for name in files_in(directory))
    process.communicate("go on\\n" * 1000, timeout=60)
    assert process.returncode == 0
    builds = Builds()
    cut(source, directory, builds)
    assert builds.count == 0


def test_waiting_for_a_stuck_writer_ends(
    source: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(STOP_HALFWAY, source, directory)
    assert first_line(process) == "halfway"
    monkeypatch.setattr(cache, "BUILD_STALL_SECONDS", 0.2)
    with pytest.raises(CacheError, match="has not grown"):
        cut(source, directory)
    process.kill()
    process.communicate(timeout=60)


def test_an_error_of_the_caller_leaves_no_file(source: Path, directory: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut(source, directory, interrupt)
    assert files_in(directory) == set()


FILE_LIMIT = """
import resource, sys
from pathlib import Path
from engine.errors import CacheError
from engine.model.file import ModelFile
from engine.model.slices import ensure_slice
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
try:
    ensure_slice(ModelFile.open(Path(sys.argv[1])), 1, 3, cache_dir=Path(sys.argv[2]))
except CacheError as error:
    print(error)
"""


def test_a_file_that_the_disk_does_not_take_is_an_error_and_leaves_nothing(
    source: Path, directory: Path
) -> None:
    output, _ = start(FILE_LIMIT, source, directory).communicate(timeout=60)
    assert "the disk is full; free some space" in output
    assert files_in(directory) == set()
    assert cut(source, directory).path.is_file()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "the disk is full; free some space"),
        (errno.EROFS, "cannot be written; point XDG_CACHE_HOME"),
        (errno.EIO, "Input/output error; point XDG_CACHE_HOME"),
    ],
)
def test_an_error_of_the_disk_is_one_line_and_leaves_nothing(
    code: int, words: str, source: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as broken_disk:
        broken_disk.setattr(cache, "flush_to_disk", fail)
        with pytest.raises(CacheError, match=words) as caught:
            cut(source, directory)
    assert str(directory) in str(caught.value)
    assert files_in(directory) == set()
    assert cut(source, directory).path.is_file()


def test_too_little_space_is_said_before_anything_is_written(
    source: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "free_bytes", lambda directory: 1000)
    builds = Builds()
    with pytest.raises(CacheError, match="free some space"):
        cut(source, directory, builds)
    assert files_in(directory) == set()


def test_a_cache_that_cannot_be_made_is_one_line(source: Path) -> None:
    with pytest.raises(CacheError, match="cannot be made: Not a directory"):
        cut(source, source / "cache")


def test_a_read_only_cache_serves_what_it_has(source: Path, directory: Path) -> None:
    kept = cut(source, directory)
    os.utime(kept.path)
    kept.path.parent.chmod(0o500)
    if os.access(kept.path.parent, os.W_OK):
        pytest.skip("root may write everywhere")
    try:
        assert cut(source, directory) == kept
        with pytest.raises(CacheError, match="cannot be written"):
            ensure_slice(ModelFile.open(source), 0, 1, cache_dir=directory)
    finally:
        kept.path.parent.chmod(0o700)
