"""How long rings, and halving and doubling, take among so many ranks that there are too many chunks to follow each.

Every rank sends one message a round, and all rounds of a ring are alike. So one round of a ring is executed, with all
messages under way at once, and the rest follows: a rank sends on when it has sent what it sent before, and when what it
sends has come. That is exact where no two messages share a link, as in a ring through domain after domain. Halving and
doubling is executed message by message instead of chunk by chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemiola.core.collective.schedule import PIECE_BYTES, CollectiveSchedule
from hemiola.core.collective.shapes import halving_doubling
from hemiola.cost.places import RankPlaces
from hemiola.kernels.executor import execute
from hemiola.kernels.executor.tasks import tasks_from_columns

__all__ = ["Roads", "ring_order", "ring_seconds", "rounds_seconds", "unsaid_bytes"]


# Which links a message between two ranks of a placement crosses.


class Roads:
    """The links that messages between two ranks of a placement cross.

    Between hosts they are the placement's, in both directions. Within a host each rank has its own way out and in, as
    fast as one of its GPUs sends to another.

    Attributes:
        names, bytes_per_s: of every link.
    """

    def __init__(self, place: RankPlaces) -> None:
        inner = {next(iter(link.hosts)): link.bytes_per_s for link in place.links if link.inner}
        within = [inner.get(host, math.inf) for host in place.host_of]
        self._place = place
        self._above: list[list[int]] = [[] for _ in place.counts]
        for number, link in enumerate(place.links):
            for host in () if link.inner else link.hosts:
                self._above[host].append(number)
        self._known: dict[tuple[int, int], tuple[int, ...]] = {}
        self.names = (
            *place.names,
            *(f"rank {rank} {way}" for way in ("out", "in") for rank in range(place.ranks)),
        )
        self.bytes_per_s = np.concatenate([place.bytes_per_s, within, within])

    def between(self, source: int, target: int) -> tuple[int, ...]:
        """Their numbers, for a message from one rank to another."""
        if (source, target) not in self._known:
            self._known[source, target] = tuple(self._found(source, target))
        return self._known[source, target]

    def _found(self, source: int, target: int) -> Iterator[int]:
        place = self._place
        one, other, count = place.host_of[source], place.host_of[target], len(place.links)
        if one == other:
            yield from (2 * count + source, 2 * count + place.ranks + target)
            return
        yield from (number for number in self._above[one] if other not in place.links[number].hosts)
        yield from (count + number for number in self._above[other] if one not in place.links[number].hosts)


CHUNKS_MAX = 1 << 15
"""Sendings of chunks up to which each is followed: a ring of 128 ranks has fewer."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def rounds_seconds(
    schedule: CollectiveSchedule,
    size_bytes: float,
    place: RankPlaces,
    latency_s: float,
    local_s: float = 0.0,
    chunks_max: int = CHUNKS_MAX,
) -> float | None:
    """The time of a large ring, or of a large halving and doubling; None for anything else.

    Args:
        chunks_max: that are sent in a schedule that is not large.
    """
    if schedule.weights or schedule.paces or sum(move.count for move in schedule.moves) <= chunks_max:
        return None
    order = ring_order(schedule)
    if order:
        return ring_seconds(order, size_bytes, place, latency_s, len(schedule.moves) // len(order), local_s)
    if _is_halving_doubling(schedule):
        return halving_doubling_seconds(size_bytes, place, latency_s, local_s)
    return None


def unsaid_bytes(schedule: CollectiveSchedule) -> float:
    """So much of a chunk goes at a time where a schedule does not say it (`CollectiveSchedule.chunk_bytes`).

    By rings, and by halving and doubling, it is reckoned whole, as libraries' own ones are: their ranks send all the time.
    """
    return math.inf if ring_order(schedule) or _is_halving_doubling(schedule) else PIECE_BYTES


def _is_halving_doubling(schedule: CollectiveSchedule) -> bool:
    ranks = schedule.ranks
    return ranks & (ranks - 1) == 0 and schedule.moves == halving_doubling(ranks).moves


def ring_order(schedule: CollectiveSchedule) -> list[int]:
    """The ranks of a ring in its order; none where a schedule is no ring: each round, every rank sends the next one
    a chunk, the one that came in the round before."""
    count, moves = schedule.ranks, schedule.moves
    order = [move.source.rank for move in moves[:count]]
    if sorted(order) != list(range(count)) or len(moves) % count:
        return []
    after = order[1:] + order[:1]
    came = [move.source.index for move in moves[:count]]
    for start in range(0, len(moves), count):
        for at, move in enumerate(moves[start : start + count]):
            chunk, source, target = came[at], move.source, move.target
            is_next = source.rank == order[at] and target.rank == after[at] and move.count == 1
            if not is_next or not source.index == target.index == chunk:
                return []
        came = came[-1:] + came[:-1]
    return order


def ring_seconds(
    order: Sequence[int],
    size_bytes: float,
    place: RankPlaces,
    latency_s: float,
    rounds: int | None = None,
    local_s: float = 0.0,
) -> float:
    """How long a ring takes.

    Args:
        order: the ranks, each before the one that it sends to.
        size_bytes: of the whole data.
        latency_s: of a message between hosts.
        rounds: as many as an all-reduce has, 2 (N - 1), or fewer.
        local_s: of a message within a host.
    """
    count = len(order)
    if count < 2:
        return 0.0
    source = np.array(order)
    target = np.roll(source, -1)
    sending_s = _all_at_once(source, target, size_bytes / count, place)
    late_s = _late(source, target, place, latency_s, local_s)
    sent_s, came_s = np.zeros(count), np.zeros(count)
    last_s = 0.0
    for _ in range(rounds if rounds is not None else 2 * (count - 1)):
        sent_s = np.maximum(sent_s, came_s) + sending_s
        came_s = np.roll(sent_s + late_s, 1)
        last_s = max(last_s, float(came_s.max()))
    return last_s


def halving_doubling_seconds(
    size_bytes: float, place: RankPlaces, latency_s: float, local_s: float = 0.0
) -> float:
    """How long halving and doubling takes among all ranks, a power of two."""
    ranks = place.ranks
    steps = ranks.bit_length() - 1
    step = np.array([*reversed(range(steps)), *range(steps)], dtype=np.int64).repeat(ranks)
    source, half = np.tile(np.arange(ranks), 2 * steps), 1 << step
    number = np.arange(len(source))
    came_by = number // ranks * ranks + (
        source ^ half
    )  # what reaches a rank in the round in which it sends this
    rounds = range(0, len(source), ranks)
    waits = [
        (2 * number[later : later + ranks], 2 * came_by[earlier : earlier + ranks] + 1)
        for later in rounds
        for earlier in range(0, later, ranks)
    ]
    sizes = np.asarray(half * (size_bytes / ranks), dtype=np.float64)
    late_s = _late(source, source ^ half, place, latency_s, local_s)
    sent = _Messages(source, source ^ half, sizes, late_s, step * ranks + source)
    return float(sent.executed(place, waits).max(initial=0.0))


