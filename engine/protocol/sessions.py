"""Order and positions: what may travel forward on a lane, and which reply may come next."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from engine.errors import ProtocolError
from engine.protocol.limits import Limits
from engine.protocol.messages import (
    ConfigureGeneration,
    Draft,
    DraftedTokens,
    ErrorMessage,
    Message,
    PredictedTokens,
    Prefill,
    PrefillDone,
    Stop,
    TrimSession,
    VerifyWindow,
)

MAX_NUMBER = 2**32 - 1


class _Session:
    """Where one session stands as far as the frames of its lane tell."""

    __slots__ = ("end", "epoch", "window")

    def __init__(self) -> None:
        self.end = 0  # positions that the stages hold once everything sent so far has run
        self.window = -1
        self.epoch = 0


class LaneSessions:
    """Checks the forward frames of a lane; both ends run the same checks.

    - a session is configured before anything else and ends with `Stop`; at most `sequences` at a time;
    - rows are within the limits and carry activations exactly if the stage does not begin with layer 0
      (a stale window carries none);
    - no frame leaves a gap: `start` is at most the end of what was sent before. One that starts earlier is
      legal, the stage trims itself to it; so is one that is stale, since it is not computed;
    - window ids rise and epochs never fall within a session.

    A `CancelEpoch` is always legal: on its way down it overtakes what waits in the stages' queues, even the
    configuration of its session.
    """

    def __init__(self, limits: Limits, n_embd: int, *, tokens_only: bool) -> None:
        self._limits = limits
        self._width = None if tokens_only else n_embd
        self._sessions: dict[int, _Session] = {}

    def forward(self, message: Message) -> None:
        """Account for a frame; ProtocolError `session`, `rows`, `position` or `window-order`."""
        if isinstance(message, VerifyWindow):
            self._verify(message)
        elif isinstance(message, Prefill):
            self._prefill(message)
        elif isinstance(message, ConfigureGeneration):
            self._configure(message.session)
        elif isinstance(message, TrimSession):
            session = self._session(message.session)
            if message.keep > session.end:
                raise ProtocolError(
                    f"cannot keep {message.keep} positions of {session.end} in session {message.session}",
                    code="position",
                )
            session.end = message.keep
        elif isinstance(message, Stop):
            self._session(message.session)
            del self._sessions[message.session]

    def _verify(self, message: VerifyWindow) -> None:
        session = self._session(message.session)
        if message.window <= session.window:
            raise ProtocolError(
                f"window {message.window} of session {message.session} after window {session.window}",
                code="window-order",
            )
        if message.epoch < session.epoch:
            raise ProtocolError(
                f"epoch {message.epoch} of session {message.session} after epoch {session.epoch}",
                code="window-order",
            )
        most = self._limits.prefill_rows if message.last_only else self._limits.window_rows
        self._check_rows(message, "a window", most, bare=message.stale)
        if not message.stale:  # one that is, follows others that were not computed either
            self._check_start(message, session)
            session.end = message.start + len(message.tokens)
        session.window = message.window
        session.epoch = message.epoch

    def _prefill(self, message: Prefill) -> None:
        session = self._session(message.session)
        self._check_rows(message, "a prefill", self._limits.prefill_rows, bare=False)
        self._check_start(message, session)
        session.end = message.start + len(message.tokens)

    def _configure(self, number: int) -> None:
        if number in self._sessions:
            return
        if not 0 <= number <= MAX_NUMBER:
            raise ProtocolError(f"session {number} is out of range", code="fields")
        if len(self._sessions) >= self._limits.sequences:
            raise ProtocolError(
                f"session {number} would be one more than the {self._limits.sequences} agreed on",
                code="session",
            )
        self._sessions[number] = _Session()

    def _session(self, number: int) -> _Session:
        session = self._sessions.get(number)
        if session is None:
            raise ProtocolError(f"session {number} has not been configured on this lane", code="session")
        return session

    def _check_rows(self, message: Prefill | VerifyWindow, what: str, most: int, *, bare: bool) -> None:
        rows = len(message.tokens)
        if not 1 <= rows <= most:
            raise ProtocolError(f"{what} of {rows} rows, 1 to {most} were agreed", code="rows")
        activations = message.activations
        width = None if bare else self._width
        if width is None:
            if activations is not None:
                raise ProtocolError(f"{what} carries activations where there should be none", code="rows")
        elif activations is None or activations.shape != (rows, width):
            shape = "no activations" if activations is None else f"activations of {activations.shape}"
            raise ProtocolError(f"{what} with {shape}, expected ({rows}, {width})", code="rows")

    def _check_start(self, message: Prefill | VerifyWindow, session: _Session) -> None:
        end = message.start + len(message.tokens)
        if not 0 <= message.start <= session.end:
            raise ProtocolError(
                f"position {message.start} leaves a gap after {session.end} in session {message.session}",
                code="position",
            )
        if end > self._limits.context:
            raise ProtocolError(
                f"positions {message.start} to {end} do not fit in a context of {self._limits.context}",
                code="position",
            )


class _Due(NamedTuple):
    """What a reply has to fit; `window` is -1 for a chunk of the prompt."""

    window: int
    epoch: int
    start: int
    rows: int
    draft_budget: int
    draft_later: bool = False

    def __str__(self) -> str:
        if self.window < 0:
            return f"prefill done up to {self.start + self.rows}"
        return f"window {self.window} (epoch {self.epoch}, position {self.start})"


class ReplyOrder:
    """The replies that are due, oldest first, per session.

    The coordinator gives one and the same object to its lane and its return link: whichever way a reply
    comes, it must be the next one of its session and fit what was asked. An error about a window answers
    that window, an error about a session answers everything of it. A draft that was to come later comes
    between the reply to its window and the next one of its session. What is sent may be noted on another
    thread than the replies.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[int, deque[_Due]] = {}
        self._drafting: dict[int, _Due] = {}  # windows answered last, whose drafts may still come

    def sent(self, message: Message) -> None:
        """Remember a prefill chunk or a window."""
        if isinstance(message, VerifyWindow):
            due = _Due(
                message.window, message.epoch, *message.predicted, message.draft_budget, message.draft_later
            )
        elif isinstance(message, Prefill):
            due = _Due(-1, 0, message.start, len(message.tokens), 0)
        else:
            return
        with self._lock:
            self._due.setdefault(message.session, deque()).append(due)

    def due(self, session: int) -> int:
        """How many replies of a session are outstanding."""
        return len(self._due.get(session, ()))

    def received(self, message: Message) -> None:
        """Tick a reply off; ProtocolError `window-order` if it is not the one that is due."""
        with self._lock:
            self._received(message)

    def _received(self, message: Message) -> None:
        if isinstance(message, PredictedTokens):
            asked = self._next(message.session, f"a reply to window {message.window}")
            self._check_prediction(asked, message)
        elif isinstance(message, PrefillDone):
            asked = self._next(message.session, f"prefill done up to {message.end}")
            if asked.window >= 0 or asked.start + asked.rows != message.end:
                raise ProtocolError(
                    f"prefill done up to {message.end}, expected {asked}", code="window-order"
                )
        elif isinstance(message, DraftedTokens):
            self._check_drafted(message)
            return
        elif isinstance(message, ErrorMessage) and message.session >= 0:
            self._failed(message.session, message.window)
            return
        else:
            return
        due = self._due[message.session]
        due.popleft()
        if not due:
            del self._due[message.session]
        self._drafting.pop(message.session, None)
        if asked.draft_later and isinstance(message, PredictedTokens) and not message.stale:
            self._drafting[message.session] = asked

    def _next(self, session: int, what: str) -> _Due:
        due = self._due.get(session)
        if not due:
            raise ProtocolError(f"{what} in session {session}, but none is due", code="window-order")
        return due[0]

    def _check_prediction(self, asked: _Due, reply: PredictedTokens) -> None:
        if (reply.window, reply.epoch, reply.start) != asked[:3]:
            raise ProtocolError(
                f"a reply to window {reply.window} (epoch {reply.epoch}, position {reply.start}), "
                f"expected {asked}",
                code="window-order",
            )
        rows = 0 if reply.stale else asked.rows
        if len(reply.predictions) != rows:
            raise ProtocolError(
                f"{len(reply.predictions)} predictions for window {reply.window}, expected {rows}",
                code="rows",
            )
        if reply.draft is not None:
            if asked.draft_later:
                raise ProtocolError(
                    f"a draft in the reply to window {reply.window}, not behind it", code="rows"
                )
            _check_budget(reply.draft, asked)

    def _check_drafted(self, message: DraftedTokens) -> None:
        asked = self._drafting.pop(message.session, None)
        if asked is None or (message.window, message.epoch) != asked[:2]:
            raise ProtocolError(
                f"a draft behind window {message.window} (epoch {message.epoch}) of session "
                f"{message.session}, which was not asked for or comes too late",
                code="window-order",
            )
        _check_budget(message.draft, asked)

    def _failed(self, session: int, window: int) -> None:
        self._drafting.pop(session, None)
        due = self._due.pop(session, None)
        if due is None or window < 0:
            return
        rest = deque(asked for asked in due if asked.window != window)
        if rest:
            self._due[session] = rest


def _check_budget(draft: Draft, asked: _Due) -> None:
    if len(draft.tokens) > asked.draft_budget:
        raise ProtocolError(
            f"{len(draft.tokens)} draft tokens for a budget of {asked.draft_budget}", code="rows"
        )
