"""What a lab is: its hosts, racks and rates. Knows nothing of how the kernel is told."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Network
from itertools import chain

import msgspec
import numpy as np

from hemiola.core.errors import LabError
from hemiola.core.topology import Level, Topology, equal_hosts
from hemiola.core.units import format_rate, parse_rate

__all__ = ["MAX_HOSTS", "LabSpec", "free_subnet", "in_use"]


MAX_HOSTS = 250
RATE_MIN_BYTES_PER_S = 12.5e3
RATE_MAX_BYTES_PER_S = 4e9
"""tbf's rate is a 32-bit number of bytes per second (4.29e9) where pyroute2 writes it."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


class LabSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A lab's description.

    Attributes:
        name: lower-case letters, digits and "-"; the namespaces are named after it.
        host_rates: what each of h0, h1, ... can send and can receive, bytes/s; None: not shaped.
        uplinks: what each of rack0, rack1, ... can exchange with the other racks, each direction,
            bytes/s; None: not shaped. Empty: one switch for all hosts.
    """

    name: str
    host_rates: tuple[float | None, ...]
    uplinks: tuple[float | None, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        name: str,
        hosts: int,
        rate: str,
        host_rates: Mapping[str, str],
        racks: int | None,
        uplink: str | None,
    ) -> LabSpec:
        """Check what a person wrote.

        Raises:
            LabError: naming the value that cannot be.
            UnitError: a rate without a unit.
        """
        if not _NAME.fullmatch(name):
            raise LabError(
                f"the name {name!r} does not suit a lab",
                "use up to 32 lower-case letters, digits and '-', beginning with a letter or digit",
            )
        if not 1 <= hosts <= MAX_HOSTS:
            raise LabError(f"a lab of {hosts} hosts", f"give from 1 to {MAX_HOSTS} hosts")
        names = tuple(f"h{i}" for i in range(hosts))
        for host in host_rates:
            if host not in names:
                raise LabError(f"the rate of the unknown host {host!r}", f"the hosts are {_span(names)}")
        return cls(
            name=name,
            host_rates=tuple(parse_lab_rate(host_rates.get(host, rate)) for host in names),
            uplinks=_uplinks(hosts, racks, uplink),
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts' names: h0, h1, ..."""
        return tuple(f"h{i}" for i in range(len(self.host_rates)))

    @property
    def racks(self) -> tuple[str, ...]:
        """The racks' names: rack0, rack1, ...; none where all hosts share one switch."""
        return tuple(f"rack{i}" for i in range(len(self.uplinks)))

    def rack_of(self, host: int) -> int:
        """The rack of a host, both as indices: the first hosts share the first rack."""
        return host * len(self.uplinks) // len(self.host_rates)

    def with_rate(self, where: str, rate: str) -> LabSpec:
        """This lab with another rate at one host, or at one rack's uplink.

        Raises:
            LabError: an unknown host or rack, or a rate that cannot be.
        """
        given = parse_lab_rate(rate)
        for field, names in (("host_rates", self.hosts), ("uplinks", self.racks)):
            if where in names:
                rates = list(getattr(self, field))
                rates[names.index(where)] = given
                return msgspec.structs.replace(self, **{field: tuple(rates)})
        known = ", ".join(_span(names) for names in (self.hosts, self.racks) if names)
        raise LabError(f"the lab {self.name!r} has no {where!r}", f"it has {known}")

    def topology(self) -> Topology:
        """The same as every other part of Hemiola describes it: one process (and "GPU") per host."""
        hosts = equal_hosts(len(self.host_rates), 1, names=self.hosts, gpu_type="cpu")
        hosts.nic_bytes_per_s[:] = [math.inf if rate is None else rate for rate in self.host_rates]
        levels: tuple[Level, ...] = ()
        if self.uplinks:
            levels = (
                Level(
                    name="rack",
                    domains=self.racks,
                    domain_of_host=np.array([self.rack_of(i) for i in range(len(hosts))], dtype=np.int64),
                    uplink_bytes_per_s=np.array([math.inf if up is None else up for up in self.uplinks]),
                ),
            )
        source = f"hemiola lab {self.name!r}; rates as configured, the latency of a hop assumed to be 5 us"
        return Topology(name=f"lab-{self.name}", hosts=hosts, levels=levels, source=source).check()


def parse_lab_rate(text: str) -> float | None:
    """Bytes per second, or None for "unlimited".

    Raises:
        LabError: a rate that no link of a lab can have.
        UnitError: text that is no rate.
    """
    rate_bytes_per_s = parse_rate(text)
    if math.isinf(rate_bytes_per_s):
        return None
    if not RATE_MIN_BYTES_PER_S <= rate_bytes_per_s <= RATE_MAX_BYTES_PER_S:
        low, high = format_rate(RATE_MIN_BYTES_PER_S), format_rate(RATE_MAX_BYTES_PER_S)
        raise LabError(f"a link of {text!r}", f'give a rate from {low} to {high}, or "unlimited"')
    return rate_bytes_per_s


def _uplinks(hosts: int, racks: int | None, uplink: str | None) -> tuple[float | None, ...]:
    if racks is None and uplink is None:
        return ()
    if racks is None:
        raise LabError(
            f"an uplink of {uplink!r} without racks", "say how many racks, or leave the uplink out"
        )
    if racks < 2:
        raise LabError(f"{racks} racks", "give 2 racks or more, or leave racks and uplink out")
    if uplink is None:
        raise LabError(f"{racks} racks without the rate of their uplinks", "give an uplink, such as 500mbit")
    if hosts % racks:
        raise LabError(f"{hosts} hosts do not divide into {racks} racks", "give each rack as many hosts")
    return (parse_lab_rate(uplink),) * racks


def _span(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


# Which addresses a lab's hosts get.

RANGES = ("10.213.0.0/16", "172.29.0.0/16", "192.168.0.0/16", "198.18.0.0/15")
"""Private use (RFC 1918), then the range for benchmarks of networks (RFC 2544)."""


def free_subnet(taken: Iterable[IPv4Network]) -> IPv4Network:
    """A range of 256 addresses that overlaps none of these.

    Raises:
        LabError: all are taken.
    """
    used = tuple(taken)
    candidates: Iterator[IPv4Network] = chain.from_iterable(
        IPv4Network(range_).subnets(new_prefix=24) for range_ in RANGES
    )
    for subnet in candidates:
        if not any(subnet.overlaps(other) for other in used):
            return subnet
    raise LabError(
        f"every range of private addresses is taken ({', '.join(RANGES)})", "take down other labs, or a route"
    )


def in_use() -> list[IPv4Network]:
    """What this machine's own addresses and routes cover, the default route aside."""
    from pyroute2 import IPRoute

    with IPRoute() as ip:
        own = [(a.get("address"), a["prefixlen"]) for a in ip.get_addr(family=2)]
        routes = [(r.get("dst"), r["dst_len"]) for r in ip.get_routes(family=2)]
    return [
        IPv4Network(f"{address}/{bits}", strict=False) for address, bits in own + routes if address and bits
    ]
