"""Which ways sums without late ranks go: by strategies that are chosen for this network, or by usual ones."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import msgspec

from hemiola.core.collective.schedule import Collective, CollectiveSchedule
from hemiola.core.collective.schedule_relays import relayed, stars
from hemiola.core.collective.schedule_shapes import chain, ring, trees
from hemiola.comm.stragglers.coordinator import CatchUp, PartialGroup

__all__ = ["Choose", "Ways"]

Choose = Callable[[Collective, int, int, int | None], CollectiveSchedule | None]
"""The strategy for a collective, so many bytes, a root and an epoch, in which these are chosen once (None: the present one);
None for the usual one."""

CHAIN_BYTES = 128 << 10
"""Of what a late rank sends, so much goes at a time from rank to rank."""
_KNOWN = 256
"""Strategies without somebody that are kept."""


class Ways:
    """For one group; the same at every rank."""

    def __init__(self, ranks: int, choose: Choose, carries: bool) -> None:
        """Among so many ranks.

        Args:
            choose: for collectives of all.
            carries: whether late ranks get the parts' results at once.
        """
        self._ranks, self._choose, self._carries = ranks, choose, carries
        self._usual = ring(range(ranks))
        self._known: dict[Hashable, tuple[CollectiveSchedule | None, CollectiveSchedule]] = {}

    def part(self, order: PartialGroup) -> CollectiveSchedule:
        """For a part of a sum."""
        fitted = self._choose("all-reduce", order.size_bytes, 0, order.epoch)
        if len(order.active) == self._ranks:
            return fitted or self._usual
        takers = None if self._carries else order.active

        def made() -> CollectiveSchedule:
            if fitted is not None:
                return relayed(fitted, order.active, takers)
            return stars(self._ranks, order.active, takers)

        return self._kept((id(fitted), order.active), fitted, made)

    def catch_up(self, order: CatchUp, source: int) -> CollectiveSchedule:
        """For what a late rank gives; to the one that brings it something last, which then sends nothing on."""
        fitted = self._choose("broadcast", order.size_bytes, order.rank, order.epoch)
        if fitted is not None:
            return fitted

        def made() -> CollectiveSchedule:
            between = [rank for rank in range(self._ranks) if rank not in (order.rank, source)]
            way = trees([chain([order.rank, *between, source])], collective="broadcast")
            return msgspec.structs.replace(way, chunk_bytes=CHAIN_BYTES)

        return self._kept((order.rank, source), None, made)

    def _kept(self, key: Hashable, of: CollectiveSchedule | None, make: Callable[[], CollectiveSchedule]) -> CollectiveSchedule:
        """Kept with the strategy that it is made of, so that no other gets its id."""
        if key not in self._known:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[key] = of, make()
        return self._known[key][1]
