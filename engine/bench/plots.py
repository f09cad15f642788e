"""Tokens per second against the round trip, a line for each strategy: as SVG, and in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as Xml

from engine.bench.arms import Kind
from engine.bench.session import PREFILL
from engine.bench.summary import COPIES, NOVEL, Spread, Summary, whole_of

# Okabe and Ito's colours: told apart by everybody, and by markers besides.
_COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d1f")
_WIDTH, _HEIGHT, _COLUMNS = 380, 250, 2
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 12, 34, 40
_LEGEND = 26  # pixels of a row of the legend

Point = tuple[float, Spread]


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: the lines of a group of workloads, and the whole model's speed, which knows no delay."""

    title: str
    lines: dict[str, list[Point]]
    whole: float | None

    @property
    def highest(self) -> float:
        values = [spread.high for points in self.lines.values() for _, spread in points]
        return max([*values, self.whole or 0.0])

    @property
    def farthest(self) -> float:
        return max(rtt for points in self.lines.values() for rtt, _ in points) or 1.0


def panels(summary: Summary) -> list[Panel]:
    """A panel for each group in which splits were measured."""
    found = []
    for group in summary.groups:
        lines: dict[str, list[Point]] = {}
        for arm in summary.arms:
            cell = summary.cell(group, arm)
            if (
                (arm.is_split or arm.kind is Kind.RPC)
                and cell is not None
                and cell.tokens_per_second is not None
            ):
                label = arm.kind.value if arm.kind is Kind.RPC else arm.label
                lines.setdefault(label + ", netns" * arm.namespaces, []).append(
                    (arm.rtt_ms, cell.tokens_per_second)
                )
        whole = summary.cell(group, whole_of(summary.arms))
        speed = whole.tokens_per_second.median if whole and whole.tokens_per_second else None
        if lines and group != PREFILL:
            found.append(
                Panel(group, {name: sorted(points, key=_rtt) for name, points in lines.items()}, speed)
            )
    return found


def _rtt(point: Point) -> float:
    return point[0]


def svg(summary: Summary) -> str:
    """All panels as one SVG image; bars span the smallest and the largest round."""
    shown = panels(summary)
    names = list(dict.fromkeys(name for panel in shown for name in panel.lines))
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(names)}
    rows = -(-len(shown) // _COLUMNS)
    width, height = _WIDTH * min(_COLUMNS, max(1, len(shown))), rows * _HEIGHT + _LEGEND
    root = Xml.Element(
        "svg",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=str(width),
        height=str(height),
        attrib={"font-family": "sans-serif", "font-size": "11"},
    )
    _shape(root, "rect", width=width, height=height, fill="white")
    for number, panel in enumerate(shown):
        place = f"translate({number % _COLUMNS * _WIDTH},{number // _COLUMNS * _HEIGHT})"
        _draw(Xml.SubElement(root, "g", transform=place), panel, colours)
    _legend(Xml.SubElement(root, "g", transform=f"translate({_LEFT},{rows * _HEIGHT + 14})"), colours)
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode") + "\n"


def _draw(parent: Xml.Element, panel: Panel, colours: dict[str, str]) -> None:
    inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    top = panel.highest * 1.05 or 1.0

    def x(rtt: float) -> float:
        return _LEFT + inner_width * (0.03 + 0.94 * rtt / panel.farthest)

    def y(speed: float) -> float:
        return _TOP + inner_height * (1 - speed / top)

    _text(parent, _LEFT, 20, panel.title, weight="bold")
    _text(parent, _LEFT + inner_width / 2, _HEIGHT - 8, "round trip, ms", anchor="middle")
    _text(parent, 4, _TOP - 4, "tok/s")
    for step in range(5):
        speed = top * step / 4
        _shape(parent, "line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y(speed), y2=y(speed), stroke="#dddddd")
        _text(parent, _LEFT - 4, y(speed) + 4, f"{speed:.3g}", anchor="end")
    for rtt in sorted({rtt for points in panel.lines.values() for rtt, _ in points}):
        _text(parent, x(rtt), _HEIGHT - 24, f"{rtt:g}", anchor="middle")
    if panel.whole:
        level = y(panel.whole)
        _shape(
            parent,
            "line",
            x1=_LEFT,
            x2=_WIDTH - _RIGHT,
            y1=level,
            y2=level,
            stroke="#777777",
            stroke_dasharray="5 4",
        )
        _text(parent, _WIDTH - _RIGHT, level - 4, "llama.cpp, whole model", anchor="end")
    for name, points in panel.lines.items():
        path = " ".join(f"{x(rtt):.1f},{y(spread.median):.1f}" for rtt, spread in points)
        _shape(parent, "polyline", points=path, fill="none", stroke=colours[name], stroke_width=1.6)
        for rtt, spread in points:
            at = x(rtt)
            _shape(parent, "line", x1=at, x2=at, y1=y(spread.low), y2=y(spread.high), stroke=colours[name])
            _shape(parent, "circle", cx=at, cy=y(spread.median), r=2.8, fill=colours[name])


def _legend(parent: Xml.Element, colours: dict[str, str]) -> None:
    at = 0
    for name, colour in colours.items():
        _shape(parent, "rect", x=at, y=-8, width=14, height=4, fill=colour)
        _text(parent, at + 18, 0, name)
        at += 34 + 6 * len(name)


def _shape(parent: Xml.Element, kind: str, **attributes: object) -> None:
    shown = {
        name.replace("_", "-"): f"{value:.1f}" if isinstance(value, float) else str(value)
        for name, value in attributes.items()
    }
    Xml.SubElement(parent, kind, shown)


def _text(
    parent: Xml.Element, x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal"
) -> None:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "font-weight": weight}
    Xml.SubElement(parent, "text", place).text = text


def terminal(summary: Summary, *, width: int = 64, height: int = 14) -> str:
    """The two large groups (or what there is) drawn with characters."""
    shown = panels(summary)
    large = [panel for panel in shown if panel.title in (NOVEL, COPIES)] or shown[:2]
    return "\n\n".join(_drawn(panel, width, height) for panel in large if len(_rtts(panel)) > 1)


def _rtts(panel: Panel) -> Sequence[float]:
    return sorted({rtt for points in panel.lines.values() for rtt, _ in points})


def _drawn(panel: Panel, width: int, height: int) -> str:
    import plotille  # only who looks at a plot loads it

    figure = plotille.Figure()
    figure.width, figure.height, figure.with_colors = width, height, False
    figure.x_label, figure.y_label = "round trip, ms", "tok/s"
    figure.set_x_limits(0, panel.farthest)
    figure.set_y_limits(0, panel.highest * 1.05 or 1.0)
    figure.x_ticks_fkt = figure.y_ticks_fkt = lambda low, high: f"{low:.4g}"
    markers = iter("ox+*#@%&")
    for name, points in panel.lines.items():
        across, up = [rtt for rtt, _ in points], [spread.median for _, spread in points]
        figure.plot(across, up, label=name, marker=next(markers, "."))
    if panel.whole:
        figure.plot([0, panel.farthest], [panel.whole] * 2, label="llama.cpp, whole model", marker="-")
    return f"{panel.title}\n{figure.show(legend=True)}"
