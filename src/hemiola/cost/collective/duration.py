"""How long a schedule takes on a placement, and what no schedule can do faster.

Every chunk goes in pieces, and every piece of every move is a flow over the links between its two ranks, then lands.
Both wait for what moves wait for (`core.collective.schedule.Waits`), piece by piece, so that a piece is sent on while the
next one comes. One rank sends another one piece at a time, earlier ones first; different pairs share links fairly,
but for those that are held back (`SendRate`).
Adding up takes no time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hemiola.core.collective.schedule import Collective, CollectiveSchedule
from hemiola.cost.collective.rounds import Roads, rounds_seconds, unsaid_bytes
from hemiola.cost.places import RankPlaces
from hemiola.kernels.executor import execute
from hemiola.kernels.executor.tasks import Tasks, tasks_from_columns

__all__ = [
    "SAME",
    "Bounds",
    "Domain",
    "Roads",
    "bounds",
    "domains",
    "least_time",
    "schedule_seconds",
    "schedule_seconds_in_pieces",
]


# What no schedule does faster, and the parts of a network that decide it.

SAME = 1e-9
_NEVER = (math.inf, -math.inf)


@dataclass(frozen=True, eq=False)
class Domain:
    """A host, or what is below an uplink.

    Attributes:
        hosts: below it, by their place in `RankPlaces.counts`.
        bytes_per_s: of its NIC or uplink; infinity for the whole.
        parts: of a domain that is no host.
    """

    hosts: tuple[int, ...]
    bytes_per_s: float
    parts: tuple[Domain, ...] = ()

    def spare(self, time: float, trees: int = 0) -> tuple[float, float]:
        """The fewest and the most spare ends that it can have in that many seconds per byte.

        Args:
            trees: together, of so many trees that share the data equally: whole numbers; 0 for the mean of as
                many as one likes.

        Returns:
            Infinity and its opposite where the time is too short.
        """
        count = trees or 1
        most = math.inf if math.isinf(self.bytes_per_s) else self.bytes_per_s * time * count
        if trees and math.isfinite(most):
            most = math.floor(most + SAME)
        if self.parts:
            ranges = [part.spare(time, trees) for part in self.parts]
            low = max(-most, sum(low for low, _ in ranges))
            high = min(most - 2 * count, sum(high for _, high in ranges))
        else:
            low, high = -count, most - 2 * count
        return (low, high) if most >= count - SAME and low <= high + SAME else _NEVER

    def parts_spare(self, time: float, own: float, trees: int = 0) -> list[tuple[float, float]]:
        """The same of its parts, while it has `own` itself: no part has more than all others can leave it, however fast it is."""
        most = own + (trees or 1) * (len(self.hosts) - 1)
        ranges = [part.spare(time, trees) for part in self.parts]
        return [(low, most if high == math.inf else high) for low, high in ranges]

    @property
    def is_unlimited(self) -> bool:
        """Whether no link in it has a limit."""
        return math.isinf(self.bytes_per_s) and all(part.is_unlimited for part in self.parts)

    def is_enough(self, time: float, trees: int = 0) -> bool:
        """Whether this, the whole network, can be one tree in that time."""
        low, high = self.spare(time, trees)
        return low - SAME <= -2 * (trees or 1) <= high + SAME


def domains(place: RankPlaces) -> Domain:
    """The network of two hosts or more as domains of domains of hosts."""
    hosts = len(place.counts)
    outermost = {host: Domain((host,), place.links[host].bytes_per_s) for host in range(hosts)}
    first_of = list(range(hosts))
    uplinks = [link for link in place.links[hosts:] if not link.inner]
    for link in sorted(uplinks, key=lambda link: len(link.hosts)):
        inside = [outermost.pop(first) for first in dict.fromkeys(first_of[h] for h in sorted(link.hosts))]
        ordered = tuple(host for domain in inside for host in domain.hosts)
        outermost[ordered[0]] = Domain(ordered, link.bytes_per_s, tuple(inside))
        for host in ordered:
            first_of[host] = ordered[0]
    tops = tuple(outermost.values())
    return Domain(tuple(host for domain in tops for host in domain.hosts), math.inf, tops)


def least_time(whole: Domain, trees: int = 0, from_s: float = 0.0) -> float:
    """The least time, per byte, in which the network can be a tree: by halving an interval.

    Args:
        trees: so many, of equal shares; 0 for the best mix of as many as one likes.
        from_s: it is no less than this.

    Returns:
        0 where no link has a limit.
    """
    if whole.is_unlimited:
        return from_s
    low, high = from_s, 2 * from_s or 1.0
    if from_s and whole.is_enough(from_s * (1 + SAME), trees):
        return from_s * (1 + SAME)
    while not whole.is_enough(high, trees):
        low, high = high, high * 2
    while high - low > SAME / 10 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if whole.is_enough(middle, trees) else (middle, high)
    return high


@dataclass(frozen=True)
class Bounds:
    """What a collective takes at least on a placement, whatever the schedule.

    Attributes:
        cut_s: what has to cross the narrowest link, of a host or of a domain.
        total_s: what has to be sent at all, over all hosts' links together.
        narrowest: the link that decides `cut_s`; "" where there is none between hosts that has a limit.
        parts_s: of an all-reduce, what has to be sent between parts of the network, over all their links together,
            for whichever parts that takes longest; no less than the other two.
    """

    cut_s: float
    total_s: float
    narrowest: str
    parts_s: float = 0.0

    @property
    def seconds(self) -> float:
        """The largest one."""
        return max(self.cut_s, self.total_s, self.parts_s)


def bounds(collective: Collective, size_bytes: float, place: RankPlaces) -> Bounds:
    """Bandwidth alone, without latency: T >= max(M / min B, 2 (N - 1) M / sum B) for an all-reduce of M bytes.

    A reduction leaves a set of ranks as M bytes, however many they are, and comes in as many; of what is gathered
    or exchanged, each rank's part has to cross. All that has to be sent: for an all-reduce, each host's
    contribution has to leave it or its sum to reach it, 2 (N - 1) M in all; the same holds of parts (`Domain`).

    Args:
        size_bytes: of the whole data: what each rank has before an all-reduce, and after an all-gather.
    """
    ranks, hosts = place.ranks, len(place.counts)
    cuts = [
        (_crossing(collective, link.inside, ranks) * size_bytes / link.bytes_per_s, link.name)
        for link in place.links
        if not link.inner and math.isfinite(link.bytes_per_s)
    ]
    cut_s, narrowest = max(cuts, default=(0.0, ""))
    nics = sum(link.bytes_per_s for link in place.links[:hosts]) if hosts > 1 else math.inf
    total_s = _sent(collective, place) * size_bytes / nics
    parts_s = 0.0
    if collective == "all-reduce" and hosts > 1:
        parts_s = least_time(domains(place)) * size_bytes * (1 - SAME)
    return Bounds(cut_s, total_s, narrowest, parts_s)


def _crossing(collective: Collective, inside: int, ranks: int) -> float:
    """Bytes that leave or enter a domain with so many of the ranks, whichever is more, relative to the data."""
    if collective in ("all-gather", "reduce-scatter"):
        return max(inside, ranks - inside) / ranks
    if collective == "all-to-all":
        return inside * (ranks - inside) / ranks
    return 1.0


def _sent(collective: Collective, place: RankPlaces) -> float:
    """Bytes that all hosts together send, relative to the data."""
    hosts, ranks = len(place.counts), place.ranks
    if collective == "all-reduce":
        return 2.0 * (hosts - 1)
    if collective == "all-to-all":
        return sum(count * (ranks - count) for _, count in place.counts) / ranks
    return float(hosts - 1)


PIECES_MAX, PIECES_LEAST = 256, 16
TASKS_MAX = 1 << 19
"""Pieces are executed up to so many tasks where there is one chunk. Flows of several chunks depend on each other, and
each task takes the longer to execute: then it is as many fewer as the cube of their number."""


def schedule_seconds(
    schedule: CollectiveSchedule,
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
        pieces_max: so many pieces of a chunk are executed at most; None for 256, and fewer of large schedules. What
            other numbers take follows from this one and half of it: the time to fill a pipeline is inverse to the number
            of pieces.

    Raises:
        ScheduleError: the schedule is for another number of ranks.
        InputError: bytes over a link that has no bandwidth.
    """
    chunk_bytes = [schedule.chunk_bytes]
    return schedule_seconds_in_pieces(
        schedule, size_bytes, place, chunk_bytes, latency_s=latency_s, local_s=local_s, pieces_max=pieces_max
    )[0]


