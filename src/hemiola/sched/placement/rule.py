"""What a placement rule is, and how constraints and GPU types surround every one of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import partial
from typing import ClassVar

from hemiola.core.decisions import Placement
from hemiola.sched.index import members
from hemiola.sched.inventory import GpuPool, Inventory, pick
from hemiola.sched.job_state import JobState

__all__ = ["Pairs", "Rule", "build", "find", "gather", "gpu_speed", "in_domain", "no_slower", "on_host"]


# What placement rules are made of: one tight host, a few full hosts, a few full domains.

Pairs = list[tuple[int, int]]
ALL = -1


def on_host(inventory: Inventory, pool: GpuPool, gpus: int) -> Placement | None:
    """The host with the fewest free GPUs that suffice."""
    host = pool.hosts.tightest(gpus)
    if host < 0:
        return None
    return Placement((host,), (pick(inventory.masks[host], gpus, inventory.island_masks[host]),))


def gather(pool: GpuPool, gpus: int, within: int = ALL) -> Pairs | None:
    """As few hosts as possible: fullest first, the remainder on the tightest that suffices."""
    buckets = pool.hosts.buckets
    pairs: Pairs = []
    left = gpus
    used = 0
    size = pool.hosts.occupied.bit_length() - 1
    while size > 0:
        if left <= size:
            for enough in range(left, size + 1):
                bucket = buckets[enough] & within & ~used
                if bucket:
                    pairs.append(((bucket & -bucket).bit_length() - 1, left))
                    return pairs
            size = left - 1
            continue
        for host in members(buckets[size] & within):
            if left < size:
                break
            pairs.append((host, size))
            used |= 1 << host
            left -= size
            if not left:
                return pairs
        else:
            size -= 1
    return None


def in_domain(inventory: Inventory, pool: GpuPool, gpus: int, tier: int) -> Pairs | None:
    """Hosts inside the domain of this tier with the fewest free GPUs that suffice."""
    level = tier - 1
    if level >= len(pool.levels):
        return spread(inventory, pool, gpus)
    domain = pool.levels[level].tightest(gpus)
    if domain < 0:
        return None
    return _inside(inventory, pool, gpus, level, domain)


def _inside(inventory: Inventory, pool: GpuPool, gpus: int, level: int, domain: int) -> Pairs | None:
    within = inventory.domain_hosts[level][domain]
    if level == 0:
        return gather(pool, gpus, within)
    return spread(inventory, pool, gpus, level - 1, within)


def spread(
    inventory: Inventory, pool: GpuPool, gpus: int, level: int | None = None, within: int = ALL
) -> Pairs | None:
    """As few domains as possible, those with most free GPUs first, recursively down to hosts."""
    if level is None:
        level = len(pool.levels) - 1
    if level < 0:
        return gather(pool, gpus, within)
    pairs: Pairs = []
    left = gpus
    for domain, free in pool.levels[level].descending():
        if within != ALL and not inventory.domain_hosts[level][domain] & within:
            continue
        part = _inside(inventory, pool, min(left, free), level, domain)
        if part is None:
            return None
        pairs += part
        left -= min(left, free)
        if not left:
            return pairs
    return None


def equally(inventory: Inventory, pool: GpuPool, hosts: int, gpus: int, tier: int) -> Pairs | None:
    """So many GPUs on each of so many hosts: in the domain of this tier with the fewest hosts that could, tightest first."""
    buckets = pool.hosts.buckets
    enough = 0
    for bucket in buckets[gpus:]:
        enough |= bucket
    domains = inventory.domain_hosts[tier - 1] if tier <= len(inventory.domain_hosts) else [ALL]
    able = [(count, here) for here in domains if (count := (here & enough).bit_count()) >= hosts]
    if not able:
        return None
    within = min(able, key=lambda pair: pair[0])[1] & enough
    tightest = (host for bucket in buckets[gpus:] for host in members(bucket & within))
    return [(host, gpus) for host, _ in zip(tightest, range(hosts), strict=False)]


def build(inventory: Inventory, pairs: Pairs | None) -> Placement | None:
    """A placement with ranks in the order of the network, so that a ring crosses each domain once."""
    if pairs is None:
        return None
    order = inventory.rank_of_host
    pairs = sorted(pairs, key=lambda pair: order[pair[0]])
    masks, islands = inventory.masks, inventory.island_masks
    return Placement(
        tuple([host for host, _ in pairs]),
        tuple([pick(masks[host], count, islands[host]) for host, count in pairs]),
    )


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
        roles = None if job.job.resources is None else job.job.resources.roles
        if placement is not None and roles is not None:
            placement = inventory.spare.servers(roles, placement)
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


def _shaped(
    patient: bool, inventory: Inventory, pool: GpuPool, job: JobState, widest: int
) -> Placement | None:
    """For a job that says on how many hosts it runs: what is left of a rule is whether it waits for locality."""
    hosts = job.job.hosts
    first = max(job.narrowest, 1)
    for tier in range(first, min(first, widest) + 1 if patient else widest + 1):
        pairs = equally(inventory, pool, hosts, job.gpus // hosts, tier)
        if pairs is not None:
            return build(inventory, pairs)
    return None
