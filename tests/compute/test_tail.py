"""The last stage: predictions, drafts of the NextN block, and that a trim leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.compute.options import ComputeOptions
from engine.compute.stage import Stage
from engine.compute.tail import Tail
from engine.errors import ContextFull, ProtocolError, UsageError
from engine.model.file import ModelFile
from engine.model.slices import ensure_slice
from engine.protocol.messages import ConfigureGeneration, Draft, SamplingSettings
from tests.compute.chains import Chain
from tests.compute.conftest import TinyModels

OPTIONS = ComputeOptions(context=160, sequences=2, batch_rows=32)
TOKENS = [int(token) for token in np.random.default_rng(3).integers(0, 64, 160)]
NEXTN = ["drafter", "mimo2-3", "deepseek2"]  # rows before the norm, of three blocks, after the norm


def told(draft: Draft | None) -> tuple[object, ...]:
    """All of a draft but the time it took."""
    assert draft is not None
    return draft.position, draft.after_token, draft.tokens, draft.probabilities


@pytest.mark.parametrize("name", NEXTN)
def test_a_split_chain_drafts_what_the_whole_model_drafts(tiny: TinyModels, cache: Path, name: str) -> None:
    drafts = []
    for cuts in ([], [2]):
        with Chain(tiny(name), cuts, OPTIONS, cache) as chain:
            chain.configure()
            chain.prefill(TOKENS[:50])
            drafts.append(told(chain.verify(50, TOKENS[50:51], budget=3)[1]))
    assert drafts[0] == drafts[1]
    position, _, tokens, probabilities = drafts[0]
    assert position == 52
    assert len(tokens) == len(probabilities) == 3
    assert all(0 < probability <= 1 for probability in probabilities)


def test_the_draft_follows_what_agrees_and_the_prediction_after_it(tiny: TinyModels) -> None:
    with Chain(tiny("mimo2"), [], OPTIONS) as chain:
        chain.configure()
        (first,), _ = chain.verify(0, [5])
        (second,), _ = chain.verify(1, [first])
        wrong = (second + 1) % 64
        for window, agreed in (([5, first, second], 2), ([5, first, wrong], 1), ([5, wrong, second], 0)):
            predictions, draft = chain.verify(0, window, budget=1)
            assert draft is not None
            assert draft.position == agreed + 2
            assert draft.after_token == predictions[agreed]


@pytest.mark.parametrize("budget", [1, 2, 4, 8])
def test_windows_of_drafts_say_what_single_rows_say(tiny: TinyModels, cache: Path, budget: int) -> None:
    with Chain(tiny("llama-q8_0"), [1, 2], OPTIONS, cache) as chain:
        assert chain.generate(TOKENS[:20], 5, budget) == chain.generate(
            TOKENS[:20], 5
        )  # no NextN block: no drafts
    model = tiny("drafter")
    with Chain(model, [2, 5], OPTIONS, cache) as chain:
        chain.configure("disabled")
        plain, _ = chain.generate(TOKENS[:20], 60)
        chain.configure("mtp")
        assert chain.generate(TOKENS[:20], 60, budget)[0] == plain


def test_a_rejected_draft_leaves_no_trace(tiny: TinyModels, cache: Path) -> None:
    """A rejected [target, draft] on three stages: the next window equals plain decoding, logits and draft."""
    model = tiny("drafter")
    with Chain(model, [2, 4], OPTIONS, cache) as plain, Chain(model, [2, 4], OPTIONS, cache) as speculative:
        for chain in (plain, speculative):
            chain.configure("mtp")
            chain.prefill(TOKENS[:30])
        (target,), _ = plain.verify(30, TOKENS[30:31], budget=1)
        _, wanted = plain.verify(31, [target], budget=2)

        speculative.verify(30, [TOKENS[30], (target + 1) % 64], budget=4)
        _, draft = speculative.verify(31, [target], budget=2)
        assert np.array_equal(speculative.logits(), plain.logits())
        assert told(draft) == told(wanted)
        assert [stage.length(0) for stage in speculative.stages] == [32, 32, 32]


@pytest.mark.parametrize("rows", [1, 7, 32])
@pytest.mark.parametrize("strategy", ["auto", "mtp"])  # rows of the prompt are fed when needed, or at once
def test_chunks_of_the_prompt_do_not_change_the_draft(tiny: TinyModels, rows: int, strategy: str) -> None:
    """The row of a chunk's first token pairs it with the hidden state before the chunk."""
    with Chain(tiny("drafter"), [], OPTIONS) as chain:
        chain.configure()
        chain.prefill(TOKENS[:65], rows=13)
        wanted = told(chain.verify(65, TOKENS[65:66], budget=2)[1])
        chain.tail.release(0)
        chain.configure(strategy)
        chain.prefill(TOKENS[:65], rows=rows)
        assert told(chain.verify(65, TOKENS[65:66], budget=2)[1]) == wanted


