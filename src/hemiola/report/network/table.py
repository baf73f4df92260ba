"""A topology in the terminal: where it is narrow, hosts that are alike, uplinks, where it came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hemiola.report.network.figures import NetworkFigures
from hemiola.report.network.words import (
    domain_names,
    facts,
    finding,
    host_names,
    latency_words,
    oversubscribed,
    rate_words,
    reasons,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

__all__ = ["NetworkTable", "lines_table"]

MOST = 12
"""Lines of a table; what is left out is told."""


class NetworkTable:
    """The tables, one below the other, as something that Rich can print."""

    def __init__(self, figures: NetworkFigures) -> None:
        self.figures = figures

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """What to draw."""
        from rich.text import Text

        figures = self.figures
        name = Text(figures.topology.name, style="bold")
        yield name + Text(f": {', '.join(facts(figures))}", style="not bold")
        yield Text(finding(figures), style="bold")
        yield from (Text(f"- {line}") for line in reasons(figures))
        heads, rows = host_rows(figures)
        yield from lines_table("Hosts, slowest first", heads, rows)
        for level in range(len(figures.domains)):
            heads, rows = uplink_rows(figures, level)
            yield from lines_table(
                f"Uplinks of {figures.topology.levels[level].name}s, narrowest first", heads, rows
            )
        if figures.topology.source:
            yield Text(f"Source: {figures.topology.source}", style="dim")


def host_rows(figures: NetworkFigures) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and lines of the table of hosts."""
    apart = any(group.is_apart for group in figures.groups)
    rows = []
    for group in figures.groups:
        rates = (rate_words(group.out), rate_words(group.into)) if apart else (rate_words(group.slower),)
        gpus = f"{group.gpus} {group.gpu_type}".strip()
        rows.append((host_names(figures, group), f"{len(group.hosts):,}", *rates, latency_words(group), gpus))
    return ("", "hosts", *(("out", "in") if apart else ("rate",)), "latency", "GPUs each"), rows


def uplink_rows(figures: NetworkFigures, level: int) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and lines of the table of a level's uplinks."""
    rows: list[tuple[str, ...]] = [
        (
            domain_names(figures, level, one.numbers), f"{len(one.numbers):,}", f"{one.hosts:,}", rate_words(one.uplink),
            oversubscribed(one),
        )
        for one in figures.domains[level]
    ]  # fmt: skip
    word = figures.topology.levels[level].name
    return ("", f"{word}s", "hosts each", "uplink", "oversubscription"), rows


def lines_table(
    title: str, heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]
) -> Iterator[RenderableType]:
    """A table whose first column is named by its title; nothing without lines."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    if not rows:
        return
    more = f" ({MOST} of {len(rows):,} lines)" if len(rows) > MOST else ""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left")
    table.title = Text(title + more, style="bold not italic")
    table.add_column(
        heads[0], overflow="fold", style="bold", min_width=min(20, max(len(row[0]) for row in rows[:MOST]))
    )
    for head in heads[1:]:
        table.add_column(Text(head), justify="right", overflow="fold")
    for row in rows[:MOST]:
        table.add_row(*map(Text, row))
    yield table
