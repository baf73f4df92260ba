"""Trees for an all-reduce that load every link in proportion to what it can bear.

In a tree that carries w of the data up and down again, a host sends, and receives, w times its degree: one for the
way up or down of its own, one for each child. Degrees of trees are all whole numbers from 1 on with sum
2 (N - 1). So several trees of shares w together can give each host any mean degree from 1 on with that sum, and
hosts of bandwidth B_i finish M bytes in T as soon as degrees of at most B_i T / M do: no less than
max(M / min B, 2 (N - 1) M / sum B), the bound that holds for any schedule (specification, 3.1).

Behind uplinks the same holds of domains and their spare ends (`cost.collective.duration`), and for a few trees of equal
shares in whole numbers. So the least T for so many trees is known exactly; spare ends are then shared out from the
network's root down, and joined from its leaves up (`joining`). Shares are equal because links are shared equally:
what flows in proportion to its share is done at once everywhere. A host that has ends to give gives them in as few
trees as possible, and is a leaf in the others: so trees are flat, and few pairs serve two trees.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hemiola.cost.collective.duration import Domain, domains, least_time
from hemiola.cost.places import RankPlaces

__all__ = ["TreePacking", "pack_trees", "packings"]


# Joins hosts into one tree, domain by domain, when it is known how many ends each has to spare.

Ends = list[int]
"""Of one piece, the hosts at which edges may be added to it, the most central first."""


class Joining:
    """One tree.

    Attributes:
        edges: pairs of hosts, the first one nearer to the middle of its domain.
    """

    def __init__(self, spare: Mapping[Domain, int], used: dict[tuple[int, int], int]) -> None:
        """By these numbers.

        Args:
            spare: ends of every domain and host: edges that leave it less two for each piece.
            used: in how many trees two hosts, the lower one first, are neighbours; brought up to date.
        """
        self._spare, self._used = spare, used
        self.edges: list[tuple[int, int]] = []

    def whole(self, network: Domain) -> None:
        """Connect all hosts."""
        hubs, leaves = self._within(network)
        if hubs:
            self._hang(leaves, self._hubs(hubs))
        else:
            self._connect(*leaves)

    def _pieces(self, domain: Domain) -> list[Ends]:
        """Connect what is below a domain."""
        own = self._spare[domain]
        if not domain.parts:
            return [[domain.hosts[0]] * (own + 2)]
        hubs, leaves = self._within(domain)
        free = self._hubs(hubs)
        leaving = max(own + 2, 1) if hubs else 0
        alone = self._hang(leaves, free[leaving:])
        return [free[:leaving]] * (leaving > 0) + [[host] for host in alone]

    def _within(self, domain: Domain) -> tuple[list[Ends], list[int]]:
        """Its hubs, the largest first, and its leaves."""
        pieces = [piece for part in domain.parts for piece in self._pieces(part)]
        hubs = sorted((piece for piece in pieces if len(piece) > 1), key=len, reverse=True)
        return hubs, [piece[0] for piece in pieces if len(piece) == 1]

    def _hubs(self, hubs: list[Ends]) -> Ends:
        """Connect them; the ends that are left, the most central first."""
        free = deque[int]()
        for hub in hubs:
            own = list(hub)
            if free:
                self._connect(free.popleft(), own.pop(0))
            free.extend(own)
        return list(free)

    def _hang(self, leaves: list[int], free: Ends) -> list[int]:
        """Leaves on free ends, one on each; the leaves for which there is none."""
        left = Counter(free)
        for leaf in leaves[: len(free)]:
            hub = min(left, key=lambda hub: self._used.get((min(hub, leaf), max(hub, leaf)), 0))
            self._connect(hub, leaf)
            left[hub] -= 1
            if not left[hub]:
                del left[hub]
        return leaves[len(free) :]

    def _connect(self, one: int, other: int) -> None:
        pair = min(one, other), max(one, other)
        self._used[pair] = self._used.get(pair, 0) + 1
        self.edges.append((one, other))


TREES = (1, 2, 3, 4, 6, 8)
"""Numbers of trees that are tried. Each divides the data, and so the pieces that fill its pipeline."""


@dataclass(frozen=True)
class TreePacking:
    """Trees over hosts, by their place in `RankPlaces.counts`, with equal shares of the data.

    Attributes:
        seconds_per_byte: of the data that is reduced, if pieces were as small as can be and latency nothing.
        degrees: the mean degree of each host.
        edges: of each tree.
    """

    seconds_per_byte: float
    degrees: tuple[float, ...]
    edges: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def weights(self) -> tuple[float, ...]:
        """Each tree's share of the data."""
        return (1 / len(self.edges),) * len(self.edges)


