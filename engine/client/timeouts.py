"""Every time limit of a front end towards its engine, in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """One limit for each step that can block."""

    start: float = 30.0  # from starting the engine process to its line with the address
    connect: float = 3.0  # to attach to an address
    send: float = 3.0  # to hand a request over
    silence: float = 5.0  # the engine's loop answers pings also while it loads and computes
    ping_interval: float = 2.0
    cancel: float = 3.0  # from a cancel to the end of the answer
    ending: float = 2.0  # from the end of the link to the end of the process
    shutdown: float = 5.0  # from asking the engine to end until it is killed


TIMEOUTS = ClientTimeouts()