def _all_at_once(source: Ints, target: Ints, size_bytes: float, place: RankPlaces) -> Floats:
    """When each of these messages was sent, if all begin together."""
    sizes, late_s = np.full(len(source), size_bytes), np.zeros(len(source))
    return _Messages(source, target, sizes, late_s, np.arange(len(source))).executed(place, ())[::2]


@dataclass(frozen=True)
class _Messages:
    """From rank to rank.

    Attributes:
        late_s: by which they land after they were sent.
        lane: of one, a message at a time.
    """

    source: Ints
    target: Ints
    sizes: Floats
    late_s: Floats
    lane: Ints

    def executed(self, place: RankPlaces, waits: Sequence[tuple[Ints, Ints]]) -> Floats:
        """When tasks end: 2 m sends message m, and then it lands by 2 m + 1.

        Args:
            waits: pairs of tasks of which the first waits for the second, beside those two.
        """
        roads, number = Roads(place), np.arange(len(self.source))
        paths = [roads.between(int(a), int(b)) for a, b in zip(self.source, self.target, strict=True)]
        after = [(2 * number + 1, 2 * number), *waits]
        tasks = tasks_from_columns(
            _between(np.zeros(len(number)), self.late_s),
            resource=_between(self.lane, np.full(len(number), -1)),
            size_bytes=_between(self.sizes, np.zeros(len(number))),
            crosses=(np.repeat(2 * number, [len(path) for path in paths]), [link for path in paths for link in path]),
            waits=(np.concatenate([a for a, _ in after]), np.concatenate([b for _, b in after])),
            resources=int(self.lane.max(initial=-1)) + 1,
            link_bytes_per_s=roads.bytes_per_s,
        )  # fmt: skip
        return execute(tasks).end_s


def _between(sending: NDArray[Any], landing: NDArray[Any]) -> NDArray[Any]:
    """One after the other, in turn."""
    return np.stack([sending, landing], axis=1).ravel()


def _late(source: Ints, target: Ints, place: RankPlaces, latency_s: float, local_s: float) -> Floats:
    host = np.array(place.host_of)
    return np.where(host[source] != host[target], latency_s, local_s)
