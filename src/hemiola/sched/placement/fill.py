"""What placement rules are made of: one tight host, a few full hosts, a few full domains.

All return (host, GPUs) pairs, or None where there is not enough; `build` makes them a placement.
"""

from __future__ import annotations

from hemiola.core.decisions import Placement
from hemiola.sched.counts import members
from hemiola.sched.gpus import pick
from hemiola.sched.inventory import Inventory, GpuPool

__all__ = ["Pairs", "build", "equally", "gather", "in_domain", "on_host", "spread"]

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
