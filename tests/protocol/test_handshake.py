"""Two peers that do not fit together find out at once, and the message names both values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.errors import HandshakeRefused
from engine.protocol.handshake import check_hello, check_welcome
from engine.protocol.messages import Hello, Hop, LinkEmulation, Role, StageInfo, Welcome
from tests.protocol.samples import HELLO, INFO, WELCOME

MIDDLE = replace(INFO, first_layer=15, end_layer=22)
LAST = replace(INFO, first_layer=22, end_layer=30)
ROUTE = (Hop("ws://b:1"),)


def test_peers_that_fit_are_accepted() -> None:
    check_hello(HELLO, INFO)
    check_welcome(HELLO, WELCOME)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"fingerprint": "ff99"}, ("fingerprint", "ff99", "ab12")),
        ({"architecture": "gemma3"}, ("architecture", "gemma3", "llama")),
        ({"n_embd": 64}, ("n_embd", "64", "40")),
        ({"n_layers": 31}, ("layers", "31", "30")),
        ({"first_layer": 14}, ("14", "15:30")),
        ({"first_layer": 16}, ("16", "15:30")),
        ({"window_rows": 9}, ("window rows", "9", "8")),
        ({"window_rows": 0}, ("window rows", "0", "8")),
        ({"prefill_rows": 64}, ("prefill rows", "64", "32")),
        ({"prefill_rows": -1}, ("prefill rows", "-1", "32")),
        ({"context": 512}, ("context", "512", "256")),
        ({"context": 0}, ("context", "0", "256")),
        ({"sequences": 3}, ("sequences", "3", "2")),
        ({"route": ROUTE}, ("30", "1 more")),
        ({"emulation": LinkEmulation(rtt_ms=-1)}, ("rtt_ms", "-1")),
        ({"emulation": LinkEmulation(jitter_ms=1e9)}, ("jitter_ms", "1e+09")),
        ({"emulation": LinkEmulation(mbps=-2)}, ("mbps", "-2")),
    ],
)
def test_a_lane_that_does_not_fit_is_refused(changes: dict[str, Any], named: tuple[str, ...]) -> None:
    with pytest.raises(HandshakeRefused) as caught:
        check_hello(replace(HELLO, **changes), INFO)
    for value in named:
        assert value in str(caught.value)


def test_a_stage_that_is_not_last_needs_a_stage_after_it() -> None:
    with pytest.raises(HandshakeRefused, match=r"15:22 of 30 .* add a stage for layers 22:30"):
        check_hello(HELLO, MIDDLE)
    check_hello(replace(HELLO, route=ROUTE), MIDDLE)


@pytest.mark.parametrize("role", [Role.RETURN, Role.CONTROL])
def test_other_links_need_only_the_right_model_if_they_name_one(role: Role) -> None:
    check_hello(Hello(role, "c"), INFO)
    check_hello(Hello(role, "c", fingerprint="ab12"), INFO)
    with pytest.raises(HandshakeRefused, match=r"ff99.*ab12"):
        check_hello(Hello(role, "c", fingerprint="ff99"), INFO)


def refused(stages: tuple[StageInfo, ...], route: tuple[Hop, ...] = ROUTE) -> str:
    with pytest.raises(HandshakeRefused) as caught:
        check_welcome(replace(HELLO, route=route), Welcome(stages))
    return str(caught.value)


def test_the_stages_that_answer_are_the_rest_of_the_model() -> None:
    check_welcome(replace(HELLO, route=ROUTE), Welcome((MIDDLE, LAST)))
    assert "1 stages answered, 2 were asked for" in refused((MIDDLE,))
    assert "0 stages answered" in refused(())
    assert "go on with 22, but the stage holds 23:30" in refused((MIDDLE, replace(LAST, first_layer=23)))
    assert "go on with 22, but the stage holds 21:30" in refused((MIDDLE, replace(LAST, first_layer=21)))
    assert "go on with 22, but the stage holds 22:22" in refused((MIDDLE, replace(LAST, end_layer=22)))
    assert "ends with layer 29 of 30" in refused((MIDDLE, replace(LAST, end_layer=29)))
    assert "ff99" in refused((MIDDLE, replace(LAST, fingerprint="ff99")))


def test_no_chain_is_endless() -> None:
    assert "1 to 255" in refused((MIDDLE,) * 256)
