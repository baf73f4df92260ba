"""What a placement rule is, and how constraints and GPU types surround every one of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import partial
from typing import ClassVar

from hemiola.core.decisions import Placement
from hemiola.sched.inventory import Inventory, GpuPool
from hemiola.sched.job_state import JobState
from hemiola.sched.placement.fill import build, equally

__all__ = ["Rule", "find", "gpu_speed", "no_slower"]


class Rule(ABC):
    """Chooses GPUs for one job among those that are free. Values: frozen, comparable, no state.

    Attributes:
        name: as in `--policy fifo:placement=NAME`.
        says: why these nodes, in a few words; becomes part of the decision's reason.
    """

    name: ClassVar[str]
    says: ClassVar[str]
    patient: ClassVar[bool] = False
    """Whether it waits for the narrowest tier that could hold a job, rather than take a wider one."""

    @abstractmethod
    def choose(self, inventory: Inventory, pool: GpuPool, job: JobState, widest: int) -> Placement | None:
        """GPUs of this pool for the whole gang, spanning no tier wider than `widest`; None to wait."""

    def seeded(self, seed: int) -> Rule:
        """This rule in a run with this seed; the same where it draws nothing, or by a seed of its own."""
        return self


def find(
    inventory: Inventory,
    job: JobState,
    rule: Rule,
    widest: int | None = None,
    pools: tuple[GpuPool, ...] | None = None,
) -> Placement | None:
    """A placement by this rule within the job's constraints, or None.

    The required tier bounds every choice; the preferred tier is tried first. A job that accepts
    any GPU type tries the types in the order in which the topology lists them, or just those of
    `pools`. Hosts that lack what it needs beside GPUs have none for it, and those on which an engine
    would not start it are used where others have no room.
    """
    if job.claim is None and not job.shunned:
        return _find(inventory, job, rule, widest, pools)
    if inventory.free < job.gpus:
        return None
    for caps in _caps(inventory, job):
        with inventory.capped(caps):
            placement = _find(inventory, job, rule, widest, pools)
        if placement is not None and not inventory.spare.lack(job, placement):
            return placement
    return None


def _caps(inventory: Inventory, job: JobState) -> Iterator[Mapping[int, int]]:
    """By host, GPUs that it may use at most: without all hosts that it shuns, then with more and more of them."""
    lacking = list(inventory.spare.caps(job, inventory.counts))
    shunned, again = [host for host, _ in job.shunned], 0
    while True:
        for lacks in lacking:
            yield {**lacks, **dict.fromkeys(shunned[again:], 0)}
        if again >= len(shunned):
            return
        again += max(1, again // 2)


def _find(
    inventory: Inventory, job: JobState, rule: Rule, widest: int | None, pools: tuple[GpuPool, ...] | None
) -> Placement | None:
    limit = job.widest if widest is None else min(widest, job.widest)
    gpus = job.gpus
    if inventory.free < gpus:
        return None
    choose = rule.choose if job.job.hosts < 2 else partial(_shaped, rule.patient)
    for pool in job.pools if pools is None else pools:
        if pool.free < gpus:
            continue
        if job.preferred < limit:
            placement = choose(inventory, pool, job, job.preferred)
            if placement is not None:
                return placement
        placement = choose(inventory, pool, job, limit)
        if placement is not None:
            return placement
    return None


def gpu_speed(job: JobState, pool: GpuPool) -> float:
    """How fast the job computes on GPUs of this type, relative to the measured one; 1 where its profile does not say."""
    profile = job.job.profile
    return 1.0 if profile is None else profile.speed(pool.gpu_type)


def no_slower(inventory: Inventory, job: JobState, placement: Placement) -> tuple[GpuPool, ...]:
    """The pools that it accepts on which it computes at least as fast as on this placement: slowdowns tell tiers, not types."""
    least = gpu_speed(job, inventory.pool_of[placement.hosts[0]])
    return tuple([pool for pool in job.pools if gpu_speed(job, pool) >= least])


def _shaped(patient: bool, inventory: Inventory, pool: GpuPool, job: JobState, widest: int) -> Placement | None:
    """For a job that says on how many hosts it runs: what is left of a rule is whether it waits for locality."""
    hosts = job.job.hosts
    first = max(job.narrowest, 1)
    for tier in range(first, min(first, widest) + 1 if patient else widest + 1):
        pairs = equally(inventory, pool, hosts, job.gpus // hosts, tier)
        if pairs is not None:
            return build(inventory, pairs)
    return None
