"""Pictures of every screen and state at both sizes, and of every theme once, with a scripted engine.

After a wanted change: `pytest tests/tui/test_snapshots.py --snapshot-update`, and look at what changed.
"""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot

from skippy_tui.screenshots import SCENES, SIZES, make_app, play
from skippy_tui.themes import load_themes, shipped_themes


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", SCENES)
def test_screen(name: str, size: tuple[int, int], snap_compare: Any) -> None:
    app, client = make_app(SCENES[name])

    async def run_before(pilot: Pilot[None]) -> None:
        await play(SCENES[name], app, client, pilot)

    assert snap_compare(app, terminal_size=size, run_before=run_before)


@pytest.mark.parametrize("theme", load_themes([shipped_themes()]).themes)
def test_theme(theme: str, snap_compare: Any) -> None:
    scene = SCENES["streaming"]
    app, client = make_app(scene, theme)

    async def run_before(pilot: Pilot[None]) -> None:
        await play(scene, app, client, pilot)

    assert snap_compare(app, terminal_size=(100, 32), run_before=run_before)


def test_without_colours_origins_differ_by_their_marks(
    monkeypatch: pytest.MonkeyPatch, snap_compare: Any
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    scene = SCENES["tokens"]
    app, client = make_app(scene)

    async def run_before(pilot: Pilot[None]) -> None:
        await play(scene, app, client, pilot)

    assert snap_compare(app, terminal_size=(80, 24), run_before=run_before)
