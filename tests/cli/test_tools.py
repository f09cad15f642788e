"""`skippy-engine` and `skippy-tui --engine-only`."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from engine.cli.main import main
from engine.model.demo import INSTALL, demo_available, demo_path
from skippy_tui.main import main as tui_main
from tests.cli.programs import Tool
from tests.model.gguf_files import N_LAYERS, write_small_model


def test_where_names_the_four_places(tool: Tool, tmp_path: Path) -> None:
    code, out, _ = tool("where", "--json")
    places = json.loads(out)
    assert code == 0
    assert list(places) == ["config", "data", "cache", "log"]
    assert places["config"] == str(tmp_path / "config" / "skippy" / "skippy.toml")
    assert all(path.startswith(str(tmp_path)) for path in places.values())
    assert all(path in tool("where")[1] for path in places.values())


def test_models_lists_what_is_there_and_what_is_wrong_with_the_rest(tool: Tool, tmp_path: Path) -> None:
    write_small_model(tmp_path / "small.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but not really")
    (tmp_path / "my.toml").write_text(
        '[models.small]\npath = "small.gguf"\n[models.broken]\npath = "broken.gguf"\n'
        '[models.gone]\npath = "gone.gguf"\n'
    )
    code, out, _ = tool("models", "--json", "--config", "my.toml")
    models = {model["name"]: model for model in json.loads(out)}
    assert code == 0
    assert list(models) == ["demo", "small", "broken", "gone"]
    small = models["small"]
    assert (small["available"], small["layers"], small["path"]) == (
        True,
        N_LAYERS,
        str(tmp_path / "small.gguf"),
    )
    assert small["nextn"] is False
    assert (models["broken"]["available"], models["gone"]["available"]) == (False, False)
    assert models["gone"]["problem"] == "there is no such file"
    assert str(tmp_path / "broken.gguf") in models["broken"]["problem"]
    lines = tool("models", "--config", "my.toml")[1].splitlines()
    assert [line.split()[0] for line in lines] == ["demo", "small", "broken", "gone"]


def test_models_says_how_to_get_the_default_one(tool: Tool) -> None:
    demo = json.loads(tool("models", "--json")[1])[0]
    assert demo["available"] is False
    assert demo["how"] in ("skippy-engine models --fetch demo", INSTALL)


def test_a_good_configuration_is_called_good(tool: Tool, tmp_path: Path) -> None:
    (tmp_path / "good.toml").write_text(
        "[models.a]\npath = 'a.gguf'\n[models.a.speculative]\nwindow_max = 3\n"
    )
    assert tool("config", "check", "good.toml") == (0, "good.toml: good, 1 models\n", "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[models.a]\n[models.a.speculative]\nwindow_max = 3\n", "[models.a] in bad.toml has no path"),
        ("[models.a]\npath='a'\n[models.a.speculative]\nwindow_min = 9\nwindow_max = 3\n", "window_max"),
        ("[defaults.speculative]\nwindow_size = 3\n", "did you mean window_"),
    ],
)
def test_a_bad_configuration_is_named_and_ends_with_2(
    tool: Tool, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "bad.toml").write_text(text)
    code, out, err = tool("config", "check", "bad.toml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_the_schema_is_json(tool: Tool) -> None:
    schema = json.loads(tool("config", "schema")[1])
    assert "window_max" in schema["properties"]["defaults"]["properties"]["speculative"]["properties"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "required: TOOL"),
        (("stages",), "invalid choice: 'stages'"),
        (("stage", "--model", "demo"), "--model needs --layers"),
        (("stage", "--layers", "9"), "--layers '9' is no range"),
        (("stage", "--layers", "9:3"), "--layers 9:3 holds no layer"),
        (("stage", "--layers", "0:3", "--listen", "here"), "--listen 'here' is no address"),
        (("stage", "--layers", "0:3", "--threads", "x"), "--threads must be a whole number"),
        (("stage", "--layers", "0:3", "--thread", "2"), "did you mean --threads?"),
        (("models", "llama"), "'llama' is one word too many; skippy-engine models --help lists"),
        (("verify", "demo", "--splits", "x"), "--splits must be a whole number"),
        (("models", "--fetch", "llama"), "invalid choice: 'llama'"),
    ],
)
def test_a_wrong_call_is_one_line_and_ends_with_2(tool: Tool, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = tool(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert err.startswith("skippy-engine: ")


def test_a_port_that_is_in_use_is_named(tool: Tool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = tool("serve", "--port", str(port))
    hint = "stop the other process or choose another port"
    assert (code, out, err) == (1, "", f"skippy-engine: port {port} of 127.0.0.1 is in use; {hint}\n")


def test_engine_only_is_the_same_under_its_own_name(tool: Tool, capsys: pytest.CaptureFixture[str]) -> None:
    code = tui_main(["--engine-only", "--layers", "9:3"])
    assert code == 2
    assert capsys.readouterr().err.startswith("skippy-tui --engine-only: --layers 9:3 holds no layer")
    with pytest.raises(SystemExit):
        tui_main(["--engine-only", "--help"])
    assert capsys.readouterr().out.startswith("usage: skippy-tui --engine-only [-h]")


@pytest.mark.parametrize("flag", ["--listen=127.0.0.1:0", "--layers", "--insecure", "--no-accept-slices"])
def test_an_option_of_a_stage_names_what_it_goes_with(
    tool: Tool, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    assert tui_main([flag, "0:3"]) == 2
    name = flag.partition("=")[0]
    line = f"skippy-tui: {name} goes with --engine-only; without it, the app starts\n"
    assert capsys.readouterr().err == line


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.skipif(not demo_available(), reason="the weights of the default model are not installed")
def test_a_split_of_the_default_model_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["verify", "demo", "--splits", "15", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == 0
    assert (report["splits"], report["wire"], report["max_logit_diff"]) == ([15], "f32", 0.0)
    assert (report["argmax_agreement"], report["mtp_max_logit_diff"]) == (1.0, 0.0)
    assert report["positions"] > 0


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.skipif(not demo_path().is_file(), reason="the default model is not built")
def test_a_stage_says_when_it_is_ready_and_ends_when_told() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "skippy_tui.main", "--engine-only", "--layers", "29:30", "--ctx", "64"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert re.fullmatch(r"ready ws://127\.0\.0\.1:\d+ layers 29:30 model SmolLM2-135M-Instruct-MTP\n", line)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    process.stdout.close()
