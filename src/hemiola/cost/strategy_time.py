"""How long a strategy takes on a placement, and what no strategy can do faster.

Every chunk goes in pieces, and every piece of every move is a flow over the links between its two ranks, then lands.
Both wait for what moves wait for (`core.strategy.Waits`), piece by piece, so that a piece is sent on while the
next one comes. One rank sends another one piece at a time, earlier ones first; different pairs share links fairly.
Adding up takes no time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hemiola.core.strategy import Collective, Strategy
from hemiola.cost.places import Place
from hemiola.sim.executor import execute
from hemiola.sim.tasks import Tasks, tasks_from_columns

__all__ = ["Bounds", "Roads", "bounds", "strategy_seconds"]

PIECES_MAX = 32


def strategy_seconds(
    strategy: Strategy,
    size_bytes: float,
    place: Place,
    *,
    latency_s: float | None = None,
    pieces_max: int = PIECES_MAX,
) -> float:
    """The time until the last rank has its result, with the links to itself.

    Args:
        size_bytes: of the whole data: what `Strategy.chunks` divide.
        latency_s: of a message between hosts, after its last byte was sent; None for the topology's.
        pieces_max: so many pieces of a chunk are executed at most. What more of them take follows from this number and
            half of it: the time to fill a pipeline is inverse to the number of pieces.

    Raises:
        StrategyError: the strategy is for another number of ranks.
        InputError: bytes over a link that has no bandwidth.
    """
    strategy.check_ranks(place.ranks)
    late = place.latency_s if latency_s is None else latency_s
    weights = np.array(strategy.weights or [1.0 / strategy.chunks] * strategy.chunks)
    sizes = size_bytes * weights
    pieces = max(1, math.ceil(float(sizes.max()) / strategy.chunk_bytes)) if strategy.chunk_bytes else 1

    def took(count: int) -> float:
        return execute(_tasks(strategy, sizes, count, place, late)).makespan_s

    if pieces <= max(pieces_max, 2):
        return took(pieces)
    many = max(pieces_max, 2) // 2 * 2
    half_s, all_s = took(many // 2), took(many)
    return all_s - (half_s - all_s) * (1 - many / pieces)


class Roads:
    """The links that messages between two ranks of a placement cross.

    Between hosts they are the placement's, in both directions. Within a host each rank has its own way out and in, as
    fast as one of its GPUs sends to another.

    Attributes:
        names, bytes_per_s: of every link.
    """

    def __init__(self, place: Place) -> None:
        inner = {next(iter(link.hosts)): link.bytes_per_s for link in place.links if link.inner}
        within = [inner.get(host, math.inf) for host in place.host_of]
        self._place = place
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
        for number, link in enumerate(place.links):
            if not link.inner and one in link.hosts and other not in link.hosts:
                yield number
            if not link.inner and other in link.hosts and one not in link.hosts:
                yield count + number


def _tasks(
    strategy: Strategy, sizes: NDArray[np.float64], pieces: int, place: Place, latency_s: float
) -> Tasks:
    """Piece p of move m is sent by task 2 (p * moves + m), and lands by the next one."""
    moves = len(strategy.moves)
    roads = Roads(place)
    paths = [roads.between(m.source.rank, m.target.rank) if m.is_sent else () for m in strategy.moves]
    own = np.zeros((moves, 2))
    late = np.zeros((moves, 2))
    lane = np.full((moves, 2), -1)
    lanes: dict[tuple[int, int, int], int] = {}
    for number, move in enumerate(strategy.moves):
        if paths[number]:
            pair = move.source.rank, move.target.rank, move.channel
            lane[number, 0] = lanes.setdefault(pair, len(lanes))
            own[number, 0] = sizes[[at.index % strategy.chunks for at in move.sources()]].sum() / pieces
        if place.host_of[move.source.rank] != place.host_of[move.target.rank]:
            late[number, 1] = latency_s
    crosses = _pairs((2 * m, link) for m, path in enumerate(paths) for link in path)
    waits = _pairs(_waiting(strategy))
    shift = 2 * moves * np.arange(pieces)[:, None, None]
    every_cross = (crosses[None] + shift * [1, 0]).reshape(-1, 2)
    every_wait = (waits[None] + shift).reshape(-1, 2)
    return tasks_from_columns(
        np.tile(late.ravel(), pieces),
        resource=np.tile(lane.ravel(), pieces),
        priority=np.repeat(np.arange(pieces), 2 * moves),
        size_bytes=np.tile(own.ravel(), pieces),
        crosses=(every_cross[:, 0], every_cross[:, 1]),
        waits=(every_wait[:, 0], every_wait[:, 1]),
        resources=len(lanes),
        link_bytes_per_s=roads.bytes_per_s,
    )


def _waiting(strategy: Strategy) -> Iterator[tuple[int, int]]:
    """Pairs of tasks of one piece of which the first waits for the second."""
    for number, waits in enumerate(strategy.waits):
        sent, landed = 2 * number, 2 * number + 1
        yield landed, sent
        yield from ((sent, 2 * one + 1) for one in waits.to_send)
        yield from ((landed, 2 * one + 1) for one in waits.to_land)
        yield from ((landed, 2 * one) for one in waits.to_free)


def _pairs(found: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    return np.array(list(found), dtype=np.int64).reshape(-1, 2)


@dataclass(frozen=True)
class Bounds:
    """What a collective takes at least on a placement, whatever the strategy.

    Attributes:
        cut_s: what has to cross the narrowest link, of a host or of a domain.
        total_s: what has to be sent at all, over all hosts' links together.
        narrowest: the link that decides `cut_s`; "" where there is none between hosts.
    """

    cut_s: float
    total_s: float
    narrowest: str

    @property
    def seconds(self) -> float:
        """The larger one."""
        return max(self.cut_s, self.total_s)


def bounds(collective: Collective, size_bytes: float, place: Place) -> Bounds:
    """Bandwidth alone, without latency: T >= max(M / min B, 2 (N - 1) M / sum B) for an all-reduce of M bytes.

    A reduction leaves a set of ranks as M bytes, however many they are, and comes in as many; of what is gathered
    or exchanged, each rank's part has to cross. All that has to be sent: for an all-reduce, each host's
    contribution has to leave it or its sum to reach it, 2 (N - 1) M in all.

    Args:
        size_bytes: of the whole data: what each rank has before an all-reduce, and after an all-gather.
    """
    ranks, hosts = place.ranks, len(place.counts)
    cuts = [
        (_crossing(collective, link.inside, ranks) * size_bytes / link.bytes_per_s, link.name)
        for link in place.links
        if not link.inner
    ]
    cut_s, narrowest = max(cuts, default=(0.0, ""))
    nics = sum(link.bytes_per_s for link in place.links[:hosts]) if hosts > 1 else math.inf
    total_s = _sent(collective, place) * size_bytes / nics
    return Bounds(cut_s, total_s, narrowest)


def _crossing(collective: Collective, inside: int, ranks: int) -> float:
    """Bytes that leave or enter a domain with so many of the ranks, whichever is more, relative to the data."""
    if collective in ("all-gather", "reduce-scatter"):
        return max(inside, ranks - inside) / ranks
    if collective == "all-to-all":
        return inside * (ranks - inside) / ranks
    return 1.0


def _sent(collective: Collective, place: Place) -> float:
    """Bytes that all hosts together send, relative to the data."""
    hosts, ranks = len(place.counts), place.ranks
    if collective == "all-reduce":
        return 2.0 * (hosts - 1)
    if collective == "all-to-all":
        return sum(count * (ranks - count) for _, count in place.counts) / ranks
    return float(hosts - 1)
