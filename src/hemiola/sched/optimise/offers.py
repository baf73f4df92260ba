"""Jobs of a view as offers: what each takes of hosts, how fast it is at every size and scope, and what its end is worth.

Speeds are those of the cost model (`Estimates`), whatever the parallelism: a table over sizes and scopes stands where the
paper has 1 / l. Resources are GPUs, and processors, memory (GiB) and links (GB/s) where the cluster counts them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hemiola.core.job import Batch, Utility
from hemiola.core.topology import Topology
from hemiola.sched.optimise.offer import JobOffer
from hemiola.sched.placement import gpu_speed

if TYPE_CHECKING:
    from hemiola.sched.job_state import JobState
    from hemiola.sched.view import ClusterView

__all__ = ["ClusterTotal", "Offers", "clipped", "utility_of"]

Floats = NDArray[np.float64]
GIB, GIGA = float(2**30), 1e9
UNCOUNTED = 1e9
"""What a host has of something that it does not count, where others do: enough for anybody."""
LEAST_WORK_S = 1e-6


def utility_of(job: Batch) -> Utility:
    """What a job says that its end is worth; of one that says nothing its GPU-hours, half of them after three times its
    run time, which is taken as ten minutes at least (our choice: all are worth alike per GPU-hour, and none may wait for
    ever)."""
    if job.utility is not None:
        return job.utility
    length_s = max(job.duration_s, 600.0)
    return Utility(job.gpus * length_s / 3600.0, 1.0 / length_s, 3.0 * length_s)


class Offers:
    """Makes offers on one cluster.

    Args:
        topology: the cluster.
        slot_s: length of a slot.

    Attributes:
        capacity: (hosts, resources) of the empty cluster.
        domains, counts: the domains of each host by tier above one host, and how many each tier has.
    """

    def __init__(self, topology: Topology, slot_s: float) -> None:
        self.topology, self.slot_s = topology, slot_s
        hosts = topology.hosts
        columns = [hosts.gpus.astype(np.float64)]
        self._beside = [
            field for field, _ in _FIELDS if any(getattr(r, field) is not None for r in hosts.resources)
        ]
        for field, unit in _FIELDS:
            if field in self._beside:
                had = [getattr(r, field) for r in hosts.resources]
                columns.append(np.array([UNCOUNTED if one is None else one / unit for one in had]))
        self.capacity: Floats = np.stack(columns, axis=1)
        self._tiers = len(topology.tiers)
        levels = [level.domain_of_host for level in topology.levels]
        levels += [np.zeros(len(hosts), np.int64)] * (self._tiers - 1 - len(levels))
        self.domains = np.array(levels, np.int64).reshape(len(levels), len(hosts))
        self.counts = self.domains.max(axis=1) + 1

    def of(
        self,
        view: ClusterView,
        job: JobState,
        *,
        arrival: int,
        start_s: float,
        work_s: float,
        sharp: bool = False,
        alone: bool = False,
    ) -> Iterator[JobOffer]:
        """What a job offers from now on: one offer for each type of GPU that it accepts.

        Args:
            arrival: the first slot that it may use.
            start_s: when that slot begins, or began.
            work_s: that is left.
            sharp: count on its end within the last slot as if it ran at its fastest, and not on the slot's end.
            alone: count on links that nobody else uses, and not on fair shares of them.
        """
        sizes = view.sizes_of(job)
        if not sizes:
            return
        work_s = max(work_s, LEAST_WORK_S)
        alpha, beta = self.needs(job)
        for pool in job.pools:
            rates = self._rates(view, job, sizes, alone) * gpu_speed(job, pool) * self.slot_s
            yield JobOffer(
                job.id, arrival, work_s, *_members(job, sizes), rates, alpha, beta,
                self._worth(job, start_s, work_s / float(rates.max()) if sharp else 1.0),
                each=_each(job), allowed=self._up(view, pool.gpu_type),
                links=np.array([False, *(field == "bandwidth_bytes_per_s" for field in self._beside)]),
            )  # fmt: skip

    def _worth(self, job: JobState, start_s: float, least_slots: float) -> Callable[[int], float]:
        """ln of its utility by slots from the first; the last is used as far as its work goes at its fastest."""
        utility, waited_s, slot_s = utility_of(job.job), start_s - job.submit_s, self.slot_s
        last = least_slots - math.ceil(least_slots - 1e-9) + 1 if 0 < least_slots < math.inf else 1.0
        return lambda slots: utility.log_at(waited_s + (slots - 1 + last) * slot_s)

    def _up(self, view: ClusterView, gpu_type: str) -> NDArray[np.bool_]:
        """Hosts of a type that are up."""
        kinds = self.topology.hosts.gpu_types
        down = view.inventory.down
        return np.array([kind == gpu_type and not gone for kind, gone in zip(kinds, down, strict=True)])

    def _rates(self, view: ClusterView, job: JobState, sizes: tuple[int, ...], alone: bool) -> Floats:
        """(scopes, sizes): work per second; -inf where it may not be."""
        rates = np.full((self._tiers, len(sizes)), -np.inf)
        has_servers = job.job.roles is not None
        for j, gpus in enumerate(sizes):
            sized = job if gpus == job.gpus else view.at_size(job, gpus)
            best = view.estimates.speed_at(job, gpus)
            for tier in range(self._tiers):
                between = has_servers and 0 < tier < self._tiers - 1
                if tier <= sized.widest and not between and not (tier == 0 and job.job.hosts > 1):
                    shared = has_servers or not alone
                    rates[tier, j] = best / view.estimates.slowdown(sized, tier) if shared else best
        return rates

    def needs(self, job: JobState) -> tuple[Floats, Floats]:
        """What a worker and a server take, in the columns of `capacity`."""
        roles, claim = job.job.roles, job.claim
        if roles is not None:
            worker: dict[str, float] = {
                "cpus": roles.worker_cpus, "memory_bytes": roles.worker_memory_bytes,
                "bandwidth_bytes_per_s": roles.across_bytes_per_s,
            }  # fmt: skip
            server = {
                "cpus": roles.server_cpus, "memory_bytes": roles.server_memory_bytes,
                "bandwidth_bytes_per_s": roles.across_bytes_per_s,
            }  # fmt: skip
            return self._column(roles.gpus_per_worker, worker), self._column(0, server)
        each: dict[str, float] = {}
        if claim is not None:
            most = job.job.sizes[-1]
            each = {
                "cpus": max(claim.cpus_per_gpu, claim.cpus / most),
                "memory_bytes": max(claim.memory_per_gpu_bytes, claim.memory_bytes / most),
            }
        return self._column(1, each), self._column(0, {})

    def _column(self, gpus: int, beside: dict[str, float]) -> Floats:
        units = dict(_FIELDS)
        return np.array([float(gpus), *(beside.get(field, 0.0) / units[field] for field in self._beside)])


class ClusterTotal:
    """What jobs take of the whole cluster, for policies that share it out in bulk.

    Args:
        view: with its hosts as they are: those that are down have nothing, and what pinned jobs hold is not there.

    Attributes:
        capacity: (resources,) of all hosts together.
        nothing: as many zeros.
    """

    def __init__(self, view: ClusterView) -> None:
        self._offers = Offers(view.topology, 1.0)
        up = np.array([not gone for gone in view.inventory.down])
        self.capacity: Floats = np.maximum(self._offers.capacity[up].sum(axis=0), 1e-12)
        self.nothing = np.zeros_like(self.capacity)
        for job in view.running.values():
            if job.job.pinned:
                self.capacity = np.maximum(self.capacity - self.of(job, job.gpus), 1e-12)

    def of(self, job: JobState, gpus: int) -> Floats:
        """(resources,) of a job on so many GPUs."""
        alpha, beta = self._offers.needs(job)
        workers, servers = _members(job, (gpus,))
        taken: Floats = workers[0] * alpha + servers[0] * beta
        return taken


_FIELDS = (("cpus", 1.0), ("memory_bytes", GIB), ("bandwidth_bytes_per_s", GIGA))


def _members(job: JobState, sizes: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Workers and servers at each size; ranks that are all alike are workers with a GPU each."""
    roles = job.job.roles
    if roles is None:
        return np.array(sizes, np.int64), np.zeros(len(sizes), np.int64)
    workers = [roles.workers(gpus) for gpus in sizes]
    return np.array(workers, np.int64), np.array([roles.servers(gpus) for gpus in sizes], np.int64)


def _each(job: JobState) -> int:
    """Workers on each of its hosts, where it says on how many it runs."""
    if not job.job.hosts:
        return 0
    per_worker = 1 if job.job.roles is None else job.job.roles.gpus_per_worker
    return job.job.gpus // job.job.hosts // per_worker


def longest(offer: JobOffer, slots: int) -> float:
    """The work that it could do in so many slots at the most."""
    return float(offer.rates.max()) * slots


def clipped(offer: JobOffer, slots: int) -> JobOffer:
    """A job too long for the horizon, as far as it goes: its share of the work, at its share of what its end is worth."""
    most = longest(offer, slots)
    if not math.isfinite(most) or offer.work <= most:
        return offer
    share, beyond = most / offer.work, math.ceil((offer.work - most) / (most / slots))
    return replace(
        offer, work=most, log_worth=lambda slots: math.log(share) + offer.log_worth(slots + beyond)
    )
