"""Joins hosts into one tree, domain by domain, when it is known how many ends each has to spare.

What is above -1 makes a part a hub: it is in one piece, and has two ends or more. Every other piece has one end: it
is a leaf. Hubs are joined first, the largest in the middle; leaves hang on their free ends, each where two hosts do
not send to each other in another tree yet: two hosts have one connection, whatever goes over it, and links are
shared by connections.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from hemiola.cost.collective.bounds import Domain

__all__ = ["Joining"]

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
