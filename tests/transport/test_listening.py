"""Where a stage may listen, and how it ends."""

from __future__ import annotations

import pytest

from engine.errors import LinkError, UsageError
from tests.transport.clients import BRISK, Raw, works
from tests.transport.conftest import Network


async def test_port_0_takes_a_free_port_and_says_which(network: Network) -> None:
    stage = await network.serve(port=0)
    assert stage.server.port > 0
    assert stage.server.url == f"ws://127.0.0.1:{stage.server.port}"


async def test_a_port_in_use_is_named(network: Network) -> None:
    stage = await network.serve()
    with pytest.raises(LinkError, match=f"port {stage.server.port} of 127.0.0.1 is in use"):
        await network.serve(port=stage.server.port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
async def test_an_address_that_is_not_ours_is_named(network: Network, host: str) -> None:
    with pytest.raises(LinkError, match=f"cannot listen on {host}"):
        await network.serve(host, token="secret")


async def test_localhost_is_a_name_for_loopback(network: Network) -> None:
    await works(network, await network.serve("localhost"))


async def test_ipv6_works(network: Network) -> None:
    try:
        stage = await network.serve("::1")
    except LinkError:
        pytest.skip("no IPv6 on this machine")
    assert stage.server.url == f"ws://[::1]:{stage.server.port}"
    await works(network, stage)


async def test_closing_the_server_ends_every_link_with_a_reason(network: Network) -> None:
    stage = await network.serve(timeouts=BRISK)
    openers = [await network.open(stage) for _ in range(3)]
    half_open = await Raw.connect(stage)
    await half_open.upgrade()
    await stage.server.close()
    for opener in openers:
        assert "shutting down" in (await opener.closed()).reason
    await half_open.rest()
    half_open.close()
    with pytest.raises(LinkError, match="nothing listens"):
        await network.open(stage)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_an_open_address_needs_a_token(network: Network, host: str) -> None:
    with pytest.raises(UsageError, match=r"no token.*--token-file.*--insecure"):
        await network.serve(host)


async def test_an_open_address_without_a_token_must_be_wanted(network: Network) -> None:
    await works(network, await network.serve("0.0.0.0", insecure=True))
    await works(network, await network.serve("0.0.0.0", token="secret"), token="secret")
