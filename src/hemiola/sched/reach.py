"""Where jobs of a kind could ever run, and elastic jobs at their sizes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from hemiola.core.job import Batch
from hemiola.core.resources import ResourceRequest
from hemiola.core.topology import Topology
from hemiola.sched.inventory import Inventory
from hemiola.sched.job_state import JobState

__all__ = ["Reaches"]

Kind = tuple[int, str, str, str, int]
"""(gpus, gpu_type, required, preferred, hosts)"""


class Reaches:
    """Of one cluster; each kind is worked out once.

    Attributes:
        known: by kind: (narrowest, widest, preferred tier, pools, shape), or why no such job can run.
    """

    def __init__(self, topology: Topology, inventory: Inventory) -> None:
        self._topology, self._inventory = topology, inventory
        self.known: dict[Kind, Any] = {}
        self._shapes: dict[Any, int] = {}
        self._sizes: dict[Any, tuple[int, ...]] = {}

    def of(self, gpus: int, gpu_type: str, required: str, preferred: str, hosts: int) -> Any:
        """(narrowest, widest, preferred tier, pools, shape) of such a job, or why it cannot run."""
        key = (gpus, gpu_type, required, preferred, hosts)
        reach = self.known.get(key)
        if reach is None:
            reach = self.known[key] = self._work_out(*key)
        return reach

    def _work_out(self, gpus: int, gpu_type: str, required: str, preferred: str, hosts: int) -> Any:
        topology, inventory = self._topology, self._inventory
        if gpu_type and gpu_type not in inventory.pools:
            named = ", ".join(filter(None, inventory.gpu_types))
            there = (
                f"there are {named}" if named else "the cluster does not say which it has: add gpu_type=..."
            )
            return f"no host has GPUs of type {gpu_type!r} ({there})"
        for tier in (required, preferred):
            if tier and tier != "cluster" and tier not in topology.tiers:
                return f"the topology has no tier {tier!r} (there are {', '.join(topology.tiers)})"
        if hosts and gpus % hosts:
            return f"it wants {gpus} GPUs on {hosts} hosts, equally many on each"
        last = len(topology.tiers) - 1
        widest = topology.tier_index(required) if required else last
        if hosts == 1:
            widest = 0
        pools = [inventory.pools[gpu_type]] if gpu_type else list(inventory.pools.values())
        reach = [(pool, topology.narrowest(gpus, pool.gpu_type, hosts)) for pool in pools]
        able = {pool: tier for pool, tier in reach if tier is not None and tier <= widest}
        if not able:
            where = f"one {required}" if required else "the cluster"
            of_type = f" of type {gpu_type}" if gpu_type else " of one type" if len(pools) > 1 else ""
            on = f" on {hosts} hosts" if hosts else ""
            return f"it wants {gpus} GPUs{of_type}{on}, more than {where} has"
        narrowest = min(able.values())
        first = topology.tier_index(preferred) if preferred else last
        shape = self._shapes.setdefault((gpus, gpu_type, widest, first, hosts), len(self._shapes))
        return narrowest, widest, first, tuple(able), shape

    def sizes(self, job: JobState) -> tuple[int, ...]:
        """The numbers of GPUs that a job may have and could have here, ascending."""
        wish = job.job
        key = (wish.sizes, wish.gpu_type, wish.required, wish.preferred, bool(wish.hosts))
        found = self._sizes.get(key)
        if found is None:
            found = self._sizes[key] = tuple(size for size in wish.sizes if self._has(wish.sized(size)))
        return found

    def _has(self, job: Batch) -> bool:
        return not isinstance(self._of(job), str)

    def _of(self, job: Batch) -> Any:
        return self.of(job.gpus, job.gpu_type, job.required, job.preferred, job.hosts)

    def at(self, job: JobState, gpus: int) -> JobState | str:
        """An elastic job as it would be at another size, or why it cannot have it."""
        if gpus == job.gpus:
            return job
        sizes = job.job.sizes
        if not job.elastic or gpus not in sizes:
            by = f" by {sizes.step}s" if sizes.step > 1 else ""
            wants = f"{sizes[0]} to {sizes[-1]}{by}" if job.elastic else str(job.gpus)
            return f"it wants {wants} GPUs, the placement has {gpus}"
        reach = self._of(job.job.sized(gpus))
        if isinstance(reach, str):
            return reach
        other = copy.copy(job)
        self.resize(other, gpus)
        return other

    def resize(self, job: JobState, gpus: int) -> None:
        """Give an elastic job that does not run another size; engines may have put it where it should not be."""
        job.job = job.job.sized(gpus)
        job.other_gpu_s += (job.gpus - gpus) * job.served_s
        job.gpus = gpus
        reach = self._of(job.job)
        if not isinstance(reach, str):
            job.narrowest, job.widest, job.preferred, job.pools, job.shape = reach
            self._shape(job)

    def claim(self, job: JobState, claim: ResourceRequest | None) -> None:
        """It takes so much of its hosts beside GPUs."""
        job.claim = claim
        self._shape(job)

    def shun(self, job: JobState, hosts: Sequence[int]) -> None:
        """The engine would not start it on these hosts; none: it has run."""
        refusals = dict(job.shunned) if hosts else {}
        for host in reversed(hosts):
            refusals[host] = refusals.pop(host, 0) + 1
        job.shunned = tuple(sorted(refusals.items(), key=lambda pair: pair[1]))
        self._shape(job)

    def _shape(self, job: JobState) -> None:
        """Jobs of equal shape fit or fail alike, and are offered the same."""
        reach = self._of(job.job)
        if isinstance(reach, str):
            return
        job.shape = reach[-1]
        if job.claim is not None or job.shunned:
            job.shape = self._shapes.setdefault((reach[-1], job.claim, job.shunned), len(self._shapes))
