"""How a link is given its rate: a token bucket (tbf) on the sending side of each of its two ends.

For a rate R (bytes/s), with one Ethernet frame of 1514 bytes as the kernel counts it:

    burst = max(R x 1 ms, 4 frames)     what may pass at once after a pause
    limit = burst + max(R x 20 ms, 64 kB)   what may wait before the switch drops
    gso_max_size = burst / 2, at most 65,536; the smallest of the lab's links for all of its hosts

A burst of 1 ms rides out the kernel's timers and is small beside the messages of a training job.
Segmentation offload stays on, which saves most of the CPU, but its packets are kept to half a burst:
tbf would otherwise cut every packet that exceeds the burst into frames again, at ten times the
CPU time of the receiver and with losses near 1 Gbit/s (measured; docs/guides/lab.md).

A link that is made slower keeps the burst that it had: a packet that waits and is larger than the burst would never
pass, nor anything behind it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

__all__ = ["ByteQueue", "TokenBucket", "apply", "gso_max_bytes", "queues", "shape"]

FRAME_BYTES = 1514
BURST_S = 1e-3
BURST_MIN_BYTES = 4 * FRAME_BYTES
WAIT_S = 20e-3
WAIT_MIN_BYTES = 65536
GSO_MAX_BYTES = 65536
ROOT = "1:"
NO_SUCH_THING = 2
INVALID = 22


class TokenBucket(msgspec.Struct, frozen=True):
    """The parameters of one token bucket."""

    rate_bytes_per_s: int
    burst_bytes: int
    limit_bytes: int


class ByteQueue(msgspec.Struct, frozen=True):
    """What the kernel says of a device's outgoing queue; zeros where the kind has no such number."""

    kind: str
    rate_bytes_per_s: float = 0.0
    burst_bytes: float = 0.0
    limit_bytes: int = 0


def shape(rate_bytes_per_s: float) -> TokenBucket:
    """The token bucket for a rate.

    >>> shape(125e6)
    Shape(rate_bytes_per_s=125000000, burst_bytes=125000, limit_bytes=2625000)
    """
    burst_bytes = max(int(rate_bytes_per_s * BURST_S), BURST_MIN_BYTES)
    wait_bytes = max(int(rate_bytes_per_s * WAIT_S), WAIT_MIN_BYTES)
    return TokenBucket(int(rate_bytes_per_s), burst_bytes, burst_bytes + wait_bytes)


def gso_max_bytes(rates_bytes_per_s: Iterable[float | None]) -> int:
    """The largest packet that passes every bucket whole, with room for a second."""
    shaped = [shape(rate).burst_bytes // 2 for rate in rates_bytes_per_s if rate is not None]
    return min([GSO_MAX_BYTES, *shaped])


def apply(ip: Any, index: int, rate_bytes_per_s: float | None, before: ByteQueue | None) -> None:
    """Give a device's outgoing side its rate, at once and without loss of what waits; None: take it off.

    Args:
        ip: a pyroute2 `IPRoute` in the device's namespace.
        index: the device.
        before: its queue until now; None if there is none.
    """
    from pyroute2.netlink.exceptions import NetlinkError

    if rate_bytes_per_s is not None:
        bucket = shape(rate_bytes_per_s)
        kept = math.ceil(before.burst_bytes) if before is not None else 0
        burst_bytes = max(bucket.burst_bytes, min(kept, GSO_MAX_BYTES))
        ip.tc(
            "replace",
            "tbf",
            index,
            handle=ROOT,
            rate=bucket.rate_bytes_per_s,
            burst=burst_bytes,
            limit=bucket.limit_bytes - bucket.burst_bytes + burst_bytes,
        )
        return
    try:
        ip.tc("del", index=index, root=True)
    except NetlinkError as error:
        if error.code not in (NO_SUCH_THING, INVALID):  # there was none
            raise


def queues(ip: Any) -> dict[int, ByteQueue]:
    """What the kernel says of each device's root queue, by the device's index."""
    from pyroute2.netlink.rtnl import TC_H_ROOT
    from pyroute2.netlink.rtnl.tcmsg.common import tick_in_usec

    found = {}
    for queue in ip.get_qdiscs():
        kind = queue.get_attr("TCA_KIND")
        if queue["parent"] != TC_H_ROOT:
            continue
        found[queue["index"]] = ByteQueue(kind)
        if kind == "tbf":
            numbers = queue.get_attr("TCA_OPTIONS").get_attr("TCA_TBF_PARMS")
            rate, burst_s = float(numbers["rate"]), numbers["buffer"] / tick_in_usec / 1e6
            found[queue["index"]] = ByteQueue(kind, rate, rate * burst_s, numbers["limit"])
    return found
