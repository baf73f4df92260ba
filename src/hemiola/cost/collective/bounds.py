"""What no strategy does faster, and the parts of a network that decide it.

Of a part of the network (a host, or what is below an uplink) all that matters to a tree is how many edges leave it
less twice the number of pieces that it falls into inside: its *spare ends*. A host of degree d has d - 2. The spare
ends of parts add up to those of their domain, and the whole network, in one piece and with nobody to send to, has
-2. A domain whose link bears c edges has from -c (c pieces that hang outside) to c - 2 (one piece), a host from -1.

So the least time is a water level: the first at which those ranges fit into each other. It is a bound for any
strategy too. Take all but some parts of a domain as one place in which sending costs nothing: between m places,
each byte of a sum takes 2 (m - 1) sendings (m - 1 until it is complete somewhere, m - 1 until it is everywhere), and
these go over the parts' own links. Each way in which ranges fail to fit is one such choice of parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hemiola.core.collective.schedule import Collective
from hemiola.cost.places import RankPlaces

__all__ = ["SAME", "Bounds", "Domain", "bounds", "domains", "least_time"]

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
    """What a collective takes at least on a placement, whatever the strategy.

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
