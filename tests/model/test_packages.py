"""A package is the model again, on any machine that has the part it needs; damage is found and named."""

from __future__ import annotations

import errno
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine.config.manifest import MANIFEST_NAME
from engine.config.package_rules import read_manifest
from engine.errors import PackageError, SkippyError, UsageError
from engine.model.cache import file_sha256
from engine.model.file import ModelFile
from engine.model.lock import locked_now
from engine.model.packages import write
from engine.model.packages.check import check_package
from engine.model.packages.folder import Package
from engine.model.packages.model import PackageModel
from engine.model.packages.source import cut_of, open_model, open_stage
from engine.model.packages.write import write_package
from engine.model.rebase import nextn_obstacle
from tests.conformance.cases import MODELS
from tests.model.gguf_files import N_LAYERS, write_small_model

# Dense and tied; with NextN; with padding before the layers of a slice; with experts; with other globals.
ARCHITECTURES = ("llama", "mimo2", "smollm3", "qwen35", "deepseek2", "gemma3", "gpt-oss-mxfp4", "glm4moe")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> ModelFile:
    return ModelFile.open(write_small_model(tmp_path / "small.gguf"))


@pytest.fixture
def package(model: ModelFile, tmp_path: Path) -> Path:
    """Layers 0:1 and 1:3 of a small model."""
    write_package(model, (1,), tmp_path / "package")
    return tmp_path / "package"


def opened(directory: Path) -> PackageModel:
    model = open_model(str(directory))
    assert isinstance(model, PackageModel)
    return model


def same_tensors(ours: ModelFile, theirs: ModelFile) -> None:
    assert set(ours.tensors) == set(theirs.tensors)
    for name, tensor in theirs.tensors.items():
        assert (ours.tensors[name].shape, ours.tensors[name].type) == (tensor.shape, tensor.type)
        np.testing.assert_array_equal(ours.data(name), theirs.data(name))


def test_a_package_says_what_is_in_it(package: Path, model: ModelFile) -> None:
    manifest = read_manifest(package)
    assert (manifest.model.fingerprint, manifest.model.layers) == (model.fingerprint, N_LAYERS)
    assert [item.layers for item in manifest.slices] == [(0, 1), (1, 3)]
    assert manifest.cuts == (1,)
    for file in manifest.files:
        assert (package / file.path).stat().st_size == file.bytes
        assert file_sha256(package / file.path) == file.sha256
    names = {MANIFEST_NAME, *(file.path for file in manifest.files)}
    assert {path.name for path in package.iterdir()} == names
    assert [path.name for path in package.parent.iterdir() if "unfinished" in path.name] == []


def test_the_same_model_gives_the_same_package(package: Path, model: ModelFile, tmp_path: Path) -> None:
    write_package(model, (1,), tmp_path / "again")
    for path in package.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_complete_package_is_the_model_again(name: str, tmp_path: Path) -> None:
    MODELS[name].write(tmp_path / "tiny.gguf")
    model = ModelFile.open(tmp_path / "tiny.gguf")
    write_package(model, (2,), tmp_path / "package")
    again = opened(tmp_path / "package")
    fingerprint = model.fingerprint
    if model.n_nextn and nextn_obstacle(model):  # blocks that cannot be run are not packaged
        lost = f"blk.{model.n_layers}."
        model.tensors = {name: info for name, info in model.tensors.items() if not name.startswith(lost)}
    else:
        assert ModelFile.fingerprint.func(again) == fingerprint  # type: ignore[attr-defined]
    assert again.fingerprint == fingerprint
    same_tensors(again, model)
    assert {key: again.metadata[key] for key in again.metadata} == {
        key: model.metadata[key] for key in model.metadata
    }
    assert bool(nextn_obstacle(again)) == bool(nextn_obstacle(model))
    assert again.name == model.name


def test_a_package_can_be_cut_anew(package: Path, model: ModelFile, tmp_path: Path) -> None:
    for first, end in ((0, 2), (2, 3), (0, 3)):
        ours = cut_of(opened(package), first, end, cache_dir=tmp_path / "ours")
        theirs = open_stage(str(model.path), first, end)[0]
        assert ours.fingerprint == theirs.fingerprint
        if not theirs.whole:
            same_tensors(ModelFile.open(ours.path), ModelFile.open(theirs.path))
    write_package(opened(package), (2,), tmp_path / "other")
    same_tensors(opened(tmp_path / "other"), model)


