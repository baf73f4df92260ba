"""Boxes and texts of the pictures, as SVG. Knows no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["LETTER", "box", "cut", "label", "text"]

LETTER = 7.1
"""Width of a letter, about, at 13 px."""
_GAP, _LINE = 10, 15


def box(
    lines: tuple[str, str], left: float, top: float, width: float, height: float, said: str, *, stacked: bool
) -> str:
    """A box with a title and a note; one for several that are alike is a stack. `said` is told when pointed at."""
    x, wide = left + _GAP / 2, width - _GAP
    behind = [_rect(x + shift, top + shift, wide - 6, height - 6) for shift in (6, 3)] if stacked else []
    inner, high = (wide - 6, height - 6) if stacked else (wide, height)
    middle, (title, note) = x + inner / 2, lines
    parts = [_rect(x, top, inner, high)]
    parts.append(
        text(
            middle,
            top + high / 2 + (-3 if note else 5),
            cut(title, inner),
            "var(--ink)",
            'font-weight="650" text-anchor="middle"',
        )
    )
    if note:
        parts.append(
            text(
                middle, top + high / 2 + 12, cut(note, inner), "var(--soft)", 'text-anchor="middle"', size=12
            )
        )
    return f"<g><title>{escape(said)}</title>{''.join(behind + parts)}</g>"


def label(lines: Sequence[str], x: float, y: float) -> str:
    """Lines around a place, the first one bold, on a ground of their own so that they can lie on a link."""
    wide, high = max(map(len, lines)) * LETTER + 4, _LINE * len(lines) + 4
    ground = f'<rect x="{x - wide / 2:.1f}" y="{y - high / 2:.1f}" width="{wide:.1f}" height="{high}" rx="4" fill="var(--paper)"/>'
    first = y - high / 2 + 13
    looks = ['text-anchor="middle" font-weight="650"', *['text-anchor="middle"'] * (len(lines) - 1)]
    texts = [
        text(x, first + _LINE * n, line, "var(--ink)", look)
        for n, (line, look) in enumerate(zip(lines, looks, strict=True))
    ]
    return ground + "".join(texts)


def text(x: float, y: float, said: str, fill: str, look: str = "", size: float = 13) -> str:
    """A line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill}" {look}>{escape(said)}</text>'


def cut(said: str, width: float) -> str:
    """A text that is not wider."""
    most = max(int(width / LETTER), 3)
    return said if len(said) <= most else f"{said[: most - 1]}…"


def _rect(x: float, y: float, width: float, height: float) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6" fill="var(--page)" stroke="var(--soft)"/>'
