"""What a probe found, as a topology."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hemiola.core.topology import Hosts, Level, MeasuredLink, Topology
from hemiola.run.probe.measure import Measurement

__all__ = ["measured_topology"]

LEVEL = "rack"
_UNLIMITED = math.inf


def measured_topology(
    found: Measurement, names: Sequence[str], ranks: Sequence[int], name: str = "measured"
) -> Topology:
    """The topology of the hosts that were measured.

    Rates are of data: what headers take is not in them. A host's is that of its slower direction.

    Args:
        names: of the hosts, in the order in which they were measured.
        ranks: on each.
    """
    fitted = found.fit()
    rates = [fitted.rate(host) for host in range(len(names))]
    latency_s = found.latency_s + np.where(np.eye(len(names)) > 0, np.inf, 0.0)
    count = len(names)
    hosts = Hosts(
        names=tuple(names),
        gpus=np.array(ranks, dtype=np.int64),
        gpu_types=("",) * count,
        nic_bytes_per_s=np.array([rate.bytes_per_s for rate in rates]),
        nic_latency_s=latency_s.min(1),
        fabric_bytes_per_s=np.full(count, _UNLIMITED),
        island_gpus=np.array(ranks, dtype=np.int64),
        bus_bytes_per_s=np.full(count, _UNLIMITED),
    )
    links = [
        MeasuredLink(f"{host} {way}", one.bytes_per_s, one.low, one.high)
        for way, ends in (("out", fitted.out), ("in", fitted.into))
        for host, one in zip(names, ends, strict=True)
    ]
    levels: tuple[Level, ...] = ()
    if fitted.groups:
        home = np.full(count, -1, dtype=np.int64)
        uplinks = []
        for number, group in enumerate(fitted.groups):
            home[list(group.hosts)] = number
            uplinks.append(group.uplink.bytes_per_s)
            links.append(
                MeasuredLink(
                    f"{LEVEL} {number} uplink", group.uplink.bytes_per_s, group.uplink.low, group.uplink.high
                )
            )
        for host in np.flatnonzero(home < 0).tolist():
            home[host] = len(uplinks)
            uplinks.append(_UNLIMITED)
        domains = tuple(str(number) for number in range(len(uplinks)))
        levels = (Level(LEVEL, domains, home, np.array(uplinks)),)
    source = (
        f"measured by sending {found.sent_bytes / 1e6:.0f} MB in {found.seconds:.1f} s; fair sharing is off by "
        f"{fitted.error:.1%}"
    )
    return Topology(name, hosts, levels, source, tuple(links)).check()
