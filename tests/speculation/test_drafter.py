"""How proposals are put together, and which source answers for what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config.plan import SpeculationPlan
from engine.protocol.messages import Draft
from engine.speculation.acceptance import Acceptance
from engine.speculation.drafter import Drafter
from engine.speculation.loop import DecodeLoop
from engine.speculation.statistics import Statistics
from engine.speculation.strategies import make_drafter
from engine.speculation.stream import Candidate
from engine.speculation.types import LoopContext
from tests.speculation.driving import answer, only_window, scripted
from tests.speculation.simulator import FakeMtp

HISTORY = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]  # a lookup continues with 4, 5, 6, ..


def drafter(
    strategy: str, plan: SpeculationPlan | None = None, history: list[int] = HISTORY
) -> tuple[Drafter, Statistics]:
    """The sources of a strategy over a text, with an MTP head."""
    statistics = Statistics()
    context = LoopContext(prompt=history, max_tokens=99, context_limit=999, native_mtp=True)
    plan = plan or SpeculationPlan()
    return make_drafter(strategy, plan, history, context, statistics, Acceptance()), statistics


def offer(sources: Drafter, *tokens: int, history: list[int] = HISTORY) -> None:
    """A draft of the last stage for the next position."""
    assert sources.mtp is not None
    sources.mtp.offer(Draft(len(history), history[-1], tokens, ()), history)


def drafted(candidates: list[Candidate]) -> list[tuple[str, int]]:
    return [(candidate.source, candidate.token) for candidate in candidates]


def decide(sources: Drafter, candidates: list[Candidate], right: int) -> None:
    """The target accepts the first `right` candidates, and rejects the next one if there is one."""
    for number, candidate in enumerate(candidates[: right + 1]):
        sources.decided(candidate, right=number < right, sent=True)


@pytest.mark.parametrize("strategy", ["mtp-simple", "mtp-suffix"])
def test_a_tail_follows_where_the_lookup_begins_with_every_mtp_token(strategy: str) -> None:
    sources, statistics = drafter(strategy)
    offer(sources, 4, 5)
    assert drafted(sources.propose(50)) == [("mtp", 4), ("mtp", 5), ("ngram", 6), ("ngram", 7)]
    assert (statistics.anchor_agreements, statistics.anchor_disagreements) == (1, 0)


@pytest.mark.parametrize("strategy", ["mtp-simple", "mtp-suffix"])
def test_there_is_no_tail_where_the_lookup_disagrees(strategy: str) -> None:
    sources, statistics = drafter(strategy)
    offer(sources, 4, 50)
    assert drafted(sources.propose(50)) == [("mtp", 4), ("mtp", 50)]
    assert (statistics.anchor_agreements, statistics.anchor_disagreements) == (0, 1)


def test_a_cache_tail_follows_whatever_mtp_says() -> None:
    """The counts know what follows 6, 7, 8; that they would not have said 6 does not matter."""
    sources, statistics = drafter("mtp-cache")
    offer(sources, 6, 7, 8)
    native = [("mtp", token) for token in (6, 7, 8)]
    assert drafted(sources.propose(50)) == [*native, ("ngram", 9), ("ngram", 1)]
    assert statistics.anchor_agreements == 0


@pytest.mark.parametrize("strategy", ["mtp-simple", "mtp-suffix", "mtp-cache", "auto"])
def test_without_a_draft_the_text_has_the_whole_budget(strategy: str) -> None:
    sources, statistics = drafter(strategy)
    assert drafted(sources.propose(5)) == [("ngram", token) for token in (4, 5, 6, 7, 8)]
    assert statistics.pure_ngram_proposals == 1


def test_a_tail_of_one_token_is_dropped() -> None:
    sources, _ = drafter("mtp-simple")
    offer(sources, 4)
    assert drafted(sources.propose(2)) == [("mtp", 4)]


def test_mtp_tokens_alone_never_get_a_tail_by_refill() -> None:
    sources, _ = drafter("mtp-simple")
    offer(sources, 4)
    assert not sources.may_extend(sources.propose(1)[-1])


def tail_lengths(plan: SpeculationPlan, outcomes: list[int]) -> list[int]:
    """Lengths of the tails of successive composites of which so many candidates are accepted."""
    sources, _ = drafter("mtp-simple", plan)
    lengths = []
    for right in outcomes:
        offer(sources, 4)
        candidates = sources.propose(50)
        lengths.append(len(candidates) - 1)
        decide(sources, candidates, right)
    return lengths


def test_the_tail_grows_with_composites_that_are_accepted_whole() -> None:
    plan = SpeculationPlan(extension_initial=2, extension_max=4)
    assert tail_lengths(plan, [99, 99, 99, 99]) == [2, 3, 4, 4]


def test_a_rejected_tail_starts_again_after_a_pause() -> None:
    plan = SpeculationPlan(extension_initial=2, extension_max=4, tail_backoff_proposals=2)
    assert tail_lengths(plan, [99, 2, 99, 99, 99, 99]) == [2, 3, 0, 0, 2, 3]


def test_a_rejected_mtp_token_leaves_the_tail_alone() -> None:
    plan = SpeculationPlan(extension_initial=2, extension_max=4, tail_backoff_proposals=2)
    assert tail_lengths(plan, [99, 0, 99]) == [2, 3, 3]


def test_a_rejected_tail_does_not_cool_mtp_down() -> None:
    sources, statistics = drafter("mtp-simple", SpeculationPlan(reject_cooldown_tokens=6))
    offer(sources, 4)
    decide(sources, sources.propose(50), right=1)
    assert (statistics.cooldowns, sources.cooling) == (0, False)
    offer(sources, 4)
    decide(sources, sources.propose(50), right=0)
    assert (statistics.cooldowns, sources.cooling) == (1, True)


def test_missed_tails_are_not_held_against_mtp() -> None:
    """C11: MTP is right on the first token, the n-gram behind it wrong, more than 20 times."""
    # what follows "1 2" is new every time: MTP knows it, the text only knows the last one
    continuation = [token for number in range(50) for token in (1, 2, 100 + number)]
    plan = SpeculationPlan(
        strategy="mtp-simple",
        window_policy="fixed",
        pipeline_depth=1,
        draft_max=1,
        ngram_min=1,
        reject_cooldown_tokens=6,
    )
    simulation = scripted([1, 2, 99], continuation, plan, mtp=FakeMtp(acceptance=1.0))
    simulation.run()
    statistics = simulation.loop.statistics
    mtp, ngram = statistics.sources["mtp"], statistics.sources["ngram"]
    assert statistics.rejected_windows > 20
    assert (ngram.accepted, ngram.proposed > 40) == (0, True)
    assert mtp.accepted == mtp.proposed > 50
    assert statistics.cooldowns == 0


def test_tail_tokens_stay_ngram_tokens_when_the_free_token_uses_up_a_draft() -> None:
    """B2: of two MTP tokens the window holds one; the free token equals the other."""
    plan = SpeculationPlan(
        strategy="mtp-simple", window_policy="fixed", window_max=1, pipeline_depth=1, extension_initial=4
    )
    context = LoopContext(
        prompt=[1, 2, 3, 4, 5, 6, 7, 8, 60], max_tokens=99, context_limit=999, window_rows=64, native_mtp=True
    )
    loop = DecodeLoop(plan, context)
    window = only_window(loop.start(0.0))
    for token in (1, 2):
        window = only_window(loop.on_reply(answer(window, [token]), 1.0))
    draft = Draft(len(loop.history) + 1, 3, (4, 5), ())
    window = only_window(loop.on_reply(answer(window, [3], draft=draft), 1.0))
    assert (window.tokens, window.sources) == ((3, 4), (("mtp", 1),))
    window = only_window(loop.on_reply(answer(window, [4, 5]), 1.0))
    assert (window.tokens, window.sources) == ((5, 6), (("ngram", 1),))


def test_auto_takes_the_whole_lookup_where_both_agree() -> None:
    sources, statistics = drafter("auto")
    offer(sources, 4)
    assert drafted(sources.propose(5)) == [("mtp", 4), *(("ngram", token) for token in (5, 6, 7, 8))]
    assert statistics.anchor_agreements == 1


def test_auto_takes_the_source_that_has_been_right() -> None:
    sources, _ = drafter("auto")
    for _ in range(20):
        sources.decided(Candidate(0, "ngram", 3), right=True, sent=True)
        sources.decided(Candidate(0, "mtp", 0), right=False, sent=True)
    offer(sources, 50)
    assert drafted(sources.propose(50))[0] == ("ngram", 4)
    for _ in range(60):
        sources.decided(Candidate(0, "ngram", 3), right=False, sent=True)
        sources.decided(Candidate(0, "mtp", 0), right=True, sent=True)
    offer(sources, 50)
    assert drafted(sources.propose(50)) == [("mtp", 50)]


def test_no_room_means_no_candidates() -> None:
    sources, _ = drafter("auto")
    offer(sources, 4)
    assert sources.propose(0) == []
    assert sources.refill([], 0) == []


def test_plain_decoding_has_no_sources() -> None:
    sources, _ = drafter("disabled", replace(SpeculationPlan(), strategy="disabled"))
    assert (sources.mtp, sources.text, sources.propose(50)) == (None, None, [])
