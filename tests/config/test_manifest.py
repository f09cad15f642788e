"""Every rule of a package's manifest has a code, and the first that is broken is told in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config.manifest import MANIFEST_NAME, is_package, parse_manifest
from engine.config.package_rules import is_safe, manifest_problems, read_manifest
from engine.errors import PackageError, reported_error
from tests.config.packages import changed, put

SPECULATIVE = "generation.speculative_decoding"
MTP = f"{SPECULATIVE}.proposers.mtp"
CACHE = f"{SPECULATIVE}.proposers.ngram-cache"
COMPOSITE = f"{SPECULATIVE}.strategies.mtp-cache"
NGRAM = {"type": "ngram-suffix", "ngram_min": 3, "ngram_max": 3, "max_proposal_tokens": 9}
WINDOW = f"{SPECULATIVE}.strategies.mtp.window_policy"

BROKEN: list[tuple[str, str, Any]] = [
    ("unsupported_schema", "schema", 2),
    ("unsupported_schema", "schema", None),
    ("invalid_manifest", "slices", None),
    ("invalid_manifest", "slices", "none"),
    ("invalid_manifest", "model.layers", "six"),
    ("invalid_manifest", "model.layers", True),
    ("invalid_manifest", "front.sha", "x"),
    ("unsupported_format", "format", "zip"),
    ("empty_model_name", "model.name", " "),
    ("empty_architecture", "model.architecture", ""),
    ("invalid_fingerprint", "model.fingerprint", "xyz"),
    ("invalid_model_size", "model.embedding_length", 0),
    ("unsafe_path", "front.path", "/etc/passwd"),
    ("unsafe_path", "front.path", "../front.gguf"),
    ("unsafe_path", "front.path", "a/../../front.gguf"),
    ("unsafe_path", "front.path", "C:\\front.gguf"),
    ("unsafe_path", "front.path", ""),
    ("unsafe_path", "slices.0.path", "~/../x.gguf"),
    ("duplicate_path", "front.path", "layers-0-2.gguf"),
    ("invalid_sha256", "front.sha256", "A" * 64),
    ("invalid_size", "slices.1.bytes", 0),
    ("invalid_layer_range", "slices.2.layers", [4, 7]),
    ("invalid_layer_range", "slices.2.layers", [4, 4]),
    ("missing_layers", "slices.1", None),
    ("missing_layers", "slices", []),
    ("overlapping_layers", "slices.1.layers", [1, 4]),
    ("empty_speculative_default", f"{SPECULATIVE}.default", ""),
    ("missing_speculative_default_strategy", f"{SPECULATIVE}.default", "ngram-cache"),
    ("missing_speculative_default_strategy", f"{SPECULATIVE}.default", "disabled"),
    ("empty_speculative_proposer_name", f"{SPECULATIVE}.proposers. ", NGRAM),
    ("unsupported_speculative_proposer_type", f"{MTP}.type", "oracle"),
    ("unsupported_native_mtp_prediction_depth", f"{MTP}.prediction_depth", 0),
    ("unsupported_native_mtp_prediction_depth", f"{MTP}.prediction_depth", None),
    ("missing_native_mtp_layers", f"{MTP}.layer_indices", []),
    ("native_mtp_layer_out_of_range", f"{MTP}.layer_indices", [5]),
    ("native_mtp_layer_out_of_range", f"{MTP}.layer_indices", [7]),
    ("invalid_ngram_proposer_window", f"{CACHE}.ngram_min", 0),
    ("invalid_ngram_proposer_window", f"{CACHE}.ngram_min", 4),
    ("unsupported_ngram_cache_max_window", f"{CACHE}.ngram_max", 5),
    ("unsupported_ngram_max_window", f"{SPECULATIVE}.proposers.ngram-simple.ngram_max", 65),
    ("invalid_ngram_proposer_max_tokens", f"{CACHE}.max_proposal_tokens", 0),
    ("invalid_ngram_cache_history_scope", f"{CACHE}.history_scope", "everything"),
    ("invalid_ngram_cache_history_scope", f"{CACHE}.history_scope", None),
    ("empty_speculative_strategy_name", f"{SPECULATIVE}.strategies.", {"type": "vendor"}),
    ("empty_speculative_strategy_type", f"{SPECULATIVE}.strategies.mtp.type", ""),
    ("speculative_strategy_type_mismatch", f"{SPECULATIVE}.strategies.mtp.type", "composite"),
    ("missing_speculative_proposer", f"{SPECULATIVE}.strategies.mtp.proposer", "nobody"),
    ("missing_native_mtp_strategy_proposer", f"{SPECULATIVE}.strategies.mtp.proposer", None),
    ("native_mtp_strategy_proposer_type_mismatch", f"{SPECULATIVE}.strategies.mtp.proposer", "ngram-cache"),
    ("missing_ngram_strategy_proposer", f"{SPECULATIVE}.strategies.ngram-simple.proposer", None),
    ("ngram_strategy_proposer_type_mismatch", f"{SPECULATIVE}.strategies.ngram-simple.proposer", "mtp"),
    ("missing_composite_primary", f"{COMPOSITE}.primary", None),
    ("missing_composite_extender", f"{COMPOSITE}.extender", None),
    ("invalid_composite_primary_type", f"{COMPOSITE}.primary", "ngram-cache"),
    ("invalid_composite_extender_type", f"{COMPOSITE}.extender", "mtp"),
    ("invalid_composite_extender_type", f"{COMPOSITE}.extender", "ngram-simple"),
    ("invalid_extension_policy_tokens", f"{COMPOSITE}.extension_policy.initial_tokens", 0),
    ("invalid_extension_policy_tokens", f"{COMPOSITE}.extension_policy.max_tokens", 2),
    ("invalid_extension_policy_backoff", f"{COMPOSITE}.extension_policy.tail_backoff_proposals", -1),
    ("empty_window_policy_default", f"{WINDOW}.default", ""),
    ("unsupported_window_policy_default", f"{WINDOW}.default", "wide"),
    ("invalid_window_policy_zero", f"{WINDOW}.min_window", 0),
    ("invalid_window_policy_bounds", f"{WINDOW}.min_window", 6),
    ("invalid_window_policy_bounds", f"{WINDOW}.max_window", 257),
    ("invalid_window_policy_initial", f"{WINDOW}.initial_window", 6),
    ("invalid_window_policy_pipeline_depth", f"{WINDOW}.pipeline_depth", 65),
    ("unknown_speculative_setting", f"{SPECULATIVE}.settings.draft_mn", 1),
    ("unknown_speculative_setting", f"{SPECULATIVE}.settings.draft_model", "/home/me/x.gguf"),
    ("invalid_speculative_setting", f"{SPECULATIVE}.settings.draft_min", 65),
]  # fmt: skip


def test_the_manifest_of_these_tests_is_good(tmp_path: Path) -> None:
    manifest = read_manifest(put(tmp_path / "package"))
    assert manifest.cuts == (2, 4)
    assert manifest.to_json()
    assert [file.path for file in manifest.files][:2] == ["front.gguf", "layers-0-2.gguf"]


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    manifest = read_manifest(put(tmp_path / "package"))
    (tmp_path / "package" / MANIFEST_NAME).write_bytes(manifest.to_json())
    assert read_manifest(tmp_path / "package") == manifest


@pytest.mark.parametrize(("code", "path", "value"), BROKEN, ids=[f"{b[0]}-{b[1][-24:]}" for b in BROKEN])
def test_a_broken_rule_has_its_code(tmp_path: Path, code: str, path: str, value: Any) -> None:
    with pytest.raises(PackageError) as caught:
        read_manifest(put(tmp_path / "package", changed(path, value)))
    text = str(caught.value)
    assert caught.value.code == code
    assert caught.value.exit_code == 1 == reported_error("x", code=code).exit_code
    assert text.startswith(str(tmp_path / "package" / MANIFEST_NAME))
    assert f"({code})" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("code", "data"),
    [
        ("invalid_json", b"{"),
        ("invalid_json", b"\xff\xfe"),
        ("invalid_manifest", b"[]"),
        ("manifest_too_large", b" " * ((16 << 20) + 1)),
    ],
    ids=["half", "no text", "a list", "too large"],
)
def test_what_is_no_manifest_is_told_too(tmp_path: Path, code: str, data: bytes) -> None:
    put(tmp_path / "package")
    (tmp_path / "package" / MANIFEST_NAME).write_bytes(data)
    with pytest.raises(PackageError) as caught:
        parse_manifest(tmp_path / "package")
    assert caught.value.code == code


def test_a_folder_without_a_manifest_is_no_package(tmp_path: Path) -> None:
    assert not is_package(tmp_path)
    with pytest.raises(PackageError) as caught:
        parse_manifest(tmp_path)
    assert caught.value.code == "missing_manifest"


def test_all_problems_are_told_together(tmp_path: Path) -> None:
    data = changed(f"{WINDOW}.default", "wide")
    data["model"]["name"] = ""
    codes = [problem.code for problem in manifest_problems(parse_manifest(put(tmp_path / "p", data)))]
    assert codes == ["empty_model_name", "unsupported_window_policy_default"]


def test_strategies_of_other_programs_are_left_alone_unless_one_is_the_default(tmp_path: Path) -> None:
    data = changed(f"{SPECULATIVE}.strategies.oracle", {"type": "crystal-ball", "proposer": "nobody"})
    assert read_manifest(put(tmp_path / "package", data))
    data["generation"]["speculative_decoding"]["default"] = "oracle"
    with pytest.raises(PackageError, match="unsupported_speculative_default"):
        read_manifest(put(tmp_path / "package", data))


def test_a_manifest_may_say_nothing_of_speculation(tmp_path: Path) -> None:
    assert (
        read_manifest(put(tmp_path / "p", changed("generation", None))).generation.speculative_decoding
        is None
    )


@given(st.text(alphabet=st.sampled_from("ab./\\:~ \x00\n"), max_size=12))
def test_a_safe_path_never_leads_out(path: str) -> None:
    folder = Path("/some/folder")
    if is_safe(path):
        assert (folder / path).resolve().is_relative_to(folder)
        assert (folder / path).resolve() != folder
        assert not {"\\", ":"} & set(path)  # in Windows these make drives, streams and folders
