"""The trees that a strategy's chunks go along, if that is what they do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hemiola.core.collective.schedule import ChunkMove, CollectiveSchedule

__all__ = ["RankTree", "trees_of"]


@dataclass(frozen=True)
class RankTree:
    """One tree of all ranks.

    Attributes:
        parents: of each rank; -1 for the root.
        share: of the data that goes along it.
        chunks: that do.
    """

    parents: tuple[int, ...]
    share: float
    chunks: tuple[int, ...]

    @property
    def root(self) -> int:
        """The rank without a parent."""
        return self.parents.index(-1)


def trees_of(strategy: CollectiveSchedule) -> tuple[RankTree, ...]:
    """The trees of an all-reduce, a broadcast or a reduce, equal ones as one, the largest share first.

    () if some chunk's sums do not go up the tree that its result comes down, or a place holds first one chunk and
    then another.
    """
    if strategy.collective not in ("all-reduce", "broadcast", "reduce") or strategy.ranks < 2:
        return ()
    moves: list[list[ChunkMove]] = [[] for _ in range(strategy.chunks)]
    for move in strategy.moves:
        if (move.source.buffer, move.source.index) != (move.target.buffer, move.target.index):
            return ()
        if move.source.buffer != "input" or move.source.index + move.count > strategy.chunks:
            return ()
        for chunk in range(move.source.index, move.source.index + move.count):
            moves[chunk].append(move)
    weights = strategy.weights or (1 / strategy.chunks,) * strategy.chunks
    chunks: dict[tuple[int, ...], list[int]] = {}
    for chunk, mine in enumerate(moves):
        parents = _parents(strategy, mine)
        if not parents:
            return ()
        chunks.setdefault(parents, []).append(chunk)
    found = [RankTree(parents, sum(weights[c] for c in own), tuple(own)) for parents, own in chunks.items()]
    return tuple(sorted(found, key=lambda tree: (-tree.share, tree.chunks)))


def _parents(strategy: CollectiveSchedule, moves: Iterable[ChunkMove]) -> tuple[int, ...]:
    """Of one chunk; () if its moves are no tree, or its sums go another way than its result."""
    up: dict[int, int] = {}
    down: dict[int, int] = {}
    for move in moves:
        child, parent = (
            (move.source.rank, move.target.rank) if move.adds else (move.target.rank, move.source.rank)
        )
        ways = up if move.adds else down
        if child in ways:
            return ()
        ways[child] = parent
    expected = {"all-reduce": [up, down], "broadcast": [down], "reduce": [up]}[strategy.collective]
    first = expected[0]
    if any(one != first for one in expected) or len(first) != strategy.ranks - 1:
        return ()
    return tuple(first.get(rank, -1) for rank in range(strategy.ranks))
