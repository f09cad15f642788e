"""`skippy-engine stage` without layers: every option reaches the node, and wrong ones are refused by name."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from engine.cli.main import main
from engine.stage import node
from engine.stage.node_options import NodeOptions
from tests.cli.programs import environment

OPTIONS: dict[str, tuple[tuple[str, ...], object]] = {
    "host": (("--listen", "127.0.0.2:0"), "127.0.0.2"),
    "port": (("--listen", "127.0.0.1:9555"), 9555),
    "stage_port": (("--stage-port", "9556"), 9556),
    "token": (("--token-file", "{}/token"), "secret"),
    "insecure": (("--insecure",), True),
    "tls_cert": (("--tls-cert", "{}/a.pem", "--tls-key", "{}/b.pem"), "{}/a.pem"),
    "tls_key": (("--tls-cert", "{}/a.pem", "--tls-key", "{}/b.pem"), "{}/b.pem"),
    "tls_ca": (("--tls-ca", "{}/ca.pem"), "{}/ca.pem"),
    "accept_slices": (("--no-accept-slices",), False),
    "folders": (("--models", "{}/models"), ("{}/models",)),
    "files": ((), ("{}/own.gguf",)),  # of skippy.toml
    "threads": (("--threads", "3"), 3),
    "gpu_layers": (("--gpu-layers", "7"), 7),
    "gpu_device": (("--gpu-device", "1"), 1),
    "slice_cache_gib": (("--slice-cache-gib", "2.5"), 2.5),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "models").mkdir()
    (tmp_path / "token").write_text("secret\n")
    config = tmp_path / "config" / "skippy"
    config.mkdir(parents=True)
    (config / "skippy.toml").write_text(f'[models.own]\npath = "{tmp_path}/own.gguf"\n')
    return tmp_path


def filled(value: object, home: Path) -> object:
    """`{}` is the test's own folder."""
    if isinstance(value, tuple):
        return tuple(filled(item, home) for item in value)
    return value.format(home) if isinstance(value, str) else value


@pytest.mark.parametrize("field", [item.name for item in fields(NodeOptions)])
def test_every_option_reaches_the_node(field: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[NodeOptions] = []
    monkeypatch.setattr(node, "run", seen.append)
    call, value = OPTIONS[field]
    assert main(["stage"]) == 0
    assert main(["stage", *(word.format(home) for word in call)]) == 0
    usual, asked = (getattr(options, field) for options in seen)
    assert asked == filled(value, home)
    assert usual != asked or not call


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("--listen", "here"), "--listen 'here' is no address"),
        (("--stage-port", "70000"), "--stage-port 70000 is no port"),
        (("--stage-port", "x"), "argument --stage-port: invalid int value: 'x'"),
        (("--token-file", "nobody"), "cannot read the token file nobody"),
        (("--tls-cert", "a.pem"), "--tls-cert and --tls-key go together"),
        (("--models", "nowhere"), "--models nowhere is no folder"),
        (("--threads", "-1"), "--threads must be a whole number between 0 and 1024"),
        (("--gpu-layers", "many"), "--gpu-layers must be a whole number"),
        (("--slice-cache-gib", "-1"), "--slice-cache-gib must be a number between 0 and 1000000"),
        (("--ctx", "64"), "--ctx needs --layers"),
        (("--model", "demo"), "--model needs --layers"),
    ],
)
def test_a_wrong_option_is_refused_by_name(
    wrong: tuple[str, ...], words: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stage", *wrong]) == 2
    written = capsys.readouterr()
    assert written.err.count("\n") == 1
    assert words in written.err
