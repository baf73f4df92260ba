"""What jobs and nodes of a Ray have beside GPUs, as the state machine counts them: processors. Groups ask for no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hemiola.core.events import Event, ResourcesOffered, ResourcesRequested
from hemiola.core.resources import ResourceRequest, Resources
from hemiola.live.engines.ray.snapshot import STEADY_S, TINY, RaySnapshot
from hemiola.live.engines.ray.tracked_job import RayTrackedJob

__all__ = ["RayResources"]


class RayResources:
    """Tells the state machine of it: of jobs once, of nodes when it changes."""

    def __init__(self) -> None:
        self._claimed: set[str] = set()
        self._others: dict[int, tuple[float, float]] = {}
        self._told: dict[int, tuple[Resources, Resources]] = {}

    def events(self, look: RaySnapshot, jobs: Iterable[RayTrackedJob], now_s: float) -> list[Event]:
        """What is new; nothing where Ray does not say what its nodes have."""
        if not look.cpus:
            return []
        jobs = [known for known in jobs if not known.refused]
        new = [known for known in jobs if known.cpus and known.job.id not in self._claimed]
        self._claimed = {known.job.id for known in jobs if known.cpus}
        claims = [
            ResourcesRequested(now_s, known.job.id, ResourceRequest(cpus_per_gpu=float(known.cpus)))
            for known in new
        ]
        return [*self._furnished(look, _taken(look, jobs), now_s), *claims]

    def _furnished(self, look: RaySnapshot, taken: Counter[int], now_s: float) -> list[Event]:
        events: list[Event] = []
        for host, (cpus, free) in look.cpus.items():
            others = self._steadily(host, max(0.0, cpus - free - taken[host]), now_s)
            ours, total = Resources(cpus - others), Resources(cpus)
            if self._told.get(host) != (ours, total):
                self._told[host] = ours, total
                events.append(ResourcesOffered(now_s, host, ours, total))
        return events

    def _steadily(self, host: int, others: float, now_s: float) -> float:
        """What others use counts once it has been the same for some time, as it does of GPUs."""
        before, since_s = self._others.get(host, (others, float("-inf")))
        since_s = since_s if abs(before - others) < TINY else now_s
        self._others[host] = others, since_s
        if now_s - since_s >= STEADY_S or host not in self._told:
            return others
        ours, total = self._told[host]
        assert ours.cpus is not None and total.cpus is not None
        return total.cpus - ours.cpus


def _taken(look: RaySnapshot, jobs: Iterable[RayTrackedJob]) -> Counter[int]:
    """By host, the processors of groups that stand: what the state machine counts itself."""
    taken: Counter[int] = Counter()
    for known in jobs:
        place = look.placement(known.group) if known.group and known.wanted is not None else None
        if place is not None:
            for host, mask in zip(place.hosts, place.masks, strict=True):
                taken[host] += known.cpus * mask.bit_count()
    return taken
