"""Every time limit of links and processes, in one place. Each blocking step has exactly one of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `TIMEOUTS` holds the values that are used unless a caller or a test brings its own."""

    connect: float = 3.0
    """Opener: name resolution, TCP, TLS and the HTTP upgrade together, one attempt."""

    welcome: float = 4.5
    """Opener: from Hello to Welcome in the steady state. Longer than `connect`, so that a stage which finds
    the next one dead can still say so; short enough that a new request fails within 5 s."""

    welcome_loading: float = 600.0
    """Opener: from Hello to Welcome while stages are still loading their layers (`loading=True`)."""

    hello: float = 5.0
    """Acceptor: from the TCP connection to a complete Hello. A silent peer cannot hold a slot for longer."""

    answer: float = 610.0
    """Acceptor: the most time `on_hello` may take; longer than the most patient opener waits."""

    heartbeat: float = 0.5
    """Between two pings of an open link."""

    silent: float = 1.8
    """A peer that has sent no byte for this long is dead, however busy it may be: its loop answers pings
    while a decode runs. Below 2 s, so that a loss is known within 2 s."""

    close: float = 1.0
    """For the closing handshake, after which the socket is cut."""

    load: float = 3600.0
    """Engine: from starting a local stage to its `ready`: slicing and loading many gigabytes take a while."""

    load_silent: float = 15.0
    """Engine: a local stage that loads says so every second; one that is quiet for this long is hung."""

    probe: float = 1.0
    """Engine: for a local stage to shake hands after its lane broke; one that does not is hung and killed."""

    redial: float = 10.0
    """Engine: all attempts together to reach stages elsewhere again, in the middle of an answer."""

    redial_new: float = 4.0
    """Engine: the same for a new request, which must fail or recover within 5 s."""

    redial_pause: float = 0.25
    """Engine: before the second attempt; each further pause is twice as long."""

    redial_pause_most: float = 2.0
    """Engine: but never longer than this."""

    return_link: float = 2.0
    """Engine: to open the return link; without one, replies take the lane."""

    return_grace: float = 0.3
    """Engine: after the return link broke, for news that its stage is gone; then replies take the lane."""

    drain: float = 0.5
    """Engine: for the replies under way when an answer is cancelled; then their lane is given up."""

    stop_process: float = 3.0
    """Engine: for a stage process to end by itself after its standard input closed."""

    admission: float = 10.0
    """Engine: how long a request waits for a free sequence before it is told "busy"."""

    probe_peer: float = 10.0
    """Node and engine: to measure the way to another machine."""

    node_measure: float = 60.0
    """Node: to time the layers of a model."""

    node_keep: float = 300.0
    """Node: how long a stage stays loaded after its engine went away, for the next one to use."""

    node_answer: float = 75.0
    """Engine: for a node to answer a question; longer than the longest that a node takes over one."""

    node_busy: float = 3.0
    """Engine: how long a node is asked again that still works for another engine, perhaps one that has just
    gone away: longer than `silent`."""

    engine_start: float = 30.0
    """Front end: from starting the engine process to its line with the address; loading comes after it."""

    engine_send: float = 3.0
    """Front end: to hand a request over to the engine."""

    engine_heartbeat: float = 1.0
    """Front end: between two pings of its link to the engine."""

    engine_silent: float = 4.0
    """Front end: an engine that answers no ping for this long is dead. Its loop answers while it loads."""

    engine_cancel: float = 3.0
    """Front end: from the cancel of an answer to its end."""

    engine_ending: float = 2.0
    """Front end: from the end of the link to the end of the engine process, whose exit code tells more."""

    engine_stop: float = 5.0
    """Front end: for the engine to end by itself after its standard input closed."""


TIMEOUTS = Timeouts()
