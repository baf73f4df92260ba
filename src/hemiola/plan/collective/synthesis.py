"""The best schedule found for a collective on a placement: candidates of known shapes, each priced, and a choice.

Candidates of an all-reduce: rings through the hosts of each domain one after the other, the packed trees
(`packing`), stars that are held back where those are far from the bound (`balance.paced`), the double tree, and for small messages everybody to everybody and halving and doubling. A broadcast and a reduction go
along a chain, the slow hosts of a domain last, down a binomial tree, from the root to everybody, or along the packed
trees; what is gathered or scattered, along a ring or to everybody. Trees go in pieces of several sizes. The usual
one, a ring or the binomial tree, is kept where it is nearly as fast: everybody knows how to read it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from hemiola._moved import renamed_attributes
from hemiola.core.collective.schedule import FEWEST_BYTES, Collective, CollectiveSchedule
from hemiola.core.collective.shapes import (
    all_pairs,
    binomial,
    chain,
    double_tree,
    halving_doubling,
    ring,
    trees,
)
from hemiola.core.errors import ScheduleError
from hemiola.cost.collective.duration import Bounds, bounds, schedule_seconds_in_pieces
from hemiola.cost.collective.price import busy_seconds
from hemiola.cost.network_fit import KEEP_RING
from hemiola.cost.places import RankPlaces
from hemiola.plan.collective.balance import RANKS, paced
from hemiola.plan.collective.packing import TreePacking, packings

__all__ = ["Candidate", "Synthesis", "synthesise", "tree_schedule"]

BY_TREES: tuple[Collective, ...] = ("all-reduce", "broadcast", "reduce")
"""What trees do."""
USUAL = ("ring", "binomial")
"""Sources of those."""
PIECES_BYTES = tuple(count << 10 for count in (64, 128, 256, 1024))
SMALL_BYTES, PIECE_S = (16 << 10, 32 << 10), 250e-6
"""Smaller ones where the fastest host takes so long to send one: each costs every rank on its way some 50 us."""
WORTH = 0.01
"""What smaller pieces have to gain."""
NEAR = 0.03
"""Candidates slower by no more than this are as good as the fastest."""
STEEP = 8
"""A link that is busy for 80 % of the time in which the busiest one is counts as a sixth of a link, one at half as none."""
GAIN = 0.01
"""What more trees have to gain by bandwidth, where they have no fewer hops."""
PACED = 1.05
"""Where nothing is nearer to the bound, pairs of ranks are held back."""
ALL_MAX = 32
"""Ranks up to which all numbers of trees are priced; beyond, only up to the first that is slower than fewer trees."""
PAIRS_MAX = 64
"""Ranks up to which everybody to everybody is tried: beyond, it opens too many connections."""


@dataclass(frozen=True)
class Candidate:
    """One schedule.

    Attributes:
        schedule: proved right.
        seconds: predicted.
    """

    schedule: CollectiveSchedule
    seconds: float

    if not TYPE_CHECKING:
        __getattr__ = renamed_attributes("Candidate")


@dataclass(frozen=True)
class Synthesis:
    """What was found for one size on one placement.

    Attributes:
        size_bytes: that is reduced.
        chosen: to be used.
        candidates: all, the fastest first.
        usual: the fastest ring; of a broadcast and a reduction, the binomial tree.
        bounds: what no schedule is faster than, by bandwidth alone.
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
    place: RankPlaces,
    size_bytes: float,
    collective: Collective = "all-reduce",
    *,
    root: int = 0,
    latency_s: float | None = None,
    keep_usual: float = KEEP_RING,
    paces: bool = True,
) -> Synthesis:
    """Find a schedule for a collective of this size.

    Args:
        size_bytes: of the whole data: what a rank has before an all-reduce, and after an all-gather.
        collective: any but an all-to-all, in which nothing is gained by sending over others.
        root: of a broadcast or a reduction.
        latency_s: of a message between hosts; None for the topology's.
        keep_usual: the share that another schedule has to gain over the usual one.
        paces: whether ranks may be held back, which MSCCL cannot.

    Raises:
        InputError: a link has no bandwidth.
        ScheduleError: an all-to-all.
    """

    small = _small_pieces(place)

    def priced(shape: CollectiveSchedule, pieces: Sequence[int]) -> list[Candidate]:
        """In pieces of each size that is no more than the whole, the largest first, and gains over larger ones."""
        offered = (*small, *pieces) if pieces[0] else pieces
        sizes = [piece for piece in offered if piece in (0, pieces[0]) or piece < size_bytes]
        sizes.sort(reverse=True)
        took = schedule_seconds_in_pieces(shape, size_bytes, place, sizes, latency_s=latency_s)
        least_s, worth = math.inf, []
        for piece, seconds in zip(sizes, took, strict=True):
            if seconds < least_s * (1 - WORTH):
                least_s = seconds
                worth.append(Candidate(msgspec.structs.replace(shape, chunk_bytes=piece), seconds))
        return worth

    found = [one for shape, pieces in _usual(place, collective, root) for one in priced(shape, pieces)]
    packed = packings(place)
    if collective in BY_TREES:
        groups = (priced(shape, PIECES_BYTES) for shape in _packed(place, packed, collective, root))
        if place.ranks > ALL_MAX:
            found += _until_slower(groups)
        else:
            found += [one for group in groups for one in group]
    least_s = bounds(collective, size_bytes, place).seconds
    far = min(one.seconds for one in found) > least_s * PACED
    if paces and far and collective == "all-reduce" and size_bytes > FEWEST_BYTES:
        found += [one for shape in _paced(place) for one in priced(shape, PIECES_BYTES)]
    found.sort(key=lambda candidate: candidate.seconds)
    usual = next(c for c in found if c.schedule.source in USUAL)
    chosen = _easiest(found, place) if usual.seconds > found[0].seconds * (1 + keep_usual) else usual
    chosen.schedule.verify()
    return Synthesis(
        size_bytes, chosen, tuple(found), usual, bounds(collective, size_bytes, place),
        min(packing.seconds_per_byte for packing in packed) * size_bytes,
    )  # fmt: skip


