"""Counters of one request, and the rules that tie them together.

Counted is what was committed: drafts beyond a stop are neither accepted nor rejected, and the token that a
window yields on top of its drafts is never an accepted draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.protocol.messages import PredictedTokens
from engine.speculation.stream import Candidate
from engine.speculation.types import SOURCES, Origin, Source, WindowPlan


@dataclass(slots=True)
class SourceCount:
    """Drafts of one source: sent in a window, and equal to the target's own token."""

    proposed: int = 0
    accepted: int = 0


@dataclass(slots=True)
class WidthCount:
    """Widths of the windows sent (0 is a width like any other: a plain step)."""

    count: int = 0
    total: int = 0
    smallest: int = 0
    largest: int = 0
    grows: int = 0  # changes of the policy's current width, not of short candidates
    shrinks: int = 0

    def add(self, width: int) -> None:
        """Count one window."""
        self.smallest = width if self.count == 0 else min(self.smallest, width)
        self.largest = max(self.largest, width)
        self.count += 1
        self.total += width

    @property
    def mean(self) -> float:
        """Mean width, 0 before the first window."""
        return self.total / self.count if self.count else 0.0


@dataclass(slots=True)
class PipelineCount:
    """Windows in flight. Occupancy is time-weighted, in windows under way per window allowed."""

    depth_max: int = 0
    in_flight_max: int = 0
    permits: int = 0
    suppressed: int = 0
    stale_windows: int = 0
    stale_ms: float = 0.0  # compute that the stages spent on stale windows
    refills: int = 0
    refill_misses: int = 0
    busy_seconds: float = 0.0  # integral of windows in flight over the whole request
    seconds: float = 0.0  # length of the whole request
    stream_busy: float = 0.0  # integral of windows in flight per window allowed, while streaming
    stream_seconds: float = 0.0

    @property
    def occupancy(self) -> float:
        """Mean share of the allowed depth in use, from the first permit to the end of a proposal stream."""
        return self.stream_busy / self.stream_seconds if self.stream_seconds > 0 else 0.0

    @property
    def in_flight_mean(self) -> float:
        """Mean number of windows in flight over the whole request."""
        return self.busy_seconds / self.seconds if self.seconds > 0 else 0.0


