"""Trees for an all-reduce that load every link in proportion to what it can bear.

In a tree that carries w of the data up and down again, a host sends, and receives, w times its degree: one for the
way up or down of its own, one for each child. Degrees of trees are all whole numbers from 1 on with sum
2 (N - 1). So several trees of shares w together can give each host any mean degree from 1 on with that sum, and
hosts of bandwidth B_i finish M bytes in T as soon as degrees of at most B_i T / M do: no less than
max(M / min B, 2 (N - 1) M / sum B), the bound that holds for any strategy (specification, 3.1).

The same holds inside of each domain of a tree-like network: a rack of n hosts whose uplink is crossed x times has
degrees with sum 2 (n - 1) + x, and x is at most what its uplink bears. So the least T is that for which
every domain can have at least one crossing, from the leaves of the network up; degrees are then shared out from
its root down.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hemiola.cost.places import Place

__all__ = ["Packing", "pack_trees"]

_SAME = 1e-9
TREES_MAX = 8


@dataclass(frozen=True)
class Packing:
    """Trees over hosts, by their place in `Place.counts`.

    Attributes:
        seconds_per_byte: of the data that is reduced, if pieces were as small as can be and latency nothing.
        degrees: the mean degree wanted of each host.
        edges: of each tree.
        weights: each tree's share of the data.
    """

    seconds_per_byte: float
    degrees: tuple[float, ...]
    edges: tuple[tuple[tuple[int, int], ...], ...]
    weights: tuple[float, ...]


@dataclass(frozen=True)
class _Domain:
    """A host, or what is below an uplink.

    Attributes:
        hosts: below it.
        bytes_per_s: of its NIC or uplink; infinity for the whole.
        parts: of a domain that is no host.
    """

    hosts: tuple[int, ...]
    bytes_per_s: float
    parts: tuple[_Domain, ...] = ()

    def most(self, time: float) -> float:
        """Crossings that it bears in that many seconds per byte; below 1 where it cannot take part."""
        own = self.bytes_per_s * time
        if not self.parts:
            return own
        inside = [part.most(time) for part in self.parts]
        if min(inside) < 1 - _SAME:
            return -math.inf
        return min(own, sum(inside) - 2 * (len(inside) - 1))


def pack_trees(place: Place, trees_max: int = TREES_MAX) -> Packing:
    """Trees over the hosts of a placement whose slowest link is done as early as can be.

    Args:
        trees_max: more are not used; shares are rounded to that many equal ones then.
    """
    if len(place.counts) < 2:
        return Packing(0.0, (0.0,), ((),), (1.0,))
    whole = _domains(place)
    time = _least_time(whole)
    degrees = [0.0] * len(place.counts)
    _share_out(whole, 0.0, time, degrees)
    found = _whole_numbers(degrees, whole.hosts, trees_max)
    edges = []
    for numbers in found:
        ends = _Joining(numbers)
        ends.join(whole)
        edges.append(tuple(ends.edges))
    weights = tuple(found.values())
    return Packing(time, tuple(degrees), tuple(edges), weights)


def _domains(place: Place) -> _Domain:
    """The network as domains of domains of hosts."""
    hosts = len(place.counts)
    top = [_Domain((host,), place.links[host].bytes_per_s) for host in range(hosts)]
    uplinks = [link for link in place.links[hosts:] if not link.inner]
    for link in sorted(uplinks, key=lambda link: len(link.hosts)):
        inside = [domain for domain in top if set(domain.hosts) <= link.hosts]
        top = [domain for domain in top if domain not in inside]
        ordered = tuple(host for domain in inside for host in domain.hosts)
        top.append(_Domain(ordered, link.bytes_per_s, tuple(inside)))
    return _Domain(tuple(host for domain in top for host in domain.hosts), math.inf, tuple(top))


def _least_time(whole: _Domain) -> float:
    """The least time in which everybody can take part: by halving an interval."""

    def enough(time: float) -> bool:
        return whole.most(time) >= -_SAME

    high = 1.0
    while not enough(high):
        high *= 2
    low = 0.0
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _share_out(domain: _Domain, crossings: float, time: float, degrees: list[float]) -> None:
    """Give each host below its mean degree: in proportion to what it bears, at least 1."""
    if not domain.parts:
        degrees[domain.hosts[0]] = crossings
        return
    wanted = 2.0 * (len(domain.parts) - 1) + crossings
    most = [max(1.0, part.most(time)) for part in domain.parts]
    for part, own in zip(domain.parts, _in_proportion(most, wanted), strict=True):
        _share_out(part, own, time, degrees)


def _in_proportion(most: Sequence[float], total: float) -> list[float]:
    """Numbers of this sum in proportion to these, none below 1 and none above its own (but for rounding)."""
    if math.isinf(max(most)):
        most = [min(value, total) for value in most]
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(max(1.0, middle * m) for m in most) < total else (low, middle)
    found = [max(1.0, high * m) for m in most]
    excess = sum(found) - total
    widest = max(range(len(found)), key=lambda i: found[i])
    found[widest] = max(1.0, found[widest] - excess)
    return found


def _whole_numbers(
    degrees: Sequence[float], order: Sequence[int], trees_max: int
) -> dict[tuple[int, ...], float]:
    """Whole degrees and their shares, of which these are the mean: by systematic rounding along an order.

    With S_i the sum of the degrees less 1 up to host i, and one number u from 0 to 1, host i gets
    floor(S_i + u) - floor(S_(i-1) + u) more than 1. The mean over u is its own, and every stretch of the
    order is at most 1 off its sum, so that domains keep their crossings.
    """
    sums, total = [], 0.0
    for host in order:
        total += degrees[host] - 1
        sums.append(_tidy(total))
    cuts = sorted({0.0, 1.0, *(_tidy(math.ceil(s) - s) for s in sums)})
    if len(cuts) - 1 <= trees_max:
        samples = [((a + b) / 2, b - a) for a, b in itertools.pairwise(cuts) if b - a > _SAME]
    else:
        samples = [((k + 0.5) / trees_max, 1 / trees_max) for k in range(trees_max)]
    found: dict[tuple[int, ...], float] = {}
    for u, share in samples:
        numbers = [1] * len(degrees)
        before = math.floor(u)
        for host, s in zip(order, sums, strict=True):
            here = math.floor(s + u)
            numbers[host] += here - before
            before = here
        key = tuple(numbers)
        found[key] = found.get(key, 0.0) + share
    scale = sum(found.values())
    return {key: share / scale for key, share in found.items()}


def _tidy(value: float) -> float:
    """Rounded to a whole number where it is one but for arithmetic."""
    near = round(value)
    return float(near) if abs(value - near) < 1e-6 else value


class _Joining:
    """A tree with given degrees, each domain connected within itself."""

    def __init__(self, degrees: Sequence[int]) -> None:
        self._degrees = degrees
        self.edges: list[tuple[int, int]] = []

    def join(self, domain: _Domain) -> list[int]:
        """Connect what is below; the hosts at which edges that leave it end, one entry for each."""
        if not domain.parts:
            return [domain.hosts[0]] * self._degrees[domain.hosts[0]]
        ends = [self.join(part) for part in domain.parts]
        leaving = sum(map(len, ends)) - 2 * (len(ends) - 1)
        left = []
        for _ in range(leaving):
            most = max(ends, key=len)
            left.append(most.pop())
        self._connect(ends)
        return left

    def _connect(self, ends: list[list[int]]) -> None:
        """A flat tree of these parts: those with most ends nearest to the middle."""
        parts = sorted(ends, key=len, reverse=True)
        open_ends = list(parts[0])
        for part in parts[1:]:
            self.edges.append((open_ends.pop(0), part.pop(0)))
            open_ends.extend(part)
