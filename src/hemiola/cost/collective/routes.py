"""Which links a message between two ranks of a placement crosses."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from hemiola.cost.places import RankPlaces

__all__ = ["Roads"]


class Roads:
    """The links that messages between two ranks of a placement cross.

    Between hosts they are the placement's, in both directions. Within a host each rank has its own way out and in, as
    fast as one of its GPUs sends to another.

    Attributes:
        names, bytes_per_s: of every link.
    """

    def __init__(self, place: RankPlaces) -> None:
        inner = {next(iter(link.hosts)): link.bytes_per_s for link in place.links if link.inner}
        within = [inner.get(host, math.inf) for host in place.host_of]
        self._place = place
        self._above: list[list[int]] = [[] for _ in place.counts]
        for number, link in enumerate(place.links):
            for host in () if link.inner else link.hosts:
                self._above[host].append(number)
        self._known: dict[tuple[int, int], tuple[int, ...]] = {}
        self.names = (
            *place.names,
            *(f"rank {rank} {way}" for way in ("out", "in") for rank in range(place.ranks)),
        )
        self.bytes_per_s = np.concatenate([place.bytes_per_s, within, within])

    def between(self, source: int, target: int) -> tuple[int, ...]:
        """Their numbers, for a message from one rank to another."""
        if (source, target) not in self._known:
            self._known[source, target] = tuple(self._found(source, target))
        return self._known[source, target]

    def _found(self, source: int, target: int) -> Iterator[int]:
        place = self._place
        one, other, count = place.host_of[source], place.host_of[target], len(place.links)
        if one == other:
            yield from (2 * count + source, 2 * count + place.ranks + target)
            return
        yield from (number for number in self._above[one] if other not in place.links[number].hosts)
        yield from (count + number for number in self._above[other] if one not in place.links[number].hosts)