def test_windows_without_a_draft_are_caught_up_with_before_the_next_one(tiny: TinyModels) -> None:
    with Chain(tiny("drafter"), [], OPTIONS) as always, Chain(tiny("drafter"), [], OPTIONS) as rarely:
        for chain in (always, rarely):
            chain.configure()
            chain.prefill(TOKENS[:10])
        for position in range(10, 60):  # more skipped rows than one batch takes
            wanted = always.verify(position, TOKENS[position : position + 1], budget=1)
            due = position in (30, 59)
            came = rarely.verify(position, TOKENS[position : position + 1], budget=int(due))
            assert came[0] == wanted[0]
            assert came[1] is None if not due else told(came[1]) == told(wanted[1])


def test_a_coordinator_that_disagrees_with_the_guess_gets_a_draft_of_its_own_tokens(tiny: TinyModels) -> None:
    with Chain(tiny("drafter"), [], OPTIONS) as chain:
        chain.configure()
        chain.prefill(TOKENS[:20])
        (guess,), _ = chain.verify(20, TOKENS[20:21], budget=4)
        chosen = (guess + 3) % 64
        _, draft = chain.verify(21, [chosen], budget=2)
        chain.tail.release(0)
        chain.configure()
        chain.prefill([*TOKENS[:21]])
        assert told(chain.verify(21, [chosen], budget=2)[1]) == told(draft)


@pytest.mark.parametrize("keep", [0, 1, 9, 33, 44])
def test_a_trim_to_any_position_leaves_the_state_of_a_new_sequence(tiny: TinyModels, keep: int) -> None:
    with Chain(tiny("drafter"), [], OPTIONS) as used, Chain(tiny("drafter"), [], OPTIONS) as fresh:
        used.configure()
        used.prefill(TOKENS[:40])
        for position in range(40, 50):
            used.verify(position, TOKENS[position : position + 1], budget=position % 3)
        used.tail.trim(0, keep)
        drafts = []
        for chain, begin in ((used, keep), (fresh, 0)):
            chain.configure()
            chain.prefill(TOKENS[begin:keep] + TOKENS[100:110], start=begin)
            drafts.append(told(chain.verify(keep + 10, [7], budget=3)[1]))
        assert np.array_equal(used.logits(), fresh.logits())
        assert drafts[0] == drafts[1]


def test_a_strategy_without_mtp_keeps_nothing_and_one_with_it_starts_from_there(tiny: TinyModels) -> None:
    with Chain(tiny("drafter"), [], OPTIONS) as chain:
        for strategy in ("disabled", "ngram-simple", "draft"):
            chain.configure(strategy)
            chain.prefill(TOKENS[:20])
            assert chain.verify(20, TOKENS[20:21])[1] is None
        chain.configure("mtp")  # hidden states of positions 0 to 20 were never kept
        chain.prefill(TOKENS[21:40], start=21)
        draft = chain.verify(40, TOKENS[40:41], budget=2)[1]
        assert draft is not None
        assert draft.position == 42
        chain.configure("disabled")
        chain.verify(30, TOKENS[60:70])  # replaces positions that had hidden states
        chain.configure("auto")
        _, draft = chain.verify(40, TOKENS[70:71], budget=2)
        with Chain(tiny("drafter"), [], OPTIONS) as other:
            other.configure("disabled")
            other.prefill(TOKENS[:30] + TOKENS[60:70])
            other.configure("auto")
            assert told(other.verify(40, TOKENS[70:71], budget=2)[1]) == told(draft)


def test_drafts_of_two_sequences_do_not_mix(tiny: TinyModels) -> None:
    with Chain(tiny("drafter"), [], OPTIONS) as chain:
        wanted = []
        for seq, tokens in ((0, TOKENS[:30]), (1, TOKENS[50:90])):
            chain.configure(seq=seq)
            chain.prefill(tokens, seq=seq)
            wanted.append(told(chain.verify(len(tokens), [9], budget=2, seq=seq)[1]))
            chain.tail.release(seq)
        for seq in (0, 1):
            chain.configure(seq=seq)
        chain.prefill(TOKENS[:30], seq=0)
        chain.prefill(TOKENS[50:90], seq=1)
        assert told(chain.verify(30, [9], budget=2, seq=0)[1]) == wanted[0]
        assert told(chain.verify(40, [9], budget=2, seq=1)[1]) == wanted[1]


