"""URLs of stages, and what a server may listen on."""

from __future__ import annotations

import pytest

from engine.errors import UsageError
from engine.transport.addresses import (
    DEFAULT_PORT,
    Address,
    check_token,
    is_loopback,
    parse_listen,
    parse_url,
)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("ws://127.0.0.1:9000", Address("127.0.0.1", 9000)),
        ("ws://gpu-box:9000/", Address("gpu-box", 9000)),
        ("ws://gpu-box", Address("gpu-box", DEFAULT_PORT)),
        ("wss://gpu-box:443", Address("gpu-box", 443, secure=True)),
        ("ws://[::1]:9000", Address("::1", 9000)),
        ("ws://[2001:db8::7]", Address("2001:db8::7", DEFAULT_PORT)),
    ],
)
def test_addresses_of_stages(url: str, address: Address) -> None:
    assert parse_url(url) == address
    assert parse_url(address.url) == address


@pytest.mark.parametrize(
    "url",
    ["", "gpu-box:9000", "http://gpu-box", "ws://", "ws://:9000", "ws://a:b", "ws://a:99999", "ws://a:0",
     "ws://[::1", "ws://a/path", "ws://a?x=1", "ws://a#x", "://a", "ws://a:-1"],
)  # fmt: skip
def test_a_bad_url_is_named(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(url)
    assert url.split("?")[0] in str(caught.value)


@pytest.mark.parametrize("url", ["ws://secret@host:1", "ws://user:secret@host:1", "ws://host:1?token=secret"])
def test_a_token_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("0.0.0.0:9000", ("0.0.0.0", 9000)),
        ("[::]:9000", ("::", 9000)),
        ("localhost", ("localhost", DEFAULT_PORT)),
    ],
)
def test_what_to_listen_on(text: str, result: tuple[str, int]) -> None:
    assert parse_listen(text) == result


@pytest.mark.parametrize("text", ["", ":9000", "a:b", "a:99999", "user@a:1", "a:1/x", "ws://a:1"])
def test_a_bad_listen_address_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="cannot listen"):
        parse_listen(text)


def test_loopback_addresses() -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("127.8.8.8")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("::")
    assert not is_loopback("192.168.1.20")
    assert not is_loopback("fe80::1%eth0")


@pytest.mark.parametrize("token", ["two words", "line\n", "日本", "bell\x07"])
def test_a_token_that_fits_no_header_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_token(token)
    assert token not in str(caught.value)


def test_a_usual_token_is_fine() -> None:
    check_token("")
    check_token("Zm9v+/=._~-")