def packings(place: RankPlaces, trees: Sequence[int] = TREES) -> tuple[TreePacking, ...]:
    """The best packing of each of these numbers of trees, one tree where there is a single host."""
    if len(place.counts) < 2:
        return (pack_trees(place, 1),)
    whole = domains(place)
    limit = least_time(whole)
    return tuple(_packed(whole, count, least_time(whole, count, limit)) for count in trees)


def pack_trees(place: RankPlaces, trees: int) -> TreePacking:
    """So many trees over the hosts of a placement, of equal shares, whose slowest link is done as early as can be."""
    if len(place.counts) < 2:
        return TreePacking(0.0, (0.0,), ((),))
    whole = domains(place)
    return _packed(whole, trees, least_time(whole, trees, least_time(whole)))


def _packed(whole: Domain, trees: int, time: float) -> TreePacking:
    share = _Sharing(trees, time)
    share.out(whole, [-2] * trees)
    used: dict[tuple[int, int], int] = {}
    edges = []
    for tree in range(trees):
        joining = Joining({domain: spare[tree] for domain, spare in share.spare.items()}, used)
        joining.whole(whole)
        edges.append(tuple(joining.edges))
    degrees = [0] * len(whole.hosts)
    for a, b in (edge for own in edges for edge in own):
        degrees[a] += 1
        degrees[b] += 1
    return TreePacking(time, tuple(degree / trees for degree in degrees), tuple(edges))


class _Sharing:
    """Gives every domain and host its spare ends in every tree.

    Attributes:
        spare: found, by domain, for each tree.
    """

    def __init__(self, trees: int, time: float) -> None:
        self._trees, self._time = trees, time
        self.spare: dict[Domain, list[int]] = {}

    def out(self, domain: Domain, own: list[int]) -> None:
        """Share a domain's out among its parts."""
        self.spare[domain] = own
        if not domain.parts:
            return
        ranges = domain.parts_spare(self._time, sum(own), self._trees)
        totals = _between([(int(low), int(high)) for low, high in ranges], -self._trees, sum(own))
        for part, ends in zip(domain.parts, self._among_trees(totals, own), strict=True):
            self.out(part, ends)

    def _among_trees(self, totals: Sequence[int], own: Sequence[int]) -> list[list[int]]:
        """Of each part, its spare ends in every tree: these in all, and the domain's in each tree.

        A part crosses its uplink least often with -1 in a tree: in one piece, with one edge. What it has above or
        below that, it has in all trees on the same side, and then it costs one crossing each.
        """
        found = [[-1] * self._trees for _ in totals]
        wanted = [spare + len(totals) for spare in own]
        for part, total in sorted(enumerate(totals), key=lambda one: one[1]):
            below = -self._trees - total
            if below <= 0:
                break
            order = sorted(range(self._trees), key=lambda tree: wanted[tree])
            for place, tree in enumerate(order):
                taken = below // self._trees + (place < below % self._trees)
                found[part][tree] -= taken
                wanted[tree] += taken
        for part, total in sorted(enumerate(totals), key=lambda one: -one[1]):
            above = total + self._trees
            while above > 0:
                tree = max(range(self._trees), key=lambda tree: wanted[tree])
                taken = min(above, wanted[tree])
                found[part][tree] += taken
                wanted[tree] -= taken
                above -= taken
        return found


def _between(ranges: Sequence[tuple[int, int]], middle: int, total: int) -> list[int]:
    """Whole numbers of this sum within their ranges: all of them as far as each other from the middle to an end."""
    centre = [min(max(middle, low), high) for low, high in ranges]
    ends = [high if total >= sum(centre) else low for low, high in ranges]
    room = sum(ends) - sum(centre)
    part = (total - sum(centre)) / room if room else 0.0
    exact = [near + part * (far - near) for near, far in zip(centre, ends, strict=True)]
    found = [int(value // 1) for value in exact]
    for i in sorted(range(len(exact)), key=lambda i: found[i] - exact[i])[: total - sum(found)]:
        found[i] += 1
    return found
