"""A small line chart as SVG, x logarithmic, readable on light and dark pages. Knows no benchmark."""

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
class Line:
    """One line: y by x, a colour by number, and its dashes as SVG writes them ("" for none)."""

    name: str
    points: dict[int, float]
    colour: int
    dash: str = ""


def draw(lines: Sequence[Line], title: str) -> str:
    """The picture as text."""
    xs = sorted({x for line in lines for x in line.points})
    top = _round_up(max(y for line in lines for y in line.points.values()))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<text x="{LEFT}" y="22" font-weight="bold">{escape(title)}</text>',
    ]
    parts += [_grid(top * step / 5, top) for step in range(6)]
    parts += [
        f'<text x="{_x(x, xs):.0f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{x:,}</text>' for x in xs
    ]
    parts += [_line(line, xs, top) for line in lines]
    parts += _names(lines, xs, top)
    return "\n".join([*parts, "</svg>", ""])


def _x(value: float, xs: Sequence[int]) -> float:
    share = math.log(value / xs[0]) / math.log(xs[-1] / xs[0]) if xs[-1] > xs[0] else 0.0
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)


def _grid(value: float, top: float) -> str:
    y = _y(value, top)
    return (
        f'<line class="{"axis" if value == 0 else "grid"}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{value:g}</text>'
    )


def _line(line: Line, xs: Sequence[int], top: float) -> str:
    points = [(_x(x, xs), _y(y, top)) for x, y in sorted(line.points.items())]
    colour = COLOURS[line.colour % len(COLOURS)]
    dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>{dots}'


def _names(lines: Sequence[Line], xs: Sequence[int], top: float) -> list[str]:
    """Each line's name at its end, moved down where two would overlap."""
    ends = sorted(((_y(line.points[max(line.points)], top), line) for line in lines), key=lambda end: end[0])
    labels, last = [], -math.inf
    for y, line in ends:
        last = max(y, last + 16)
        colour = COLOURS[line.colour % len(COLOURS)]
        labels.append(
            f'<line x1="{_x(max(line.points), xs) + 5:.1f}" y1="{y:.1f}" x2="{WIDTH - RIGHT + 12}" y2="{last:.1f}" '
            f'stroke="{colour}" opacity=".5"/><text x="{WIDTH - RIGHT + 16}" y="{last + 4:.0f}">{escape(line.name)}</text>'
        )
    return labels


def _round_up(value: float) -> float:
    """The next round number, for the top of an axis."""
    size = 10.0 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * size >= value)
