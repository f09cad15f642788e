"""Split against whole, and the plain loop against a stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.compute.options import ComputeOptions
from engine.compute.verify import verify_split
from engine.compute.whole_loop import PlainLoop, plain_loop
from engine.errors import ContextFull, UsageError
from engine.model.file import ModelFile
from engine.protocol.messages import WireType
from tests.compute.chains import Chain
from tests.compute.conftest import TinyModels


@pytest.mark.parametrize("splits", [(2,), (1, 2, 5)])
def test_a_split_equals_the_whole(tiny: TinyModels, cache: Path, splits: tuple[int, ...]) -> None:
    steps: list[tuple[int, int]] = []
    report = verify_split(
        tiny("drafter"), splits, cache_dir=cache, progress=lambda done, of: steps.append((done, of))
    )
    assert (report.max_logit_diff, report.argmax_agreement, report.mtp_max_logit_diff) == (0.0, 1.0, 0.0)
    assert report.exact
    assert report.splits == splits
    assert report.positions == 159
    assert steps == [(done, len(splits) + 2) for done in range(len(splits) + 3)]


def test_rounding_on_the_wire_is_seen(tiny: TinyModels, cache: Path) -> None:
    differences = []
    for wire in (WireType.F16, WireType.Q8):
        report = verify_split(tiny("drafter"), (3,), wire, cache_dir=cache)
        assert not report.exact
        assert report.mtp_max_logit_diff
        differences.append(report.max_logit_diff)
    assert 0 < differences[0] < differences[1]


def test_a_model_without_a_nextn_block_has_no_difference_there(tiny: TinyModels, cache: Path) -> None:
    report = verify_split(tiny("llama"), (2,), cache_dir=cache)
    assert report.mtp_max_logit_diff is None
    assert report.exact


@pytest.mark.parametrize("splits", [(), (0,), (6,), (3, 3), (4, 2)])
def test_cuts_that_are_none_are_refused(tiny: TinyModels, splits: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="between 1 and 5"):
        verify_split(tiny("drafter"), splits)


@pytest.mark.model
def test_the_default_model_split_in_two_equals_the_whole(demo: ModelFile) -> None:
    report = verify_split(demo, (15,))
    assert (report.max_logit_diff, report.argmax_agreement, report.mtp_max_logit_diff) == (0.0, 1.0, 0.0)


def test_the_plain_loop_says_what_a_chain_says(tiny: TinyModels, cache: Path) -> None:
    model = tiny("drafter")
    prompt = list(range(20))
    with Chain(model, [2, 4], ComputeOptions(context=64, batch_rows=32), cache) as chain:
        said, _ = chain.generate(prompt, 30)
    assert list(plain_loop(model.path, prompt, 30)) == said
    end = said[12]
    with PlainLoop(model.path, context=256) as loop:
        stopped = loop.generate(prompt, 30, lambda token: token == end)
        assert stopped.tokens == tuple(said[: said.index(end) + 1])
        again = loop.generate(prompt, 30)
        assert list(again.tokens) == said
        with pytest.raises(ContextFull, match="256"):
            loop.generate(prompt, 250)
