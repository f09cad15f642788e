"""A small simulation of two stages that decode a known text, so that the figures of the demo fit together.

Outside of what can be copied, the next token leaves at once and the drafts of the model's head, which come
behind the reply before it, follow in windows of their own. Where text is copied, windows follow each other.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from engine.events import DraftReceived, Event, TokensCommitted, WindowDone, WindowSent

START = 1000.0  # on the engine's clock
PROMPT_TOKENS = 41
HOP = 0.009  # seconds from stage to stage
ROW = 0.0007  # seconds that each further row of a window takes on a stage
FIRST_ROW = (0.0048, 0.0061)  # seconds, by stage
DRAFTING = 0.0036  # seconds that each draft of the head takes
DRAFTS = 2  # of the head, behind a reply
DEPTH = 3  # windows in flight where text is copied
MOST = 4  # windows in flight, stale ones included
RIGHT = {"mtp": 0.8, "ngram": 0.985}  # chance of a draft
WRONG = (" total", " the", " value", "\n", " sum")  # drafts
COPIED = range(25, 110)  # tokens inside the code that the prompt held as well

Sources = tuple[tuple[str, int], ...]


@dataclass
class Flight:
    """A window under way."""

    sent: WindowSent
    returns: float
    stages: tuple[tuple[int, int, int, int], ...]
    accepted: int = 0  # of its drafts, so far


@dataclass
class Simulation:
    """Decodes a known text: which drafts turn out right is drawn from a fixed seed."""

    request: str
    texts: list[str]
    speculate: bool
    rng: random.Random
    events: list[Event] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)
    draft: DraftReceived | None = None  # on its way behind a reply
    now: float = START
    free_at: list[float] = field(default_factory=lambda: [START, START])  # when each stage is idle again
    done: int = 0  # tokens committed
    windows: int = 0
    epoch: int = 0

    def run(self) -> list[Event]:
        """Every event of the answer, in order."""
        while self.done < len(self.texts):
            self._send_what_is_due()
            if self.draft is not None and self.draft.at <= self.flights[0].returns:
                self._take_draft(self.draft)
            else:
                self._reply(self.flights.pop(0))
        return sorted(self.events, key=lambda event: event.at)

    @property
    def _copying(self) -> bool:
        return self.speculate and self.done in COPIED

    @property
    def _live(self) -> list[Flight]:
        """Windows under way that are not stale."""
        return [flight for flight in self.flights if flight.sent.epoch == self.epoch]

    # -- sending ---------------------------------------------------------------------------------------

    def _send_what_is_due(self) -> None:
        if not self._live:
            if self._copying:
                self._send((("mtp", 1), self._copied()), "pipelined", begins=True)
            else:
                self._send((), "plain", begins=True)
        while self._copying and len(self.flights) < DEPTH:
            self._send((self._copied(),), "pipelined")

    def _copied(self) -> tuple[str, int]:
        return "ngram", self.rng.choice((4, 6, 7))

    def _take_draft(self, draft: DraftReceived) -> None:
        """The head's drafts follow the window of the token."""
        self.now, self.draft = draft.at, None
        self.events.append(draft)
        if len(self._live) == 1:
            for _ in range(min(DRAFTS, MOST - len(self.flights))):
                self._send((("mtp", 1),), "drafts behind")

    def _send(self, sources: Sources, reason: str, *, begins: bool = False) -> None:
        """A window; one that begins an epoch holds the newest token before its drafts."""
        width = sum(length for _, length in sources)
        rows = width + begins
        later = self.speculate and not self._copying
        sent = WindowSent(
            at=max(self.now, self.free_at[0]),
            request=self.request,
            window=self.windows,
            epoch=self.epoch,
            start=self._next_start(),
            rows=rows,
            width=width,
            sources=sources,
            in_flight=len(self.flights) + 1,
            draft_budget=DRAFTS if later else 0,
            draft_later=later,
            reason=reason,
        )
        moment, stages = sent.at, []
        for index, first_row in enumerate(FIRST_ROW):
            begun = max(moment, self.free_at[index])
            compute = (first_row + ROW * (rows - 1)) * self.rng.uniform(0.95, 1.12)
            stages.append((index, int((begun - moment) * 1e6), int(compute * 1e6), PROMPT_TOKENS + self.done))
            self.free_at[index] = begun + compute
            moment = begun + compute + HOP
        self.events.append(sent)
        self.flights.append(Flight(sent, moment, tuple(stages)))
        self.windows += 1

    def _next_start(self) -> int:
        """Where the next window begins: behind those under way, at first on the last token of the prompt."""
        live = self._live
        return live[-1].sent.start + live[-1].sent.rows if live else PROMPT_TOKENS - 1 + self.done

    # -- replies ---------------------------------------------------------------------------------------

    def _reply(self, flight: Flight) -> None:
        self.now, sent = flight.returns, flight.sent
        stale = sent.epoch != self.epoch
        origins, rejected = ([], ()) if stale else self._judge(flight)
        if origins:
            self._commit(sent.window, origins)
        self.events.append(
            WindowDone(
                at=self.now,
                request=self.request,
                window=sent.window,
                epoch=sent.epoch,
                stale=stale,
                accepted=flight.accepted,
                width=sent.width,
                elapsed_ms=(self.now - sent.at) * 1000,
                stages=flight.stages[:1] if stale else flight.stages,  # the last stage knows that it is
                rejected=rejected,
            )
        )
        if sent.draft_later and not stale and not self._live:
            self._draft_behind(flight)

    def _judge(self, flight: Flight) -> tuple[list[str], Any]:
        """Origins of the tokens that a reply yields, and the draft that was wrong. Its last row says whether
        the first draft of the next window is right."""
        drafts = [source for source, length in flight.sent.sources for _ in range(length)][flight.accepted :]
        holders = [flight] * len(drafts)
        if following := self._live[:1]:
            drafts.append(following[0].sent.sources[0][0])
            holders += following
        origins: list[str] = []
        for source, holder in zip(drafts, holders, strict=True):
            if self.rng.random() > RIGHT[source]:
                self.epoch += 1
                place = min(self.done + len(origins), len(self.texts) - 1)
                actual = self.texts[place]
                wrong = self.rng.choice([text for text in WRONG if text != actual])
                return [*origins, "correction"], (PROMPT_TOKENS + place, wrong, actual)
            holder.accepted += 1
            origins.append(source)
        if not following:
            origins.append("free" if flight.sent.width else "target")
        return origins, ()

    def _commit(self, window: int, origins: list[str]) -> None:
        fresh = self.texts[self.done : self.done + len(origins)]
        tokens = tuple(
            (self.done + i, origin, text)
            for i, (origin, text) in enumerate(zip(origins, fresh, strict=False))
        )
        self.done += len(fresh)
        self.events.append(TokensCommitted(at=self.now, request=self.request, window=window, tokens=tokens))

    def _draft_behind(self, flight: Flight) -> None:
        """The head drafts while the reply and the next token are on their way."""
        took = DRAFTS * DRAFTING * self.rng.uniform(0.95, 1.12)
        self.free_at[-1] = flight.returns - HOP + took
        self.draft = DraftReceived(
            at=flight.returns + took,
            request=self.request,
            window=flight.sent.window,
            epoch=flight.sent.epoch,
            drafted=DRAFTS,
            draft_us=int(took * 1e6),
        )
