"""Simulated answers, told as an engine tells them, against what the cost model says of their windows.

The simulation and the model know nothing of each other: one moves messages between stages while the real
decode loop decides, the other adds up what the record kept.
"""

from __future__ import annotations

import pytest

from engine.bench.model import Answers, modelled
from engine.bench.windows import WindowLog, unpacked
from engine.events import DraftReceived, WindowDone, WindowSent
from engine.protocol.messages import Draft, PredictedTokens
from engine.speculation.loop import DecodeLoop
from engine.speculation.types import Actions
from tests.speculation import simulator
from tests.speculation.workloads import Text, copy, novel, simulate

SAME = 0.02
"""Medians stand for costs that vary by a tenth, and the hops are not quite equal."""


class ToldLoop(DecodeLoop):
    """The decode loop, with a log that is told what a coordinator tells, in its order."""

    def start(self, now: float) -> Actions:
        self.log = WindowLog()
        self.committed_at: list[float] = []
        self._newest = -1
        return self._told(super().start(now))

    def on_reply(self, reply: PredictedTokens, now: float, *, direct: bool = True) -> Actions:
        actions = super().on_reply(reply, now, direct=direct)
        self.committed_at += [now] * len(actions.committed)
        self._newest = reply.window
        self.log.add(
            WindowDone(
                request="r",
                window=reply.window,
                epoch=reply.epoch,
                stale=reply.stale,
                accepted=0,
                width=0,
                elapsed_ms=0.0,
                stages=tuple((time.stage, time.queue_us, time.compute_us, 0) for time in reply.times),
                drafted=len(reply.draft.tokens) if reply.draft else 0,
                draft_us=reply.draft.head_us if reply.draft else 0,
            )
        )
        return self._told(actions)

    def on_draft(self, draft: Draft, now: float) -> Actions:
        actions = super().on_draft(draft, now)
        drafted = len(draft.tokens)
        self.log.add(
            DraftReceived(request="r", window=self._newest, epoch=0, drafted=drafted, draft_us=draft.head_us)
        )
        return self._told(actions)

    def _told(self, actions: Actions) -> Actions:
        for plan in actions.windows:
            rows = len(plan.tokens)
            self.log.add(
                WindowSent(
                    request="r", window=plan.window, epoch=plan.epoch, start=0, rows=rows, width=plan.width
                )
            )
        return actions


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "DecodeLoop", ToldLoop)


def answers(text: Text, rtt_ms: float, strategy: str, **settings: object) -> Answers:
    loop = simulate(text, rtt_ms, strategy, **settings).loop  # type: ignore[arg-type]
    assert isinstance(loop, ToldLoop)
    times = loop.committed_at
    return Answers((unpacked(loop.log.windows),), len(times) - 1, (times[-1] - times[0]) * 1000)


def of_model(text: Text, rtt_ms: float, own: Answers) -> float:
    """Simulated speed over the model's."""
    found = modelled(own, answers(text, rtt_ms, "disabled"), stages=2)
    assert found is not None
    return found.of_model


@pytest.mark.parametrize("rtt_ms", [0.0, 20.0, 100.0])
@pytest.mark.parametrize("acceptance", [0.5, 0.9])
def test_drafts_behind_replies_take_the_time_that_the_model_gives_them(
    rtt_ms: float, acceptance: float
) -> None:
    own = answers(novel(1), rtt_ms, "mtp", acceptance=acceptance)
    assert any(window.behind for window in own.windows[0])
    assert any(window.joins for window in own.windows[0])
    assert of_model(novel(1), rtt_ms, own) == pytest.approx(1.0, abs=SAME)


@pytest.mark.parametrize("rtt_ms", [0.0, 20.0])
def test_so_do_drafts_in_replies(rtt_ms: float) -> None:
    own = answers(novel(1), rtt_ms, "mtp", behind=False)
    assert any(window.drafted and not window.behind for window in own.windows[0])
    assert of_model(novel(1), rtt_ms, own) == pytest.approx(1.0, abs=SAME)


@pytest.mark.parametrize("rtt_ms", [0.0, 20.0])
def test_so_do_windows_that_follow_each_other(rtt_ms: float) -> None:
    own = answers(copy(1), rtt_ms, "auto")
    assert of_model(copy(1), rtt_ms, own) == pytest.approx(1.0, abs=SAME)
