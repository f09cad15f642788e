"""A small engine that speaks the start protocol and the local link, without a model.

Run as a process, as the real one is. What it does depends on the model name of the plan (how it starts) and
on the last message (how it answers).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

import orjson
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from engine.client.requests import GenerateRequest
from engine.config.plain import plan_from_dict
from engine.errors import UsageError
from engine.events import (
    EngineState,
    Event,
    EventsDropped,
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

NODES = (
    NodeState(
        name="den",
        url="ws://den:1",
        state="ready",
        layers=(15, 30),
        bytes_sent=2_500_000,
        detail="received",
    ),
    NodeState(name="shed", url="ws://shed:1", state="left-out", detail="nothing listens at shed:1"),
)


@dataclass
class FakeEngine:
    """One engine; `chats` remembers the last prompt of each session, as a KV cache would."""

    model: str
    token: str
    speculation: dict[str, Any]
    chats: dict[str, str] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def authorize(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.headers.get("Authorization") == f"Bearer {self.token}":
            return None
        return connection.respond(401, "no\n")

    async def serve(self, connection: ServerConnection) -> None:
        await self.send(connection, *self.states())
        async for frame in connection:
            message = orjson.loads(frame)
            match message["op"]:
                case "generate":
                    task = asyncio.create_task(self.answer(connection, GenerateRequest.from_dict(message)))
                    self.tasks.add(task)
                case "cancel":
                    self.cancelled.add(message["request"])
                case "set":
                    self.speculation |= message["values"]
                case "status":
                    await self.send(connection, *self.states())

    def states(self) -> list[Event]:
        if self.model == "failing":
            detail = "the model is broken; try another one"
            return [EngineState(state="failed", detail=detail, code="model-file")]
        model = ModelReady(
            name=self.model,
            path="/models/fake.gguf",
            architecture="fake",
            layers=30,
            fingerprint="ab" * 16,
            native_mtp=True,
            context=4096,
            exact=True,
            wire="f32",
            strategy=self.speculation["strategy"],
            notes=("this is a fake",) if self.model == "noted" else (),
        )
        stages = [
            StageState(index=i, state="ready", layers=layers, where=where)
            for i, (layers, where) in enumerate([((0, 15), "this engine"), ((15, 30), "127.0.0.1:9")])
        ]
        loading = EngineState(state="loading", detail="reading the model", fraction=0.5)
        nodes = NODES if self.model == "on-nodes" else ()
        return [loading, *nodes, model, *stages, EngineState(state="ready")]

    async def send(self, connection: ServerConnection, *events: Event) -> None:
        await connection.send(orjson.dumps({"events": [event.to_dict() for event in events]}).decode())

    async def answer(self, connection: ServerConnection, request: GenerateRequest) -> None:
        """Answer with the words of the last message, each a token; some words do more than that."""
        prompt = (
            request.prompt
            if request.prompt is not None
            else "\n".join(m["content"] for m in request.messages)
        )
        last = request.prompt if request.prompt is not None else request.messages[-1]["content"]
        known = self.chats.get(request.session, "")
        reused = len(known.split()) if prompt.startswith(known) else 0
        self.chats[request.session] = prompt
        if last in ("refuse", "misuse"):
            code = "context" if last == "refuse" else "usage"
            notice = Notice(level="error", code=code, message="the prompt is too long", hint="shorten it")
            error = {"code": code, "message": notice.message, "hint": notice.hint}
            finished = RequestFinished(
                request=request.request, finish_reason="error", result={"error": error}
            )
            await self.send(connection, notice, finished)
            return
        total = len(prompt.split())
        await self.send(
            connection,
            RequestStarted(
                at=1.0,
                request=request.request,
                prompt_tokens=total,
                reused=reused,
                strategy=request.strategy or self.speculation["strategy"],
                seed=request.sampling.seed,
                temperature=request.sampling.temperature,
                max_tokens=request.max_tokens,
            ),
            PrefillProgress(at=1.5, request=request.request, done=total, total=total),
        )
        await self.write(connection, request, last, total, reused)

    async def write(
        self, connection: ServerConnection, request: GenerateRequest, last: str, total: int, reused: int
    ) -> None:
        texts: list[str] = []
        reason = "stop"
        for number, word in enumerate(self.words(last)):
            if request.request in self.cancelled or number == request.max_tokens:
                reason = "cancelled" if request.request in self.cancelled else "length"
                break
            if word == "die" or (word == "stumble" and not request.resume):
                os.kill(os.getpid(), signal.SIGKILL)
            if word == "hang":
                os.kill(os.getpid(), signal.SIGSTOP)
            if word == "warn":
                await self.send(connection, Notice(level="warning", code="fallback", message="a fallback"))
            if word == "drop":
                await self.send(connection, EventsDropped(count=7))
            word = word.replace("attack", "\x1b]0;title\x07")
            texts.append(word if number == 0 else f" {word}")
            if number < len(request.resume):
                continue
            await self.send(connection, *self.window(request.request, number, texts[-1]))
            await asyncio.sleep(0)
        result = {
            "text": "".join(texts),
            "token_ids": list(range(len(texts))),
            "finish_reason": reason,
            "strategy": self.speculation["strategy"],
            "settings": {**self.speculation, "temperature": request.sampling.temperature},
            "timings": {
                "prompt_n": total,
                "prompt_reused_n": reused,
                "prompt_ms": 12.0,
                "ttft_ms": 15.0,
                "predicted_n": len(texts),
                "predicted_ms": 100.0,
                "predicted_per_second": 42.0,
                "tpot_ms_p50": 20.0,
                "tpot_ms_p95": 30.0,
            },
        }
        await self.send(
            connection, RequestFinished(request=request.request, finish_reason=reason, result=result)
        )

    def words(self, last: str) -> Any:
        if last == "endless":
            while True:
                yield "word"
        yield from last.split(" ")

    def window(self, request: str, number: int, text: str) -> list[Event]:
        at, sources = 2.0 + number, (("mtp", 1),)
        stages = ((0, 10, 2000, number), (1, 20, 3000, number))
        names = {"request": request, "window": number, "epoch": 0, "width": 1}
        sent = WindowSent(at=at, start=number, rows=2, sources=sources, reason="because", **names)
        accepted = number % 2
        done = WindowDone(at=at + 0.5, stale=False, accepted=accepted, elapsed_ms=5.0, stages=stages, **names)
        origin = "mtp" if accepted else "correction"
        tokens = TokensCommitted(
            at=2.5 + number, request=request, window=number, tokens=((number, origin, text),)
        )
        return [sent, done, tokens]


def end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


async def main() -> None:
    settings = orjson.loads(await asyncio.to_thread(sys.stdin.buffer.readline))
    threading.Thread(target=end_with_parent, daemon=True).start()
    plan = plan_from_dict(settings["plan"])
    if plan.model == "crash":
        raise RuntimeError("out of paper")
    if plan.model == "silent":
        await asyncio.sleep(3600)
    if plan.model == "refused":
        raise UsageError("there is no such model", hint="try demo")
    engine = FakeEngine(plan.model, settings["token"], settings["plan"]["speculation"])
    async with serve(
        engine.serve, "127.0.0.1", 0, process_request=engine.authorize, compression=None, max_size=1 << 24
    ) as server:
        port = server.sockets[0].getsockname()[1]
        print(orjson.dumps({"url": f"ws://127.0.0.1:{port}"}).decode(), flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except UsageError as error:
        fault = {"code": error.code, "message": error.message, "hint": error.hint}
        print(orjson.dumps({"error": fault}).decode(), flush=True)