def test_where_it_was_cut_its_own_slice_is_used(package: Path, tmp_path: Path) -> None:
    assert open_stage(str(package), 1, -1)[0].path == package / "layers-1-3.gguf"
    slice_, model = open_stage(str(package), 0, 1)
    assert slice_.path == package / "layers-0-1.gguf"
    assert model is not None
    assert "token_embd.weight" in model.tensors
    assert not (tmp_path / "cache" / "skippy" / "slices").exists()


def test_a_stage_needs_only_its_own_slice(package: Path) -> None:
    (package / "front.gguf").unlink()
    (package / "layers-0-1.gguf").unlink()
    slice_, model = open_stage(str(package), 1, 3)
    assert (slice_.first, slice_.end, model) == (1, 3, None)
    with pytest.raises(PackageError, match=r"front\.gguf: is not here.* token embedding"):
        open_stage(str(package), 0, 1)
    with pytest.raises(PackageError, match=r"--layers of the package: 0:1, 1:3"):
        open_stage(str(package), 2, 3)


def test_a_front_machine_needs_only_the_front(package: Path, model: ModelFile) -> None:
    (package / "layers-0-1.gguf").unlink()
    (package / "layers-1-3.gguf").unlink()
    front = opened(package)
    assert (front.fingerprint, front.n_layers, front.n_vocab) == (
        model.fingerprint,
        model.n_layers,
        model.n_vocab,
    )
    assert front.metadata["tokenizer.ggml.tokens"] == model.metadata["tokenizer.ggml.tokens"]
    assert set(front.tensors) == {"token_embd.weight"}
    with pytest.raises(PackageError) as caught:
        front.cut(0, 2)
    assert caught.value.code == "missing_file"


def test_a_front_is_not_taken_for_a_model(package: Path) -> None:
    for use in (open_model, lambda name: open_stage(name, 0, 1)):
        with pytest.raises(UsageError, match=r"front of a package.* give the folder"):
            use(str(package / "front.gguf"))