@dataclass(slots=True)
class Statistics:
    """All counters of a request."""

    windows: int = 0
    drafted_windows: int = 0  # windows that carried drafts
    verified_drafted_windows: int = 0  # of those, the ones whose reply was not stale
    rejected_windows: int = 0
    emitted: int = 0
    origins: dict[Origin, int] = field(default_factory=dict)
    sources: dict[Source, SourceCount] = field(default_factory=lambda: {s: SourceCount() for s in SOURCES})
    proposed_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    width: WidthCount = field(default_factory=WidthCount)
    pipeline: PipelineCount = field(default_factory=PipelineCount)
    cooldowns: int = 0
    suppressed_drafts: int = 0
    tail_backoffs: int = 0
    pure_ngram_proposals: int = 0
    anchor_agreements: int = 0
    anchor_disagreements: int = 0
    probes: int = 0  # windows or drafts spent on finding out whether speculation would pay
    direct_replies: int = 0
    fallback_replies: int = 0

    @property
    def proposed(self) -> int:
        """Drafts sent in windows."""
        return sum(count.proposed for count in self.sources.values())

    @property
    def accepted(self) -> int:
        """Drafts that were committed."""
        return sum(count.accepted for count in self.sources.values())

    def add_window(self, plan: WindowPlan, drafts: Sequence[Candidate]) -> None:
        """A window went out."""
        self.windows += 1
        self.drafted_windows += plan.width > 0
        self.width.add(plan.width)
        self.pipeline.in_flight_max = max(self.pipeline.in_flight_max, plan.in_flight)
        missing = plan.width - len(self.proposed_per_position)
        if missing > 0:
            self.proposed_per_position.extend([0] * missing)
            self.accepted_per_position.extend([0] * missing)
        for position, draft in enumerate(drafts):
            self.sources[draft.source].proposed += 1
            self.proposed_per_position[position] += 1

    def add_reply(self, *, direct: bool) -> None:
        """A reply came, on the return link or on the lane."""
        self.direct_replies += direct
        self.fallback_replies += not direct

    def add_stale(self, reply: PredictedTokens) -> None:
        """A window came back that no longer mattered."""
        self.pipeline.stale_windows += 1
        self.pipeline.stale_ms += sum(time.compute_us for time in reply.times) / 1000

    def add_accepted(self, source: Source, position: int) -> None:
        """A draft, number `position` (from 0) of its window, was committed."""
        self.sources[source].accepted += 1
        self.accepted_per_position[position] += 1

    def add_committed(self, origin: Origin) -> None:
        """A token was committed."""
        self.emitted += 1
        self.origins[origin] = self.origins.get(origin, 0) + 1

    def violations(self) -> list[str]:
        """The rules of the counters that do not hold; empty when all is well."""
        wrong = []
        for source, count in self.sources.items():
            if not 0 <= count.accepted <= count.proposed:
                wrong.append(f"{source}: accepted {count.accepted} of {count.proposed} proposed")
            if count.accepted != self.origins.get(source, 0):
                wrong.append(f"{source}: accepted {count.accepted}, emitted {self.origins.get(source, 0)}")
        if sum(self.proposed_per_position) != self.proposed:
            wrong.append("proposed per position does not add up to proposed")
        if sum(self.accepted_per_position) != self.accepted:
            wrong.append("accepted per position does not add up to accepted")
        for number, (proposed, accepted) in enumerate(
            zip(self.proposed_per_position, self.accepted_per_position, strict=True)
        ):
            if accepted > proposed:
                wrong.append(f"position {number}: accepted {accepted} of {proposed} proposed")
        epoch_ends = sum(self.origins.get(origin, 0) for origin in ("target", "correction", "free"))
        if self.emitted != self.accepted + epoch_ends:
            wrong.append(f"emitted {self.emitted}, but accepted {self.accepted} + epoch ends {epoch_ends}")
        if self.pipeline.in_flight_max > self.pipeline.depth_max:
            wrong.append(f"{self.pipeline.in_flight_max} in flight at depth {self.pipeline.depth_max}")
        return wrong

    def to_json(self) -> dict[str, Any]:
        """The `speculative` object of the JSON result (docs/speculation.md explains every number)."""
        proposed, accepted = self.proposed, self.accepted
        drafted = self.verified_drafted_windows
        return {
            "windows": self.windows,
            "drafted_windows": self.drafted_windows,
            "proposed": proposed,
            "accepted": accepted,
            "acceptance_rate": round(accepted / proposed, 4) if proposed else 0.0,
            "propose_rate": round(self.drafted_windows / self.windows, 4) if self.windows else 0.0,
            "rejected_windows": self.rejected_windows,
            "mean_accepted_length": round(accepted / drafted, 3) if drafted else 0.0,
            "by_source": {
                source: {"proposed": count.proposed, "accepted": count.accepted}
                for source, count in self.sources.items()
            },
            "by_origin": dict(self.origins),
            "proposed_per_position": self.proposed_per_position.copy(),
            "accepted_per_position": self.accepted_per_position.copy(),
            "width": {
                "min": self.width.smallest,
                "mean": round(self.width.mean, 3),
                "max": self.width.largest,
                "grows": self.width.grows,
                "shrinks": self.width.shrinks,
            },
            "pipeline": {
                "depth_max": self.pipeline.depth_max,
                "in_flight_max": self.pipeline.in_flight_max,
                "in_flight_mean": round(self.pipeline.in_flight_mean, 3),
                "occupancy": round(self.pipeline.occupancy, 4),
                "stale_windows": self.pipeline.stale_windows,
                "stale_ms": round(self.pipeline.stale_ms, 3),
                "permits": self.pipeline.permits,
                "suppressed": self.pipeline.suppressed,
                "refills": self.pipeline.refills,
                "refill_misses": self.pipeline.refill_misses,
            },
            "cooldowns": self.cooldowns,
            "suppressed_drafts": self.suppressed_drafts,
            "tail_backoffs": self.tail_backoffs,
            "pure_ngram_proposals": self.pure_ngram_proposals,
            "anchor_agreements": self.anchor_agreements,
            "anchor_disagreements": self.anchor_disagreements,
            "probes": self.probes,
            "direct_replies": self.direct_replies,
            "fallback_replies": self.fallback_replies,
        }
