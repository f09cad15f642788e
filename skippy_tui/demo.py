"""What an engine says, the same every time and without a model: for screenshots and tests."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from engine.client.requests import GenerateRequest
from engine.events import (
    DraftReceived,
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
from skippy_tui.simulation import PROMPT_TOKENS, START, Simulation

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
                "compute_ms_total": _computed_ms(events, index),
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


def _computed_ms(events: Sequence[Event], index: int) -> float:
    """What a stage computed for; the second one drafts as well."""
    done = [event for event in events if isinstance(event, WindowDone)]
    drafts = [event for event in events if isinstance(event, DraftReceived)] if index else []
    microseconds = sum(compute for event in done for stage, _, compute, _ in event.stages if stage == index)
    return (microseconds + sum(draft.draft_us for draft in drafts)) / 1000


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
