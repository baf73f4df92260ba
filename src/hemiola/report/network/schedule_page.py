"""A schedule's page: whether it is right, its trees, who sends how much to whom."""

from __future__ import annotations

from html import escape
from math import ceil

from hemiola.report.job.page import card, table
from hemiola.report.network.page import head, page
from hemiola.report.network.picture import text
from hemiola.report.network.schedule_picture import MOST_RANKS, is_wide, tree_picture
from hemiola.report.network.schedule_words import (
    ScheduleFigures,
    facts,
    multiple,
    proof,
    rank_rows,
    short_name,
    way_words,
)
from hemiola.report.network.words import share_words

__all__ = ["render_schedule"]


# Who sends how much to whom, as a matrix: rows send, columns receive; the darker a cell, the more.

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


MOST_TREES = 12
_WAYS = {
    "all-reduce": "Sums go up to the root (filled), the result comes down the same way.",
    "broadcast": "The data comes down from the root (filled).",
    "reduce": "Sums go up to the root (filled).",
}


def render_schedule(figures: ScheduleFigures, title: str = "") -> str:
    """The page as text."""
    heading = title or short_name(figures)
    if figures.problem:
        more = [f"What to do: {figures.problem.remedy}."] if figures.problem.remedy else []
        return page(heading, [head(heading, facts(figures), proof(figures), more, [])])
    return page(
        heading,
        [
            head(heading, facts(figures), proof(figures), [], _numbers(figures)),
            _trees(figures),
            _matrix(figures),
            card(
                "Ranks",
                f"Busiest first, as multiples of the data. {way_words(figures)}",
                table(*rank_rows(figures.groups)),
            ),
        ],
    )


def _numbers(figures: ScheduleFigures) -> list[tuple[str, str]]:
    found = [
        (f"{figures.hops:,}", "hops one after the other on the longest way"),
        (multiple(figures.busiest), "the data: the most that a rank sends or receives"),
        (f"{figures.sent:,}", "moves over the network"),
    ]
    return (
        [*found, (f"{len(figures.trees):,}", f"different tree{'s' * (len(figures.trees) > 1)}")]
        if figures.trees
        else found
    )


def _trees(figures: ScheduleFigures) -> str:
    drawn = figures.trees[:MOST_TREES]
    if not drawn or figures.schedule.ranks > MOST_RANKS:
        return ""
    ways = _WAYS[figures.schedule.collective]
    cards = [
        (is_wide(tree), _card(number, share_words(tree.share), ways, tree_picture(tree, number)))
        for number, tree in enumerate(drawn, 1)
    ]
    narrow = "".join(text for wide, text in cards if not wide)
    told = "".join(text for wide, text in cards if wide)
    left = len(figures.trees) - len(drawn)
    more = f'<p class="aside">{left:,} further trees carry {share_words(sum(tree.share for tree in figures.trees[MOST_TREES:]))} of the data.</p>'
    return (f'<section class="grid">{narrow}</section>' if narrow else "") + told + (more if left else "")


def _card(number: int, share: str, ways: str, picture: str) -> str:
    return f'<section class="card"><h2>Tree {number}: {escape(share)} of the data</h2><p class="about">{escape(ways)}</p>{picture}</section>'


def _matrix(figures: ScheduleFigures) -> str:
    ranks = figures.schedule.ranks
    text = "As multiples of the data, all moves together; the darker, the more."
    if ranks > CELLS:
        text += " Neighbouring ranks share a row and a column."
    return card("Who sends how much to whom", text, matrix_picture(figures.between or {}, ranks))
