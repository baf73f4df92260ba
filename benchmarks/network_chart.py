"""Small line charts side by side as one SVG, with bands for intervals. Knows no benchmark.

The picture brings its own background, light or dark as the reader's system asks for, so that it can
be read on any page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from hemiola.report.metrics import ConfidenceInterval

WIDE, HIGH, LEFT, TOP, GAP_X, GAP_Y, HEAD, FOOT = 270, 170, 58, 62, 62, 62, 24, 66
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b5569a", "#a67c00", "#7a7a7a")
STYLE = (
    ".back{fill:#fff}text{font:12px sans-serif;fill:#222}.bold{font-weight:bold}.grid{stroke:#888;opacity:.25}"
    ".zero{stroke:#555;stroke-width:1.5}@media(prefers-color-scheme:dark)"
    "{.back{fill:#1b1d23}text{fill:#e6e6e6}.zero{stroke:#bbb}.line{filter:brightness(1.35)}}"
)


@dataclass(frozen=True)
class Series:
    """One line: an interval by x, and a colour by number."""

    name: str
    points: dict[float, ConfidenceInterval]
    colour: int


@dataclass(frozen=True)
class SeriesPanel:
    """One chart.

    Attributes:
        low, high: of the y axis; lines are cut there.
    """

    title: str
    lines: Sequence[Series]
    low: float
    high: float


@dataclass(frozen=True)
class Frame:
    """Where a panel lies and how its axes run."""

    left: float
    top: float
    xs: tuple[float, ...]
    low: float
    high: float

    def x(self, value: float) -> float:
        """Positions are evenly spaced: every x is a step of the sweep."""
        return self.left + WIDE * self.xs.index(value) / max(len(self.xs) - 1, 1)

    def y(self, value: float) -> float:
        """Cut at the axis' ends."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.top + HIGH * (1 - share)


def draw_panels(title: str, rows: Sequence[Sequence[SeriesPanel]], x_name: str, percent: bool = True) -> str:
    """The picture: panels in rows, one legend at the bottom."""
    width = LEFT + max(map(len, rows)) * (WIDE + GAP_X) - 20
    height = TOP + len(rows) * (HIGH + GAP_Y) + FOOT - 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="back" width="{width}" height="{height}" rx="6"/>',
        f'<text class="bold" x="14" y="24">{escape(title)}</text>',
    ]
    for down, row in enumerate(rows):
        for along, panel in enumerate(row):
            parts.append(
                _panel(panel, LEFT + along * (WIDE + GAP_X), TOP + down * (HIGH + GAP_Y), percent, x_name)
            )
    parts.append(_legend(rows[0][0].lines, height - 16))
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: SeriesPanel, left: float, top: float, percent: bool, x_name: str) -> str:
    xs = tuple(sorted({x for line in panel.lines for x in line.points}))
    frame = Frame(left, top, xs, panel.low, panel.high)
    parts = [f'<text class="bold" x="{left}" y="{top - 9:.0f}">{escape(panel.title)}</text>']
    parts += [_grid(frame, value, percent) for value in _ticks(panel.low, panel.high)]
    parts += [
        f'<text x="{frame.x(x):.0f}" y="{top + HIGH + 16}" text-anchor="middle">{x:g}</text>' for x in xs
    ]
    parts.append(
        f'<text x="{left + WIDE / 2}" y="{top + HIGH + 32}" text-anchor="middle">{escape(x_name)}</text>'
    )
    return "\n".join([*parts, *(_line(line, frame) for line in panel.lines)])


def _grid(frame: Frame, value: float, percent: bool) -> str:
    y = frame.y(value)
    label = (
        f"{value:+.0%}"
        if percent and value and frame.low < 0
        else f"{value:.0%}"
        if percent
        else f"{value:g}"
    )
    kind = "zero" if value == 0 else "grid"
    return (
        f'<line class="{kind}" x1="{frame.left}" x2="{frame.left + WIDE}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{frame.left - 6}" y="{y + 4:.0f}" text-anchor="end">{label.replace("-", "−")}</text>'
    )


def _line(line: Series, frame: Frame) -> str:
    """The mean with a dot per point, and the interval behind it."""
    colour = COLOURS[line.colour % len(COLOURS)]
    points = sorted(line.points.items())
    upper = [(x, one.mean if one.high is None else one.high) for x, one in points]
    lower = [(x, one.mean if one.low is None else one.low) for x, one in points]
    band = _path(upper + lower[::-1], frame)
    means = [(x, one.mean) for x, one in points]
    dots = "".join(
        f'<circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="2.5" fill="{colour}"/>' for x, y in means
    )
    return (
        f'<g class="line"><polygon points="{band}" fill="{colour}" opacity=".15"/>'
        f'<polyline points="{_path(means, frame)}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}</g>'
    )


def _path(points: Sequence[tuple[float, float]], frame: Frame) -> str:
    return " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in points)


def _legend(lines: Sequence[Series], y: float) -> str:
    parts, x = [], float(LEFT)
    for line in lines:
        colour = COLOURS[line.colour % len(COLOURS)]
        parts.append(
            f'<line class="line" x1="{x:.0f}" x2="{x + 22:.0f}" y1="{y - 4:.0f}" y2="{y - 4:.0f}" stroke="{colour}" '
            f'stroke-width="3"/><text x="{x + 28:.0f}" y="{y:.0f}">{escape(line.name)}</text>'
        )
        x += 52 + 6.6 * len(line.name)
    return "".join(parts)


def _ticks(low: float, high: float) -> list[float]:
    """Four to eight round values."""
    rough = (high - low) / 6
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(step * size for step in (1, 2, 2.5, 5, 10) if step * size >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(step * k, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]
