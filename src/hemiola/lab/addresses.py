"""Which addresses a lab's hosts get.

No packet can leave a lab, so no choice can harm; yet a free range keeps logs unambiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network
from itertools import chain

from hemiola.core.errors import LabError

__all__ = ["free_subnet", "in_use"]

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
