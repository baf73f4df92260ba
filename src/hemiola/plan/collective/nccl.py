"""NCCL's all-reduce on a network that it does not know: how long its ring and its trees take, and which to prefer.

NCCL goes by the hardware that each host reports, not by what links give. Its rings visit hosts in the order of their
first ranks, and its two trees (Sanders, Speck, Träff, 2009) are laid over the same order: a host has two to four
neighbours in both together, but the first and the last one have two where the number of hosts is even. So the order
of ranks decides how often an uplink is crossed, and how much a slow host has to carry by the trees; by the ring,
every host carries the same in every order. `nccl_order` looks for the order, `nccl_choices` for the algorithm.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hemiola.core.collective.shapes import double_tree
from hemiola.cost.collective.duration import Domain, domains
from hemiola.cost.collective.library import NCCL, Variant, variant_cost
from hemiola.cost.places import RankPlaces

__all__ = ["GAIN", "Choice", "NcclOrder", "NcclTimes", "Range", "nccl_choices", "nccl_order", "reordered"]


PROTOCOLS = {0.5: "ll", 0.9375: "ll128", 1.0: "simple"}
"""By the share of a link's bandwidth that carries data."""
GAIN = 0.10
"""What another choice has to gain over what NCCL may choose to be prescribed."""
CLOSE = 1.5
_SIZES = tuple(1 << power for power in range(10, 33))


@dataclass(frozen=True)
class Choice:
    """An algorithm with a protocol, and what it takes."""

    algorithm: str
    protocol: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.algorithm}/{self.protocol}"


@dataclass(frozen=True)
class Range:
    """All-reduces of some sizes, for which another choice than NCCL's is faster.

    Attributes:
        least_bytes, most_bytes: of them, both included; 0, and None, where there is no end.
        best, usual: the fastest choice, and NCCL's own, for the smallest size that was looked at.
        instead: what to take where NCCL cannot use LL128; None if `best` does not need it.
    """

    least_bytes: int
    most_bytes: int | None
    best: Choice
    instead: Choice | None
    usual: Choice


