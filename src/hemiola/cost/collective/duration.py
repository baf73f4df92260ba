"""How long a strategy takes on a placement, and what no strategy can do faster.

Every chunk goes in pieces, and every piece of every move is a flow over the links between its two ranks, then lands.
Both wait for what moves wait for (`core.strategy.Waits`), piece by piece, so that a piece is sent on while the
next one comes. One rank sends another one piece at a time, earlier ones first; different pairs share links fairly,
but for those that are held back (`core.strategy.Pace`).
Adding up takes no time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hemiola.core.collective.schedule import CollectiveSchedule
from hemiola.cost.places import RankPlaces
from hemiola.cost.collective.bounds import Bounds, bounds
from hemiola.cost.collective.routes import Roads
from hemiola.cost.collective.rounds import rounds_seconds, unsaid_bytes
from hemiola.kernels.executor import execute
from hemiola.kernels.tasks import Tasks, tasks_from_columns

__all__ = ["Bounds", "Roads", "bounds", "strategy_seconds", "strategy_seconds_in_pieces"]

PIECES_MAX, PIECES_LEAST = 256, 16
TASKS_MAX = 1 << 19
"""Pieces are executed up to so many tasks where there is one chunk. Flows of several chunks depend on each other, and
each task takes the longer to execute: then it is as many fewer as the cube of their number."""


def strategy_seconds(
    strategy: CollectiveSchedule,
    size_bytes: float,
    place: RankPlaces,
    *,
    latency_s: float | None = None,
    local_s: float = 0.0,
    pieces_max: int | None = None,
) -> float:
    """The time until the last rank has its result, with the links to itself.

    Args:
        size_bytes: of the whole data: what `CollectiveSchedule.chunks` divide.
        latency_s: of a message between hosts, after its last byte was sent; None for the topology's.
        local_s: of a message within a host.
        pieces_max: so many pieces of a chunk are executed at most; None for 256, and fewer of large strategies. What
            other numbers take follows from this one and half of it: the time to fill a pipeline is inverse to the number
            of pieces.

    Raises:
        StrategyError: the strategy is for another number of ranks.
        InputError: bytes over a link that has no bandwidth.
    """
    chunk_bytes = [strategy.chunk_bytes]
    return strategy_seconds_in_pieces(
        strategy, size_bytes, place, chunk_bytes, latency_s=latency_s, local_s=local_s, pieces_max=pieces_max
    )[0]


def strategy_seconds_in_pieces(
    strategy: CollectiveSchedule,
    size_bytes: float,
    place: RankPlaces,
    chunk_bytes: Iterable[int],
    *,
    latency_s: float | None = None,
    local_s: float = 0.0,
    pieces_max: int | None = None,
) -> list[float]:
    """The same for pieces of several sizes, each number of pieces executed once.

    Args:
        chunk_bytes: `CollectiveSchedule.chunk_bytes` of each; the strategy's own is not looked at.
    """
    strategy.check_ranks(place.ranks)
    late = place.latency_s if latency_s is None else latency_s
    weights = np.array(strategy.weights or [1.0 / strategy.chunks] * strategy.chunks)
    sizes = size_bytes * weights
    pieces = [
        max(1, math.ceil(float(sizes.max()) / (each or unsaid_bytes(strategy)))) for each in chunk_bytes
    ]
    if max(pieces) == 1 and (found := rounds_seconds(strategy, size_bytes, place, late, local_s)) is not None:
        return [found] * len(pieces)
    columns = _Columns(strategy, sizes, place, late, local_s)
    if pieces_max is None:
        affordable = TASKS_MAX // max(1, 2 * len(strategy.moves) * strategy.chunks**3)
        pieces_max = min(PIECES_MAX, max(PIECES_LEAST, affordable))
    many = max(2, min(pieces_max, max(pieces)))
    half = many // 2

    @cache
    def took(count: int) -> float:
        return execute(columns.tasks(count)).makespan_s

    def seconds(count: int) -> float:
        if count <= half or count == many:
            return took(count)
        filling_s = (took(half) - took(many)) / (1 / half - 1 / many)
        reckoned_s = took(many) - filling_s * (1 / many - 1 / count)
        if count < many:
            return reckoned_s
        return max(reckoned_s, columns.busiest_s + (took(many) - columns.busiest_s) * many / count)

    return [seconds(count) for count in pieces]


class _Columns:
    """What is the same for any number of pieces."""

    def __init__(
        self,
        strategy: CollectiveSchedule,
        sizes: NDArray[np.float64],
        place: RankPlaces,
        latency_s: float,
        local_s: float,
    ) -> None:
        """Move m is sent by task 2 m of a piece, and lands by the next one."""
        moves = len(strategy.moves)
        roads = Roads(place)
        self.own = np.zeros((moves, 2))
        self.late = np.zeros((moves, 2))
        self.most = np.full((moves, 2), math.inf)
        paces = {(pace.source, pace.target): pace.bytes_per_s for pace in strategy.paces}
        self.lane = np.full((moves, 2), -1)
        lanes: dict[tuple[int, int, int], int] = {}
        crosses = list[tuple[int, int]]()
        for number, move in enumerate(strategy.moves):
            source, target = move.source.rank, move.target.rank
            if move.is_sent:
                crosses.extend((2 * number, link) for link in roads.between(source, target))
                self.lane[number, 0] = lanes.setdefault((source, target, move.channel), len(lanes))
                self.most[number, 0] = paces.get((source, target), math.inf)
                self.own[number, 0] = sum(sizes[at.index % strategy.chunks] for at in move.sources())
                apart = place.host_of[source] != place.host_of[target]
                self.late[number, 1] = latency_s if apart else local_s
        self.crosses, self.waits = _pairs(crosses), _pairs(_waiting(strategy))
        self.lanes, self.bytes_per_s = len(lanes), roads.bytes_per_s

    @property
    def busiest_s(self) -> float:
        """How long the busiest link is at work."""
        message, link = self.crosses.T
        loads = np.bincount(link, self.own.ravel()[message], len(self.bytes_per_s))
        return float((loads / self.bytes_per_s).max(initial=0.0))

    def tasks(self, pieces: int) -> Tasks:
        """Piece p of move m is sent by task 2 (p * moves + m), and lands by the next one."""
        moves = len(self.own)
        shift = 2 * moves * np.arange(pieces)[:, None, None]
        crosses = (self.crosses[None] + shift * [1, 0]).reshape(-1, 2)
        waits = (self.waits[None] + shift).reshape(-1, 2)
        return tasks_from_columns(
            np.tile(self.late.ravel(), pieces),
            resource=np.tile(self.lane.ravel(), pieces),
            priority=np.repeat(np.arange(pieces), 2 * moves),
            size_bytes=np.tile(self.own.ravel() / pieces, pieces),
            rate_max_bytes_per_s=np.tile(self.most.ravel(), pieces),
            crosses=(crosses[:, 0], crosses[:, 1]),
            waits=(waits[:, 0], waits[:, 1]),
            resources=self.lanes,
            link_bytes_per_s=self.bytes_per_s,
        )


def _waiting(strategy: CollectiveSchedule) -> Iterator[tuple[int, int]]:
    """Pairs of tasks of one piece of which the first waits for the second."""
    for number, waits in enumerate(strategy.waits):
        sent, landed = 2 * number, 2 * number + 1
        yield landed, sent
        yield from ((sent, 2 * one + 1) for one in waits.to_send)
        yield from ((landed, 2 * one + 1) for one in waits.to_land)
        yield from ((landed, 2 * one) for one in waits.to_free)


def _pairs(found: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    return np.array(list(found), dtype=np.int64).reshape(-1, 2)
