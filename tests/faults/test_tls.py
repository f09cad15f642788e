"""Stages at wss:// with certificates of an authority of our own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import trustme

from engine.errors import LinkError, UsageError
from engine.transport.tls import client_context, server_context
from tests.faults.conftest import Undisturbed
from tests.faults.elsewhere import StageElsewhere, elsewhere
from tests.faults.harness import DEADLINE, disturbed, remote_plan

in_one_loop = pytest.mark.asyncio(loop_scope="module")

TOKEN = "for-these-tests"


@dataclass(frozen=True)
class Pki:
    """PEM files: the authority, a good certificate with its key, and one for another host."""

    authority: Path
    certificate: Path
    key: Path
    other: Path

    @classmethod
    def make(cls, folder: Path) -> Pki:
        authority = trustme.CA()
        found = cls(*(folder / name for name in ("ca.pem", "cert.pem", "key.pem", "other.pem")))
        authority.cert_pem.write_to_path(str(found.authority))
        good, other = authority.issue_cert("127.0.0.1"), authority.issue_cert("elsewhere.example")
        good.private_key_pem.write_to_path(str(found.key))
        for blob in good.cert_chain_pems:
            blob.write_to_path(str(found.certificate), append=True)
        other.private_key_and_cert_chain_pem.write_to_path(str(found.other))
        return found

    @property
    def options(self) -> list[str]:
        """Of a stage that serves wss:// and reaches the next one the same way."""
        return [
            "--tls-cert",
            f"{self.certificate}",
            "--tls-key",
            f"{self.key}",
            "--tls-ca",
            f"{self.authority}",
        ]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """Certificates made for this run."""
    return Pki.make(tmp_path_factory.mktemp("pki"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def secure(model: Path, pki: Pki) -> AsyncIterator[tuple[StageElsewhere, StageElsewhere]]:
    """Two stages at wss://, the first of which dials the second."""
    env = {"SKIPPY_TOKEN": TOKEN}
    middle = StageElsewhere(model, "2:4", pki.options, env)
    last = StageElsewhere(model, "4:6", pki.options, env)
    async with elsewhere(middle, last):
        yield middle, last


@in_one_loop
async def test_an_answer_over_tls_from_end_to_end(
    secure: tuple[StageElsewhere, StageElsewhere], model: Path, pki: Pki, undisturbed: Undisturbed
) -> None:
    middle, last = secure
    assert middle.url.startswith("wss://")
    plan = remote_plan(model, middle.url, last.url, token=TOKEN, tls_ca=str(pki.authority))
    async with disturbed(plan) as running:
        result = await running.ask()
        assert result["token_ids"] == await undisturbed()
        assert result["speculative"]["direct_replies"] > 0


@in_one_loop
async def test_without_the_authority_nobody_is_trusted(
    secure: tuple[StageElsewhere, StageElsewhere], model: Path
) -> None:
    with pytest.raises(LinkError, match=r"no TLS connection.*certificate"):
        async with disturbed(remote_plan(model, secure[0].url, secure[1].url, token=TOKEN)):
            pass


@in_one_loop
async def test_a_certificate_for_another_host_is_refused(model: Path, pki: Pki) -> None:
    stage = StageElsewhere(model, "3:6", ["--tls-cert", str(pki.other), "--tls-key", str(pki.other)])
    async with elsewhere(stage):
        with pytest.raises(LinkError, match="no TLS connection"):
            async with disturbed(remote_plan(model, stage.url, tls_ca=str(pki.authority))):
                pass


@in_one_loop
async def test_ws_to_a_stage_at_wss_fails_with_a_hint(
    secure: tuple[StageElsewhere, StageElsewhere], model: Path
) -> None:
    urls = [stage.url.replace("wss://", "ws://") for stage in secure]
    with pytest.raises(LinkError, match="wss:// against ws://"):
        async with asyncio.timeout(DEADLINE), disturbed(remote_plan(model, *urls, token=TOKEN)):
            pass


def test_files_that_are_no_certificates_are_named(tmp_path: Path, pki: Pki) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nothing to see here")
    with pytest.raises(UsageError, match=r"--tls-ca .*missing\.pem: No such file"):
        client_context(str(tmp_path / "missing.pem"))
    with pytest.raises(UsageError, match=r"nonsense\.pem holds no certificate"):
        client_context(str(nonsense))
    with pytest.raises(UsageError, match="no certificate and its private key"):
        server_context(str(pki.certificate), str(nonsense))
    with pytest.raises(UsageError, match="no certificate and its private key"):
        server_context(str(pki.certificate), str(pki.other))


def test_a_certificate_without_its_key_is_a_wrong_call(model: Path, pki: Pki) -> None:
    command = [sys.executable, "-m", "engine.cli.main", "stage", "--model", str(model), "--layers", "3:6"]
    done = subprocess.run(
        [*command, "--tls-cert", str(pki.certificate)], capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.returncode == 2
    assert "--tls-key" in done.stderr
    assert done.stderr.count("\n") == 1
