"""`skippy-engine package`: exit codes, and one line for every fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.config.manifest import MANIFEST_NAME
from tests.cli.programs import Tool
from tests.model.gguf_files import write_small_model


@pytest.fixture(autouse=True)
def small_model(tmp_path: Path) -> None:
    """The test's own folder has a small model."""
    write_small_model(tmp_path / "small.gguf")


@pytest.fixture
def package(tool: Tool, tmp_path: Path) -> Path:
    assert tool("package", "small.gguf", "--splits", "1", "--out", "cut")[0] == 0
    return tmp_path / "cut"


def test_a_package_is_written_and_good(tool: Tool, tmp_path: Path) -> None:
    code, out, _ = tool("package", "small.gguf", "--splits", "1,2", "--out", "cut", "--json")
    written = json.loads(out)
    assert code == 0
    assert (written["package"], written["layers"], written["splits"]) == ("cut", 3, [1, 2])
    code, out, _ = tool("package", "--check", "cut", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["good"] is True
    assert report["problems"] == report["missing"] == []
    assert report["checked"] == ["front.gguf", "layers-0-1.gguf", "layers-1-2.gguf", "layers-2-3.gguf"]
    assert report["files"] == written["files"]
    assert tool("package", "--check", "cut") == (0, "cut: good, Small, 4 files\n", "")


def test_the_check_has_a_line_and_a_code_for_every_problem(tool: Tool, package: Path) -> None:
    data = bytearray((package / "layers-0-1.gguf").read_bytes())
    data[-1] ^= 1
    (package / "layers-0-1.gguf").write_bytes(data)
    (package / "layers-1-3.gguf").unlink()
    code, out, err = tool("package", "--check", "cut")
    lines = out.splitlines()
    assert (code, err, len(lines)) == (1, "", 3)
    assert lines[0].startswith("layers-0-1.gguf: has the sha256")
    assert "(wrong_sha256)" in lines[0]
    assert lines[1].startswith("layers-1-3.gguf: is not here (missing_file)")
    assert lines[2] == "cut: 2 problems"
    code, out, _ = tool("package", "--check", "cut", "--json")
    assert code == 1
    assert [item["code"] for item in json.loads(out)["problems"]] == ["wrong_sha256", "missing_file"]


def test_a_part_of_a_package_is_checked_as_one(tool: Tool, package: Path) -> None:
    (package / "layers-0-1.gguf").unlink()
    assert tool("package", "--check", "cut")[0] == 1
    code, out, _ = tool("package", "--check", "cut", "--partial")
    assert code == 0
    assert out == "cut: good, Small, 2 files; not here: layers-0-1.gguf\n"


MANIFESTS = {
    "invalid_json": "{",
    "unsupported_schema": '{"schema": 99}',
    "invalid_manifest": '{"schema": 1}',
}


@pytest.mark.parametrize("code", [*MANIFESTS, "missing_manifest", "unsafe_path"])
def test_a_bad_manifest_is_one_line_with_its_code(tool: Tool, package: Path, code: str) -> None:
    manifest = package / MANIFEST_NAME
    if code == "missing_manifest":
        manifest.unlink()
    elif code == "unsafe_path":
        manifest.write_text(manifest.read_text().replace("layers-1-3.gguf", "../layers-1-3.gguf"))
    else:
        manifest.write_text(MANIFESTS[code])
    exit_code, out, err = tool("package", "--check", "cut")
    assert (exit_code, err) == (1, "")
    assert [line for line in out.splitlines() if f"({code})" in line] == out.splitlines()[:-1]
    if code != "missing_manifest":  # then it is no package, but a folder
        exit_code, out, err = tool("stage", "--model", "./cut", "--layers", "1:3")
        assert (exit_code, out, err.count("\n")) == (1, "", 1)
        assert f"({code})" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("small.gguf", "--out", "x"), "package needs --splits"),
        (("small.gguf", "--splits", "1"), "package needs --out"),
        (("--splits", "1", "--out", "x"), "package needs MODEL"),
        (("small.gguf", "--splits", "a", "--out", "x"), "--splits must be a whole number"),
        (("small.gguf", "--splits", "7", "--out", "x"), "--splits 7 does not cut 3 layers"),
        (("small.gguf", "--splits", "1", "--out", "."), "exists and is not an empty folder"),
        (("small.gguf", "--splits", "1", "--out", "x", "--window-max", "0"), "--window-max must be"),
        (("small.gguf", "--splits", "1", "--out", "x", "--strategy", "mtp"), "mtp cannot be the default"),
        (("small.gguf", "--splits", "1", "--out", "x", "--partial"), "--partial goes with --check"),
        (("small.gguf", "--check", "x"), "--check takes a package, not a model"),
        (("--check", "x", "--window-max", "3"), "--check takes a package, not --window-max"),
    ],
)
def test_a_wrong_call_is_one_line(tool: Tool, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = tool("package", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_models_lists_packages(tool: Tool, package: Path, tmp_path: Path) -> None:
    (package / "layers-0-1.gguf").unlink()
    (tmp_path / "my.toml").write_text('[models.cut]\npath = "cut"\n')
    code, out, _ = tool("models", "--json", "--config", "my.toml")
    listed = json.loads(out)[1]
    assert code == 0
    assert (listed["name"], listed["path"], listed["available"]) == ("cut", str(package), True)
    assert (listed["slices"], listed["slices_here"]) == ([[0, 1], [1, 3]], [[1, 3]])
    assert "package of 0:1 (not here), 1:3" in tool("models", "--config", "my.toml")[1]
    (package / MANIFEST_NAME).write_text("{")
    assert "(invalid_json)" in json.loads(tool("models", "--json", "--config", "my.toml")[1])[1]["problem"]
