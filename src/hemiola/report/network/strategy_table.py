"""A strategy in the terminal: what it is, whether it is right, what each rank sends, along which trees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hemiola.report.network.sent import ScheduleFigures
from hemiola.report.network.strategy_words import facts, proof, rank_rows, short_name, way_words
from hemiola.report.network.table import lines_table
from hemiola.report.network.tree_picture import shape
from hemiola.report.network.words import share_words

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

__all__ = ["ScheduleTable"]


class ScheduleTable:
    """The tables, one below the other, as something that Rich can print."""

    def __init__(self, figures: ScheduleFigures) -> None:
        self.figures = figures

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """What to draw."""
        from rich.text import Text

        figures = self.figures
        yield Text(short_name(figures), style="bold") + Text(
            f": {', '.join(facts(figures))}", style="not bold"
        )
        yield Text(proof(figures), style="bold red" if figures.problem else "bold")
        if figures.problem:
            return
        yield Text(way_words(figures))
        yield from lines_table("Ranks, busiest first", *rank_rows(figures.groups))
        rows = []
        for number, tree in enumerate(figures.trees, 1):
            found = shape(tree)
            rows.append(
                (
                    f"tree {number}",
                    share_words(tree.share),
                    f"rank {tree.root}",
                    f"{found.depth:,}",
                    f"{found.most:,}",
                )
            )
        yield from lines_table(
            "Trees", ("", "of the data", "root", "hops to the root", "most children"), rows
        )