class NcclTimes:
    """On hosts in one order."""

    def __init__(self, place: RankPlaces, order: Sequence[int] | NDArray[np.int64] | None = None) -> None:
        """In this order of `RankPlaces.counts`; None for that of the place."""
        self.place = place
        self.order = np.arange(len(place.counts)) if order is None else np.asarray(order)

    @cached_property
    def _outer(self) -> list[int]:
        return [number for number, link in enumerate(self.place.links) if not link.inner]

    @cached_property
    def _inside(self) -> NDArray[np.bool_]:
        """Which hosts are below each link between hosts."""
        found = np.zeros((len(self._outer), len(self.place.counts)), dtype=bool)
        for row, number in enumerate(self._outer):
            found[row, list(self.place.links[number].hosts)] = True
        return found

    @cached_property
    def _edges(self) -> NDArray[np.int64]:
        """Of both trees, between places of the order."""
        count = len(self.order)
        both = double_tree(range(count)) if count > 1 else []
        return np.array(
            [(rank, up) for tree in both for rank, up in enumerate(tree) if up >= 0], dtype=np.int64
        ).reshape(-1, 2)

    @cached_property
    def crossings(self) -> dict[str, NDArray[np.float64]]:
        """How often the whole data goes out of each link between hosts, by algorithm."""
        inside, ranks = self._inside[:, self.order], self.place.ranks
        out = (inside & ~np.roll(inside, -1, axis=1)).sum(axis=1)
        cut = (inside[:, self._edges[:, 0]] != inside[:, self._edges[:, 1]]).sum(axis=1)
        return {"ring": out * 2 * (ranks - 1) / ranks, "tree": cut / 2}

    @property
    def tree_loads(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Seconds that the trees need each link between hosts for a byte; which hosts are below it."""
        return self.crossings["tree"] / self.place.bytes_per_s[self._outer], self._inside

    def seconds(self, variant: Variant, size_bytes: float) -> float:
        """By one algorithm and protocol, with the links to itself: latencies, and what the busiest link needs."""
        cost = variant_cost(variant, size_bytes, self.place)
        links = self.place.links
        inner = (size / links[number].bytes_per_s for number, size in cost.loads if links[number].inner)
        sent = self.crossings[variant.algorithm.name] * size_bytes / variant.efficiency
        outer = sent / self.place.bytes_per_s[self._outer]
        return cost.latency_s + max(float(outer.max(initial=0.0)), *inner, 0.0)

    def choices(self, size_bytes: float) -> list[Choice]:
        """All that NCCL has for an all-reduce, the fastest first."""
        found = [
            Choice(one.algorithm.name, PROTOCOLS[one.efficiency], self.seconds(one, size_bytes))
            for one in NCCL.variants["all-reduce"]
        ]
        return sorted(found, key=lambda choice: choice.seconds)

    def in_order(self, order: Sequence[int]) -> NcclTimes:
        """Of the same hosts in another order."""
        found = NcclTimes(self.place, order)
        found.__dict__ |= {
            name: self.__dict__[name] for name in ("_outer", "_inside", "_edges") if name in self.__dict__
        }
        return found

    def as_supposed(self) -> NcclTimes:
        """What NCCL supposes: every host as fast as the median one, and no uplink narrower than its hosts together."""
        hosts = len(self.place.counts)
        usual = float(np.median(self.place.bytes_per_s[:hosts])) if hosts > 1 else 0.0
        links = tuple(
            link if link.inner else replace(link, bytes_per_s=usual * len(link.hosts))
            for link in self.place.links
        )
        return NcclTimes(replace(self.place, links=links), self.order)

    @cached_property
    def _supposed(self) -> NcclTimes:
        return self.as_supposed()

    def usual(self, size_bytes: float) -> Choice:
        """What NCCL may take by itself, and how long that takes on this network.

        That is what seems fastest to it; or the other algorithm, if that seems nearly as fast, and suffers from what
        NCCL does not see: its times are these, corrected by up to `CLOSE` in tables for its own hardware.
        """
        here = {str(one): one.seconds for one in self.choices(size_bytes)}
        supposed = self._supposed.choices(size_bytes)
        best, seems = min(here, key=here.__getitem__), {str(one): one.seconds for one in supposed}
        first = supposed[0]
        other = next(one for one in supposed if one.algorithm != first.algorithm)
        risky = [
            one
            for one in (first, other)
            if one.seconds <= CLOSE * first.seconds
            and here[str(one)] > (1 + GAIN) * here[best] * max(1.0, one.seconds / seems[best])
        ]
        taken = max(risky, key=lambda one: here[str(one)], default=first)
        return replace(taken, seconds=here[str(taken)])


def nccl_choices(times: NcclTimes) -> list[Range]:
    """For which sizes of an all-reduce something else than what NCCL may choose is over a tenth faster, and what.

    Where nothing is, NCCL knows better.
    """
    found: list[Range] = []
    for size_bytes, one in _by_size(times):
        before = found[-1] if found else None
        if one is None:
            continue
        if before and before.most_bytes == size_bytes - 1 and _named(before) == _named(one):
            found[-1] = replace(before, most_bytes=one.most_bytes)
        else:
            found.append(one)
    return found


def _named(one: Range) -> tuple[str, str]:
    return str(one.best), str(one.instead)


def _by_size(times: NcclTimes) -> Iterator[tuple[int, Range | None]]:
    for size_bytes in _SIZES:
        choices, usual = times.choices(size_bytes), times.usual(size_bytes)
        best = choices[0]
        if usual.seconds <= best.seconds * (1 + GAIN):
            yield size_bytes, None
            continue
        instead = next(one for one in choices if one.protocol != "ll128")
        most = None if size_bytes == _SIZES[-1] else 2 * size_bytes - 1
        least = 0 if size_bytes == _SIZES[0] else size_bytes
        yield size_bytes, Range(least, most, best, None if instead is best else instead, usual)


# In which order hosts should have their ranks, so that NCCL's ring or its trees suffer least from what is
# slow.

ROUNDS_MAX = 32
EVERYWHERE_MAX = 48
"""Hosts up to which all changes are tried; beyond, only swaps with a host behind the busiest link."""
STARTS_MAX = 12
"""Hosts up to which the search begins anew from every host."""
_BETTER = 1e-6
Score = tuple[float, float]


@dataclass(frozen=True)
class NcclOrder:
    """What was found.

    Attributes:
        order: hosts, by their place in `RankPlaces.counts`.
        size_bytes: of the all-reduce that it was sought for.
        usual, best: what NCCL may take by itself in this order, and what is fastest.
        others: the same of other orders, by what they are called.
    """

    order: tuple[int, ...]
    size_bytes: float
    usual: Choice
    best: Choice
    others: dict[str, tuple[Choice, Choice]]


def nccl_order(place: RankPlaces, size_bytes: float) -> NcclOrder:
    """The order for an all-reduce of this size.

    Beside it stand the order of the topology, those of the hosts' names, as text, in which torchrun's rendezvous numbers
    hosts, and by the numbers in them, in which Slurm does, and that of hosts of different domains in turns.
    """
    start = NcclTimes(place)
    others = {"as the topology has them": start.order.tolist()}
    if len(place.counts) > 1:
        names = [place.topology.hosts.names[host] for host, _ in place.counts]
        whole = domains(place)
        hosts = range(len(names))
        as_text = sorted(hosts, key=names.__getitem__)
        by_number = sorted(hosts, key=lambda host: _numbered(names[host]))
        by_name = {"names as text (torchrun)": as_text, "names by number (Slurm)": by_number}
        if as_text == by_number:
            by_name = {"by their names": as_text}
        others |= {name: order for name, order in by_name.items() if order != start.order.tolist()}
        if any(part.parts for part in whole.parts):
            others["domains in turns"] = _in_turns(whole)
        start = start.in_order(_search(start, _nested(whole), size_bytes))
    return NcclOrder(
        tuple(start.order.tolist()), size_bytes, start.usual(size_bytes), start.choices(size_bytes)[0],
        {name: _both(start.in_order(order), size_bytes) for name, order in others.items()},
    )  # fmt: skip


def reordered(place: RankPlaces, order: tuple[int, ...]) -> RankPlaces:
    """The same hosts in this order: ranks are numbered anew along it."""
    at = {host: number for number, host in enumerate(order)}
    links = tuple(replace(link, hosts=frozenset(at[host] for host in link.hosts)) for link in place.links)
    hosts = len(order) if len(order) > 1 else 0
    nics = tuple(links[host] for host in order) if hosts else ()
    return replace(place, counts=tuple(place.counts[host] for host in order), links=(*nics, *links[hosts:]))


def _both(times: NcclTimes, size_bytes: float) -> tuple[Choice, Choice]:
    return times.usual(size_bytes), times.choices(size_bytes)[0]


def _numbered(name: str) -> list[str | int]:
    """What names are sorted by so that n2 comes before n10."""
    return [int(part) if at % 2 else part for at, part in enumerate(re.split("([0-9]+)", name))]


Nested = list["int | Nested"]


def _nested(domain: Domain) -> Nested:
    return [_nested(part) if part.parts else part.hosts[0] for part in domain.parts]


def _flat(parts: Nested) -> list[int]:
    return [host for part in parts for host in (_flat(part) if isinstance(part, list) else [part])]


def _in_turns(whole: Domain) -> list[int]:
    """The first host of every outermost domain, then the second of every one, ..."""
    rows = [list(part.hosts) for part in whole.parts]
    return [row[turn] for turn in range(max(map(len, rows))) for row in rows if turn < len(row)]


def _search(times: NcclTimes, parts: Nested, size_bytes: float) -> list[int]:
    """The best order that changes lead to, one after the other; the one to begin with if none is faster by anything."""
    begun = _flat(parts)
    best = None
    for first in range(len(begun) if len(begun) <= STARTS_MAX else 1):
        found = _climbed(times, parts, first, size_bytes)
        best = found if best is None or _less(found.score[0], best.score[0]) else best
    ended = _turned(best.parts, best.first) if best else begun
    took = [times.in_order(order).choices(size_bytes)[0].seconds for order in (begun, ended)]
    return ended if took[1] < took[0] * (1 - _BETTER) else begun


def _climbed(times: NcclTimes, parts: Nested, first: int, size_bytes: float) -> _Tried:
    """Change by change, each time the best one, until none is better."""
    now = _Tried(_trees(times.in_order(_turned(parts, first)), size_bytes), copy.deepcopy(parts), first)
    for _ in range(ROUNDS_MAX):
        found = now
        for changed, start in _changes(now):
            score = _trees(times.in_order(_turned(changed, start)), size_bytes)
            if _less(score[0], found.score[0]):
                found = _Tried(score, copy.deepcopy(changed), start)
        if found is now:
            break
        now = found
    return now


@dataclass(frozen=True)
class _Tried:
    """Domains in an order, at which place that begins (a ring has no end, the trees do), and how good it is."""

    score: tuple[Score, int]
    parts: Nested
    first: int

    @property
    def busiest(self) -> int:
        return self.score[1]


def _turned(parts: Nested, first: int) -> list[int]:
    hosts = _flat(parts)
    return hosts[first:] + hosts[:first]


def _changes(now: _Tried) -> Iterator[tuple[Nested, int]]:
    """What is one change away. The parts are changed in place, and changed back."""
    count = len(_flat(now.parts))
    if count <= EVERYWHERE_MAX:
        yield from ((now.parts, first) for first in range(count))
    for level, one, other in _swaps(now.parts, now.busiest if count > EVERYWHERE_MAX else None):
        _swap(level, one, other)
        yield now.parts, now.first
        _swap(level, one, other)


def _trees(times: NcclTimes, size_bytes: float) -> tuple[Score, int]:
    """What the trees take, and the sum of the squares of what each link takes; a host below the busiest link."""
    seconds = min(choice.seconds for choice in times.choices(size_bytes) if choice.algorithm == "tree")
    loads, inside = times.tree_loads
    return (seconds, float((loads**2).sum())), int(np.flatnonzero(inside[int(loads.argmax())])[0])


def _less(now: Score, before: Score) -> bool:
    """Faster, or as fast with trees that load what is slow less."""
    if now[0] < before[0] * (1 - _BETTER):
        return True
    return now[0] <= before[0] * (1 + _BETTER) and now[1] < before[1] * (1 - _BETTER)


def _swaps(parts: Nested, host: int | None) -> Iterator[tuple[Nested, int, int]]:
    """Pairs of parts of one domain, one of which has the host; the same part twice is to be turned round."""
    for one, part in enumerate(parts):
        below = _flat([part])
        if host is not None and host not in below:
            continue
        yield from ((parts, one, other) for other in range(len(parts)) if other > one or host is not None)
        if isinstance(part, list):
            yield parts, one, one
            yield from _swaps(part, host)


def _swap(level: Nested, one: int, other: int) -> None:
    part = level[one]
    if one != other:
        level[one], level[other] = level[other], level[one]
    elif isinstance(part, list):
        part.reverse()
