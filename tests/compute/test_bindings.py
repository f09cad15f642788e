"""What is said when the installed llama-cpp-python cannot run stages, and where its log goes."""

from __future__ import annotations

import logging
import sys

import llama_cpp
import pytest
from llama_cpp import llama_cpp_ext

from engine.compute.bindings import bindings, check_bindings
from engine.compute.logs import LogSink, reason
from engine.errors import BackendError

find_again = bindings.__wrapped__  # what `bindings()` does the first time


def test_the_installed_release_has_everything() -> None:
    check_bindings()


def test_missing_functions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(llama_cpp_ext, "llama_set_embeddings_nextn")
    monkeypatch.delattr(llama_cpp.llama_cpp, "llama_memory_seq_rm")
    with pytest.raises(BackendError) as refused:
        find_again()
    assert "llama_set_embeddings_nextn" in str(refused.value)
    assert "llama_memory_seq_rm" in str(refused.value)
    assert "llama_decode" not in str(refused.value)
    assert "pip install llama-cpp-python==0.3.36" in str(refused.value)


def test_a_changed_struct_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp.llama_cpp, "llama_batch", llama_cpp.llama_cpp.llama_token_data)
    with pytest.raises(BackendError, match="llama_batch"):
        find_again()
    monkeypatch.setattr(llama_cpp.llama_cpp, "llama_model_params", llama_cpp.llama_cpp.llama_token_data)
    with pytest.raises(BackendError, match=r"llama_model_params\.load_mtp"):
        find_again()


def test_another_release_is_refused_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "__version__", "0.3.99")
    with pytest.raises(BackendError, match=r"0\.3\.99 is installed, but stages need 0\.3\.36"):
        find_again()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(BackendError, match="llama-cpp-python is not installed"):
        find_again()


def test_pieces_of_log_lines_are_joined_and_levelled(caplog: pytest.LogCaptureFixture) -> None:
    sink = LogSink()
    with caplog.at_level(logging.DEBUG, "skippy.llama"), sink.errors() as errors:
        sink.write(2, b"load: half ")
        sink.write(5, b"a line\nload: \xff\n")
        sink.write(4, b"load: no tensor\n\n")
        sink.write(3, b"warned\n")
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.DEBUG, "load: half a line"),
        (logging.DEBUG, "load: \N{REPLACEMENT CHARACTER}"),
        (logging.ERROR, "load: no tensor"),
        (logging.INFO, "warned"),
    ]
    assert errors == ["load: no tensor"]
    sink.write(4, b"after the block\n")
    assert errors == ["load: no tensor"]


def test_the_reason_is_the_first_error_without_the_name_of_a_function() -> None:
    assert reason(["llama_model_load: missing tensor 'x'", "later"]) == "missing tensor 'x'"
    assert reason(["no function here: but words"]) == "no function here: but words"
    assert reason([]) == "llama.cpp gave no reason"


def test_llama_cpp_writes_nothing_to_standard_error(capfd: pytest.CaptureFixture[str], tmp_path) -> None:
    from engine.compute.context import LoadedModel

    with pytest.raises(BackendError, match="nowhere"):
        LoadedModel(tmp_path / "nowhere.gguf")
    assert capfd.readouterr().err == ""
