"""Answers under way, so that another engine can go on with them if theirs is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.events import Event, RequestFinished, RequestStarted, TokensCommitted

MAX_RESUMED = 3  # engines that may be lost over one answer


@dataclass
class Answer:
    """One request as it was sent, and the tokens of its answer so far."""

    message: Mapping[str, Any]
    tokens: list[int] = field(default_factory=list)
    started: bool = False
    resumed: int = 0

    def again(self) -> dict[str, Any]:
        """The request that goes on after the tokens that are known."""
        return {**self.message, "resume": list(self.tokens)}


class Answers:
    """Follows requests and events of one front end."""

    def __init__(self) -> None:
        self._open: dict[str, Answer] = {}
        self._settings: dict[str, Any] = {}  # what was changed since the engine was started
        self._emulation: list[Mapping[str, Any]] = []  # the newest request for delayed links

    def sent(self, message: Mapping[str, Any]) -> None:
        """A request to the engine."""
        match message.get("op"):
            case "generate":
                self._open[message["request"]] = Answer(message, list(message.get("resume", ())))
            case "cancel":
                self._open.pop(message["request"], None)  # it would only be resumed to be cancelled
            case "set":
                self._settings.update(message["values"])
            case "emulate":
                self._emulation = [message]

    def received(self, event: Event) -> bool:
        """An event of the engine; False if front ends have been told before."""
        answer = self._open.get(getattr(event, "request", ""))
        if answer is None:
            return True
        if isinstance(event, TokensCommitted):
            answer.tokens.extend(token for token, _, _ in event.tokens)
        elif isinstance(event, RequestFinished):
            del self._open[event.request]
        elif isinstance(event, RequestStarted):
            told, answer.started = answer.started, True
            return not told
        return True

    def cancelled(self, request: str) -> list[Event]:
        """Stop an answer while there is no engine; its end, as the engine would tell it."""
        answer = self._open.pop(request, None)
        if answer is None:
            return []
        reason = "cancelled"
        result = {"token_ids": answer.tokens, "finish_reason": reason}
        return [RequestFinished(request=request, finish_reason=reason, result=result)]

    def forget(self) -> None:
        """Go on with no answer: events were lost, so the tokens are not all known, or nobody asks."""
        self._open.clear()

    def lose(self) -> bool:
        """The engine is gone; True if there are answers for another one to go on with."""
        for answer in self._open.values():
            answer.resumed += 1
        if any(answer.resumed > MAX_RESUMED for answer in self._open.values()):
            self.forget()
        return bool(self._open)

    def to_resend(self) -> list[dict[str, Any]]:
        """What a fresh engine must be told: changed settings, then the answers to go on with."""
        settings = [{"op": "set", "values": dict(self._settings)}] if self._settings else []
        return [*settings, *map(dict, self._emulation), *(answer.again() for answer in self._open.values())]
