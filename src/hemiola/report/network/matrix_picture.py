"""Who sends how much to whom, as a matrix: rows send, columns receive; the darker a cell, the more."""

from __future__ import annotations

from math import ceil

from hemiola.report.network.shapes import text
from hemiola.report.network.strategy_words import multiple

__all__ = ["CELLS", "matrix_picture"]

CELLS = 64
"""Most rows; of more ranks, neighbours are put together."""
SIDE, CELL_MOST, LEFT, TOP = 600, 46, 74, 46
_WRITTEN = 34
"""Size of a cell that its number fits into."""


def matrix_picture(between: dict[tuple[int, int], float], ranks: int) -> str:
    """The picture as an SVG element.

    Args:
        between: what goes from one rank to another, as a multiple of the data.
    """
    together = ceil(ranks / CELLS)
    count = ceil(ranks / together)
    sums: dict[tuple[int, int], float] = {}
    for (source, target), share in between.items():
        cell = source // together, target // together
        sums[cell] = sums.get(cell, 0.0) + share
    most = max(sums.values(), default=1.0)
    size = min(SIDE / count, CELL_MOST)
    side = size * count
    parts = [
        f'<rect x="{LEFT}" y="{TOP}" width="{side:.1f}" height="{side:.1f}" fill="none" stroke="var(--line)"/>',
        text(LEFT + side / 2, 14, "to rank", "var(--soft)", 'text-anchor="middle"'),
        text(0, TOP - 8, "from rank", "var(--soft)"),
    ]
    for (row, column), share in sorted(sums.items()):
        parts.append(_cell(row, column, share, most, size, together, ranks))
    every = ceil(count / (32 if size >= 18 else 16))
    for number in range(0, count, every):
        at = (number + 0.5) * size
        parts.append(
            text(LEFT + at, TOP - 8, str(number * together), "var(--ink)", 'text-anchor="middle"', size=12)
        )
        parts.append(
            text(LEFT - 8, TOP + at + 4, str(number * together), "var(--ink)", 'text-anchor="end"', size=12)
        )
    width, height = LEFT + side + 4, TOP + side + 4
    return (
        f'<div class="scroll"><svg viewBox="0 0 {width:.0f} {height:.0f}" style="display:block;width:100%;max-width:{width:.0f}px" role="img" '
        f'aria-label="Who sends how much to whom" font-family="inherit">{"".join(parts)}</svg></div>'
    )


def _cell(row: int, column: int, share: float, most: float, size: float, together: int, ranks: int) -> str:
    x, y, dark = LEFT + column * size, TOP + row * size, share / most
    said = f"{_ranks(row, together, ranks)} to {_ranks(column, together, ranks)}: {multiple(share)} the data"
    box = (
        f'<rect x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{size - 1:.1f}" height="{size - 1:.1f}" fill="var(--communication)" '
        f'fill-opacity="{0.12 + 0.88 * dark:.2f}"><title>{said}</title></rect>'
    )
    if size < _WRITTEN:
        return box
    ink = "var(--paper)" if dark > 0.55 else "var(--ink)"
    return box + text(
        x + size / 2,
        y + size / 2 + 4,
        f"{share:.2g}",
        ink,
        'text-anchor="middle" pointer-events="none"',
        size=12,
    )


def _ranks(cell: int, together: int, ranks: int) -> str:
    first, last = cell * together, min((cell + 1) * together, ranks) - 1
    return f"rank {first}" if first == last else f"ranks {first} to {last}"
