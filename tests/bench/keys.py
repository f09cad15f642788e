"""How soon a key is seen while an engine streams: 200 tokens a second, 20,000 of them, and no model.

`python -m tests.bench.keys` attaches the app, on a terminal of its own, to an engine that plays the events of
a simulated answer in time. Keys that have not been typed before are typed at random moments, and each is
timed until the app has drawn it. One line per stretch of the answer: if its length mattered, the lines would
differ. It asserts nothing: machines are noisy.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson
from websockets.asyncio.server import ServerConnection, serve

from engine.client.requests import GenerateRequest
from engine.events import Event, TokensCommitted
from skippy_tui import demo
from tests.bench.app_terminal import AppTerminal

FLUSH_SECONDS = 0.033  # as an engine does
FIRST_KEY = 0x13A0  # Cherokee letters: one cell each, and in no answer
KEYS = 85
KEYS_IN_PROMPT = 40  # then it is emptied
EMPTY_PROMPT = "\x15"

PROSE = """Paragraph {i} has **bold** words and some more text to fill the line, which goes on for a while.

- point one of {i}
- point two with `code`, and a [link](http://example.com/{i})

"""
CODE_LINE = "    value_{i} = compute(value_{i}, depth=3)  # step {i}\n"
TABLE_LINE = "| row {i} | some words | `code_{i}` |\n"


def text_of(kind: str, tokens: int) -> str:
    """At least so many tokens of prose, of one long fence, of a table, or of one paragraph."""
    if kind == "prose":
        return "".join(PROSE.format(i=i) for i in range(tokens // 46 + 1))
    if kind == "code":
        return "```python\n" + "".join(CODE_LINE.format(i=i) for i in range(tokens // 20 + 1)) + "```\n"
    if kind == "table":
        head = "| row | words | code |\n|---|---|---|\n"
        return head + "".join(TABLE_LINE.format(i=i) for i in range(tokens // 13 + 1))
    return "word " * tokens


@dataclass
class PacedEngine:
    """Plays one answer at a steady rate to the front end that asks."""

    kind: str
    tokens: int
    rate: float
    told: int = 0  # tokens
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, connection: ServerConnection) -> None:
        await self._send(connection, demo.ready())
        async for frame in connection:
            message = orjson.loads(frame)
            if message["op"] == "generate":
                await self._play(connection, GenerateRequest.from_dict(message))

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """The URL to attach to."""
        async with serve(self.serve, "127.0.0.1", 0, compression=None) as server:
            yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _play(self, connection: ServerConnection, request: GenerateRequest) -> None:
        events = self._in_time(demo.answer(request, text_of(self.kind, self.tokens)))
        begun, sent = time.monotonic(), 0
        while sent < len(events):
            await asyncio.sleep(FLUSH_SECONDS)
            now = demo.START + time.monotonic() - begun
            due = sent
            while due < len(events) and events[due].at <= now:
                due += 1
            await self._send(connection, events[sent:due])
            batch, sent = events[sent:due], due
            self.told += sum(len(event.tokens) for event in batch if isinstance(event, TokensCommitted))
        self.finished.set()

    def _in_time(self, events: Sequence[Event]) -> list[Event]:
        """The events at the rate that is wanted."""
        tokens = sum(len(event.tokens) for event in events if isinstance(event, TokensCommitted))
        factor = tokens / self.rate / (events[-1].at - demo.START)
        return [replace(event, at=demo.START + (event.at - demo.START) * factor) for event in events]

    async def _send(self, connection: ServerConnection, events: Sequence[Event]) -> None:
        if events:
            await connection.send(orjson.dumps({"events": [event.to_dict() for event in events]}).decode())


async def type_keys(app: AppTerminal, waited: list[float]) -> None:
    """Type a key now and then; the milliseconds until each is seen."""
    moments = random.Random(5)
    for number in itertools.count(1):
        await asyncio.sleep(moments.uniform(0.1, 0.4))
        key = chr(FIRST_KEY + number % KEYS)
        begun = time.monotonic()
        app.type(key)
        waited.append((await app.seen(key) - begun) * 1000)
        if number % KEYS_IN_PROMPT == 0:
            app.type(EMPTY_PROMPT)


def quantile(values: Sequence[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(fraction * len(ordered)), len(ordered) - 1)] if ordered else 0.0


async def run(arguments: argparse.Namespace) -> None:
    engine = PacedEngine(arguments.text, arguments.tokens, arguments.rate)
    size = (120, 40) if arguments.wide else (80, 24)
    print(f"{'tokens':>7}{'CPU ms/token':>14}{'keys':>6}{'p50 ms':>8}{'p95 ms':>8}{'max ms':>8}{'kB/s':>7}")
    with tempfile.TemporaryDirectory() as home:
        async with engine.listening() as url, AppTerminal(["--attach", url], Path(home), size) as app:
            await app.seen("is ready")
            app.type("go\r")
            typing = asyncio.create_task(type_keys(app, waited := []))
            all_waits: list[float] = []
            while not engine.finished.is_set():
                told, cpu, written, begun = engine.told, app.cpu_seconds, app.written, time.monotonic()
                while engine.told < told + arguments.every and not engine.finished.is_set():
                    await asyncio.sleep(0.05)
                cost = (app.cpu_seconds - cpu) * 1000 / max(engine.told - told, 1)
                volume = (app.written - written) / 1000 / (time.monotonic() - begun)
                waits = waited[len(all_waits) :]
                all_waits += waits
                p50, p95, worst = (quantile(waits, fraction) for fraction in (0.5, 0.95, 1.0))
                print(
                    f"{engine.told:>7}{cost:>14.2f}{len(waits):>6}{p50:>8.0f}{p95:>8.0f}{worst:>8.0f}"
                    f"{volume:>7.0f}",
                    flush=True,
                )
            typing.cancel()
            p50, p95, worst = (quantile(all_waits, fraction) for fraction in (0.5, 0.95, 1.0))
            print(f"{len(all_waits)} keys: p50 {p50:.0f}, p95 {p95:.0f}, longest {worst:.0f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", choices=("prose", "code", "table", "line"), default="prose")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=200.0, help="tokens a second")
    parser.add_argument("--every", type=int, default=2_000, help="tokens of one line of the report")
    parser.add_argument("--narrow", dest="wide", action="store_false", help="80x24 instead of 120x40")
    asyncio.run(run(parser.parse_args()))
