"""A schedule's figures in plain words, the same in the terminal and on the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from hemiola.core.collective.schedule import ChunkMove, CollectiveSchedule
from hemiola.core.errors import ScheduleError
from hemiola.report.network.schedule_picture import RankTree, shape, trees_of
from hemiola.report.network.words import lines_table, share_words

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType


__all__ = [
    "ScheduleFigures",
    "ScheduleTable",
    "facts",
    "multiple",
    "proof",
    "rank_rows",
    "schedule_figures",
    "short_name",
    "way_words",
]


# What a schedule comes to: whether it is proved right, who sends how much to whom, which trees its chunks
# go along.


@dataclass(frozen=True)
class AlikeRanks:
    """Ranks that send and receive alike.

    Attributes:
        ranks: which.
        sends, receives: of each, as a multiple of the data.
        to, of: how many others each sends to, and receives from.
    """

    ranks: tuple[int, ...]
    sends: float
    receives: float
    to: int
    of: int


@dataclass(frozen=True)
class ScheduleFigures:
    """A schedule's figures; of one that is not right, only what is wrong.

    Attributes:
        schedule: of which.
        problem: why it is not right; None if it is proved right.
        hops: over the network one after the other, on the longest way.
        sent: moves over the network.
        between: shares of the data that go from one rank to another, by (source, target); chunks sent twice count twice.
        groups: ranks that are alike, those that send most first.
        trees: that all chunks go along, the largest share first; () if some chunk's moves are no tree.
    """

    schedule: CollectiveSchedule
    problem: ScheduleError | None
    hops: int = 0
    sent: int = 0
    between: dict[tuple[int, int], float] | None = None
    groups: tuple[AlikeRanks, ...] = ()
    trees: tuple[RankTree, ...] = ()

    @property
    def busiest(self) -> float:
        """The most that a rank sends or receives, as a multiple of the data."""
        return max((max(group.sends, group.receives) for group in self.groups), default=0.0)


def schedule_figures(schedule: CollectiveSchedule) -> ScheduleFigures:
    """Prove a schedule and look at it."""
    try:
        schedule.verify()
    except ScheduleError as problem:
        return ScheduleFigures(schedule, problem)
    between: Counter[tuple[int, int]] = Counter()
    shares: dict[tuple[int, int], float] = {}
    for move in schedule.moves:
        if move.is_sent:
            pair = move.source.rank, move.target.rank
            between[pair] += 1
            shares[pair] = shares.get(pair, 0.0) + _share(schedule, move)
    return ScheduleFigures(
        schedule, None, schedule.traffic().hops, between.total(), shares, _groups(schedule.ranks, shares), trees_of(schedule)
    )  # fmt: skip


def _share(schedule: CollectiveSchedule, move: ChunkMove) -> float:
    """Of the data in one move; weights are only allowed where a place's index is its chunk's."""
    if not schedule.weights:
        return move.count / schedule.chunks
    return sum(schedule.weights[move.source.index : move.source.index + move.count])


def _groups(ranks: int, shares: dict[tuple[int, int], float]) -> tuple[AlikeRanks, ...]:
    sends, receives = [0.0] * ranks, [0.0] * ranks
    to, of = Counter(source for source, _ in shares), Counter(target for _, target in shares)
    for (source, target), share in shares.items():
        sends[source] += share
        receives[target] += share
    alike: dict[tuple[float, float, int, int], list[int]] = {}
    for rank in range(ranks):
        key = round(sends[rank], 6), round(receives[rank], 6), to[rank], of[rank]
        alike.setdefault(key, []).append(rank)
    found = [AlikeRanks(tuple(members), *key) for key, members in alike.items()]
    return tuple(sorted(found, key=lambda group: (-max(group.sends, group.receives), group.ranks)))


_LONGEST, _NAME = 44, 60


def facts(figures: ScheduleFigures) -> list[str]:
    """What the schedule is, in a few words."""
    schedule = figures.schedule
    rooted = f" of rank {schedule.root}" if schedule.collective in ("broadcast", "reduce") else ""
    chunks = f"{schedule.chunks:,} chunk{'s' * (schedule.chunks > 1)}"
    pieces = (
        f"in pieces of {schedule.chunk_bytes / 1024:,.4g} KiB"
        if schedule.chunk_bytes
        else "pieces of no given size"
    )
    told = [
        f"{schedule.collective}{rooted}",
        f"{schedule.ranks:,} ranks",
        f"{chunks}{_weights(schedule.weights)}",
        pieces,
    ]
    told.append("in place" if schedule.in_place else "from input to output")
    return [*told, f"made by: {schedule.source}"] if schedule.source else told


def _weights(weights: Sequence[float]) -> str:
    if not weights:
        return ""
    if len(weights) <= 6:
        return f" ({', '.join(share_words(weight) for weight in weights)})"
    least, most = share_words(min(weights)), share_words(max(weights))
    return f" ({least} to {most} each)" if least != most else f" ({most} each)"


def short_name(figures: ScheduleFigures) -> str:
    """The schedule's name; a long one, such as a ring's of many ranks, is cut."""
    name = figures.schedule.name
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"


def proof(figures: ScheduleFigures) -> str:
    """Whether it is right."""
    if figures.problem:
        return f"Not right: {figures.problem.what}."
    moves = len(figures.schedule.moves)
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


def rank_rows(groups: Sequence[AlikeRanks]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and lines of the table of ranks."""
    rows: list[tuple[str, ...]] = [
        (ranks_words(one.ranks), multiple(one.sends), f"{one.to:,}", multiple(one.receives), f"{one.of:,}")
        for one in groups
    ]
    return ("", "each sends", "to so many", "each receives", "from so many"), rows


# A schedule in the terminal: what it is, whether it is right, what each rank sends, along which trees.


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
