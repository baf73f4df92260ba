"""In which order hosts should have their ranks, so that NCCL's ring or its trees suffer least from what is slow.

Hosts of a domain stand one after the other: so a ring goes into every domain, and out of it, once. Among those orders,
whichever host is the first, the ring takes the same time; the trees do not. From the order of the topology on, the
search swaps and turns parts of domains, and begins elsewhere, as long as that makes the trees faster. Where the ring
is faster all the same, the order stays.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hemiola.cost.places import RankPlaces
from hemiola.cost.collective.bounds import Domain, domains
from hemiola.plan.collective.nccl import Choice, NcclTimes

__all__ = ["NcclOrder", "nccl_order", "reordered"]

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
