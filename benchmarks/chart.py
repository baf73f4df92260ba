"""A small line chart as SVG, both axes logarithmic, readable on light and dark pages. Knows no benchmark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 800, 400, 60, 230, 40, 45
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
STYLE = (
    "text{font:13px sans-serif;fill:#333}.axis{stroke:#999}.grid{stroke:#999;opacity:.25}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}}"
)


@dataclass(frozen=True)
class LogLine:
    """One line: y by x, a colour by number, and its dashes as SVG writes them ("" for none)."""

    name: str
    points: dict[int, float]
    colour: int
    dash: str = ""


def draw_curves(lines: Sequence[LogLine], title: str) -> str:
    """The picture as text."""
    xs = sorted({x for line in lines for x in line.points})
    ys = _ticks([y for line in lines for y in line.points.values()])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<text x="{LEFT}" y="22" font-weight="bold">{escape(title)}</text>',
    ]
    parts += [_grid(y, ys) for y in ys]
    parts += [
        f'<text x="{_x(x, xs):.0f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{x:,}</text>' for x in xs
    ]
    parts += [_line(line, xs, ys) for line in lines]
    parts += _names(lines, xs, ys)
    return "\n".join([*parts, "</svg>", ""])


def _ticks(values: Sequence[float]) -> list[float]:
    """1, 2, 5, 10, ... from just below the least to just above the greatest."""
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    round_ones = [step * 10.0**power for power in range(first, last + 1) for step in (1, 2, 5)]
    low = max(y for y in round_ones if y <= min(values))
    high = min(y for y in round_ones if y > max(values))
    return [y for y in round_ones if low <= y <= high]


def _x(value: float, xs: Sequence[int]) -> float:
    share = math.log(value / xs[0]) / math.log(xs[-1] / xs[0]) if xs[-1] > xs[0] else 0.0
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(value: float, ys: Sequence[float]) -> float:
    return HEIGHT - BOTTOM - math.log(value / ys[0]) / math.log(ys[-1] / ys[0]) * (HEIGHT - TOP - BOTTOM)


def _grid(value: float, ys: Sequence[float]) -> str:
    y = _y(value, ys)
    kind = "axis" if value == ys[0] else "grid"
    return (
        f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{value:g}</text>'
    )


def _line(line: LogLine, xs: Sequence[int], ys: Sequence[float]) -> str:
    points = [(_x(x, xs), _y(y, ys)) for x, y in sorted(line.points.items())]
    colour = COLOURS[line.colour % len(COLOURS)]
    dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>{dots}'


def _names(lines: Sequence[LogLine], xs: Sequence[int], ys: Sequence[float]) -> list[str]:
    """Each line's name beside its end."""
    ends = sorted(((_y(line.points[max(line.points)], ys), line) for line in lines), key=lambda end: end[0])
    return [
        f'<line x1="{_x(max(line.points), xs) + 5:.1f}" y1="{y:.1f}" x2="{WIDTH - RIGHT + 18}" y2="{at:.1f}" '
        f'stroke="{COLOURS[line.colour % len(COLOURS)]}" opacity=".5"/>'
        f'<text x="{WIDTH - RIGHT + 22}" y="{at + 4:.1f}">{escape(line.name)}</text>'
        for (y, line), at in zip(ends, _apart([y for y, _ in ends]), strict=True)
    ]


def _apart(heights: Sequence[float]) -> list[float]:
    """These ascending heights, moved down where names would overlap, and up where they would leave the picture."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + 16) if placed else height)
    limit = HEIGHT - BOTTOM
    for i in range(len(placed) - 1, -1, -1):
        placed[i] = min(placed[i], limit)
        limit = placed[i] - 16
    return placed
