"""How long a run will still take."""

from __future__ import annotations

from engine.bench.pace import Pace


def test_what_was_measured_is_expected_to_take_as_long_again() -> None:
    pace = Pace()
    pace.add(("plain", "chat"), 2.0)
    pace.add(("plain", "chat"), 4.0)
    pace.add(("auto", "chat"), 1.0)
    assert pace.seconds([("plain", "chat"), ("plain", "chat"), ("auto", "chat")]) == 7.0


def test_another_text_takes_what_its_arm_takes_and_another_arm_what_all_do() -> None:
    pace = Pace()
    pace.add(("plain", "chat"), 3.0)
    pace.add(("auto", "chat"), 1.0)
    assert pace.seconds([("plain", "copy")]) == 3.0
    assert pace.seconds([("mtp", "chat")]) == 2.0
    assert pace.seconds([]) == 0.0
