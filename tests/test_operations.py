"""What docs/operations.md and the files beside it say is what the programs do."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

from engine.cli.main import _parser
from engine.coordinator.slots import MAX_WAITING
from engine.stage.node_store import RESERVE_BYTES
from engine.stage.service import LANE_QUEUE
from engine.timeouts import TIMEOUTS
from engine.transport.server import MAX_LINKS

ROOT = Path(__file__).parents[1]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


def test_the_table_of_time_limits_is_complete_and_right() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", OPERATIONS, flags=re.MULTILINE)
    assert {name: float(value) for name, value in rows} == asdict(TIMEOUTS)


def test_the_limits_in_the_text_are_right() -> None:
    assert f"at most {MAX_LINKS} links, {LANE_QUEUE} messages" in OPERATIONS
    assert (
        f"dialled for {TIMEOUTS.redial:g} s in the middle of an answer, for {TIMEOUTS.redial_new:g} s"
        in OPERATIONS
    )
    assert f"waits up to {TIMEOUTS.admission:g} s" in OPERATIONS
    assert f"wait up to {TIMEOUTS.admission:g} s, at most {MAX_WAITING} of them" in OPERATIONS
    assert f"loaded for {TIMEOUTS.node_keep:g} s" in OPERATIONS
    assert f"a reserve of {RESERVE_BYTES >> 30} GiB" in OPERATIONS


def test_the_service_calls_a_stage_as_it_can_be_called() -> None:
    unit = (ROOT / "docs" / "packaging" / "skippy-stage.service").read_text()
    command = re.search(r"^ExecStart=\S+/skippy-engine ((?:.*\\\n)*.*)$", unit, flags=re.MULTILINE)
    assert command is not None
    words = command[1].replace("\\\n", " ").split()
    arguments = _parser("skippy-engine").parse_args(words)
    assert arguments.layers == "${SKIPPY_LAYERS}"
    assert arguments.tls_key == "${CREDENTIALS_DIRECTORY}/key.pem"