def test_drafts_stop_at_the_end_of_the_context(tiny: TinyModels) -> None:
    with Chain(tiny("drafter"), [], OPTIONS) as chain:
        chain.configure()
        chain.prefill(TOKENS[:157])
        lengths = []
        for position in range(157, 160):
            _, draft = chain.verify(position, TOKENS[position : position + 1], budget=8)
            lengths.append(0 if draft is None else len(draft.tokens))
        assert lengths == [1, 0, 0]
        with pytest.raises(ContextFull):
            chain.verify(160, [1], budget=8)


def test_activations_and_tokens_must_belong_together(tiny: TinyModels, cache: Path) -> None:
    stage = Stage(ensure_slice(tiny("mimo2"), 4, 7, cache_dir=cache), OPTIONS)
    tail = Tail(stage)
    hidden = np.ones((3, stage.n_embd), dtype=np.float32)
    with pytest.raises(ProtocolError, match=r"2 token ids came with 3 rows"):
        tail.verify(0, 0, [1, 2], hidden, 1)
    with pytest.raises(ProtocolError, match="token id 64"):
        tail.verify(0, 0, [1, 2, 64], hidden, 1)
    with pytest.raises(ProtocolError, match="none came"):
        tail.verify(0, 0, [1, 2], None, 1)
    with pytest.raises(ProtocolError, match="sequence 2 does not exist"):
        tail.verify(2, 0, [1, 2, 3], hidden, 1)
    assert len(tail.verify(0, 0, [1, 2, 3], hidden, 1)[0]) == 3
    stage.close()


def test_sampling_settings_without_meaning_are_refused_and_the_old_ones_stay(tiny: TinyModels) -> None:
    with Chain(tiny("mimo2"), [], OPTIONS) as chain:
        wanted = chain.verify(0, TOKENS[:8])[0]
        bad = ConfigureGeneration(0, SamplingSettings(temperature=1, logit_bias=((64, 1.0),)))
        with pytest.raises(UsageError, match="token 64"):
            chain.tail.configure(0, bad)
        assert chain.verify(0, TOKENS[:8])[0] == wanted


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingSettings(temperature=0.9, seed=7),
        SamplingSettings(temperature=1.3, top_k=20, top_p=0.9, min_p=0.02, seed=7),
        SamplingSettings(temperature=0, repeat_penalty=1.3, frequency_penalty=0.4, repeat_last_n=16),
    ],
)
def test_the_same_seed_gives_the_same_text_at_every_width(
    tiny: TinyModels, cache: Path, sampling: SamplingSettings
) -> None:
    """Windows of right drafts, of wrong ones, and of the NextN block's."""
    with Chain(tiny("drafter"), [3], OPTIONS, cache) as chain:
        chain.configure("mtp", sampling, 20)
        plain, _ = chain.generate(TOKENS[:20], 60)
        assert len(set(plain)) > 10
        for budget in (1, 8):
            chain.configure("mtp", sampling, 20)
            assert chain.generate(TOKENS[:20], 60, budget)[0] == plain
        for width in (2, 8):
            said: list[int] = []
            while len(said) < 60:
                window = [*(TOKENS[19:20] + said)[-1:], *plain[len(said) : len(said) + width - 1]]
                if len(said) % 3 == 0 and len(window) > 2:
                    window[2] = (window[2] + 1) % 64  # a wrong draft in the middle
                predictions, _ = chain.verify(19 + len(said), window)
                agreed = 0
                while agreed + 1 < len(window) and predictions[agreed] == window[agreed + 1]:
                    agreed += 1
                said += predictions[: agreed + 1]
            assert said[:60] == plain


@pytest.mark.model
def test_drafts_of_the_default_model_are_mostly_right(
    demo: ModelFile, text_tokens: list[int], tmp_path: Path
) -> None:
    options = ComputeOptions(context=256)
    with Chain(demo, [], options) as whole:
        whole.configure("disabled")
        plain, _ = whole.generate(text_tokens[:64], 48)
        whole.configure("mtp")
        said, accepted = whole.generate(text_tokens[:64], 48, budget=2)
    assert said == plain
    assert accepted >= 12