def overwrite(path: Path, position: int = -1) -> None:
    """Change one byte and leave the size as it is."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def as_link_outside(path: Path) -> None:
    shutil.move(path, path.parent.parent / path.name)
    path.symlink_to(path.parent.parent / path.name)


def as_slice_of_another(path: Path) -> None:
    """A package of other weights and another shape, with one file of it in ours and the manifest agreeing."""
    source = path.parent.parent / "other.gguf"
    MODELS["llama"].write(source)
    write_package(ModelFile.open(source), (1, 3), path.parent.parent / "other")
    shutil.copy(path.parent.parent / "other" / "layers-1-3.gguf", path)
    rewrite_manifest(path)


def as_other_gguf(path: Path) -> None:
    shutil.copy(path.parent.parent / "small.gguf", path)
    rewrite_manifest(path)


def rewrite_manifest(path: Path) -> None:
    """Let the manifest agree with a file as it is now."""
    manifest = path.parent / MANIFEST_NAME
    file = next(file for file in read_manifest(path.parent).files if file.path == path.name)
    text = manifest.read_text().replace(file.sha256, file_sha256(path))
    manifest.write_text(text.replace(f'"bytes": {file.bytes}', f'"bytes": {path.stat().st_size}'))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "wrong_sha256": overwrite,
    "missing_file": Path.unlink,
    "wrong_size": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "unsafe_path": as_link_outside,
    "slice_mismatch": as_slice_of_another,
    "not_a_slice": as_other_gguf,
}


@pytest.mark.parametrize("code", DAMAGE)
def test_damage_is_found_by_the_check_and_by_a_run(package: Path, code: str) -> None:
    DAMAGE[code](package / "layers-1-3.gguf")
    problem = check_package(package).problems[0]
    assert (problem.code, problem.path) == (code, "layers-1-3.gguf")
    with pytest.raises(SkippyError) as caught:
        open_stage(str(package), 1, 3)
    assert caught.value.code == (code if code != "not_a_slice" else "model-file")
    assert str(package / "layers-1-3.gguf") in str(caught.value)


def test_a_front_of_another_model_is_refused(package: Path, tmp_path: Path) -> None:
    MODELS["llama"].write(tmp_path / "other.gguf")
    write_package(ModelFile.open(tmp_path / "other.gguf"), (1,), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "front.gguf", package / "front.gguf")
    rewrite_manifest(package / "front.gguf")
    assert [problem.code for problem in check_package(package).problems] == ["front_mismatch"]
    with pytest.raises(PackageError, match="front_mismatch"):
        open_model(str(package))


def test_every_problem_is_told_at_once(package: Path) -> None:
    overwrite(package / "layers-0-1.gguf")
    (package / "layers-1-3.gguf").unlink()
    problems = check_package(package).problems
    assert [problem.code for problem in problems] == ["wrong_sha256", "missing_file"]


def test_a_part_of_a_package_is_good_if_it_is_meant_to_be_one(package: Path) -> None:
    (package / "layers-0-1.gguf").unlink()
    assert not check_package(package).good
    report = check_package(package, partial=True)
    assert report.good
    assert report.missing == ("layers-0-1.gguf",)
    assert report.checked == ("front.gguf", "layers-1-3.gguf")


def test_nothing_of_a_package_is_no_part_of_it(package: Path) -> None:
    for path in package.glob("*.gguf"):
        path.unlink()
    assert {problem.code for problem in check_package(package, partial=True).problems} == {"missing_file"}


def test_a_file_is_hashed_when_it_is_first_used_and_when_it_has_changed(package: Path) -> None:
    folder, hashed = Package.open(package), []

    def progress(done: int, total: int) -> None:
        hashed.append(done)

    part = folder.manifest.slices[1]
    folder.path(part, progress)
    assert hashed
    hashed.clear()
    folder.path(part, progress)
    assert not hashed
    stamp = (package / part.path).stat()
    overwrite(package / part.path)
    os.utime(package / part.path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # as a forger would
    with pytest.raises(PackageError, match="wrong_sha256"):
        folder.path(part)


def test_the_check_hashes_every_time(package: Path) -> None:
    seen = [0]

    def progress(done: int, total: int) -> None:
        assert seen[-1] <= done <= total
        seen.append(done)

    total = sum(file.bytes for file in read_manifest(package).files)
    for _ in range(2):
        seen[:] = [0]
        assert check_package(package, progress=progress).good
        assert seen[-1] == total


def test_writing_tells_its_progress(model: ModelFile, tmp_path: Path) -> None:
    seen = [(0, 1)]
    manifest = write_package(
        model, (1,), tmp_path / "package", progress=lambda *done_and_total: seen.append(done_and_total)
    )
    total = sum(file.bytes for file in manifest.files)
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_memory_stays_flat(model: ModelFile, tmp_path: Path) -> None:
    """The tensors of a layer are made 16 MB each, as holes of a file."""
    from gguf import GGMLQuantizationType

    from engine.model.writer import GgufContent, copied, zeros

    metadata = {key: value.encoded for key, value in model.metadata.encoded.items()}
    tensors = [
        zeros(name, (32, 1 << 17), GGMLQuantizationType.F32)
        if name.endswith(("ffn_up.weight", "ffn_gate.weight"))
        else copied(tensor, name)
        for name, tensor in model.tensors.items()
    ]
    with (tmp_path / "big.gguf").open("wb") as file:
        GgufContent(metadata, tensors).write(file)
    big = ModelFile.open(tmp_path / "big.gguf")
    tracemalloc.start()
    try:
        write_package(big, (1,), tmp_path / "package")
        assert check_package(tmp_path / "package").good
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(path.stat().st_size for path in (tmp_path / "package").iterdir()) > 90_000_000
    assert peak < 20_000_000


@pytest.mark.parametrize(
    ("code", "failure"), [(errno.ENOSPC, "not_written"), (errno.EROFS, "not_written")], ids=str
)
def test_a_disk_that_fails_leaves_nothing(
    model: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, failure: str
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(write, "flush_to_disk", fail)
    with pytest.raises(PackageError) as caught:
        write_package(model, (1,), tmp_path / "package")
    assert caught.value.code == failure
    assert os.strerror(code) in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} == {"small.gguf"}


def test_a_disk_that_is_too_small_is_told_before(
    model: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "free_bytes", lambda directory: 1000)
    with pytest.raises(PackageError, match="disk_full"):
        write_package(model, (1,), tmp_path / "package")
    assert {path.name for path in tmp_path.iterdir()} == {"small.gguf"}


def test_what_a_killed_writer_left_is_overwritten(model: ModelFile, tmp_path: Path) -> None:
    unfinished = tmp_path / ".package.unfinished"
    unfinished.mkdir()
    (unfinished / "layers-0-1.gguf").write_bytes(b"half")
    (unfinished / "strange.gguf").write_bytes(b"half")
    write_package(model, (1,), tmp_path / "package")
    assert check_package(tmp_path / "package").good
    assert not unfinished.exists()
    assert not (tmp_path / "package" / "strange.gguf").exists()


def test_two_processes_do_not_write_one_package(model: ModelFile, tmp_path: Path) -> None:
    unfinished = tmp_path / ".package.unfinished"
    unfinished.mkdir()
    with locked_now(unfinished / "lock"), pytest.raises(UsageError, match="by another process"):
        write_package(model, (1,), tmp_path / "package")
    assert unfinished.exists()


def test_a_folder_that_is_not_empty_is_left_alone(model: ModelFile, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "letters").write_text("mine")
    with pytest.raises(UsageError, match="not an empty folder"):
        write_package(model, (1,), tmp_path / "package")
    assert (tmp_path / "package" / "letters").read_text() == "mine"


@pytest.mark.parametrize("splits", [(0,), (3,), (2, 2), (2, 1)], ids=str)
def test_wrong_cuts_are_refused(model: ModelFile, tmp_path: Path, splits: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="does not cut 3 layers"):
        write_package(model, splits, tmp_path / "package")


def test_a_slice_is_not_packaged_again(package: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a slice already"):
        write_package(ModelFile.open(package / "layers-1-3.gguf"), (1,), tmp_path / "other")


def test_a_package_says_which_strategies_its_model_can_run(tmp_path: Path, model: ModelFile) -> None:
    MODELS["mimo2"].write(tmp_path / "mtp.gguf")
    MODELS["qwen35"].write(tmp_path / "recurrent.gguf")
    strategies = {}
    for name in ("small", "mtp", "recurrent"):
        manifest = write_package(ModelFile.open(tmp_path / f"{name}.gguf"), (2,), tmp_path / name)
        speculative = manifest.generation.speculative_decoding
        strategies[name] = set(speculative.strategies) if speculative is not None else None
    lookups = {"auto", "ngram-simple", "ngram-cache", "ngram-suffix"}
    assert strategies["small"] == lookups
    assert strategies["mtp"] == {*lookups, "mtp", "mtp-simple", "mtp-cache", "mtp-suffix"}
    assert strategies["recurrent"] is None  # its state cannot be rolled back


def test_what_a_package_recommends_is_written_into_it(tmp_path: Path, model: ModelFile) -> None:
    said = {"strategy": "ngram-cache", "window_max": 6, "ngram_min": 2, "draft_min": 1}
    manifest = write_package(model, (1,), tmp_path / "package", speculation=said)
    speculative = manifest.generation.speculative_decoding
    assert speculative is not None
    assert speculative.default == "ngram-cache"
    assert {
        entry.window_policy.max_window for entry in speculative.strategies.values() if entry.window_policy
    } == {6}
    assert speculative.proposers["ngram-cache"].ngram_min == 2
    assert speculative.proposers["ngram-suffix"].ngram_min == 3  # 2 is too short for it, and was not meant
    assert speculative.settings == {"draft_min": 1}
    for strategy in ("mtp", "disabled", "draft"):
        with pytest.raises(UsageError, match=f"{strategy} cannot be the default strategy"):
            write_package(model, (1,), tmp_path / "other", speculation={"strategy": strategy})
