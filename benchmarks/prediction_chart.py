"""Predicted against measured iterations as SVG, both axes logarithmic, readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from chart import COLOURS, STYLE

__all__ = ["Point", "draw"]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 800, 560, 70, 210, 40, 55
BAND = 0.10


@dataclass(frozen=True)
class Point:
    """One case, of a series by number; hollow or filled."""

    predicted_s: float
    measured_s: float
    series: int
    hollow: bool
    about: str


def draw_points(points: Sequence[Point], series: Sequence[str], hollow: tuple[str, str]) -> str:
    """The picture as text.

    Args:
        series: names, by number.
        hollow: what filled and hollow points are.
    """
    times = [t for p in points for t in (p.predicted_s, p.measured_s)]
    low, high = math.floor(math.log10(min(times)) * 4) / 4, math.ceil(math.log10(max(times)) * 4) / 4
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(seconds: float) -> float:
        return LEFT + (math.log10(seconds) - low) / (high - low) * (right - LEFT)

    def y(seconds: float) -> float:
        return bottom - (math.log10(seconds) - low) / (high - low) * (bottom - TOP)

    title = "Iterations, predicted and measured"
    least, most = 10**low, 10**high
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{title}</title><style>{STYLE}</style>",
        f'<clipPath id="area"><rect x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}"/></clipPath>',
        f'<text x="{LEFT}" y="22" font-weight="bold">{title}</text>',
        f'<text x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 10}" text-anchor="middle">predicted</text>',
        f'<text transform="translate(16 {(TOP + bottom) / 2:.0f}) rotate(-90)" text-anchor="middle">measured</text>',
    ]
    for tick in [t for power in range(-3, 3) for t in (10.0**power, 3 * 10.0**power) if least <= t <= most]:
        label = f"{1000 * tick:g} ms" if tick < 1 else f"{tick:g} s"
        parts.append(
            f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP}" y2="{bottom}"/>'
            f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
            f'<text x="{x(tick):.1f}" y="{bottom + 20}" text-anchor="middle">{label}</text>'
            f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{label}</text>'
        )
    corners = ((least, 1 + BAND), (most, 1 + BAND), (most, 1 / (1 + BAND)), (least, 1 / (1 + BAND)))
    band = " ".join(f"{x(t):.1f},{y(t * f):.1f}" for t, f in corners)
    parts.append(
        f'<g clip-path="url(#area)"><polygon points="{band}" fill="#888" opacity=".18"/>'
        f'<line class="axis" x1="{x(least):.1f}" y1="{y(least):.1f}" x2="{x(most):.1f}" y2="{y(most):.1f}"/></g>'
    )
    parts += [_mark(x(p.predicted_s), y(p.measured_s), p.series, p.hollow, p.about) for p in points]
    keys = [(name, number, flag) for number, name in enumerate(series) for flag in (False, True)]
    for row, (name, number, flag) in enumerate(keys):
        at = TOP + 12 + 22 * row
        parts.append(_mark(right + 24, at, number, flag, ""))
        parts.append(f'<text x="{right + 36}" y="{at + 4}">{escape(f"{name}, {hollow[flag]}")}</text>')
    parts.append(f'<text x="{right + 14}" y="{TOP + 16 + 22 * len(keys)}">band: within {BAND:.0%}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _mark(x: float, y: float, series: int, hollow: bool, about: str) -> str:
    colour = COLOURS[series % len(COLOURS)]
    fill = "none" if hollow else colour
    title = f"<title>{escape(about)}</title>" if about else ""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" fill-opacity=".75" stroke="{colour}" stroke-width="1.5">{title}</circle>'
