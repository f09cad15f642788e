"""What an engine says, the same every time and without a model: for screenshots and tests.

A small simulation of two stages with windows in flight, so that the figures fit together.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.client.requests import GenerateRequest
from engine.events import (
    EngineState,
    Event,
    ModelReady,
    NodeState,
    Notice,
    PrefillProgress,
    RequestFinished,
    RequestStarted,
    StageState,
    TokensCommitted,
    WindowDone,
    WindowSent,
)

START = 1000.0  # on the engine's clock
PROMPT_TOKENS = 41
HOP = 0.009  # seconds from stage to stage
LAYERS = ((0, 14), (14, 30))
PLACES = ("this engine", "10.0.0.7:9000")

PROMPT = "Rename `total` to `amount` in this function, and say in one line what it does."
ANSWER = '''Here is the function with the name changed everywhere:

```python
def invoice(items, rate):
    """The amount to be paid, tax included."""
    amount = 0
    for item in items:
        amount += item.price * item.count
    if amount > 1000:
        amount *= 0.95  # a discount for large orders
    return round(amount * (1 + rate), 2)
```

It adds up **price × count** of every item, takes 5 % off orders above 1000, and returns the sum with tax:

- `amount` is a local name, so no caller has to change;
- rounding happens once, at the end.
'''


def starting() -> list[Event]:
    """An engine in the middle of its start."""
    return [
        EngineState(at=START - 4, state="loading", detail="reading the model"),
        _stage(0, "ready", at=START - 3),
        _stage(1, "starting", at=START - 3),
        EngineState(at=START - 2, state="loading", detail="slicing the model", fraction=0.62),
    ]


def placing() -> list[Event]:
    """An engine that sends layers to one node, waits for another, and goes without a third."""
    return [
        EngineState(at=START - 9, state="loading", detail="probing the ways between the nodes"),
        _node("shed", "left-out", detail="nothing listens at 10.0.0.9:9555; start the node there"),
        StageState(at=START - 4, index=0, state="ready", layers=(0, 10), where=PLACES[0]),
        StageState(at=START - 4, index=1, state="starting", layers=(10, 20), where="den"),
        StageState(at=START - 4, index=2, state="starting", layers=(20, 30), where="attic"),
        _node("den", "receiving", layers=(10, 20), done=31_457_280, total=47_185_920),
        _node("attic", "loading", layers=(20, 30)),
        EngineState(at=START - 3, state="loading", detail="den: receiving layers 10:20", fraction=0.66),
    ]


def _node(name: str, state: str, **values: Any) -> NodeState:
    return NodeState(at=START - 4, name=name, url=f"ws://{name}:9555", state=state, **values)


def ready() -> list[Event]:
    """An engine that waits for a prompt."""
    return [
        *starting(),
        _stage(1, "ready", at=START - 1),
        ModelReady(
            at=START - 1,
            name="SmolLM2-135M-Instruct-MTP",
            path="/models/demo.gguf",
            architecture="mimo2",
            layers=30,
            fingerprint="5f" * 16,
            native_mtp=True,
            context=4096,
            exact=True,
            wire="f32",
            strategy="auto",
        ),
        EngineState(at=START - 1, state="ready"),
    ]


def unreachable() -> list[Event]:
    """What follows when the second stage goes away."""
    return [
        StageState(
            at=START + 2,
            index=1,
            state="unreachable",
            layers=LAYERS[1],
            where=PLACES[1],
            reason="no byte for 2 s",
            rtt_ms=18.4,
            restarts=1,
        ),
        Notice(
            at=START + 2, level="warning", code="stage-lost", message="stage 1 at 10.0.0.7:9000 is silent"
        ),
        EngineState(at=START + 2, state="recovering", detail="dialling 10.0.0.7:9000 again"),
    ]


def _stage(index: int, state: str, at: float) -> StageState:
    return StageState(
        at=at, index=index, state=state, layers=LAYERS[index], where=PLACES[index], rtt_ms=18.4 * index
    )


@dataclass
class Flight:
    """A window under way in the simulation."""

    sent: WindowSent
    returns: float
    stages: tuple[tuple[int, int, int, int], ...]


@dataclass
class Simulation:
    """Decodes a known text: which drafts turn out right is drawn from a fixed seed."""

    request: str
    texts: list[str]
    speculate: bool
    rng: random.Random
    events: list[Event] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)
    now: float = START
    free_at: list[float] = field(default_factory=lambda: [START, START])  # when each stage is idle again
    done: int = 0  # tokens committed
    windows: int = 0
    epoch: int = 0

    def run(self) -> list[Event]:
        """Every event of the answer, in order."""
        while self.done < len(self.texts):
            depth = 3 if self.speculate and self.done > 12 else 1
            while len(self.flights) < depth:
                self._send()
            self._reply(self.flights.pop(0))
        return sorted(self.events, key=lambda event: event.at)

    def _send(self) -> None:
        sources = self._sources()
        width = sum(length for _, length in sources)
        sent_at = max(self.now, self.free_at[0])
        sent = WindowSent(
            at=sent_at,
            request=self.request,
            window=self.windows,
            epoch=self.epoch,
            start=self._next_start(),
            rows=width + 1,
            width=width,
            sources=sources,
            in_flight=len(self.flights) + 1,
            draft_budget=2,
            reason=_reason(sources),
        )
        moment, stages = sent_at, []
        for index, base in enumerate((0.0048, 0.0061)):
            begins = max(moment, self.free_at[index])
            compute = (base + 0.0007 * width) * self.rng.uniform(0.95, 1.12)
            stages.append((index, int((begins - moment) * 1e6), int(compute * 1e6), 40 + self.done))
            self.free_at[index] = begins + compute
            moment = begins + compute + HOP
        self.events.append(sent)
        self.flights.append(Flight(sent, moment, tuple(stages)))
        self.windows += 1

    def _next_start(self) -> int:
        """Where the next window begins: behind those under way, at first on the last token of the prompt."""
        useful = [flight.sent for flight in self.flights if flight.sent.epoch == self.epoch]
        return useful[-1].start + useful[-1].rows if useful else PROMPT_TOKENS - 1 + self.done

    def _sources(self) -> tuple[tuple[str, int], ...]:
        if not self.speculate:
            return ()
        copying = 24 < self.done < 110  # inside the code that the prompt held as well
        return (
            (("mtp", 1), ("ngram", self.rng.choice((4, 6, 7))))
            if copying
            else (("mtp", self.rng.choice((1, 2))),)
        )

    def _reply(self, flight: Flight) -> None:
        self.now = flight.returns
        sent = flight.sent
        stale = sent.epoch != self.epoch
        accepted, rejected = (0, ()) if stale else self._judge(sent)
        if not stale:
            self._commit(sent, accepted)
        self.events.append(
            WindowDone(
                at=self.now,
                request=self.request,
                window=sent.window,
                epoch=sent.epoch,
                stale=stale,
                accepted=accepted,
                width=sent.width,
                elapsed_ms=(self.now - sent.at) * 1000,
                stages=flight.stages,
                rejected=rejected,
            )
        )

    def _judge(self, sent: WindowSent) -> tuple[int, Any]:
        accepted = 0
        for source, length in sent.sources:
            for _ in range(length):
                if self.rng.random() > (0.8 if source == "mtp" else 0.985):
                    self.epoch += 1
                    place = min(self.done + accepted, len(self.texts) - 1)
                    wrong = self.rng.choice((" total", " the", " value", "\n", " sum"))
                    return accepted, (PROMPT_TOKENS + place, wrong, self.texts[place])
                accepted += 1
        return accepted, ()

    def _commit(self, sent: WindowSent, accepted: int) -> None:
        origins = [source for source, length in sent.sources for _ in range(length)][:accepted]
        own = "target" if not sent.sources else "free" if accepted == sent.width else "correction"
        fresh = self.texts[self.done : self.done + accepted + 1]
        tokens = tuple(
            (self.done + i, origin, text)
            for i, (text, origin) in enumerate(zip(fresh, [*origins, own], strict=False))
        )
        self.done += len(fresh)
        self.events.append(
            TokensCommitted(at=self.now, request=self.request, window=sent.window, tokens=tokens)
        )


def _reason(sources: Sequence[tuple[str, int]]) -> str:
    if not sources:
        return "plain"
    if len(sources) > 1:
        return "suffix match of 23 tokens, 0.94 of its drafts expected right"
    return "one MTP draft costs 0.7 ms a stage and is right in 0.80 of cases"


def answer(request: GenerateRequest, text: str = ANSWER, speculate: bool | None = None) -> list[Event]:
    """Every event of an answer to a request."""
    strategy = request.strategy or "auto"
    texts = re.findall(r"\n\s*|\s?\w+|\s?[^\w\s]|\s+", text)
    simulation = Simulation(
        request.request,
        texts,
        strategy != "disabled" if speculate is None else speculate,
        random.Random(7),
    )
    started = RequestStarted(
        at=START - 0.31,
        request=request.request,
        prompt_tokens=PROMPT_TOKENS,
        reused=0,
        strategy=strategy,
        seed=request.sampling.seed,
        temperature=request.sampling.temperature,
        max_tokens=request.max_tokens,
    )
    prefill = PrefillProgress(
        at=START - 0.02, request=request.request, done=PROMPT_TOKENS, total=PROMPT_TOKENS
    )
    events = [started, prefill, *simulation.run()]
    return [*events, finished(request.request, events)]


def finished(request: str, events: Sequence[Event], reason: str = "stop") -> RequestFinished:
    """The end of an answer of which these events have been seen."""
    tokens = [token for event in events if isinstance(event, TokensCommitted) for token in event.tokens]
    moments = [event.at for event in events if isinstance(event, TokensCommitted)]
    elapsed = moments[-1] - moments[0] if len(moments) > 1 else 0.0
    result = {
        "text": "".join(text for _, _, text in tokens),
        "token_ids": [token for token, _, _ in tokens],
        "finish_reason": reason,
        "strategy": next(event.strategy for event in events if isinstance(event, RequestStarted)),
        "exact": True,
        "timings": {
            "prompt_n": PROMPT_TOKENS,
            "prompt_reused_n": 0,
            "prompt_ms": 290.0,
            "ttft_ms": 338.2,
            "predicted_n": len(tokens),
            "predicted_ms": elapsed * 1000,
            "predicted_per_second": round((len(tokens) - 1) / elapsed, 2) if elapsed else 0.0,
            "tpot_ms_p50": 6.1,
            "tpot_ms_p95": 29.4,
        },
        "speculative": _counts(events),
        "stages": [
            {
                "index": index,
                "layers": list(LAYERS[index]),
                "where": PLACES[index],
                "compute_ms_p50": 5.4 + index,
                "wait_ms_p50": 0.2,
                "rtt_ms": 18.4 * index,
                "restarts": 0,
            }
            for index in range(2)
        ],
        "events": [],
    }
    return RequestFinished(
        at=moments[-1] if moments else START, request=request, finish_reason=reason, result=result
    )


def _counts(events: Sequence[Event]) -> dict[str, Any]:
    done = [event for event in events if isinstance(event, WindowDone) and not event.stale]
    stale = [event for event in events if isinstance(event, WindowDone) and event.stale]
    sent = [event for event in events if isinstance(event, WindowSent)]
    origins = [
        origin for event in events if isinstance(event, TokensCommitted) for _, origin, _ in event.tokens
    ]
    by_source = {
        source: {
            "proposed": sum(n for event in sent for name, n in event.sources if name == source),
            "accepted": origins.count(source),
        }
        for source in ("mtp", "ngram", "draft")
    }
    proposed = sum(count["proposed"] for count in by_source.values())
    accepted = sum(count["accepted"] for count in by_source.values())
    widths = [event.width for event in done] or [0]
    return {
        "windows": len(done) + len(stale),
        "proposed": proposed,
        "accepted": accepted,
        "acceptance_rate": accepted / proposed if proposed else 0.0,
        "by_source": by_source,
        "width": {"min": min(widths), "max": max(widths), "mean": sum(widths) / len(widths)},
        "pipeline": {
            "in_flight_mean": 1.9,
            "in_flight_max": 3,
            "stale_windows": len(stale),
            "stale_ms": sum(event.elapsed_ms for event in stale),
        },
    }
