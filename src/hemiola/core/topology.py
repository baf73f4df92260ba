"""A cluster's devices, switches and links: one type for a machine and for a cluster.

Training clusters are trees of shared links (a NIC, a rack's uplink, a pod's uplink), so this is
what is stored: hosts, and from narrow to wide the levels that partition them. Several parallel
uplinks of one switch are one link with their total bandwidth (ECMP spread evenly).
Columnar inside; `hosts[i]` gives names. Reading and writing files is `trace`'s business.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import TopologyError
from hemiola.core.resources import Resources

__all__ = ["Hosts", "Level", "MeasuredLink", "Topology"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_GPUS_PER_HOST = 72
MAX_HOSTS = 1_000_000
UNCOUNTED = Resources()


@dataclass(frozen=True, eq=False)
class Hosts:
    """The machines, one entry each in every column.

    Attributes:
        names: unique.
        gpus: GPUs per host.
        gpu_types: GPU type per host; "" where it is not known.
        nic_bytes_per_s: bandwidth into the network, all NICs together, each direction.
        nic_latency_s: latency of one hop into the network.
        fabric_bytes_per_s: what one GPU can send to another inside its NVLink island.
        island_gpus: GPUs per NVLink island; a job across islands of one host uses `bus_bytes_per_s`.
        bus_bytes_per_s: what one GPU can send to another island of the same host (PCIe).
        resources: what each has beside GPUs; where nothing is said of it, enough for anybody.
    """

    names: tuple[str, ...]
    gpus: Ints
    gpu_types: tuple[str, ...]
    nic_bytes_per_s: Floats
    nic_latency_s: Floats
    fabric_bytes_per_s: Floats
    island_gpus: Ints
    bus_bytes_per_s: Floats
    resources: tuple[Resources, ...] = ()

    def __post_init__(self) -> None:
        if not self.resources:
            object.__setattr__(self, "resources", (UNCOUNTED,) * len(self.names))

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hosts) and _same_columns(self, other)

    def __hash__(self) -> int:
        return hash((len(self), self.names[:1], self.names[-1:]))


@dataclass(frozen=True, eq=False)
class Level:
    """One kind of switch above the hosts: it partitions them into domains.

    Attributes:
        name: the field's word for it: "rack", "pod", "block", ...
        domains: the domains' names, unique.
        domain_of_host: index into `domains`, for each host.
        uplink_bytes_per_s: bandwidth from each domain to the level above, each direction.
        latency_s: latency of one hop to the level above.
    """

    name: str
    domains: tuple[str, ...]
    domain_of_host: Ints
    uplink_bytes_per_s: Floats
    latency_s: float = 0.0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Level) and _same_columns(self, other)

    def __hash__(self) -> int:
        return hash((self.name, len(self.domains)))


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """What measuring one direction of a link gave, bytes/s.

    Attributes:
        name: "n3 out", "n3 in", "rack 0 uplink".
        bytes_per_s: the most likely rate.
        low, high: of the measurements.
    """

    name: str
    bytes_per_s: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Topology:
    """A cluster: hosts, and the levels of switches above them from narrow to wide.

    Tiers are numbered as a job sees them: 0 is one host, 1 is one domain of `levels[0]`, ...,
    and the last is the whole cluster. Topologies are equal by value, whatever their `source`: the
    text that says where one came from and what was assumed; and whatever was `left_out`: what its
    file describes and no job can use, in words.

    Example:
        >>> Topology.flat(hosts=2, gpus_per_host=4).tiers
        ('host', 'cluster')
    """

    name: str
    hosts: Hosts
    levels: tuple[Level, ...] = ()
    source: str = field(default="", compare=False)
    measured: tuple[MeasuredLink, ...] = field(default=(), compare=False)
    left_out: tuple[str, ...] = field(default=(), compare=False)

    def __eq__(self, other: object) -> bool:
        mine = (self.name, self.hosts, self.levels)
        return isinstance(other, Topology) and mine == (other.name, other.hosts, other.levels)

    def __hash__(self) -> int:
        return hash((self.name, self.hosts, len(self.levels)))

    @cached_property
    def tiers(self) -> tuple[str, ...]:
        """Names of the tiers, narrow to wide; the last always spans everything."""
        names = ["host", *(level.name for level in self.levels)]
        if not (self.levels and len(self.levels[-1].domains) == 1):
            names.append("cluster")
        return tuple(names)

    @cached_property
    def gpus(self) -> int:
        """All GPUs."""
        return int(self.hosts.gpus.sum())

    @cached_property
    def gpu_types(self) -> tuple[str, ...]:
        """The GPU types present, in order of first appearance."""
        return tuple(dict.fromkeys(self.hosts.gpu_types))

    @cached_property
    def domain_of(self) -> list[list[int]]:
        """Per level each host's domain, as lists: a few hosts are looked up sooner there than in arrays. Not to be changed."""
        return [level.domain_of_host.tolist() for level in self.levels]

    def tier_index(self, name: str) -> int:
        """The number of a tier by its name; "cluster" is always the widest."""
        if name == "cluster":
            return len(self.tiers) - 1
        if name not in self.tiers:
            raise TopologyError(
                f"the topology {self.name!r} has no tier {name!r}", f"its tiers are {', '.join(self.tiers)}"
            )
        return self.tiers.index(name)

    def narrowest(self, gpus: int, gpu_type: str = "", hosts: int = 0) -> int | None:
        """The narrowest tier with a domain that has so many GPUs of one type; None if none has.

        Args:
            gpu_type: the type; "" for whichever type gets narrowest.
            hosts: on exactly so many hosts, equally many on each; 0 for any.
        """
        kinds = (gpu_type,) if gpu_type else self.gpu_types
        if hosts:
            able = [self._narrowest_of(hosts, gpus // hosts, kind) for kind in kinds]
        else:
            able = [self._narrowest(gpus, kind) for kind in kinds]
        return min([tier for tier in able if tier is not None], default=None)

    def _narrowest_of(self, hosts: int, gpus: int, gpu_type: str) -> int | None:
        """For so many hosts with so many GPUs each."""
        fits = (self.hosts.gpus >= gpus) & np.array([kind == gpu_type for kind in self.hosts.gpu_types])
        for tier, domains in enumerate(self._domains()):
            if np.bincount(domains, weights=fits).max() >= hosts:
                return tier
        return None

    def _narrowest(self, gpus: int, gpu_type: str) -> int | None:
        for tier, most in enumerate(self._most_gpus(gpu_type)):
            if most >= gpus:
                return tier
        return None

    def _most_gpus(self, gpu_type: str) -> tuple[int, ...]:
        """Per tier the GPUs of this type in its largest domain."""
        if gpu_type not in self._largest:
            own = np.where([kind == gpu_type for kind in self.hosts.gpu_types], self.hosts.gpus, 0)
            self._largest[gpu_type] = tuple(int(np.bincount(d, weights=own).max()) for d in self._domains())
        return self._largest[gpu_type]

    def _domains(self) -> list[np.ndarray]:
        """Per tier each host's domain."""
        count = len(self.hosts)
        domains = [np.arange(count), *(level.domain_of_host for level in self.levels)]
        return domains + [np.zeros(count, dtype=np.int64)] * (len(self.tiers) - len(domains))

    @cached_property
    def _largest(self) -> dict[str, tuple[int, ...]]:
        return {}

    def span(self, hosts: tuple[int, ...]) -> int:
        """The narrowest tier that holds all these hosts (indices)."""
        if len(hosts) == 1:
            return 0
        for tier, domains in enumerate(self.domain_of, start=1):
            first = domains[hosts[0]]
            if all(domains[host] == first for host in hosts):
                return tier
        return len(self.tiers) - 1

    @classmethod
    def flat(
        cls,
        *,
        hosts: int,
        gpus_per_host: int,
        gpu_type: str = "",
        nic_bytes_per_s: float = 12.5e9,
        fabric_bytes_per_s: float = 150e9,
    ) -> Topology:
        """Equal hosts under one switch that never blocks."""
        return cls(
            name=f"flat-{hosts}x{gpus_per_host}",
            hosts=equal_hosts(
                hosts,
                gpus_per_host,
                gpu_type=gpu_type,
                nic_bytes_per_s=nic_bytes_per_s,
                fabric_bytes_per_s=fabric_bytes_per_s,
            ),
        )

    def check(self) -> Topology:
        """Return this topology, or refuse it.

        Raises:
            TopologyError: naming the host, link or level that cannot be.
        """
        _check_hosts(self)
        for level in self.levels:
            _check_level(self, level)
        for inner, outer in zip(self.levels, self.levels[1:], strict=False):
            _check_nesting(self, inner, outer)
        words = ["host", *(level.name for level in self.levels)]
        if len(set(words)) != len(words) or "cluster" in words or "" in words:
            raise TopologyError(
                f"levels are named {words[1:]}",
                'give each level a name of its own, not "host", "cluster" or ""',
            )
        return self


def equal_hosts(
    count: int,
    gpus_per_host: int,
    *,
    names: tuple[str, ...] | None = None,
    gpu_type: str = "",
    nic_bytes_per_s: float = 12.5e9,
    nic_latency_s: float = 5e-6,
    fabric_bytes_per_s: float = 150e9,
    island_gpus: int | None = None,
    bus_bytes_per_s: float = 12e9,
) -> Hosts:
    """Columns for `count` equal hosts named n0, n1, ... unless `names` are given.

    Raises:
        TopologyError: no hosts, or more than a million.
    """
    if not 1 <= count <= MAX_HOSTS:
        raise TopologyError(f"a cluster of {count} hosts", f"give from 1 to {MAX_HOSTS:,} hosts")
    return Hosts(
        names=names if names is not None else tuple(f"n{i}" for i in range(count)),
        gpus=np.full(count, gpus_per_host, dtype=np.int64),
        gpu_types=(gpu_type,) * count,
        nic_bytes_per_s=np.full(count, nic_bytes_per_s),
        nic_latency_s=np.full(count, nic_latency_s),
        fabric_bytes_per_s=np.full(count, fabric_bytes_per_s),
        island_gpus=np.full(count, island_gpus or max(gpus_per_host, 1), dtype=np.int64),
        bus_bytes_per_s=np.full(count, bus_bytes_per_s),
    )


def _check_hosts(topology: Topology) -> None:
    hosts = topology.hosts
    if not len(hosts):
        raise TopologyError(
            f"the topology {topology.name!r} has no hosts", "give it at least one host with GPUs"
        )
    if len(set(hosts.names)) != len(hosts):
        twice = next(name for name, count in Counter(hosts.names).items() if count > 1)
        raise TopologyError(f"the host {twice!r} appears twice", "give every host a name of its own")
    for column in (f.name for f in fields(hosts)):
        entries = len(getattr(hosts, column))
        if entries != len(hosts):
            raise TopologyError(f"{column} has {entries} entries for {len(hosts)} hosts", "give one per host")
    if topology.gpus == 0:
        raise TopologyError(f"the topology {topology.name!r} has no GPU", "give at least one host GPUs")
    _check_ranges(hosts)
    _check_islands(hosts)
    _check_resources(hosts)


def _check_resources(hosts: Hosts) -> None:
    for one in set(hosts.resources):
        for name in one.__struct_fields__:
            amount = getattr(one, name)
            if amount is not None and not amount >= 0:  # a NaN is no amount either
                host = hosts.names[hosts.resources.index(one)]
                raise TopologyError(f"host {host!r}: {name} is {amount}", "give 0 or more")


def _check_ranges(hosts: Hosts) -> None:
    """Each number of each host; a comparison with NaN is false, so NaN is refused too."""
    latency_s = hosts.nic_latency_s
    rules = (
        ("gpus", (hosts.gpus >= 0) & (hosts.gpus <= MAX_GPUS_PER_HOST), f"from 0 to {MAX_GPUS_PER_HOST}"),
        ("nic_bytes_per_s", hosts.nic_bytes_per_s > 0, "above 0"),
        ("nic_latency_s", (latency_s >= 0) & np.isfinite(latency_s), "0 or more, and finite"),
        ("fabric_bytes_per_s", hosts.fabric_bytes_per_s > 0, "above 0"),
        ("bus_bytes_per_s", hosts.bus_bytes_per_s > 0, "above 0"),
        ("island_gpus", hosts.island_gpus >= 1, "1 or more"),
    )
    for column, good, range_ in rules:
        if not good.all():
            i = int(np.flatnonzero(~good)[0])
            raise TopologyError(
                f"host {hosts.names[i]!r}: {column} is {getattr(hosts, column)[i]}", f"give a number {range_}"
            )


def _check_islands(hosts: Hosts) -> None:
    uneven = (hosts.gpus > hosts.island_gpus) & (hosts.gpus % hosts.island_gpus != 0)
    if uneven.any():
        i = int(np.flatnonzero(uneven)[0])
        raise TopologyError(
            f"host {hosts.names[i]!r}: {hosts.gpus[i]} GPUs do not divide into islands of {hosts.island_gpus[i]}",
            "choose a size of island that divides the host's GPUs",
        )


def _check_level(topology: Topology, level: Level) -> None:
    where = f"level {level.name!r}"
    count = len(level.domains)
    if len(level.domain_of_host) != len(topology.hosts):
        raise TopologyError(
            f"{where} places {len(level.domain_of_host)} hosts of {len(topology.hosts)}",
            "place every host once",
        )
    if len(set(level.domains)) != count:
        raise TopologyError(f"{where} names a domain twice", "give every domain a name of its own")
    outside = (level.domain_of_host < 0) | (level.domain_of_host >= count)
    if outside.any():
        host = topology.hosts.names[int(np.flatnonzero(outside)[0])]
        raise TopologyError(f"{where}: host {host!r} is in no {level.name}", "place every host once")
    if len(level.uplink_bytes_per_s) != count:
        raise TopologyError(
            f"{where} has {len(level.uplink_bytes_per_s)} uplinks for {count} domains", "give each domain one"
        )
    bad = ~(level.uplink_bytes_per_s > 0)
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        raise TopologyError(
            f"{where}: the uplink of {level.domains[i]!r} is {level.uplink_bytes_per_s[i]} bytes/s",
            "give a bandwidth above 0, or leave the level out",
        )
    if not 0 <= level.latency_s < np.inf:
        raise TopologyError(f"{where}: latency is {level.latency_s} s", "give 0 or more, and finite")


def _check_nesting(topology: Topology, inner: Level, outer: Level) -> None:
    parent = np.full(len(inner.domains), -1, dtype=np.int64)
    parent[inner.domain_of_host[::-1]] = outer.domain_of_host[::-1]  # the first host's, as the last is kept
    split = np.flatnonzero(parent[inner.domain_of_host] != outer.domain_of_host)
    if split.size:
        host = int(split[0])
        child, above = inner.domain_of_host[host], outer.domain_of_host[host]
        raise TopologyError(
            f"{inner.name} {inner.domains[child]!r} is split between {outer.name}s "
            f"{outer.domains[parent[child]]!r} and {outer.domains[above]!r} (host {topology.hosts.names[host]!r})",
            f"a {inner.name} belongs to one {outer.name}; name its hosts apart or merge the {outer.name}s",
        )


def _same_columns(one: Hosts | Level, other: Hosts | Level) -> bool:
    pairs = ((getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)
