"""What a probe found, as a topology."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from hemiola.comm.probe.measure import ProbeMeasurement
from hemiola.comm.transport.endpoint import Peer
from hemiola.comm.transport.home import interface_of
from hemiola.core.topology import Hosts, Level, MeasuredLink, Topology
from hemiola.cost.network_fit import RateInterval

__all__ = ["Affinity", "Homes", "measured_topology", "own_affinity"]


LEVEL = "rack"
_UNLIMITED = math.inf


@dataclass(frozen=True)
class Homes:
    """Which ranks share a host.

    Attributes:
        names: of the hosts, in the order of their first ranks.
        host_of: of every rank, its host's place among them.
    """

    names: tuple[str, ...]
    host_of: tuple[int, ...]

    @classmethod
    def of(cls, peers: Sequence[Peer]) -> Homes:
        """By their addresses; called by them where two have the same name."""
        addresses = list(dict.fromkeys(peer.address for peer in peers))
        names = [next(one.names[0] for one in peers if one.address == address) for address in addresses]
        return cls(
            tuple(names if len(set(names)) == len(names) else addresses),
            tuple(addresses.index(peer.address) for peer in peers),
        )

    @property
    def firsts(self) -> tuple[int, ...]:
        """The first rank of each."""
        return tuple(self.host_of.index(host) for host in range(len(self.names)))

    @property
    def counts(self) -> tuple[int, ...]:
        """The ranks of each."""
        return tuple(self.host_of.count(host) for host in range(len(self.names)))


def measured_topology(
    found: ProbeMeasurement, homes: Homes, name: str = "measured", gpus: Sequence[int] = ()
) -> Topology:
    """The topology of the hosts that were measured.

    Rates are of data: what headers take is not in them. A host's is that of its slower direction.

    Args:
        homes: of the ranks, the first of each of which measured.
        gpus: of each host; as many as it has ranks where that is more, or unless given.
    """
    names = homes.names
    each = np.maximum(homes.counts, gpus or homes.counts)
    fitted = found.fit()
    rates = [fitted.rate(host) for host in range(len(names))]
    latency_s = np.where(
        found.latency_s > 0, found.latency_s, np.inf
    )  # where there are many, not all pairs meet
    count = len(names)
    hosts = Hosts(
        names=tuple(names),
        gpus=each,
        gpu_types=("",) * count,
        nic_bytes_per_s=np.array([_tidy(rate.bytes_per_s) for rate in rates]),
        nic_latency_s=latency_s.min(1).round(7),
        fabric_bytes_per_s=np.full(count, _UNLIMITED),
        island_gpus=each,
        bus_bytes_per_s=np.full(count, _UNLIMITED),
    )
    links = [
        _link(f"{host} {way}", one)
        for way, ends in (("out", fitted.out), ("in", fitted.into))
        for host, one in zip(names, ends, strict=True)
    ]
    levels: tuple[Level, ...] = ()
    if fitted.groups:
        home = np.full(count, -1, dtype=np.int64)
        uplinks = []
        for number, group in enumerate(fitted.groups):
            home[list(group.hosts)] = number
            uplinks.append(_tidy(group.uplink.bytes_per_s))
            links.append(_link(f"{LEVEL} {number} uplink", group.uplink))
        for host in np.flatnonzero(home < 0).tolist():
            home[host] = len(uplinks)
            uplinks.append(_UNLIMITED)
        domains = tuple(str(number) for number in range(len(uplinks)))
        levels = (Level(LEVEL, domains, home, np.array(uplinks)),)
    source = (
        f"measured by sending {found.sent_bytes / 1e6:.0f} MB in {found.seconds:.1f} s; "
        f"fair sharing of these links explains half of all rates to {fitted.error:.1%}"
    )
    return Topology(name, hosts, levels, source, tuple(links)).check()


def _link(name: str, rate: RateInterval) -> MeasuredLink:
    return MeasuredLink(name, _tidy(rate.bytes_per_s), _tidy(rate.low), _tidy(rate.high))


def _tidy(rate_bytes_per_s: float) -> float:
    """To a thousandth: more digits say nothing."""
    digits = 3 - math.floor(math.log10(rate_bytes_per_s / 125e3))
    return round(rate_bytes_per_s / 125e3, digits) * 125e3


# What the system says of the network interface that is used: its speed, and the processors near it.

_NET = Path("/sys/class/net")
_NODES = Path("/sys/devices/system/node")


class Affinity(msgspec.Struct, frozen=True):
    """Of one host.

    Attributes:
        interface: its name; "" if none has the address.
        speed_bytes_per_s: by its own account; 0 where it gives none, as virtual ones do.
        numa_node: that it hangs on; -1 where there is one node only, or none is known.
        processors: of that node, as the system lists them: "0-15"; "" where none is known.
    """

    interface: str = ""
    speed_bytes_per_s: float = 0.0
    numa_node: int = -1
    processors: str = ""

    def __str__(self) -> str:
        from hemiola.core.units import format_rate

        words = [self.interface or "no interface of that address"]
        if self.speed_bytes_per_s:
            words.append(f"{format_rate(self.speed_bytes_per_s)} by its own account")
        if self.numa_node >= 0:
            words.append(f"NUMA node {self.numa_node}, processors {self.processors}")
        return ", ".join(words)


def own_affinity(address: str, net: Path = _NET, nodes: Path = _NODES) -> Affinity:
    """Of the interface of this host that has this IPv4 address."""
    name = interface_of(address)
    if not name:
        return Affinity()
    megabits = _number(net / name / "speed")
    node = _number(net / name / "device" / "numa_node", -1)
    processors = ""
    if node >= 0:
        processors = _text(nodes / f"node{node}" / "cpulist")
    return Affinity(name, max(megabits, 0) * 125e3, node, processors)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:  # virtual devices have no such file, or refuse to be read
        return ""


def _number(path: Path, otherwise: int = 0) -> int:
    text = _text(path)
    return int(text) if text.lstrip("-").isdecimal() else otherwise
