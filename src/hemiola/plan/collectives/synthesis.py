"""The best strategy found for an all-reduce on a placement: candidates of known shapes, each priced, and a choice.

Candidates: rings through the hosts of each domain one after the other, the packed trees (`packing`), and for small
messages everybody to everybody and halving and doubling. Trees go in pieces of several sizes. A ring that is
nearly as fast as the best is kept, for it is what everybody knows how to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from hemiola.core.strategy import Strategy
from hemiola.core.strategy_shapes import all_pairs, halving_doubling, ring, trees
from hemiola.cost.places import Place
from hemiola.cost.strategy_time import Bounds, bounds, strategy_seconds
from hemiola.plan.collectives.packing import Packing, pack_trees

__all__ = ["Candidate", "Synthesis", "synthesise", "tree_strategy"]

KEEP_RING = 0.10
"""What the best has to gain over the ring to be taken instead."""
PIECES_BYTES = tuple(count << 10 for count in (64, 128, 256, 1024))
PAIRS_MAX = 64
"""Ranks up to which everybody to everybody is tried: beyond, it opens too many connections."""


@dataclass(frozen=True)
class Candidate:
    """One strategy.

    Attributes:
        strategy: proved right.
        seconds: predicted.
    """

    strategy: Strategy
    seconds: float


@dataclass(frozen=True)
class Synthesis:
    """What was found for one size on one placement.

    Attributes:
        size_bytes: that is reduced.
        chosen: to be used.
        candidates: all, the fastest first.
        ring: the fastest ring.
        bounds: what no strategy is faster than, by bandwidth alone.
        packed_s: what trees reach if pieces are as small as can be and latency is nothing.
    """

    size_bytes: float
    chosen: Candidate
    candidates: tuple[Candidate, ...]
    ring: Candidate
    bounds: Bounds
    packed_s: float

    @property
    def gain(self) -> float:
        """Of the chosen one over the ring, as a share: 0.5 for 1.5 times as fast."""
        return self.ring.seconds / self.chosen.seconds - 1 if self.chosen.seconds else 0.0


def synthesise(
    place: Place, size_bytes: float, *, latency_s: float | None = None, keep_ring: float = KEEP_RING
) -> Synthesis:
    """Find a strategy for an all-reduce of this size.

    Args:
        latency_s: of a message between hosts; None for the topology's.
        keep_ring: the share that another strategy has to gain over the ring.

    Raises:
        InputError: a link has no bandwidth.
    """

    def priced(strategy: Strategy) -> Candidate:
        return Candidate(strategy, strategy_seconds(strategy, size_bytes, place, latency_s=latency_s))

    packing = pack_trees(place)
    found = [priced(strategy) for strategy in _candidates(place, packing, size_bytes)]
    found.sort(key=lambda candidate: candidate.seconds)
    best_ring = next(c for c in found if c.strategy.source == "ring")
    chosen = found[0] if best_ring.seconds > found[0].seconds * (1 + keep_ring) else best_ring
    chosen.strategy.verify()
    return Synthesis(
        size_bytes, chosen, tuple(found), best_ring, bounds("all-reduce", size_bytes, place),
        packing.seconds_per_byte * size_bytes,
    )  # fmt: skip


def _candidates(place: Place, packing: Packing, size_bytes: float) -> Iterator[Strategy]:
    yield ring(_ring_order(place))
    if place.ranks <= PAIRS_MAX:
        yield all_pairs(place.ranks)
    if place.ranks & (place.ranks - 1) == 0:
        yield halving_doubling(place.ranks)
    packed = tree_strategy(place, packing)
    yield from (
        msgspec.structs.replace(packed, chunk_bytes=piece)
        for piece in PIECES_BYTES
        if piece == PIECES_BYTES[0] or piece < size_bytes
    )


def _ring_order(place: Place) -> list[int]:
    """Ranks host by host, hosts domain by domain: every uplink is crossed once each way."""
    paths: list[tuple[int, ...]] = []
    levels = sorted((link for link in place.links if not link.inner), key=lambda link: -len(link.hosts))
    for host in range(len(place.counts)):
        paths.append(tuple(number for number, link in enumerate(levels) if host in link.hosts))
    hosts = sorted(range(len(place.counts)), key=lambda host: (paths[host], host))
    ranks_of = _ranks_of(place)
    return [rank for host in hosts for rank in ranks_of[host]]


def tree_strategy(place: Place, packing: Packing) -> Strategy:
    """The packed trees as a strategy: each rooted in its middle, within a host from its first rank to the others.

    Which rank of a host is first changes from tree to tree, so that all share the work.
    """
    ranks_of = _ranks_of(place)
    parents = []
    for number, edges in enumerate(packing.edges):
        heads = [own[number % len(own)] for own in ranks_of]
        up = _rooted(edges, len(ranks_of))
        tree = [-1] * place.ranks
        for host, own in enumerate(ranks_of):
            for rank in own:
                tree[rank] = heads[host] if rank != heads[host] else -1 if up[host] < 0 else heads[up[host]]
        parents.append(tree)
    count = len(parents)
    found = trees(parents, packing.weights if count > 1 else ())
    return msgspec.structs.replace(
        found, name=f"{count} packed tree{'s' * (count > 1)}", source="packed trees"
    )


def _ranks_of(place: Place) -> list[list[int]]:
    """By host."""
    found: list[list[int]] = [[] for _ in place.counts]
    for rank, host in enumerate(place.host_of):
        found[host].append(rank)
    return found


def _rooted(edges: Sequence[tuple[int, int]], count: int) -> list[int]:
    """Each host's parent, where the root is in the middle of the longest way; -1 for the root."""
    near: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        near[a].append(b)
        near[b].append(a)
    one_end = _walk(near, 0)[0][-1]
    order, parent = _walk(near, one_end)
    way = [order[-1]]
    while parent[way[-1]] >= 0:
        way.append(parent[way[-1]])
    return _walk(near, way[len(way) // 2])[1]


def _walk(near: list[list[int]], start: int) -> tuple[list[int], list[int]]:
    """Hosts in the order of their distance, and the one before each."""
    parent = [-1] * len(near)
    order = [start]
    for here in order:
        for other in near[here]:
            if other != parent[here]:
                parent[other] = here
                order.append(other)
    return order, parent
