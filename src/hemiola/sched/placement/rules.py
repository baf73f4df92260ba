"""The placement rules. Each chooses among free GPUs; none knows policies, time or other jobs."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random as Chance

from hemiola.core.decisions import Placement
from hemiola.core.errors import PolicyError
from hemiola.sched.index import members
from hemiola.sched.inventory import GpuPool, Inventory
from hemiola.sched.job_state import JobState
from hemiola.sched.placement.rule import ALL, Pairs, Rule, build, gather, in_domain, on_host

__all__ = ["RULES", "BestFit", "Consolidated", "FirstFit", "Random", "TierAware", "Yarn", "rule_by_name"]


@dataclass(frozen=True)
class TierAware(Rule):
    """The narrowest tier that has room now, in its tightest domain, on as few hosts as possible."""

    name = "tier-aware"
    says = "the narrowest tier with room, in its tightest domain"

    def choose(self, inventory: Inventory, pool: GpuPool, job: JobState, widest: int) -> Placement | None:
        placement = on_host(inventory, pool, job.gpus)
        if placement is not None or widest == 0:
            return placement
        for tier in range(max(job.narrowest, 1), widest + 1):
            pairs = in_domain(inventory, pool, job.gpus, tier)
            if pairs is not None:
                return build(inventory, pairs)
        return None


@dataclass(frozen=True)
class Consolidated(Rule):
    """The narrowest tier that could ever hold the job, or nothing: it waits for locality."""

    name = "consolidated"
    patient = True
    says = "the narrowest tier that can hold it at all"

    def choose(self, inventory: Inventory, pool: GpuPool, job: JobState, widest: int) -> Placement | None:
        if job.narrowest == 0:
            return on_host(inventory, pool, job.gpus)
        if job.narrowest > widest:
            return None
        return build(inventory, in_domain(inventory, pool, job.gpus, job.narrowest))


@dataclass(frozen=True)
class BestFit(Rule):
    """The tightest host that suffices; else as few hosts as possible, wherever they are."""

    name = "best-fit"
    says = "the hosts with the fewest free GPUs that suffice"

    def choose(self, inventory: Inventory, pool: GpuPool, job: JobState, widest: int) -> Placement | None:
        placement = on_host(inventory, pool, job.gpus)
        if placement is not None or widest == 0:
            return placement
        return _within(inventory, pool, job.gpus, widest, gather)


@dataclass(frozen=True)
class FirstFit(Rule):
    """The first host by index that suffices; else whatever is free, host by host."""

    name = "first-fit"
    says = "the first hosts with free GPUs"

    def choose(self, inventory: Inventory, pool: GpuPool, job: JobState, widest: int) -> Placement | None:
        enough = _with_at_least(pool, job.gpus)
        if enough:
            host = (enough & -enough).bit_length() - 1
            return build(inventory, [(host, job.gpus)])
        return _within(inventory, pool, job.gpus, widest, _first) if widest else None


@dataclass(frozen=True)
class Random(Rule):
    """Free GPUs at random, host by host; the seed and the job decide, so a run repeats.

    Args:
        seed: the run's unless given; 0 where a run has none.
    """

    seed: int | None = None
    name = "random"
    says = "free GPUs drawn at random"

    def seeded(self, seed: int) -> Random:
        """The same with this seed, if it has none."""
        return Random(seed) if self.seed is None else self

    def choose(self, inventory: Inventory, pool: GpuPool, job: JobState, widest: int) -> Placement | None:
        chance = Chance(f"{self.seed or 0}/{job.id}/{job.preemptions}")
        if widest == 0:
            enough = list(members(_with_at_least(pool, job.gpus)))
            return build(inventory, [(chance.choice(enough), job.gpus)]) if enough else None

        def drawn(pool: GpuPool, gpus: int, within: int) -> Pairs | None:
            hosts = list(members(_with_at_least(pool, 1) & within))
            chance.shuffle(hosts)
            return _take_in_order(inventory, hosts, gpus)

        return _within(inventory, pool, job.gpus, widest, drawn)


@dataclass(frozen=True)
class Yarn(Rule):
    """One host where the job fits one; else whole hosts and a remainder under one switch, or nothing."""

    name = "yarn"
    patient = True
    says = "one host, or whole hosts under one switch"

    def choose(self, inventory: Inventory, pool: GpuPool, job: JobState, widest: int) -> Placement | None:
        size = pool.largest
        if job.gpus <= size:
            return on_host(inventory, pool, job.gpus)
        if widest == 0:
            return None
        whole, rest = divmod(job.gpus, size)
        domains = inventory.domain_hosts[0] if inventory.domain_hosts else [ALL]
        for within in domains:
            full = pool.hosts.buckets[size] & within
            if full.bit_count() < whole:
                continue
            pairs: Pairs = [(host, size) for host, _ in zip(members(full), range(whole), strict=False)]
            if rest:
                used = sum(1 << host for host, _ in pairs)
                last = gather(pool, rest, within & ~used)
                if last is None or len(last) > 1:
                    continue
                pairs += last
            return build(inventory, pairs)
        return None


def _within(inventory: Inventory, pool: GpuPool, gpus: int, widest: int, fill: object) -> Placement | None:
    """Fill from the whole cluster, or from the first domain of tier `widest` that has room."""
    level = widest - 1
    if level >= len(pool.levels) or len(pool.domain_free[level]) == 1:
        return build(inventory, fill(pool, gpus, ALL))  # type: ignore[operator]
    for domain, free in enumerate(pool.domain_free[level]):
        if free >= gpus:
            return build(inventory, fill(pool, gpus, inventory.domain_hosts[level][domain]))  # type: ignore[operator]
    return None


def _with_at_least(pool: GpuPool, gpus: int) -> int:
    bits = 0
    for bucket in pool.hosts.buckets[gpus:]:
        bits |= bucket
    return bits


def _first(pool: GpuPool, gpus: int, within: int) -> Pairs | None:
    sizes = {host: k for k, b in enumerate(pool.hosts.buckets) if k for host in members(b & within)}
    pairs: Pairs = []
    for host in sorted(sizes):
        count = min(sizes[host], gpus)
        pairs.append((host, count))
        gpus -= count
        if not gpus:
            return pairs
    return None


def _take_in_order(inventory: Inventory, hosts: list[int], gpus: int) -> Pairs | None:
    pairs: Pairs = []
    for host in hosts:
        count = min(inventory.counts[host], gpus)
        pairs.append((host, count))
        gpus -= count
        if not gpus:
            return pairs
    return None


RULES: dict[str, type[Rule]] = {
    rule.name: rule for rule in (TierAware, Consolidated, BestFit, FirstFit, Random, Yarn)
}


def rule_by_name(name: str) -> Rule:
    """A placement rule with its default parameters."""
    if name not in RULES:
        raise PolicyError(f"no placement is called {name!r}", f"choose one of {', '.join(RULES)}")
    return RULES[name]()
