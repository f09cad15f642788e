"""The record of a run: what a kill leaves, and what is never mixed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import orjson
import pytest

from engine.bench.measurement import Measurement
from engine.bench.record import FILE_NAME, Record, recorded_call
from engine.errors import UsageError
from tests.bench.samples import ONE_STAGE, WHOLE, measured

HEAD = {"suite": "builtin", "threads": 1}


def test_a_resumed_run_knows_what_was_measured(tmp_path: Path) -> None:
    windows = ((1, 0, 0, 1, 900, 11_000), (2, 1, 1, 0, 0))
    first, second = measured(WHOLE, 10.0), measured(ONE_STAGE, 11.0, windows=windows)
    with Record(tmp_path, HEAD, resume=False) as record:
        record.add(first)
    with Record(tmp_path, HEAD, resume=True) as record:
        assert record.measurements == [first]
        assert record.holds(*first.key)
        assert not record.holds(*second.key)
        record.add(second)
    with Record(tmp_path, HEAD, resume=True) as record:
        assert record.measurements == [first, second]


def test_a_measurement_of_before_windows_were_kept_is_read() -> None:
    before = orjson.loads(orjson.dumps(asdict(measured(WHOLE, 10.0))))
    del before["turns"][0]["windows"]
    assert Measurement.from_dict(before) == measured(WHOLE, 10.0)


def test_a_line_that_a_kill_cut_off_is_measured_again(tmp_path: Path) -> None:
    first = measured(WHOLE, 10.0)
    with Record(tmp_path, HEAD, resume=False) as record:
        record.add(first)
        record.add(measured(ONE_STAGE, 11.0))
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:-7])
    with Record(tmp_path, HEAD, resume=True) as record:
        assert record.measurements == [first]
        record.add(measured(ONE_STAGE, 12.0))
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert [line.get("arm") for line in lines] == [None, WHOLE.name, ONE_STAGE.name]


def test_a_kill_before_the_first_line_was_whole_leaves_a_new_run(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b'{"suite": "bu')
    with Record(tmp_path, HEAD, resume=True) as record:
        assert record.measurements == []
    assert orjson.loads((tmp_path / FILE_NAME).read_bytes()) == HEAD


@pytest.mark.parametrize("other", [{**HEAD, "threads": 2}, {"suite": "builtin"}, {**HEAD, "exact": True}])
def test_other_settings_are_refused_by_name(tmp_path: Path, other: dict[str, object]) -> None:
    with Record(tmp_path, HEAD, resume=False):
        pass
    name = next(iter({*HEAD, *other} - {key for key in HEAD if HEAD[key] == other.get(key)}))
    with pytest.raises(UsageError, match=f"was measured with {name} "):
        Record(tmp_path, other, resume=True)


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    with Record(tmp_path, HEAD, resume=False):
        pass
    with pytest.raises(UsageError, match="--resume"):
        Record(tmp_path, HEAD, resume=False)


def test_the_call_of_a_run_is_kept_and_not_compared(tmp_path: Path) -> None:
    with Record(tmp_path, HEAD, resume=False, call={"repeat": 3}):
        pass
    assert recorded_call(tmp_path) == {"repeat": 3}
    with Record(tmp_path, HEAD, resume=True, call={"repeat": 3, "stages": "2"}):
        pass
    assert recorded_call(tmp_path) == {"repeat": 3}


def test_a_run_that_kept_no_call_has_none(tmp_path: Path) -> None:
    assert recorded_call(tmp_path) == {}
    (tmp_path / FILE_NAME).write_bytes(b'{"suite": "bu')
    assert recorded_call(tmp_path) == {}
    (tmp_path / FILE_NAME).write_bytes(orjson.dumps(HEAD) + b"\n")
    assert recorded_call(tmp_path) == {}
