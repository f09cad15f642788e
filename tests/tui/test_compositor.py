"""What is drawn in parts is, on the terminal, what drawing everything would have given."""

from __future__ import annotations

from typing import Any

import pytest
from rich.style import Style
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.content import Content
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip

from skippy_tui.app import SkippyApp
from skippy_tui.compositor import bands
from skippy_tui.paint import segments_of
from tests.tui.driving import running

STEP = 6  # events between two looks at the screen


def cells(strip: Strip) -> list[tuple[str, Style | None]]:
    return [(character, style) for text, style, _ in strip.discard_meta() for character in text]


class Terminal:
    """Holds the characters that updates have drawn, each with its style."""

    def __init__(self) -> None:
        self.lines: dict[int, dict[int, tuple[str, Style | None]]] = {}
        self.parts = 0  # updates that were not the whole screen

    def draw(self, update: object) -> None:
        if isinstance(update, LayoutUpdate):
            for y, line in enumerate(update.strips):
                self._put(y, 0, Strip.join(line))
        elif isinstance(update, ChopsUpdate):
            self.parts += 1
            for y, start, end in update.spans:
                for right, (x, piece) in zip(update.chop_ends[y], update.chops[y].items(), strict=True):
                    if x < end and right > start:
                        assert piece is not None, (y, x)
                        self._put(y, x, piece)

    def _put(self, y: int, x: int, strip: Strip) -> None:
        self.lines.setdefault(y, {}).update(enumerate(cells(strip), x))

    def shows(self, screen: Screen[Any]) -> bool:
        return all(
            cells(strip) == [character for _, character in sorted(self.lines[y].items())]
            for y, strip in enumerate(screen._compositor.render_strips())
        )


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_parts_add_up_to_the_screen(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(SkippyApp, "_display", lambda self, screen, update: terminal.draw(update))
    async with running(size=size, hold=lambda events: STEP) as driver:
        await driver.write("A question")
        while not driver.client.is_done:
            driver.client.go_on(STEP)
            while not driver.client.is_quiet:
                await driver.pilot.pause(0)
            driver.app.main.draw()
            driver.app.main.draw_figures()
            await driver.pilot.pause()
            await driver.pilot.pause()
            assert terminal.shows(driver.app.screen)
        await driver.press("ctrl+t")
        assert terminal.shows(driver.app.screen)
    assert terminal.parts > 10


def test_bands_are_as_tall_as_can_be() -> None:
    spans = [(2, 0, 9), (2, 20, 30), (3, 0, 9), (3, 20, 30), (4, 0, 8), (6, 20, 30)]
    assert set(bands(spans)) == {
        Region(0, 2, 9, 2),
        Region(20, 2, 10, 2),
        Region(0, 4, 8, 1),
        Region(20, 6, 10, 1),
    }


def test_styles_that_lie_on_one_another_are_told_together() -> None:
    line = Content.assemble("a ", ("bcd", "bold"), ("e", "italic"), " f").stylize("red", 3, 6)
    told = [
        (segment.text, segment.style)
        for segment in segments_of(line, lambda styles: Style(meta={"styles": styles}))
    ]
    assert [(text, style.meta["styles"]) for text, style in told if style is not None] == [
        ("a ", ()),
        ("b", ("bold",)),
        ("cd", ("bold", "red")),
        ("e", ("italic", "red")),
        (" f", ()),
    ]
