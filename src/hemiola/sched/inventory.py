"""Which GPUs are free: per host, per type, per rack and wider.

Knows no job, but what jobs have beside GPUs (`spare`). Everything a placement rule asks is answered from indices that each allocation
updates in constant time; see `counts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

from hemiola.core.decisions import Placement
from hemiola.core.errors import InternalError
from hemiola.core.resources import Resources
from hemiola.core.topology import UNCOUNTED, Topology
from hemiola.sched.index import CountIndex, members
from hemiola.sched.spare_resources import Spare

__all__ = ["GpuPool", "Inventory", "pick"]


# Which GPUs of one host a job gets: inside one NVLink island where it fits, tightest first.


@lru_cache(maxsize=65536)
def pick(free: int, count: int, islands: tuple[int, ...]) -> int:
    """A mask of `count` of the free GPUs.

    Prefers the island with the fewest free GPUs that suffice; else takes whole islands, fullest
    first, so that the job spans as few as possible.

    Example:
        >>> bin(pick(0b11110001, 2, (0b1111, 0b11110000)))
        '0b110000'
    """
    fitting = [(island & free).bit_count() for island in islands]
    enough = [(n, i) for i, n in enumerate(fitting) if n >= count]
    if enough:
        return _lowest(free & islands[min(enough)[1]], count)
    mask = 0
    for n, i in sorted(((n, i) for i, n in enumerate(fitting)), key=lambda pair: (-pair[0], pair[1])):
        part = _lowest(free & islands[i], min(n, count))
        mask |= part
        count -= part.bit_count()
        if not count:
            break
    return mask


def _lowest(bits: int, count: int) -> int:
    mask = 0
    for _ in range(count):
        low = bits & -bits
        mask |= low
        bits ^= low
    return mask


class GpuPool:
    """The hosts of one GPU type.

    Attributes:
        gpu_type: the type.
        free: free GPUs in all.
        capacity: GPUs on hosts that are up.
        hosts: hosts by free GPUs.
        largest: GPUs of its largest host.
        members: bitset of the hosts of this type that are up.
        uncounted: hosts whose free GPUs changed since the domains were last counted, each with
            the number they had then. Most jobs fit one host and never ask for domains.
    """

    __slots__ = (
        "_counts",
        "_domain_free",
        "_domain_of",
        "_levels",
        "capacity",
        "free",
        "gpu_type",
        "hosts",
        "largest",
        "members",
        "uncounted",
    )

    def __init__(
        self, gpu_type: str, topology: Topology, counts: list[int], domain_of: list[list[int]]
    ) -> None:
        self.gpu_type = gpu_type
        self.largest = 0
        self.free = 0
        self.capacity = 0
        self.hosts = CountIndex(len(topology.hosts), max(counts))
        self.members = 0
        self.uncounted: dict[int, int] = {}
        self._counts = counts
        self._domain_of = domain_of
        self._domain_free = [[0] * len(level.domains) for level in topology.levels]
        self._levels: list[CountIndex] = []

    @property
    def levels(self) -> list[CountIndex]:
        """Per level of the topology the domains by free GPUs of this type."""
        if self.uncounted:
            self._count_domains()
        return self._levels

    @property
    def domain_free(self) -> list[list[int]]:
        """Per level and domain the free GPUs of this type."""
        if self.uncounted:
            self._count_domains()
        return self._domain_free

    def index_domains(self) -> None:
        """Sort the domains by what is free in them, once every host has been entered."""
        for free, domains in zip(self._domain_free, self._domain_of, strict=True):
            for host in members(self.members):
                free[domains[host]] += self._counts[host]
            index = CountIndex(len(free), max(free, default=0))
            for domain, count in enumerate(free):
                index.add(domain, count)
            self._levels.append(index)

    def _count_domains(self) -> None:
        """Bring the domains up to date."""
        counts = self._counts
        changes = [(host, counts[host] - then) for host, then in self.uncounted.items()]
        self.uncounted.clear()
        for index, free, domains in zip(self._levels, self._domain_free, self._domain_of, strict=True):
            for host, change in changes:
                if change:
                    domain = domains[host]
                    before = free[domain]
                    after = free[domain] = before + change
                    index.move(domain, before, after)


class Inventory:
    """Free GPUs of a cluster, updated in place.

    Attributes:
        masks: per host the free GPUs, bit i for GPU i.
        free: free GPUs in all.
        down: per host whether it is down; `down_hosts` counts them.
        releases: how often something became free; what did not fit still does not while it stands.
        released_gpus: how many GPUs became free so far.
        blocked: by host, GPUs that are not ours to give, though no job of ours has them.
        owed: by host, how many are to be blocked in all, where some of them are still occupied; none of its
            GPUs is free then.
        spare: what hosts have left beside GPUs.
        hidden: by host, free GPUs that nobody is to see for the moment (`hiding`).
    """

    __slots__ = (
        "all_masks",
        "blocked",
        "counts",
        "domain_hosts",
        "domain_of",
        "down",
        "down_hosts",
        "free",
        "gpu_types",
        "hidden",
        "island_masks",
        "masks",
        "owed",
        "pool_of",
        "pools",
        "rank_of_host",
        "released_gpus",
        "releases",
        "spare",
        "topology",
    )

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        hosts = topology.hosts
        counts = [int(n) for n in hosts.gpus]
        self.counts = counts
        self.all_masks = [(1 << n) - 1 for n in counts]
        self.masks = list(self.all_masks)
        self.domain_of = topology.domain_of
        self.gpu_types = topology.gpu_types
        self.pools = {t: GpuPool(t, topology, counts, self.domain_of) for t in self.gpu_types}
        self.pool_of = [self.pools[t] for t in hosts.gpu_types]
        self.down = [False] * len(hosts)
        self.down_hosts = 0
        self.free = sum(counts)
        self.releases = 0
        self.released_gpus = 0
        self.blocked: dict[int, int] = {}
        self.owed: dict[int, int] = {}
        self.hidden: dict[int, int] = {}
        self.spare = Spare(hosts.names)
        for host, resources in enumerate(hosts.resources):
            if resources is not UNCOUNTED and resources != UNCOUNTED:
                self.spare.furnish(host, resources, resources)
        self.island_masks = _island_masks(topology)
        self.domain_hosts = self._fill()
        self.rank_of_host = self._rank_hosts()

    def _rank_hosts(self) -> list[int]:
        """Each host's place in an order that keeps every domain's hosts together."""
        outside_in = list(reversed(self.domain_of))
        order = sorted(range(len(self.counts)), key=lambda h: (*(d[h] for d in outside_in), h))
        rank = [0] * len(order)
        for place, host in enumerate(order):
            rank[host] = place
        return rank

    def _fill(self) -> list[list[int]]:
        """Enter every host into its pool; return per level and domain the bitset of its hosts."""
        domain_hosts = [[0] * len(level.domains) for level in self.topology.levels]
        hosts_of: dict[str, list[int]] = {t: [] for t in self.gpu_types}
        for host, count in enumerate(self.counts):
            pool = self.pool_of[host]
            pool.hosts.add(host, count)
            pool.free += count
            pool.capacity += count
            pool.largest = max(pool.largest, count)
            hosts_of[pool.gpu_type].append(host)
        for level, domains in enumerate(self.domain_of):
            for domain, hosts in _grouped(domains).items():
                domain_hosts[level][domain] = _bitset(hosts)
        for pool in self.pools.values():
            pool.members = _bitset(hosts_of[pool.gpu_type])
            pool.index_domains()
        return domain_hosts

    def take(self, placement: Placement) -> None:
        """Occupy these GPUs; they must be free."""
        masks, down = self.masks, self.down
        for host, mask in zip(placement.hosts, placement.masks):  # noqa: B905 - as long by construction
            free = masks[host]
            if self.hidden and host in self.hidden and not free & mask:
                self.hidden[host] ^= mask
                continue
            if free & mask != mask:
                raise InternalError(f"GPUs {mask:b} of host {host} are not free ({free:b})")
            masks[host] = free ^ mask
            if not down[host]:
                self._count(host, -mask.bit_count())

    def release(self, placement: Placement) -> None:
        """Free these GPUs, which must be occupied; of those that are owed, block as many instead."""
        masks, down = self.masks, self.down
        for host, mask in zip(placement.hosts, placement.masks):  # noqa: B905 - as long by construction
            free = masks[host]
            if self.hidden and host in self.hidden:
                self.hidden[host] |= mask
                continue
            if free & mask:
                raise InternalError(f"GPUs {mask:b} of host {host} are free already ({free:b})")
            masks[host] = free | mask
            if not down[host]:
                gpus = mask.bit_count()
                self.released_gpus += gpus
                self._count(host, gpus)
        self.releases += 1
        if self.owed:
            for host in self.owed.keys() & placement.hosts:
                self.block(host, self.owed[host])

    def retake(self, placement: Placement) -> None:
        """Occupy these GPUs again, just as before their release, though it blocked some of them."""
        parts = zip(placement.hosts, placement.masks, strict=True)
        with self.unblocked([host for host, mask in parts if self.blocked.get(host, 0) & mask]):
            self.take(placement)

    @contextmanager
    def unblocked(self, hosts: Iterable[int]) -> Iterator[None]:
        """Nothing is blocked on these hosts for the moment; what is taken meanwhile is owed afterwards."""
        withheld = {h: self.owed.get(h, self.blocked[h].bit_count()) for h in hosts if h in self.blocked}
        for host in withheld:
            self.block(host, 0)
        try:
            yield
        finally:
            for host, gpus in withheld.items():
                self.block(host, gpus)

    def lose(self, host: int) -> None:
        """A host went down: none of its GPUs can be taken."""
        free = self.masks[host].bit_count()
        pool = self.pool_of[host]
        self._count(host, -free)
        pool.hosts.remove(host, 0)
        pool.members &= ~(1 << host)
        pool.capacity -= self.all_masks[host].bit_count()
        self.down[host] = True
        self.down_hosts += 1

    def regain(self, host: int) -> None:
        """A host was repaired."""
        self.down[host] = False
        self.down_hosts -= 1
        pool = self.pool_of[host]
        pool.hosts.add(host, 0)
        pool.members |= 1 << host
        pool.capacity += self.all_masks[host].bit_count()
        self._count(host, self.masks[host].bit_count())
        self.released_gpus += self.masks[host].bit_count()
        self.releases += 1

    def block(self, host: int, gpus: int) -> None:
        """So many GPUs of a host are not ours to give from now on: free ones now, occupied ones once they are free."""
        held = self.blocked.pop(host, 0)
        withheld = self.owed.pop(host, held.bit_count())
        before = self.masks[host]
        free = before | held
        taken = 0
        for _ in range(min(gpus, free.bit_count())):
            taken |= 1 << ((free ^ taken).bit_length() - 1)
        if taken:
            self.blocked[host] = taken
        if gpus > taken.bit_count():
            self.owed[host] = gpus
        self.masks[host] = free ^ taken
        change = (free ^ taken).bit_count() - before.bit_count()
        if change and not self.down[host]:
            self._count(host, change)
        if gpus < withheld:  # some are ours again: free now, or once their job is stopped
            self.released_gpus += withheld - gpus
            self.releases += 1

    def furnish(self, host: int, ours: Resources, total: Resources) -> None:
        """A host has so much beside GPUs; with more of it, what did not fit may."""
        if self.spare.furnish(host, ours, total):
            self.releases += 1
            self.released_gpus += self.all_masks[host].bit_count()

    @contextmanager
    def capped(self, caps: Mapping[int, int]) -> Iterator[None]:
        """Of these hosts no more GPUs seem free than so many, for the moment."""
        hidden = {host: free for host in caps if (free := self.masks[host]) and not self.down[host]}
        for host, free in hidden.items():
            self._show(host, pick(free, min(caps[host], free.bit_count()), self.island_masks[host]))
        try:
            yield
        finally:
            for host, free in hidden.items():
                self._show(host, free)

    def _show(self, host: int, mask: int) -> None:
        change = mask.bit_count() - self.masks[host].bit_count()
        self.masks[host] = mask
        self._count(host, change)

    @contextmanager
    def hiding(self, hosts: Iterable[int]) -> Iterator[None]:
        """Nothing of these hosts seems free for the moment; what is given back there meanwhile is free afterwards."""
        kept = [host for host in hosts if not self.down[host]]
        self.hidden = {host: self.masks[host] for host in kept}
        for host in kept:
            self._show(host, 0)
            self.pool_of[host].capacity -= self.all_masks[host].bit_count()
        try:
            yield
        finally:
            found, self.hidden = self.hidden, {}
            for host, mask in found.items():
                self._show(host, mask)
                self.pool_of[host].capacity += self.all_masks[host].bit_count()

    def is_free_on(self, host: int, mask: int) -> bool:
        """Whether these GPUs of one host are there, up and free."""
        masks = self.masks
        return 0 <= host < len(masks) and masks[host] & mask == mask and not self.down[host]

    def is_free(self, placement: Placement) -> bool:
        """Whether every GPU of a placement is there, up and free."""
        return all(map(self.is_free_on, placement.hosts, placement.masks))

    def _count(self, host: int, change: int) -> None:
        counts = self.counts
        old = counts[host]
        new = counts[host] = old + change
        self.free += change
        pool = self.pool_of[host]
        pool.free += change
        if host not in pool.uncounted:
            pool.uncounted[host] = old
        pool.hosts.move(host, old, new)


def _grouped(domains: list[int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for host, domain in enumerate(domains):
        groups.setdefault(domain, []).append(host)
    return groups


def _bitset(items: list[int]) -> int:
    """One integer with these bits set (built from bytes: linear, not quadratic)."""
    if not items:
        return 0
    array = bytearray(items[-1] // 8 + 1)
    for item in items:
        array[item >> 3] |= 1 << (item & 7)
    return int.from_bytes(array, "little")


def _island_masks(topology: Topology) -> list[tuple[int, ...]]:
    """Per host the GPUs of each NVLink island."""
    cache: dict[tuple[int, int], tuple[int, ...]] = {}
    masks = []
    for gpus, island in zip(topology.hosts.gpus.tolist(), topology.hosts.island_gpus.tolist(), strict=True):
        key = (gpus, min(island, max(gpus, 1)))
        if key not in cache:
            size = key[1]
            cache[key] = tuple(((1 << size) - 1) << start for start in range(0, gpus, size))
        masks.append(cache[key])
    return masks
