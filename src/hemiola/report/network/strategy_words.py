"""A strategy's figures in plain words, the same in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hemiola.report.network.sent import RankGroup, ScheduleFigures
from hemiola.report.network.words import share_words

__all__ = ["facts", "multiple", "proof", "rank_rows", "ranks_words", "short_name", "way_words"]

_LONGEST, _NAME = 44, 60


def facts(figures: ScheduleFigures) -> list[str]:
    """What the strategy is, in a few words."""
    strategy = figures.strategy
    rooted = f" of rank {strategy.root}" if strategy.collective in ("broadcast", "reduce") else ""
    chunks = f"{strategy.chunks:,} chunk{'s' * (strategy.chunks > 1)}"
    pieces = (
        f"in pieces of {strategy.chunk_bytes / 1024:,.4g} KiB"
        if strategy.chunk_bytes
        else "pieces of no given size"
    )
    told = [
        f"{strategy.collective}{rooted}",
        f"{strategy.ranks:,} ranks",
        f"{chunks}{_weights(strategy.weights)}",
        pieces,
    ]
    told.append("in place" if strategy.in_place else "from input to output")
    return [*told, f"made by: {strategy.source}"] if strategy.source else told


def _weights(weights: Sequence[float]) -> str:
    if not weights:
        return ""
    if len(weights) <= 6:
        return f" ({', '.join(share_words(weight) for weight in weights)})"
    least, most = share_words(min(weights)), share_words(max(weights))
    return f" ({least} to {most} each)" if least != most else f" ({most} each)"


def short_name(figures: ScheduleFigures) -> str:
    """The strategy's name; a long one, such as a ring's of many ranks, is cut."""
    name = figures.strategy.name
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"


def proof(figures: ScheduleFigures) -> str:
    """Whether it is right."""
    if figures.problem:
        return f"Not right: {figures.problem.what}."
    moves = len(figures.strategy.moves)
    return f"Proved right: after its {moves:,} move{'s' * (moves != 1)} every rank has its result, each contribution once."


def way_words(figures: ScheduleFigures) -> str:
    """The longest way, and the busiest rank."""
    hops = f"The longest way is {figures.hops:,} hop{'s' * (figures.hops != 1)}"
    return f"{hops}; the busiest rank sends or receives {multiple(figures.busiest)} the data."


def multiple(share: float) -> str:
    """A multiple of the data."""
    return f"{share:.3g} ×"


def ranks_words(ranks: Sequence[int]) -> str:
    """Ranks in their order, neighbours as a range."""
    starts = [0, *(n for n, (a, b) in enumerate(pairwise(ranks), 1) if b != a + 1), len(ranks)]
    runs = [ranks[a:b] for a, b in pairwise(starts)]
    text = ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    if len(text) > _LONGEST:
        text = f"{ranks[0]}, {ranks[1]} and {len(ranks) - 2:,} more"
    return f"rank{'s' * (len(ranks) > 1)} {text}"


def rank_rows(groups: Sequence[RankGroup]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and lines of the table of ranks."""
    rows: list[tuple[str, ...]] = [
        (ranks_words(one.ranks), multiple(one.sends), f"{one.to:,}", multiple(one.receives), f"{one.of:,}")
        for one in groups
    ]
    return ("", "each sends", "to so many", "each receives", "from so many"), rows
