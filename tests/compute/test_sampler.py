"""Drawing by position: the law, the seed, and every step against llama.cpp's own samplers."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.compute.grammar import candidates_array
from engine.compute.sampler import PositionRandom, Sampler, pick
from engine.errors import UsageError
from engine.protocol.messages import SamplingSettings

LAW = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
DRAWS = 100_000


def logits_like_real_ones(n_vocab: int = 3000, seed: int = 0) -> np.ndarray:
    """A few likely tokens and a long tail."""
    random = np.random.default_rng(seed)
    logits = random.standard_normal(n_vocab, dtype=np.float32)
    logits[random.integers(0, n_vocab, 30)] += np.linspace(2, 9, 30, dtype=np.float32)
    return logits


def test_draws_follow_the_law_where_a_draft_is_accepted_rejected_or_followed() -> None:
    """A draft that is always token 1; equality with what the target draws decides (100,000 draws)."""
    sampler = Sampler(SamplingSettings(temperature=1.0, seed=11), 5)
    logits = np.log(LAW).astype(np.float32)
    draft = 1
    drawn = np.array([sampler.draw(logits, (), position) for position in range(DRAWS + 1)])
    accepted = drawn[:-1] == draft
    kept = LAW[draft] * DRAWS
    assert abs(accepted.sum() - kept) < 4 * math.sqrt(kept * (1 - LAW[draft]))
    bonus = drawn[1:][accepted]  # the token after an accepted draft
    corrections = drawn[:-1][~accepted]
    without_draft = np.where(np.arange(5) == draft, 0, LAW) / (1 - LAW[draft])
    for sample, law in ((drawn[:-1], LAW), (bonus, LAW), (corrections, without_draft)):
        count = np.bincount(sample, minlength=5)
        error = np.sqrt(len(sample) * law * (1 - law))
        assert np.all(np.abs(count - len(sample) * law) <= 4 * error)


def test_a_draw_depends_on_seed_and_position_only() -> None:
    logits = logits_like_real_ones()
    settings = SamplingSettings(temperature=1.5, seed=7)
    in_order = [Sampler(settings, 3000).draw(logits, (), position) for position in range(600)]
    sampler = Sampler(settings, 3000)
    backwards = [sampler.draw(logits, (), position) for position in reversed(range(600))]
    assert backwards[::-1] == in_order
    assert len(set(in_order)) > 50
    other = Sampler(SamplingSettings(temperature=1.5, seed=8), 3000)
    assert [other.draw(logits, (), position) for position in range(600)] != in_order


@pytest.mark.parametrize("seed", [0, 7, 2**63, -1])
def test_random_numbers_are_the_words_of_the_philox_stream(seed: int) -> None:
    words = np.random.Philox(key=seed & (2**64 - 1)).random_raw(3000)
    numbers = PositionRandom(seed)
    for position in (2999, 0, 1, 255, 256, 257, 1024):
        assert numbers(position) == (int(words[position]) >> 11) / 2**53


@given(
    weights=st.lists(st.floats(0, 1e6, width=32), min_size=1, max_size=700).filter(
        lambda weights: max(weights) > 0
    ),
    random=st.floats(0, 1, exclude_max=True),
)
def test_only_tokens_with_weight_are_picked(weights: list[float], random: float) -> None:
    chosen = pick(np.array(weights, dtype=np.float32), random)
    assert weights[chosen] > 0


def test_picks_split_the_unit_interval_by_weight() -> None:
    weights = np.zeros(1000, dtype=np.float32)
    weights[[3, 300, 301, 999]] = [1, 2, 0.5, 0.5]
    chosen = [
        pick(weights, random) for random in (0.0, 0.2499, 0.2501, 0.7499, 0.7501, 0.8749, 0.8751, 1 - 2**-53)
    ]
    assert chosen == [3, 3, 300, 300, 301, 301, 999, 999]


def llama_cpp_filters(make: Callable[[Any], None], logits: np.ndarray) -> dict[int, float]:
    """What is left of the logits after a chain of llama.cpp's samplers, by token."""
    chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    make(chain)
    candidates, array = candidates_array(logits)
    llama.llama_sampler_apply(chain, ctypes.byref(array))
    llama.llama_sampler_free(chain)
    kept = candidates[: array.size]
    return dict(zip(kept["id"].tolist(), kept["logit"].tolist(), strict=True))


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        (40, 1.0, 0.0),
        (0, 0.9, 0.0),
        (0, 0.9999, 0.0),  # more tokens than are sorted at first
        (0, 1.0, 0.05),
        (40, 0.8, 0.0),
        (500, 0.999, 0.001),
        (40, 0.95, 0.1),
        (1, 0.5, 0.5),
        (5000, 1e-9, 0.0),
    ],
)
def test_filters_keep_what_llama_cpp_keeps(top_k: int, top_p: float, min_p: float) -> None:
    logits = logits_like_real_ones()

    def make(chain: Any) -> None:
        llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_top_k(top_k))
        llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_top_p(top_p, 0))
        llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_min_p(min_p, 0))

    wanted = llama_cpp_filters(make, logits)
    sampler = Sampler(SamplingSettings(temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p), len(logits))
    kept = sampler.filter(logits)
    assert kept is not None
    assert set(kept.tolist()) == set(wanted)


