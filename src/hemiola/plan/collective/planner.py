"""Which schedule a job uses for a collective: planned once for every kind and size, on the hosts where its ranks are."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import msgspec
import numpy as np

from hemiola.core.collective.schedule import ChunkMove, ChunkPlace, Collective, CollectiveSchedule, SendRate
from hemiola.core.collective.shapes import binomial, ring, trees
from hemiola.core.errors import InputError
from hemiola.core.topology import Topology
from hemiola.cost.collective.duration import schedule_seconds
from hemiola.cost.collective.library import Variant, algorithm, variant_cost
from hemiola.cost.network_fit import KEEP_RING
from hemiola.cost.places import RankPlaces as Ranks
from hemiola.cost.places import place_ranks
from hemiola.plan.collective.synthesis import Synthesis, synthesise

__all__ = ["SchedulePlanner", "fitted_to", "size_class", "usual_seconds"]

_log = logging.getLogger("hemiola.strategy")
_LEAST, _MOST = 16, 26
DIRECT = Variant(algorithm("all-gather", "direct"), 0.0, 0.0, 0.0)
"""From everybody to everybody: it takes what its busiest link does, and a message's latency."""


def size_class(size_bytes: float) -> int:
    """The size for which is planned: the nearest power of two from 64 KiB to 64 MiB."""
    return 1 << min(max(round(math.log2(max(size_bytes, 1))), _LEAST), _MOST)


def fitted_to(place: Ranks) -> Callable[[Collective, float], CollectiveSchedule | None]:
    """How a process group chooses among these ranks: planned once for every collective and class of sizes.

    Predictions take it as `PredictionOptions.schedules`.
    """
    names = place.topology.hosts.names
    planner = SchedulePlanner(place.topology, [names[place.counts[host][0]] for host in place.host_of])

    @cache
    def planned(collective: Collective, size_bytes: int) -> CollectiveSchedule | None:
        return planner.schedule(collective, size_bytes)

    return lambda collective, size_bytes: planned(collective, size_class(size_bytes))


class SchedulePlanner:
    """Plans for the ranks of one job."""

    def __init__(self, topology: Topology, hosts: Sequence[str]) -> None:
        """On these hosts of a topology, which may run more ranks than it gives them GPUs: a probe may have seen none.

        Args:
            hosts: of every rank, by name.

        Raises:
            InputError: one of them is not in the topology.
        """
        known = {name: number for number, name in enumerate(topology.hosts.names)}
        missing = [name for name in hosts if name not in known]
        if missing:
            raise InputError(
                f"the topology {topology.name!r} has no host {missing[0]!r}",
                f"it has {', '.join(topology.hosts.names[:8])}; measure again where the job runs",
            )
        counts = [0] * len(known)
        for name in hosts:
            counts[known[name]] += 1
        there = replace(topology.hosts, gpus=np.maximum(topology.hosts.gpus, counts))
        self.place = place_ranks(replace(topology, hosts=there), len(hosts), tuple(counts))
        self._order = sorted(range(len(hosts)), key=lambda rank: (known[hosts[rank]], rank))
        """The rank of each place."""
        self._at = sorted(range(len(hosts)), key=self._order.__getitem__)
        """The place of each rank."""

    def schedule(
        self, collective: Collective, size_bytes: float, root: int = 0, keep: CollectiveSchedule | None = None
    ) -> CollectiveSchedule | None:
        """What to use; None for the usual way, in the order of ranks.

        Args:
            keep: what is used now: it stays unless another one is predicted to gain over a tenth.
        """
        if collective == "all-to-all" or len(self.place.counts) < 2:
            return None
        in_order = self._order == list(range(self.place.ranks))
        if collective in ("reduce-scatter", "all-gather") and not in_order:
            return None  # whose part is whose would change with the places
        found = synthesise(self.place, size_bytes, collective, root=self._at[root])
        chosen, usual_s = found.chosen, found.usual.seconds
        is_usual = chosen.schedule.source == "binomial"
        # What synthesis calls the usual one may be another ring or tree than the group's.
        if collective in ("all-gather", "reduce") or not in_order or chosen.schedule.source == "ring":
            usual_s = usual_seconds(found, self.place, self._at)
            is_usual = usual_s <= chosen.seconds * (1 + KEEP_RING)
        if keep is not None:
            kept = keep if in_order else _relabelled(keep, self._at)
            seconds = schedule_seconds(kept, size_bytes, self.place)
            if seconds <= (usual_s if is_usual else chosen.seconds) * (1 + KEEP_RING):
                return keep
        if is_usual:
            return None
        _log.info("%s", _words(found, collective, usual_s))
        return chosen.schedule if in_order else _relabelled(chosen.schedule, self._order)


def usual_seconds(found: Synthesis, place: Ranks, at: Sequence[int]) -> float:
    """How long a process group takes for what was found without a schedule (`comm.process_group`), in seconds.

    What is gathered goes from everybody to everybody, a broadcast down a binomial tree in pieces of the size that is best
    there, other things round a ring: a reduction too, as an all-reduce of which only the root keeps the result.

    Args:
        at: the place of each rank: ring and tree go by the numbers of ranks.
    """
    collective = found.chosen.schedule.collective
    if collective == "all-gather":
        return variant_cost(DIRECT, found.size_bytes, place).seconds(place)
    if collective == "broadcast":
        tree = trees([binomial(place.ranks, at.index(found.chosen.schedule.root))], (), collective)
        chunk_bytes = found.usual.schedule.chunk_bytes
        usual = _relabelled(msgspec.structs.replace(tree, chunk_bytes=chunk_bytes), at)
    else:
        usual = ring(at, "all-reduce" if collective == "reduce" else collective)
    return schedule_seconds(usual, found.size_bytes, place)


def _words(found: Synthesis, collective: Collective, usual_s: float) -> str:
    return (
        f"{collective} of {found.size_bytes / 1e6:.3g} MB: {found.chosen.schedule.name}, {found.chosen.seconds:.3g} s "
        f"predicted; the usual way {usual_s:.3g} s, at least {found.bounds.seconds:.3g} s"
    )


def _relabelled(schedule: CollectiveSchedule, ranks: Sequence[int]) -> CollectiveSchedule:
    """The same with these ranks in the places of 0, 1, ..."""

    def moved(place: ChunkPlace) -> ChunkPlace:
        return msgspec.structs.replace(place, rank=ranks[place.rank])

    moves = tuple(
        ChunkMove(moved(m.source), moved(m.target), m.count, m.adds, m.channel) for m in schedule.moves
    )
    paces = tuple(SendRate(ranks[p.source], ranks[p.target], p.bytes_per_s) for p in schedule.paces)
    return msgspec.structs.replace(schedule, moves=moves, paces=paces, root=ranks[schedule.root]).verify()
