"""NCCL's all-reduce on a network that it does not know: how long its ring and its trees take, and which to prefer.

NCCL goes by the hardware that each host reports, not by what links give. Its rings visit hosts in the order of their
first ranks, and its two trees (Sanders, Speck, Träff, 2009) are laid over the same order: a host has two to four
neighbours in both together, but the first and the last one have two where the number of hosts is even. So the order
of ranks decides how often an uplink is crossed, and how much a slow host has to carry by the trees; by the ring,
every host carries the same in every order. `nccl_order` looks for the order, `nccl_choices` for the algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hemiola.core.collective.schedule_shapes import double_tree
from hemiola.cost.collective.library import NCCL, Variant, variant_cost
from hemiola.cost.places import RankPlaces

__all__ = ["GAIN", "PROTOCOLS", "Choice", "NcclTimes", "Range", "nccl_choices"]

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
