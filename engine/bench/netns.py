"""A stage in a network namespace of its own, behind a link with a real delay. Needs root and iproute2.

Packets of the system's own TCP are what is delayed, so slow start, acknowledgements and Nagle's algorithm
have their effects. `tc netem` delays them where the kernel has it, else a relay between two TUN devices
(`engine.bench.packets`) does. Whatever is made here is named after this process and removed by name; what a
killed run has left is removed by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict

import orjson

from engine.bench.packets import PacketRelay
from engine.config.plan import RunPlan, StageAddress, TopologyPlan
from engine.errors import SkippyError, UsageError, reported_error
from engine.protocol.messages import LinkEmulation
from engine.stage.process import StageSettings

_PREFIX = "skippy"
_NETWORK = "10.213"  # and our number: a network of four addresses for each link
NETEM, RELAY = "tc netem", "packet relay"


def delay_by() -> str:
    """How packets can be delayed here: NETEM or RELAY.

    Raises UsageError without root, SkippyError where namespaces cannot be made.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        raise UsageError("--netns needs Linux and root", hint="leave it out, or run the bench with sudo")
    remove_leftovers()
    with _namespace("probe") as name:
        probe = ("netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
        try:
            _ip(*probe)
        except SkippyError:
            return RELAY
        return NETEM


def remove_leftovers() -> None:
    """Remove namespaces of runs whose process is gone."""
    for line in _ip("netns", "list").splitlines():
        name = line.split()[0]
        prefix, _, rest = name.partition("-")
        pid = rest.partition("-")[0]
        if prefix == _PREFIX and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            _ip("netns", "del", name)


@asynccontextmanager
async def stage_behind_delay(
    plan: RunPlan, split: int, emulation: LinkEmulation, number: int, way: str
) -> AsyncIterator[TopologyPlan]:
    """The last stage of two, from layer `split` on, in a namespace; gives the topology that reaches it.

    `number` tells the links of one run apart, `way` is what `delay_by` says. SIGTERM ends what is in it in
    good order.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(_ended_by_sigterm())
        name = stack.enter_context(_namespace(str(number)))
        inner = stack.enter_context(_link(name, number, emulation, way))
        settings = StageSettings(
            model=plan.model,
            first=split,
            end=-1,
            host=inner,
            token=secrets.token_hex(16),
            threads=plan.compute.threads,
            exact=plan.compute.exact,
            context=plan.compute.context,
            batch_rows=max(plan.compute.prefill_rows, plan.speculation.window_max + 1),
        )
        url = await stack.enter_async_context(_stage(name, settings))
        address = StageAddress(url, token=settings.token)
        yield TopologyPlan(remote=(address,), wire=plan.topology.wire)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM cancels the running task, so that everything is removed."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


@contextmanager
def _namespace(suffix: str) -> Iterator[str]:
    """A namespace of this process; its devices go with it."""
    name = f"{_PREFIX}-{os.getpid()}-{suffix}"
    _ip("netns", "add", name)
    try:
        _ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        _ip("netns", "del", name)


@contextmanager
def _link(name: str, number: int, emulation: LinkEmulation, way: str) -> Iterator[str]:
    """A link into a namespace; gives the address inside."""
    outside, inside = (f"sk{os.getpid()}{side}{number}"[-15:] for side in "ab")
    outer, inner = f"{_NETWORK}.{number}.1", f"{_NETWORK}.{number}.2"
    with contextlib.ExitStack() as made:
        if way == NETEM:
            _ip("link", "add", outside, "type", "veth", "peer", "name", inside)
        else:
            relay = PacketRelay(outside, inside, emulation)
            made.callback(relay.close)
        made.callback(_remove_device, outside)
        _ip("link", "set", inside, "netns", name)
        for arguments, device, address in (((), outside, outer), (("-n", name), inside, inner)):
            _ip(*arguments, "addr", "add", f"{address}/30", "dev", device)
            _ip(*arguments, "link", "set", device, "up")
        if way == NETEM:
            _delay_with_netem((), outside, emulation)
            _delay_with_netem(("ip", "netns", "exec", name), inside, emulation)
        yield inner


def _delay_with_netem(inside: tuple[str, ...], device: str, emulation: LinkEmulation) -> None:
    rule = ["tc", "qdisc", "add", "dev", device, "root", "netem", "delay", f"{emulation.rtt_ms / 2}ms"]
    if emulation.jitter_ms:
        rule.append(f"{emulation.jitter_ms / 2}ms")
    if emulation.mbps:
        rule += ["rate", f"{emulation.mbps}mbit"]
    _run([*inside, *rule])


def _remove_device(name: str) -> None:
    with contextlib.suppress(SkippyError):  # it went with the namespace of its peer
        _ip("link", "del", name)


@asynccontextmanager
async def _stage(name: str, settings: StageSettings) -> AsyncIterator[str]:
    """A stage process inside a namespace; it ends with this process."""
    process = await asyncio.create_subprocess_exec(
        *("ip", "netns", "exec", name, sys.executable, "-m", "engine.stage.process"),
        stdin=PIPE,
        stdout=PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(orjson.dumps(asdict(settings)) + b"\n")
        while line := await process.stdout.readline():
            answer = orjson.loads(line)
            if error := answer.get("error"):
                raise reported_error(error["message"], hint=error["hint"], code=error["code"])
            if url := answer.get("ready"):
                yield url
                return
        raise SkippyError("the stage in the namespace did not start", hint="try `skippy-engine stage`")
    finally:
        process.stdin.close()
        await process.wait()


def _ip(*arguments: str) -> str:
    return _run(["ip", *arguments])


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SkippyError(f"{command[0]} cannot be run: {error.strerror}", hint="install iproute2") from error
    if done.returncode != 0:
        raise SkippyError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout
