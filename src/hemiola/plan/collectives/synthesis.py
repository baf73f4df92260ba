"""The best strategy found for a collective on a placement: candidates of known shapes, each priced, and a choice.

Candidates of an all-reduce: rings through the hosts of each domain one after the other, the packed trees
(`packing`), and for small messages everybody to everybody and halving and doubling. A broadcast and a reduction go
along a chain, the slow hosts of a domain last, down a binomial tree, from the root to everybody, or along the packed
trees; what is gathered or scattered, along a ring or to everybody. Trees go in pieces of several sizes. The usual
one, a ring or the binomial tree, is kept where it is nearly as fast: everybody knows how to read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from hemiola.core.errors import StrategyError
from hemiola.core.strategy import Collective, Strategy
from hemiola.core.strategy_shapes import all_pairs, binomial, chain, halving_doubling, ring, trees
from hemiola.cost.places import Place
from hemiola.cost.strategy_time import Bounds, bounds, strategy_seconds
from hemiola.plan.collectives.packing import Packing, pack_trees

__all__ = ["Candidate", "Synthesis", "synthesise", "tree_strategy"]

KEEP_USUAL = 0.10
"""What the best has to gain over the usual one to be taken instead."""
USUAL = ("ring", "binomial")
"""Sources of those."""
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
        usual: the fastest ring; of a broadcast and a reduction, the binomial tree.
        bounds: what no strategy is faster than, by bandwidth alone.
        packed_s: what trees reach if pieces are as small as can be and latency is nothing.
    """

    size_bytes: float
    chosen: Candidate
    candidates: tuple[Candidate, ...]
    usual: Candidate
    bounds: Bounds
    packed_s: float

    @property
    def gain(self) -> float:
        """Of the chosen one over the usual one, as a share: 0.5 for 1.5 times as fast."""
        return self.usual.seconds / self.chosen.seconds - 1 if self.chosen.seconds else 0.0


def synthesise(
    place: Place,
    size_bytes: float,
    collective: Collective = "all-reduce",
    *,
    root: int = 0,
    latency_s: float | None = None,
    keep_usual: float = KEEP_USUAL,
) -> Synthesis:
    """Find a strategy for a collective of this size.

    Args:
        size_bytes: of the whole data: what a rank has before an all-reduce, and after an all-gather.
        collective: any but an all-to-all, in which nothing is gained by sending over others.
        root: of a broadcast or a reduction.
        latency_s: of a message between hosts; None for the topology's.
        keep_usual: the share that another strategy has to gain over the usual one.

    Raises:
        InputError: a link has no bandwidth.
        StrategyError: an all-to-all.
    """

    def priced(strategy: Strategy) -> Candidate:
        return Candidate(strategy, strategy_seconds(strategy, size_bytes, place, latency_s=latency_s))

    packing = pack_trees(place)
    found = [priced(one) for one in _candidates(place, packing, size_bytes, collective, root)]
    found.sort(key=lambda candidate: candidate.seconds)
    usual = next(c for c in found if c.strategy.source in USUAL)
    chosen = found[0] if usual.seconds > found[0].seconds * (1 + keep_usual) else usual
    chosen.strategy.verify()
    return Synthesis(
        size_bytes, chosen, tuple(found), usual, bounds(collective, size_bytes, place),
        packing.seconds_per_byte * size_bytes,
    )  # fmt: skip


def _candidates(
    place: Place, packing: Packing, size_bytes: float, collective: Collective, root: int
) -> Iterator[Strategy]:
    few = place.ranks <= PAIRS_MAX
    if collective == "all-to-all":
        raise StrategyError("an all-to-all is not synthesised", "use all_pairs")
    if collective in ("reduce-scatter", "all-gather"):
        yield ring(_ring_order(place), collective)
        if few:
            yield all_pairs(place.ranks, collective)
        return
    if collective == "all-reduce":
        yield ring(_ring_order(place))
        if few:
            yield all_pairs(place.ranks)
        if place.ranks & (place.ranks - 1) == 0:
            yield halving_doubling(place.ranks)
    else:
        yield from _in_pieces(trees([binomial(place.ranks, root)], (), collective), "binomial", size_bytes)
        yield from _in_pieces(trees([chain(_chain_order(place, root))], (), collective), "chain", size_bytes)
        if few:
            star = [-1 if rank == root else root for rank in range(place.ranks)]
            yield from _in_pieces(trees([star], (), collective), "star", size_bytes)
    yield from _in_pieces(tree_strategy(place, packing, collective, root), "packed trees", size_bytes)


def _in_pieces(strategy: Strategy, source: str, size_bytes: float) -> Iterator[Strategy]:
    """In pieces of several sizes."""
    for piece in PIECES_BYTES:
        if piece == PIECES_BYTES[0] or piece < size_bytes:
            yield msgspec.structs.replace(strategy, source=source, chunk_bytes=piece)


def _chain_order(place: Place, root: int) -> list[int]:
    """The root, the rest of its host, then host by host: its domain first, and of every domain the fastest hosts first."""
    order, home = _ring_order(place), place.host_of[root]
    levels = [link for link in place.links if not link.inner and len(link.hosts) > 1]

    def key(rank: int) -> tuple[object, ...]:
        host = place.host_of[rank]
        apart = tuple(home not in link.hosts for link in levels if host in link.hosts)
        domains = tuple(n for n, link in enumerate(levels) if host in link.hosts)
        rate = place.links[host].bytes_per_s if len(place.counts) > 1 else 0.0
        return rank != root, host != home, apart, domains, -rate, order.index(rank)

    return sorted(order, key=key)


def _ring_order(place: Place) -> list[int]:
    """Ranks host by host, hosts domain by domain: every uplink is crossed once each way."""
    paths: list[tuple[int, ...]] = []
    levels = sorted((link for link in place.links if not link.inner), key=lambda link: -len(link.hosts))
    for host in range(len(place.counts)):
        paths.append(tuple(number for number, link in enumerate(levels) if host in link.hosts))
    hosts = sorted(range(len(place.counts)), key=lambda host: (paths[host], host))
    ranks_of = _ranks_of(place)
    return [rank for host in hosts for rank in ranks_of[host]]


def tree_strategy(
    place: Place, packing: Packing, collective: Collective = "all-reduce", root: int = 0
) -> Strategy:
    """The packed trees as a strategy, within a host from its first rank to the others.

    For an all-reduce each is rooted in its middle, and which rank of a host is first changes from tree to tree, so
    that all share the work.
    """
    ranks_of = _ranks_of(place)
    rooted = collective != "all-reduce"
    home = place.host_of[root]
    parents = []
    for number, edges in enumerate(packing.edges):
        heads = [own[number % len(own)] for own in ranks_of]
        if rooted:
            heads[home] = root
        up = _rooted(edges, len(ranks_of), home if rooted else None)
        tree = [-1] * place.ranks
        for host, own in enumerate(ranks_of):
            for rank in own:
                tree[rank] = heads[host] if rank != heads[host] else -1 if up[host] < 0 else heads[up[host]]
        parents.append(tree)
    count = len(parents)
    found = trees(parents, packing.weights if count > 1 else (), collective)
    return msgspec.structs.replace(
        found, name=f"{count} packed tree{'s' * (count > 1)}", source="packed trees"
    )


def _ranks_of(place: Place) -> list[list[int]]:
    """By host."""
    found: list[list[int]] = [[] for _ in place.counts]
    for rank, host in enumerate(place.host_of):
        found[host].append(rank)
    return found


def _rooted(edges: Sequence[tuple[int, int]], count: int, root: int | None) -> list[int]:
    """Each host's parent, -1 for the root: None puts it in the middle of the longest way."""
    near: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        near[a].append(b)
        near[b].append(a)
    if root is not None:
        return _walk(near, root)[1]
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
