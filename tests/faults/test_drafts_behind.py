"""Drafts behind replies that are wrong, senseless, forbidden, late or lost: the answer is the model's own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine.config.plan import RunPlan
from engine.events import DraftReceived, Event, Notice, WindowDone, WindowSent
from engine.model.demo import demo_model
from engine.protocol.messages import SamplingSettings
from tests.faults.conftest import Undisturbed
from tests.faults.elsewhere import Proxy, StageElsewhere, elsewhere
from tests.faults.harness import Disturbed, disturbed, drafting, killing, plan, remote_plan, slowly
from tests.faults.lying_stage import BUDGET, EagerPolicy, Lie, LyingStage, changed, lying_stage, tokens
from tests.faults.tiny_llama import LAYERS

pytestmark = pytest.mark.asyncio(loop_scope="module")

VOCABULARY = 259
RETURN = 1  # what connects second to the last stage


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether drafts pay on this machine does not matter here."""
    monkeypatch.setattr("engine.speculation.scheduler.GoodputPolicy", EagerPolicy)


@pytest.fixture(autouse=True)
def no_fault_of_ours(caplog: pytest.LogCaptureFixture) -> Any:
    """Counters that do not add up and tracebacks are errors in the log."""
    yield
    errors = [record for record in caplog.get_records("call") if record.levelname == "ERROR"]
    assert not errors, [record.getMessage() for record in errors]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(model: Path) -> AsyncIterator[LyingStage]:
    """The last half of the model."""
    async with lying_stage(model, LAYERS // 2) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def running(model: Path, stage: LyingStage, undisturbed: Undisturbed) -> AsyncIterator[Disturbed]:
    """An engine with the first half, whose last stage would draft the right answer."""
    async with disturbed(drafting(remote_plan(model, stage.url, **slowly()))) as engine:
        await knows_the_answer(stage, engine, undisturbed)
        yield engine


async def knows_the_answer(stage: LyingStage, running: Disturbed, undisturbed: Undisturbed) -> None:
    """Its drafts are right from now on."""
    stage.honestly()
    stage.answer = ()
    result = await running.ask(max_tokens=1)
    stage.prompt, stage.answer = result["timings"]["prompt_n"], await undisturbed()


def accepted(result: dict[str, Any]) -> int:
    """MTP drafts that were right."""
    return int(result["speculative"]["by_source"]["mtp"]["accepted"])


def incidents(running: Disturbed) -> list[Notice]:
    """What was said about the stages, but for how fast they are."""
    return [notice for notice in running.of_kind(Notice) if notice.code != "one-machine"]


def check_windows(events: Sequence[Event], *, all_done: bool = True) -> None:
    """Windows are sent, then done, each of them once; a draft comes once behind those that asked for it."""
    seen: dict[int, list[str]] = {}
    for event in events:
        if isinstance(event, WindowSent):
            assert event.window not in seen
            seen[event.window] = ["sent", "asked"] if event.draft_later else ["sent"]
        elif isinstance(event, WindowDone):
            assert "done" not in seen[event.window]
            seen[event.window].append("done")
        elif isinstance(event, DraftReceived):
            assert seen[event.window] == ["sent", "asked", "done"]
            seen[event.window].append("drafted")
    if all_done:
        assert all("done" in states for states in seen.values())


# --- what the head may say ----------------------------------------------------------------------------------


async def test_right_drafts_are_taken(running: Disturbed, undisturbed: Undisturbed) -> None:
    result = await running.ask()
    assert result["token_ids"] == await undisturbed()
    assert accepted(result) > 30
    assert len(running.of_kind(DraftReceived)) > 10
    assert result["stages"][-1]["compute_ms_total"] > 0
    check_windows(running.events)


async def test_wrong_drafts_change_nothing(
    running: Disturbed, stage: LyingStage, undisturbed: Undisturbed
) -> None:
    stage.answer = [(token + 1) % VOCABULARY for token in await undisturbed()]
    result = await running.ask()
    assert result["token_ids"] == await undisturbed()
    assert accepted(result) == 0
    assert result["speculative"]["rejected_windows"] > 30
    check_windows(running.events)


@pytest.mark.parametrize(
    "lie",
    [
        lambda drafted: (),
        lambda drafted: [tokens(drafted)],
        lambda drafted: [changed(drafted, position=0)],
        lambda drafted: [changed(drafted, position=2**32 - 1)],
        lambda drafted: [changed(drafted, after_token=2**31 - 1)],
        lambda drafted: [changed(drafted, probabilities=(math.nan,) * len(drafted.draft.tokens))],
        lambda drafted: [changed(drafted, probabilities=(-math.inf,) * len(drafted.draft.tokens))],
        lambda drafted: [changed(drafted, head_us=2**32 - 1)],
    ],
    ids=["nothing", "empty", "before", "far-away", "after-another", "nan", "minus-infinity", "for-ever"],
)
async def test_a_senseless_draft_is_as_good_as_none(
    running: Disturbed, stage: LyingStage, undisturbed: Undisturbed, lie: Lie
) -> None:
    stage.lie = lie
    assert (await running.ask())["token_ids"] == await undisturbed()
    assert not incidents(running)
    check_windows(running.events)


@pytest.mark.parametrize(
    ("lie", "cause"),
    [
        (lambda drafted: [drafted, drafted], "not asked for or comes too late"),
        (lambda drafted: [replace(drafted, window=drafted.window + 1)], "not asked for"),
        (lambda drafted: [replace(drafted, epoch=drafted.epoch + 1)], "not asked for"),
        (lambda drafted: [replace(drafted, session=drafted.session + 1)], "not asked for"),
        (lambda drafted: [tokens(drafted, -3)], "token -3 is negative"),
        (lambda drafted: [tokens(drafted, *[7] * (BUDGET + 1))], f"draft tokens for a budget of {BUDGET}"),
        (lambda drafted: [tokens(drafted, *[7] * 255)], "255 draft tokens for a budget"),
        (lambda drafted: [tokens(drafted, *[7] * 256)], "draft tokens is 256"),
    ],
    ids=["twice", "window", "epoch", "session", "negative", "budget", "255", "256"],
)
async def test_a_draft_that_breaks_the_protocol_breaks_the_lane_and_not_the_answer(
    running: Disturbed, stage: LyingStage, undisturbed: Undisturbed, lie: Lie, cause: str
) -> None:
    stage.lie_once(lie)
    result = await running.ask()
    assert result["token_ids"] == await undisturbed()
    lost, back = incidents(running)
    assert (lost.code, back.code) == ("stage-lost", "recovered")
    assert cause in lost.message
    check_windows(running.events, all_done=False)


@pytest.mark.parametrize("token", [VOCABULARY, 2**31 - 1])
async def test_a_token_that_does_not_exist_ends_the_answer_and_says_so(
    running: Disturbed, stage: LyingStage, undisturbed: Undisturbed, token: int
) -> None:
    stage.lie_once(lambda drafted: [tokens(drafted, token)])
    result = await running.ask()
    assert result["error"]["code"] == "protocol"
    assert f"token id {token} is outside the vocabulary of {VOCABULARY}" in result["error"]["message"]
    assert (await running.ask())["token_ids"] == await undisturbed()


# --- what may happen meanwhile ------------------------------------------------------------------------------


async def test_an_answer_that_is_cancelled_at_a_draft_leaves_its_place_in_order(
    running: Disturbed, undisturbed: Undisturbed
) -> None:
    known = await undisturbed()
    for kind in (DraftReceived, WindowSent, WindowDone):
        running.trap(later(kind, 5), lambda: running.engine.cancel(running.request))
        result = await running.ask(session="chat")
        assert result["finish_reason"] == "cancelled"
        assert result["token_ids"] == known[: len(result["token_ids"])]
        assert (await running.ask(session="chat"))["token_ids"] == known
    check_windows(running.events)


async def test_settings_may_change_while_a_draft_is_on_its_way(
    running: Disturbed, undisturbed: Undisturbed
) -> None:
    changes: list[dict[str, Any]] = [
        {"pipeline_depth": 1}, {"pipeline_depth": 4}, {"draft_max": 1}, {"strategy": "disabled"},
        {"strategy": "mtp"}, {"window_policy": "fixed"}, {"window_policy": "goodput"}, {"draft_max": 8},
        {"strategy": "ngram-suffix"}, {"strategy": "mtp-suffix"}, {"reject_cooldown_tokens": 2},
        {"window_policy": "adaptive"}, {"window_policy": "goodput"}, {"draft_min": 2}, {"window_max": 1},
    ]  # fmt: skip
    made = 0

    def change(event: Event) -> bool:
        nonlocal made
        if isinstance(event, WindowSent) and event.window % 3 == 0 and made < len(changes):
            running.engine.set_values(changes[made])
            made += 1
        return False

    running.trap(change, lambda: None)
    assert (await running.ask())["token_ids"] == await undisturbed()
    assert made == len(changes)
    check_windows(running.events)


@asynccontextmanager
async def three_stages_apart(
    model: Path, *refused: int
) -> AsyncIterator[tuple[Disturbed, LyingStage, Proxy]]:
    """The last of three drafts, behind a proxy that refuses the connections of these numbers."""
    async with AsyncExitStack() as stack:
        middle = StageElsewhere(model, "2:4")
        await stack.enter_async_context(elsewhere(middle))
        last = await stack.enter_async_context(lying_stage(model, 4))
        proxy = await stack.enter_async_context(Proxy(last).listening())
        proxy.refused.update(refused)
        run_plan = drafting(remote_plan(model, middle.url, proxy.url, **slowly()))
        yield await stack.enter_async_context(disturbed(run_plan)), last, proxy


async def test_drafts_take_the_lane_where_there_is_no_return_link(
    model: Path, undisturbed: Undisturbed
) -> None:
    async with three_stages_apart(model, RETURN) as (running, last, _):
        await knows_the_answer(last, running, undisturbed)
        result = await running.ask()
        assert result["token_ids"] == await undisturbed()
        assert accepted(result) > 30
        assert result["speculative"]["direct_replies"] == 0
        check_windows(running.events)


async def test_drafts_take_the_lane_after_the_return_link_broke(
    model: Path, undisturbed: Undisturbed
) -> None:
    async with three_stages_apart(model) as (running, last, proxy):
        await knows_the_answer(last, running, undisturbed)
        running.trap(later(DraftReceived, 2), proxy.connections[RETURN].cut)
        result = await running.ask()
        assert result["token_ids"] == await undisturbed()
        assert result["speculative"]["fallback_replies"] > 0
        routes = [event.route for event in running.of_kind(WindowDone)]
        assert routes == sorted(routes)  # direct, then lane
        check_windows(running.events, all_done=False)


@pytest.mark.model
async def test_drafts_survive_stages_that_are_killed() -> None:
    """With the head of the default model, which is lost with the last stage."""
    question = "Tell me a short story about a fox and a lighthouse."
    greedy = {"sampling": SamplingSettings(), "max_tokens": 30}
    async with disturbed(drafting(_of_default_model())) as running:
        known = (await running.ask(question, strategy="disabled", **greedy))["token_ids"]
        for victim in (2, 1):
            running.trap(later(DraftReceived, 3), killing(running, victim))
            result = await running.ask(question, **greedy)
            assert running.struck.is_set()
            assert result["token_ids"] == known
            assert result["stages"][victim]["restarts"] == 1
            assert result["speculative"]["proposed"] > 0
        check_windows(running.events, all_done=False)


def _of_default_model() -> RunPlan:
    return plan(demo_model(), (10, 20), **slowly())


def later(kind: type[Event], count: int) -> Callable[[Event], bool]:
    """At so many events of a kind."""
    seen: Counter[type[Event]] = Counter()

    def when(event: Event) -> bool:
        seen[type(event)] += 1
        return isinstance(event, kind) and seen[kind] >= count

    return when
