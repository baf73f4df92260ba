"""A strategy whose chunks differ in size, with equal chunks, as MSCCL has them: a large one becomes several.

A chunk of share w becomes n of D equal ones, which move together. What a link carries then grows by at most
max n / (D w), so that is what is kept small: one after the other, chunks are given to whom (n + 1) / w is least for
(Jefferson's, or D'Hondt's, method; no other way of sharing out D has a smaller largest n / w).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from hemiola.core.errors import ScheduleError
from hemiola.core.collective.schedule import ChunkMove, ChunkPlace, CollectiveSchedule

__all__ = ["Equal", "equal_chunks", "repeats"]

CHUNKS_MAX = 64
"""RCCL moves fewer than 72 at once, and MSCCL uses a strategy only for tensors whose elements it can divide into them."""
ENOUGH = 0.01


@dataclass(frozen=True)
class Equal:
    """What was found.

    Attributes:
        strategy: without weights.
        excess: the share by which the data on a link grows at most: 0.02 where a chunk has 51 % instead of 50 %.
    """

    strategy: CollectiveSchedule
    excess: float


def equal_chunks(strategy: CollectiveSchedule, chunks_max: int = CHUNKS_MAX, enough: float = ENOUGH) -> Equal:
    """The same strategy with equal chunks: the fewest that come near enough to its weights, and no more than allowed.

    Args:
        enough: the excess that is near enough; where it cannot be reached, the least excess is taken.

    Raises:
        StrategyError: chunks of different sizes that do not keep their places, or are more than allowed.
    """
    if not strategy.weights:
        return Equal(strategy, 0.0)
    if strategy.collective not in ("all-reduce", "broadcast", "reduce") or not strategy.keeps_places:
        raise ScheduleError(
            f"{strategy.name!r} has chunks of different sizes, whose places follow from their number",
            "give each rank equal chunks",
        )
    if strategy.chunks > chunks_max:
        raise ScheduleError(
            f"{strategy.name!r} has {strategy.chunks} chunks of different sizes, more than {chunks_max}",
            "use fewer trees",
        )
    counts, excess = repeats(strategy.weights, chunks_max, enough)
    start = [0, *accumulate(counts)]

    def place(old: ChunkPlace) -> ChunkPlace:
        return msgspec.structs.replace(old, index=start[old.index])

    moves = tuple(
        ChunkMove(place(m.source), place(m.target), start[m.source.index + m.count] - start[m.source.index], m.adds, m.channel)
        for m in strategy.moves
    )  # fmt: skip
    found = msgspec.structs.replace(strategy, chunks=start[-1], moves=moves, weights=())
    return Equal(found.verify(), excess)


def repeats(weights: Sequence[float], most: int, enough: float = 0.0) -> tuple[tuple[int, ...], float]:
    """How many equal chunks each share becomes, and the excess of that."""
    counts = [1] * len(weights)
    next_of = [(2 / weight, number) for number, weight in enumerate(weights)]
    heapq.heapify(next_of)
    largest = max(1 / weight for weight in weights)
    best, least = tuple(counts), largest / len(counts) - 1
    for together in range(len(weights) + 1, most + 1):
        if least <= enough:
            break
        ratio, number = heapq.heappop(next_of)
        counts[number] += 1
        largest = max(largest, ratio)
        heapq.heappush(next_of, ((counts[number] + 1) / weights[number], number))
        if largest / together - 1 < least - 1e-12:
            best, least = tuple(counts), largest / together - 1
    return best, max(least, 0.0)
