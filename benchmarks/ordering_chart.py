"""Iterations as multiples of their bound, a row per model: spans and dots as SVG. Knows no benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from chart import COLOURS, STYLE

__all__ = ["DotPanel", "DotRow", "draw"]

ROW, LEFT, WIDTH, GAP, TOP = 24, 110, 300, 50, 62


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
        return (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0]) * WIDTH


def draw_dots(panels: Sequence[DotPanel], title: str, unit: str) -> str:
    """The picture as text: rows of one name stand at one height, in whichever panels they are."""
    names = list(dict.fromkeys(row.name for panel in panels for row in panel.rows))
    count = len(names)
    left = max(LEFT, max(map(len, names)) * 7 + 20)
    keys = max(len(panel.series) + bool(panel.span) for panel in panels)
    bottom = TOP + ROW * count
    height, width = bottom + 48 + 18 * keys, left + len(panels) * (WIDTH + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<text x="10" y="22" font-weight="bold">{escape(title)}</text>',
    ]
    for number, name in enumerate(names):
        y = TOP + ROW * number + ROW / 2
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
        y = TOP + ROW * names.index(row.name) + ROW / 2
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