def schedule_seconds_in_pieces(
    schedule: CollectiveSchedule,
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
        chunk_bytes: `CollectiveSchedule.chunk_bytes` of each; the schedule's own is not looked at.
    """
    schedule.check_ranks(place.ranks)
    late = place.latency_s if latency_s is None else latency_s
    weights = np.array(schedule.weights or [1.0 / schedule.chunks] * schedule.chunks)
    sizes = size_bytes * weights
    pieces = [
        max(1, math.ceil(float(sizes.max()) / (each or unsaid_bytes(schedule)))) for each in chunk_bytes
    ]
    if max(pieces) == 1 and (found := rounds_seconds(schedule, size_bytes, place, late, local_s)) is not None:
        return [found] * len(pieces)
    columns = _Columns(schedule, sizes, place, late, local_s)
    if pieces_max is None:
        affordable = TASKS_MAX // max(1, 2 * len(schedule.moves) * schedule.chunks**3)
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
        schedule: CollectiveSchedule,
        sizes: NDArray[np.float64],
        place: RankPlaces,
        latency_s: float,
        local_s: float,
    ) -> None:
        """Move m is sent by task 2 m of a piece, and lands by the next one."""
        moves = len(schedule.moves)
        roads = Roads(place)
        self.own = np.zeros((moves, 2))
        self.late = np.zeros((moves, 2))
        self.most = np.full((moves, 2), math.inf)
        paces = {(pace.source, pace.target): pace.bytes_per_s for pace in schedule.paces}
        self.lane = np.full((moves, 2), -1)
        lanes: dict[tuple[int, int, int], int] = {}
        crosses = list[tuple[int, int]]()
        for number, move in enumerate(schedule.moves):
            source, target = move.source.rank, move.target.rank
            if move.is_sent:
                crosses.extend((2 * number, link) for link in roads.between(source, target))
                self.lane[number, 0] = lanes.setdefault((source, target, move.channel), len(lanes))
                self.most[number, 0] = paces.get((source, target), math.inf)
                self.own[number, 0] = sum(sizes[at.index % schedule.chunks] for at in move.sources())
                apart = place.host_of[source] != place.host_of[target]
                self.late[number, 1] = latency_s if apart else local_s
        self.crosses, self.waits = _pairs(crosses), _pairs(_waiting(schedule))
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


def _waiting(schedule: CollectiveSchedule) -> Iterator[tuple[int, int]]:
    """Pairs of tasks of one piece of which the first waits for the second."""
    for number, waits in enumerate(schedule.waits):
        sent, landed = 2 * number, 2 * number + 1
        yield landed, sent
        yield from ((sent, 2 * one + 1) for one in waits.to_send)
        yield from ((landed, 2 * one + 1) for one in waits.to_land)
        yield from ((landed, 2 * one) for one in waits.to_free)


def _pairs(found: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    return np.array(list(found), dtype=np.int64).reshape(-1, 2)
