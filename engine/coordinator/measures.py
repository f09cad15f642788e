"""What one answer measured: times, stages, and the JSON result made of them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

from engine.protocol.messages import StageInfo, StageTime


def percentile(values: array[float], share: float) -> float:
    """Nearest-rank percentile; 0.0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(slots=True)
class StageMeasure:
    """Times of one stage over the windows of one answer, in milliseconds."""

    compute_ms: array[float] = field(default_factory=lambda: array("d"))
    wait_ms: array[float] = field(default_factory=lambda: array("d"))
    prefill_ms: float = 0.0
    drafting_ms: float = 0.0  # of drafts behind replies, which belong to no window
    kv_tokens: int = 0

    def add(self, time: StageTime, *, prefill: bool) -> None:
        self.kv_tokens = time.kv_tokens
        if prefill:
            self.prefill_ms += time.compute_us / 1000
        else:
            self.compute_ms.append(time.compute_us / 1000)
            self.wait_ms.append(time.queue_us / 1000)


@dataclass(slots=True)
class AnswerMeasure:
    """Collects the figures of one answer. All moments are seconds on one monotonic clock."""

    started: float
    prompt_tokens: int = 0
    reused: int = 0
    first_token: float = 0.0
    last_token: float = 0.0
    token_gaps_ms: array[float] = field(default_factory=lambda: array("d"))
    stages: dict[int, StageMeasure] = field(default_factory=dict)

    def stage_times(self, times: tuple[StageTime, ...], *, prefill: bool) -> None:
        for time in times:
            self.stages.setdefault(time.stage, StageMeasure()).add(time, prefill=prefill)

    def drafted(self, stage: int, ms: float) -> None:
        """The head of a stage has drafted behind a reply."""
        self.stages.setdefault(stage, StageMeasure()).drafting_ms += ms

    def tokens(self, count: int, now: float) -> None:
        """`count` tokens were committed together; their gap is shared among them."""
        if count == 0:
            return
        if self.first_token:
            self.token_gaps_ms.extend([(now - self.last_token) * 1000 / count] * count)
        else:
            self.first_token = now
        self.last_token = now

    def timings(self, predicted: int, *, resumed: int = 0) -> dict[str, Any]:
        """The `timings` object of the JSON result.

        The prompt's time goes up to the first token, which comes out of its last batch; the speed is that of
        the tokens after it. The first `resumed` tokens came from an earlier engine and are not timed.
        """
        followers = max(0, predicted - resumed - 1)
        predicted_ms = (self.last_token - self.first_token) * 1000
        ttft_ms = max(0.0, self.first_token - self.started) * 1000
        return {
            "prompt_n": self.prompt_tokens,
            "prompt_reused_n": self.reused,
            "prompt_ms": _ms(ttft_ms),
            "ttft_ms": _ms(ttft_ms),
            "predicted_n": predicted,
            "predicted_ms": _ms(predicted_ms),
            "predicted_per_second": round(followers * 1000 / predicted_ms, 2) if predicted_ms else 0.0,
            "tpot_ms_p50": _ms(percentile(self.token_gaps_ms, 0.5)),
            "tpot_ms_p95": _ms(percentile(self.token_gaps_ms, 0.95)),
        }

    def stage_results(
        self, infos: tuple[StageInfo, ...], rtt_ms: float, restarts: dict[int, int]
    ) -> list[dict[str, Any]]:
        """The `stages` list of the JSON result."""
        results = []
        for index, info in enumerate(infos):
            measure = self.stages.get(index, StageMeasure())
            results.append(
                {
                    "index": index,
                    "layers": [info.first_layer, info.end_layer],
                    "where": info.where or "this engine",
                    "compute_ms_total": _ms(
                        sum(measure.compute_ms) + measure.prefill_ms + measure.drafting_ms
                    ),
                    "compute_ms_p50": _ms(percentile(measure.compute_ms, 0.5)),
                    "wait_ms_p50": _ms(percentile(measure.wait_ms, 0.5)),
                    "rtt_ms": _ms(rtt_ms) if index else 0.0,
                    "kv_tokens": measure.kv_tokens,
                    "restarts": restarts.get(index, 0),
                }
            )
        return results


def _ms(value: float) -> float:
    return round(value, 3)
