"""A strategy's page: whether it is right, its trees, who sends how much to whom."""

from __future__ import annotations

from html import escape

from hemiola.report.job.cards import card, table
from hemiola.report.network.matrix_picture import CELLS, matrix_picture
from hemiola.report.network.page import head, page
from hemiola.report.network.sent import ScheduleFigures
from hemiola.report.network.strategy_words import facts, multiple, proof, rank_rows, short_name, way_words
from hemiola.report.network.tree_picture import MOST_RANKS, is_wide, tree_picture
from hemiola.report.network.words import share_words

__all__ = ["render_strategy"]

MOST_TREES = 12
_WAYS = {
    "all-reduce": "Sums go up to the root (filled), the result comes down the same way.",
    "broadcast": "The data comes down from the root (filled).",
    "reduce": "Sums go up to the root (filled).",
}


def render_strategy(figures: ScheduleFigures, title: str = "") -> str:
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
    if not drawn or figures.strategy.ranks > MOST_RANKS:
        return ""
    ways = _WAYS[figures.strategy.collective]
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
    ranks = figures.strategy.ranks
    text = "As multiples of the data, all moves together; the darker, the more."
    if ranks > CELLS:
        text += " Neighbouring ranks share a row and a column."
    return card("Who sends how much to whom", text, matrix_picture(figures.between or {}, ranks))