def _small_pieces(place: RankPlaces) -> list[int]:
    fastest = max(
        (link.bytes_per_s for link in place.links if not link.inner and len(link.hosts) == 1),
        default=math.inf,
    )
    return [piece for piece in SMALL_BYTES if piece >= PIECE_S * fastest]


def _easiest(found: Sequence[Candidate], place: RankPlaces) -> Candidate:
    """Of those that are nearly the fastest, the one in which fewest links are busy all the time.

    What such a link loses by waiting for another one is never made up for. (Two racks in the lab: 1.02 s by one tree of
    which four links of six are busy all the time, 0.76 s by several of which two are; predicted alike.)
    """
    near = [one for one in found if one.seconds <= found[0].seconds * (1 + NEAR)]
    shapes = {one.schedule.name: one.schedule for one in near}
    always = {}
    for name, schedule in shapes.items():
        busy = busy_seconds(schedule, place)
        always[name] = round(sum((seconds / max(busy)) ** STEEP for seconds in busy if seconds), 1)
    return min(near, key=lambda one: (always[one.schedule.name], one.seconds))


def _until_slower(groups: Iterable[list[Candidate]]) -> Iterator[Candidate]:
    """Candidates group by group, the last the first that is slower than one before."""
    least_s = math.inf
    for group in groups:
        yield from group
        now_s = min(candidate.seconds for candidate in group)
        if now_s > least_s * (1 + GAIN):
            break
        least_s = min(least_s, now_s)


def _usual(
    place: RankPlaces, collective: Collective, root: int
) -> Iterator[tuple[CollectiveSchedule, Sequence[int]]]:
    """Schedules of known shapes, and in pieces of which sizes."""
    ranks, usual = place.ranks, (0,)
    few = ranks <= PAIRS_MAX
    if collective == "all-to-all":
        raise ScheduleError("an all-to-all is not synthesised", "use all_pairs")
    if collective in BY_TREES[1:]:
        yield _named(trees([binomial(ranks, root)], (), collective), "binomial"), PIECES_BYTES
        yield _named(trees([chain(_chain_order(place, root))], (), collective), "chain"), PIECES_BYTES
        if few:
            star = [-1 if rank == root else root for rank in range(ranks)]
            yield _named(trees([star], (), collective), "star"), PIECES_BYTES
        return
    yield ring(_ring_order(place), collective), usual
    if few:
        yield all_pairs(ranks, collective), usual
    if collective == "all-reduce":
        if ranks & (ranks - 1) == 0:
            yield halving_doubling(ranks), usual
        yield _named(trees(double_tree(_ring_order(place))), "double tree"), PIECES_BYTES


def _packed(
    place: RankPlaces, packed: Sequence[TreePacking], collective: Collective, root: int
) -> Iterator[CollectiveSchedule]:
    """By each packing that is faster than those of fewer trees, by bandwidth or with fewer hops, or has hosts do more alike."""
    least_s, fewest, evenest = math.inf, math.inf, math.inf
    for packing in packed:
        schedule = tree_schedule(place, packing, collective, root)
        hops, squares = schedule.traffic().hops, sum(degree**2 for degree in packing.degrees)
        faster = packing.seconds_per_byte < least_s * (1 - GAIN)
        if faster or hops < fewest or squares < evenest * (1 - GAIN):
            yield schedule
        least_s, fewest = min(least_s, packing.seconds_per_byte), min(fewest, hops)
        evenest = min(evenest, squares)


def _paced(place: RankPlaces) -> Iterator[CollectiveSchedule]:
    """Stars that are held back, where every host has one rank and a link of its own, and nothing else is narrow."""
    rates = [link.bytes_per_s for link in place.links if not link.inner and len(link.hosts) == 1]
    narrower = [link for link in place.links if len(link.hosts) > 1]
    one_each = len(rates) == len(place.counts) == place.ranks and place.ranks in RANKS
    if one_each and not narrower and min(rates) < max(rates) < math.inf:
        yield paced(rates)


def _named(schedule: CollectiveSchedule, name: str) -> CollectiveSchedule:
    return msgspec.structs.replace(schedule, name=name, source=name)


def _chain_order(place: RankPlaces, root: int) -> list[int]:
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


def _ring_order(place: RankPlaces) -> list[int]:
    """Ranks host by host, hosts domain by domain: every uplink is crossed once each way."""
    paths: list[tuple[int, ...]] = []
    levels = sorted((link for link in place.links if not link.inner), key=lambda link: -len(link.hosts))
    for host in range(len(place.counts)):
        paths.append(tuple(number for number, link in enumerate(levels) if host in link.hosts))
    hosts = sorted(range(len(place.counts)), key=lambda host: (paths[host], host))
    ranks_of = _ranks_of(place)
    return [rank for host in hosts for rank in ranks_of[host]]


def tree_schedule(
    place: RankPlaces, packing: TreePacking, collective: Collective = "all-reduce", root: int = 0
) -> CollectiveSchedule:
    """The packed trees as a schedule, within a host from its first rank to the others.

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


def _ranks_of(place: RankPlaces) -> list[list[int]]:
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
