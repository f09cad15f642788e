"""What a person reads when a link cannot be opened."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import LinkError, UsageError
from engine.protocol.messages import ConfigureGeneration
from engine.transport import Timeouts, open_link
from tests.protocol.samples import HELLO
from tests.transport.conftest import PATIENT, Network

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listener(handler: Handler) -> AsyncIterator[int]:
    """A TCP server that is no stage; its port."""
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def complaint(url: str, timeouts: Timeouts = PATIENT) -> str:
    with pytest.raises(LinkError) as caught:
        await open_link(url, HELLO, timeouts=timeouts)
    assert caught.value.hint
    return str(caught.value)


async def test_a_bad_url_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'gpu-box:9000'"):
        await open_link("gpu-box:9000", HELLO)


async def test_a_refused_connection_names_the_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert f"nothing listens at 127.0.0.1:{port}; start the stage" in await complaint(
            f"ws://127.0.0.1:{port}"
        )


async def test_an_unknown_host_is_named() -> None:
    assert "no-such-host.invalid:9000 is unknown" in await complaint("ws://no-such-host.invalid:9000")


async def test_a_host_that_does_not_answer_is_given_up_after_one_deadline() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with listener(silent) as port:
        text = await complaint(f"ws://127.0.0.1:{port}", replace(PATIENT, connect=0.1))
    assert f"no answer from 127.0.0.1:{port} within 0.1 s" in text


async def test_a_web_server_is_no_stage() -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with listener(web) as port:
        assert "answered with HTTP status 404" in await complaint(f"ws://127.0.0.1:{port}")


@pytest.mark.parametrize(
    "greeting", [b"SSH-2.0-OpenSSH_9.6\r\n", b"", b"\0" * 1000], ids=["ssh", "nothing", "zeros"]
)
async def test_something_else_is_no_stage(greeting: bytes) -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await writer.drain()
        writer.close()

    async with listener(other) as port:
        text = await complaint(f"ws://127.0.0.1:{port}")
    assert f"127.0.0.1:{port} " in text
    assert "like a stage" in text


async def test_a_cancelled_open_leaves_nothing_behind(network: Network) -> None:
    arrived = asyncio.Event()
    left = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        await reader.read()
        left.set()
        writer.close()

    async with listener(silent) as port:
        opening = asyncio.create_task(open_link(f"ws://127.0.0.1:{port}", HELLO, timeouts=PATIENT))
        await arrived.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await asyncio.wait_for(left.wait(), 20)


# --- TLS ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1 with its key, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate of this test")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    key = path.with_name("key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2",
         "-keyout", str(key), "-out", str(path)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    path.write_text(path.read_text() + key.read_text())
    return path


def server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


async def test_a_link_over_tls(network: Network, certificate: Path) -> None:
    stage = await network.serve(ssl=server_context(certificate), token="secret")
    assert stage.server.url.startswith("wss://")
    trusted = ssl.create_default_context(cafile=certificate)
    opener = await network.open(stage, ssl=trusted, token="secret")
    served = await stage.peer()
    assert opener.link is not None
    opener.link.post(ConfigureGeneration(1))
    assert await served.next() == ConfigureGeneration(1)
    await opener.link.close("done")
    assert "done" in (await served.closed()).reason


async def test_an_unknown_certificate_is_not_trusted(network: Network, certificate: Path) -> None:
    stage = await network.serve(ssl=server_context(certificate))
    text = await complaint(stage.server.url)
    assert f"no TLS connection to 127.0.0.1:{stage.server.port}" in text
    assert "certificate" in text


async def test_ws_and_wss_are_not_mixed_up_in_silence(network: Network, certificate: Path) -> None:
    plain = await network.serve()
    text = await complaint(plain.server.url.replace("ws://", "wss://"))
    assert "check wss:// against ws://" in text
    secure = await network.serve(ssl=server_context(certificate))
    assert "like a stage" in await complaint(secure.server.url.replace("wss://", "ws://"))


async def test_a_server_with_a_silent_tls_client_can_be_closed(network: Network, certificate: Path) -> None:
    stage = await network.serve(ssl=server_context(certificate))
    _, writer = await asyncio.open_connection("127.0.0.1", stage.server.port)
    await asyncio.wait_for(stage.server.close(), 20)
    writer.close()


def test_the_default_limits_keep_the_promises() -> None:
    limits = Timeouts()
    assert limits.silent <= 2.0, "a dead stage is noticed within 2 s"
    assert limits.connect < limits.welcome < 5.0, "a request fails within 5 s, with the cause"
    assert limits.heartbeat * 3 < limits.silent
    assert limits.welcome_loading < limits.answer
