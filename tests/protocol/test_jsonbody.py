"""JSON bodies are taken exactly as declared."""

from __future__ import annotations

import pytest

from engine.errors import ProtocolError
from engine.protocol.jsonbody import MAX_FIELD_ITEMS, dump, load
from engine.protocol.messages import ConfigureGeneration, ErrorMessage, Hello, SamplingSettings, Welcome


def refusal(cls: type, body: bytes) -> tuple[str, str]:
    with pytest.raises(ProtocolError) as caught:
        load(cls, body)
    return caught.value.code, str(caught.value)


@pytest.mark.parametrize(
    ("cls", "body", "named"),
    [
        (Hello, b"[]", "Hello must be an object"),
        (Hello, b'{"role":"lane"}', "lacks chain"),
        (Hello, b'{"role":"lane","chain":"c","extra":1}', "unknown keys"),
        (Hello, b'{"role":"master","chain":"c"}', "'master', this side knows lane, return, control"),
        (Hello, b'{"role":"lane","chain":7}', "Hello.chain must be a value of type str"),
        (Hello, b'{"role":"lane","chain":"c","n_embd":true}', "Hello.n_embd must be a value of type int"),
        (Hello, b'{"role":"lane","chain":"c","n_embd":1.0}', "Hello.n_embd"),
        (Hello, b'{"role":"lane","chain":"c","route":[{"url":1}]}', "Hello.route.url"),
        (Hello, b'{"role":"lane","chain":"c","emulation":{"rtt_ms":"x"}}', "Hello.emulation.rtt_ms"),
        (Hello, b'{"role":"lane","chain":"c","emulation":{"rtt_ms":null}}', "must be a number"),
        (Welcome, b'{"stages":{}}', "Welcome.stages"),
        (ConfigureGeneration, b'{"session":1,"sampling":{"logit_bias":[[1]]}}', "a list of 2"),
    ],
)
def test_a_wrong_field_is_named(cls: type, body: bytes, named: str) -> None:
    code, message = refusal(cls, body)
    assert code == "fields"
    assert named in message


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b'{"code":"a"}x', b"NaN"])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    assert refusal(ErrorMessage, body)[0] == "json"


def test_an_endless_list_is_refused() -> None:
    body = b'{"stages":[' + b",".join([b"0"] * (MAX_FIELD_ITEMS + 1)) + b"]}"
    assert "at most" in refusal(Welcome, body)[1]


def test_a_whole_number_is_a_float_where_one_is_declared() -> None:
    sampling = load(SamplingSettings, b'{"temperature":1}')
    assert type(sampling.temperature) is float


def test_a_number_that_json_cannot_carry_is_not_sent() -> None:
    with pytest.raises(ProtocolError) as caught:
        dump(SamplingSettings(seed=2**70))
    assert caught.value.code == "fields"


def test_a_value_is_not_echoed_back_at_length() -> None:
    body = b'{"role":"' + b"x" * 10_000 + b'","chain":"c"}'
    assert len(refusal(Hello, body)[1]) < 200
