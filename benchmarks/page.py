"""What every page of a benchmark says alike: with what and where it was measured, tables, spreads, pictures beside it.

Pictures are SVG, readable on light and dark pages: a line chart with both axes logarithmic, and rows of dots. Knows
no benchmark.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import median
from xml.sax.saxutils import escape


def measured_with(command: str, *, did: str = "Measured") -> str:
    """The line that says when, by which command and on which machine."""
    return f"{did} on {date.today():%Y-%m-%d} with `{command}` on: {machine()}."


def write_page(file: Path, text: str, pictures: Mapping[str, str] | None = None) -> None:
    """Write a page, and its pictures beside it by their names."""
    file.write_text(text, encoding="utf-8")
    for name, drawing in (pictures or {}).items():
        file.with_name(name).write_text(drawing, encoding="utf-8")


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, least and most: "1.20 (1.15-1.31)"."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def verdict(value: float, limit: float) -> str:
    """Whether a target is met."""
    return "met" if value <= limit else f"missed ({value / limit:.2f}x)"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, numbers to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def machine() -> str:
    """Processor, cores, system and Python, in one line."""
    return (
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"{platform.python_implementation()} {platform.python_version()}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


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


# Iterations as multiples of their bound, a row per model: spans and dots as SVG. Knows no benchmark.

ROW, DOTS_LEFT, DOTS_WIDTH, GAP, DOTS_TOP = 24, 110, 300, 50, 62


@dataclass(frozen=True)
class DotRow:
    """One model: a dot per series, by name; a span (low, high) where there is one."""

    name: str
    dots: dict[str, float]
    span: tuple[float, float] | None = None


@dataclass(frozen=True)
class DotPanel:
    """Rows beside those of other panels, with a scale of its own.

    Attributes:
        span: what spans are.
        ticks: of the scale, from its first to its last.
    """

    title: str
    rows: Sequence[DotRow]
    ticks: Sequence[float]
    span: str = ""
    series: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.series.extend(dict.fromkeys(name for row in self.rows for name in row.dots))

    def x(self, value: float) -> float:
        """Within the panel."""
        return (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0]) * DOTS_WIDTH


def draw_dots(panels: Sequence[DotPanel], title: str, unit: str) -> str:
    """The picture as text: rows of one name stand at one height, in whichever panels they are."""
    names = list(dict.fromkeys(row.name for panel in panels for row in panel.rows))
    count = len(names)
    left = max(DOTS_LEFT, max(map(len, names)) * 7 + 20)
    keys = max(len(panel.series) + bool(panel.span) for panel in panels)
    bottom = DOTS_TOP + ROW * count
    height, width = bottom + 48 + 18 * keys, left + len(panels) * (DOTS_WIDTH + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<text x="10" y="22" font-weight="bold">{escape(title)}</text>',
    ]
    for number, name in enumerate(names):
        y = DOTS_TOP + ROW * number + ROW / 2
        parts.append(f'<text x="{left - 10}" y="{y + 4:.0f}" text-anchor="end">{escape(name)}</text>')
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate({left + number * (WIDTH + GAP)} 0)">')
        parts += [*_axis(panel, bottom, unit), *_rows(panel, names), *_keys(panel, bottom + 56), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _axis(panel: DotPanel, bottom: float, unit: str) -> list[str]:
    found = [f'<text y="46">{escape(panel.title)}</text>']
    for tick in panel.ticks:
        kind = "axis" if tick == panel.ticks[0] else "grid"
        x = panel.x(tick)
        found.append(
            f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>'
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>'
        )
    return [*found, f'<text x="{WIDTH / 2}" y="{bottom + 34}" text-anchor="middle">{escape(unit)}</text>']


def _rows(panel: DotPanel, names: Sequence[str]) -> list[str]:
    found = []
    for row in panel.rows:
        y = DOTS_TOP + ROW * names.index(row.name) + ROW / 2
        found.append(f'<line class="grid" x1="0" x2="{WIDTH}" y1="{y}" y2="{y}"/>')
        if row.span is not None:
            found.append(_bar(panel.x(row.span[0]), panel.x(row.span[1]), y))
        for name, value in row.dots.items():
            found.append(
                _dot(panel.x(value), y, panel.series.index(name), f"{row.name}, {name}: {value:.3f}")
            )
    return found


def _keys(panel: DotPanel, top: float) -> list[str]:
    found = []
    for number, name in enumerate(panel.series):
        y = top + 18 * number
        found.append(_dot(6, y, number, "") + f'<text x="22" y="{y + 4}">{escape(name)}</text>')
    if panel.span:
        y = top + 18 * len(panel.series)
        found.append(_bar(0, 14, y) + f'<text x="22" y="{y + 4}">{escape(panel.span)}</text>')
    return found


def _bar(low: float, high: float, y: float) -> str:
    return (
        f'<rect x="{low:.1f}" y="{y - 4:.1f}" width="{high - low:.1f}" height="8" fill="#888" opacity=".4"/>'
    )


def _dot(x: float, y: float, series: int, about: str) -> str:
    colour = COLOURS[series % len(COLOURS)]
    title = f"<title>{escape(about)}</title>" if about else ""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}" fill-opacity=".85">{title}</circle>'
