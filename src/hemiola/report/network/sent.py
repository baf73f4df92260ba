"""What a strategy comes to: whether it is proved right, who sends how much to whom, which trees its chunks go along."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hemiola.core.errors import ScheduleError
from hemiola.core.collective.schedule import ChunkMove, CollectiveSchedule
from hemiola.report.network.forest import RankTree, trees_of

__all__ = ["RankGroup", "ScheduleFigures", "strategy_figures"]


@dataclass(frozen=True)
class RankGroup:
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
    """A strategy's figures; of one that is not right, only what is wrong.

    Attributes:
        strategy: of which.
        problem: why it is not right; None if it is proved right.
        hops: over the network one after the other, on the longest way.
        sent: moves over the network.
        between: shares of the data that go from one rank to another, by (source, target); chunks sent twice count twice.
        groups: ranks that are alike, those that send most first.
        trees: that all chunks go along, the largest share first; () if some chunk's moves are no tree.
    """

    strategy: CollectiveSchedule
    problem: ScheduleError | None
    hops: int = 0
    sent: int = 0
    between: dict[tuple[int, int], float] | None = None
    groups: tuple[RankGroup, ...] = ()
    trees: tuple[RankTree, ...] = ()

    @property
    def busiest(self) -> float:
        """The most that a rank sends or receives, as a multiple of the data."""
        return max((max(group.sends, group.receives) for group in self.groups), default=0.0)


def strategy_figures(strategy: CollectiveSchedule) -> ScheduleFigures:
    """Prove a strategy and look at it."""
    try:
        strategy.verify()
    except ScheduleError as problem:
        return ScheduleFigures(strategy, problem)
    between: Counter[tuple[int, int]] = Counter()
    shares: dict[tuple[int, int], float] = {}
    for move in strategy.moves:
        if move.is_sent:
            pair = move.source.rank, move.target.rank
            between[pair] += 1
            shares[pair] = shares.get(pair, 0.0) + _share(strategy, move)
    return ScheduleFigures(
        strategy, None, strategy.traffic().hops, between.total(), shares, _groups(strategy.ranks, shares), trees_of(strategy)
    )  # fmt: skip


def _share(strategy: CollectiveSchedule, move: ChunkMove) -> float:
    """Of the data in one move; weights are only allowed where a place's index is its chunk's."""
    if not strategy.weights:
        return move.count / strategy.chunks
    return sum(strategy.weights[move.source.index : move.source.index + move.count])


def _groups(ranks: int, shares: dict[tuple[int, int], float]) -> tuple[RankGroup, ...]:
    sends, receives = [0.0] * ranks, [0.0] * ranks
    to, of = Counter(source for source, _ in shares), Counter(target for _, target in shares)
    for (source, target), share in shares.items():
        sends[source] += share
        receives[target] += share
    alike: dict[tuple[float, float, int, int], list[int]] = {}
    for rank in range(ranks):
        key = round(sends[rank], 6), round(receives[rank], 6), to[rank], of[rank]
        alike.setdefault(key, []).append(rank)
    found = [RankGroup(tuple(members), *key) for key, members in alike.items()]
    return tuple(sorted(found, key=lambda group: (-max(group.sends, group.receives), group.ranks)))
