"""URLs and addresses of links."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from engine.errors import UsageError

DEFAULT_PORT = 9555
"""Used when a URL names none."""

_EXAMPLE = f"write it like ws://192.168.1.20:{DEFAULT_PORT}"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a stage listens."""

    host: str  # without brackets
    port: int
    secure: bool = False  # wss

    def __str__(self) -> str:
        """`host:port`, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """`ws://host:port` or `wss://host:port`."""
        return f"{'wss' if self.secure else 'ws'}://{self}"


def parse_url(url: str) -> Address:
    """The address of a `ws://` or `wss://` URL; UsageError for anything else."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{url!r} is no address: {error}", hint=_EXAMPLE) from None
    if parts.username is not None or parts.password is not None:
        # Not quoted in full: what stands before the @ may be a secret.
        raise UsageError(f"the address of {host!r} contains a user or a token", hint="use --token-file")
    if parts.scheme not in ("ws", "wss") or not host:
        raise UsageError(f"{url!r} is no address of a stage", hint=_EXAMPLE)
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise UsageError(f"{url.split('?')[0]!r} has a path or a query", hint=_EXAMPLE)
    if port == 0:
        raise UsageError(f"{url!r} has port 0, which nothing can listen on", hint=_EXAMPLE)
    return Address(host, DEFAULT_PORT if port is None else port, parts.scheme == "wss")


def parse_listen(text: str) -> tuple[str, int]:
    """`HOST:PORT`, `HOST` or `[IPV6]:PORT` to listen on; port 0 lets the system choose. UsageError else."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"cannot listen on {text!r}: {error}", hint="write it like 127.0.0.1:9555") from None
    if not host or parts.netloc != text or "@" in text:
        raise UsageError(f"cannot listen on {text!r}", hint=f"write it like 127.0.0.1:{DEFAULT_PORT}")
    return host, DEFAULT_PORT if port is None else port


def is_loopback(ip: str) -> bool:
    """True for an address that only this machine can reach."""
    return ipaddress.ip_address(ip.partition("%")[0]).is_loopback


def check_token(token: str) -> None:
    """UsageError for a token that does not fit a header; it is not repeated."""
    if not all(" " < character <= "~" for character in token):
        raise UsageError(
            "the token contains a space or a character that is no printable ASCII",
            hint="make one like: openssl rand -hex 32",
        )
