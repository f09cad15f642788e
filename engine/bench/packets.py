"""A link between two network namespaces that delays packets, for kernels without `tc netem`.

Both ends are TUN devices whose packets come to this process; each direction is a delay line like that of an
emulated link, but what travels on it are IP packets of the system's own TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from functools import partial

from engine.errors import SkippyError
from engine.protocol.messages import LinkEmulation
from engine.transport.emulation import DelayLine

_DEVICE = "/dev/net/tun"
_SET_INTERFACE = 0x400454CA  # TUNSETIFF
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000  # IFF_TUN | IFF_NO_PI
_LARGEST_PACKET = 65536


class PacketRelay:
    """Two TUN devices, joined. They can be moved to other namespaces; their packets still come here.

    Must be made on the running event loop. Raises SkippyError if there are no TUN devices.
    """

    def __init__(self, first: str, second: str, emulation: LinkEmulation) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends = [_open_tun(first)]
        try:
            self._ends.append(_open_tun(second))
        except SkippyError:
            os.close(self._ends[0])
            raise
        for source, target in (self._ends, self._ends[::-1]):
            line = DelayLine(emulation, f"packets/{source}", partial(_write, target))
            self._loop.add_reader(source, self._forward, source, line)

    def close(self) -> None:
        """Drop what is under way, and the devices."""
        for end in self._ends:
            self._loop.remove_reader(end)
            os.close(end)
        self._ends = []

    def _forward(self, source: int, line: DelayLine) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                line.push(os.read(source, _LARGEST_PACKET), heartbeat=False)


def _open_tun(name: str) -> int:
    import fcntl  # not on every system

    try:
        end = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK)
    except OSError as error:
        raise SkippyError(
            f"packets cannot be delayed: {_DEVICE}: {error.strerror}", hint="load the module tun or sch_netem"
        ) from error
    try:
        fcntl.ioctl(end, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_HEADER))
    except OSError as error:
        os.close(end)
        raise SkippyError(f"no TUN device {name}: {error.strerror}") from error
    return end


def _write(end: int, packet: bytes) -> None:
    """A packet that finds no room is lost, as on a network; so is one that comes after the end."""
    with contextlib.suppress(OSError):
        os.write(end, packet)
