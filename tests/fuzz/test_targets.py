"""The codec, the state machine and the header check refuse whatever is not right, in their own words."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import ModelFileError
from engine.model.header import check_header
from tests.faults.tiny_llama import write_tiny_llama
from tests.fuzz.mutations import spoil, spoil_field, structure
from tests.fuzz.targets import TARGETS, corpus

NAMES = sorted(TARGETS)
MUTATIONS = 500
HEADERS = 500


@pytest.mark.parametrize("name", NAMES)
def test_the_corpus(name: str) -> None:
    for data in corpus(name):
        TARGETS[name](data)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_of_the_corpus_spoiled(name: str) -> None:
    rng = random.Random(name)
    inputs = corpus(name)
    assert inputs, "the corpus is empty"
    for _ in range(MUTATIONS):
        data = rng.choice(inputs)
        for _ in range(rng.randrange(1, 4)):
            data = spoil(data or b"\0", rng)
        TARGETS[name](data)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=400))
def test_any_bytes(name: str, data: bytes) -> None:
    TARGETS[name](data)
    if name == "header":
        TARGETS[name](b"GGUF\x03\0\0\0" + data)


def test_headers_with_impossible_numbers_are_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    good = write_tiny_llama(tmp_path / "good.gguf").read_bytes()
    fields, rng = structure(good), random.Random(1)
    kinds = {field.kind for field in fields}
    assert kinds == {"count", "length", "type", "dimension", "offset"}
    bad = tmp_path / "bad.gguf"
    tracemalloc.start()
    try:
        for number in range(HEADERS):
            field = fields[number % len(fields)] if number < len(fields) else rng.choice(fields)
            bad.write_bytes(spoil_field(good, field, rng))
            tracemalloc.reset_peak()
            with pytest.raises(ModelFileError) as refused:
                check_header(bad)
            assert refused.value.code == "model-file"
            assert str(bad) in str(refused.value) or bad.name in str(refused.value)
            assert tracemalloc.get_traced_memory()[1] < 8 << 20, field
    finally:
        tracemalloc.stop()


def test_a_header_cut_anywhere_is_refused(tmp_path: Path) -> None:
    good = write_tiny_llama(tmp_path / "good.gguf").read_bytes()
    end = structure(good)[-1].offset + 8
    rng = random.Random(2)
    bad = tmp_path / "bad.gguf"
    for length in {0, 1, 4, 23, end - 1, *(rng.randrange(end) for _ in range(100))}:
        bad.write_bytes(good[:length])
        with pytest.raises(ModelFileError):
            check_header(bad)