@pytest.mark.parametrize(
    ("last_n", "repeat", "frequency", "presence"),
    [(64, 1.3, 0.0, 0.0), (8, 1.0, 0.7, 0.2), (20, 1.1, 0.3, -0.4)],
)
def test_penalties_are_llama_cpps(last_n: int, repeat: float, frequency: float, presence: float) -> None:
    logits = logits_like_real_ones(50)
    tokens = np.random.default_rng(4).integers(0, 50, 40).tolist()

    def make(chain: Any) -> None:
        penalties = llama.llama_sampler_init_penalties(50, last_n, repeat, frequency, presence)
        llama.llama_sampler_chain_add(chain, penalties)
        for token in tokens:
            llama.llama_sampler_accept(chain, token)

    wanted = llama_cpp_filters(make, logits)
    settings = SamplingSettings(
        temperature=0.0,
        repeat_last_n=last_n,
        repeat_penalty=repeat,
        frequency_penalty=frequency,
        presence_penalty=presence,
    )
    scores = Sampler(settings, 50).scores(logits, [*tokens, 1, 2, 3], len(tokens))
    assert scores.tolist() == pytest.approx([wanted[token] for token in range(50)], abs=1e-6)
    assert not np.array_equal(scores, logits)


def test_penalties_see_the_tokens_before_the_position_only() -> None:
    settings = SamplingSettings(temperature=0, presence_penalty=10.0, repeat_last_n=-1)
    sampler = Sampler(settings, 4)
    logits = np.array([4, 3, 2, 1], dtype=np.float32)
    tokens = [0, 1, 2, 3]
    assert [sampler.draw(logits, tokens, position) for position in range(4)] == [0, 1, 2, 3]
    assert logits.tolist() == [4, 3, 2, 1]  # llama.cpp's own array


def test_bias_makes_tokens_certain_or_impossible() -> None:
    logits = np.array([4, 3, 2, 1], dtype=np.float32)
    never = SamplingSettings(temperature=1.0, logit_bias=((0, -math.inf), (1, -math.inf), (2, -math.inf)))
    always = SamplingSettings(temperature=0.0, logit_bias=((2, 1.5), (2, 1.5)))
    assert {Sampler(never, 4).draw(logits, (), position) for position in range(200)} == {3}
    assert Sampler(always, 4).draw(logits, (), 0) == 2


def test_a_low_temperature_does_not_overflow() -> None:
    logits = logits_like_real_ones()
    cold = Sampler(SamplingSettings(temperature=1e-6), 3000)
    assert {cold.draw(logits, (), position) for position in range(50)} == {int(logits.argmax())}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"temperature": math.nan}, "temperature"),
        ({"top_p": math.inf}, "top_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"repeat_penalty": 0.0}, "repeat_penalty"),
        ({"logit_bias": ((5, 1.0),)}, "token 5"),
        ({"logit_bias": ((-1, 1.0),)}, "token -1"),
    ],
)
def test_settings_without_meaning_are_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Sampler(SamplingSettings(**wrong), 5)
