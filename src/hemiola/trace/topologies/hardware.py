"""The columns of hosts, from what a file says and what the options say of the rest.

The one place with default bandwidths. They are ordinary figures, not measurements, and every one
that is taken is written into `Topology.source`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hemiola.core.errors import InputError
from hemiola.core.topology import MAX_HOSTS, Hosts
from hemiola.trace.topologies.options import TopologyOptions

__all__ = ["BUS", "FABRIC", "HARDWARE_OPTIONS", "LATENCY", "NIC", "make_hosts"]

NIC = "100gbit"
LATENCY = "5us"
FABRIC = "150GB/s"
BUS = "12GB/s"

HARDWARE_OPTIONS = ("gpus_per_host", "gpu_type", "nic", "latency", "fabric", "island", "bus")


def make_hosts(
    options: TopologyOptions,
    names: Sequence[str],
    gpus: Sequence[int | None] | None = None,
    gpu_types: Sequence[str] | None = None,
    nic: str = NIC,
) -> Hosts:
    """Hosts from columns of a file, filled up with options.

    Args:
        options: `HARDWARE_OPTIONS`; one that would contradict the file is refused.
        names: of the hosts.
        gpus: GPUs per host; None where the file is silent.
        gpu_types: type per host; "" where the file is silent.
        nic: the default bandwidth into the network.

    Raises:
        InputError: no number of GPUs for a host, or an option with nothing to fill.
    """
    count = len(names)
    if count > MAX_HOSTS:
        raise InputError(f"{options.where} has {count:,} hosts", f"give at most {MAX_HOSTS:,}")
    counts = np.array(_filled_gpus(options, names, gpus), dtype=np.int64)
    islands = np.maximum(counts, 1)
    if "island" in options:
        islands[:] = options.whole("island")
    else:
        options.assumed["island"] = "all GPUs of a host"
    return Hosts(
        names=tuple(names),
        gpus=counts,
        gpu_types=_filled_types(options, count, gpu_types),
        nic_bytes_per_s=np.full(count, options.rate("nic", nic)),
        nic_latency_s=np.full(count, options.duration("latency", LATENCY)),
        fabric_bytes_per_s=np.full(count, options.rate("fabric", FABRIC)),
        island_gpus=islands,
        bus_bytes_per_s=np.full(count, options.rate("bus", BUS)),
    )


def _filled_gpus(options: TopologyOptions, names: Sequence[str], gpus: Sequence[int | None] | None) -> list[int]:
    known = list(gpus) if gpus is not None else [None] * len(names)
    silent = next((name for name, count in zip(names, known, strict=True) if count is None), None)
    if silent is None:
        _refuse_needless(options, "gpus_per_host", "every host's GPUs")
        return [count or 0 for count in known]
    if "gpus_per_host" not in options:
        raise InputError(
            f"{options.where} does not say how many GPUs host {silent!r} has", "add gpus_per_host=8"
        )
    given = options.whole("gpus_per_host", low=0)
    return [given if count is None else count for count in known]


def _filled_types(options: TopologyOptions, count: int, gpu_types: Sequence[str] | None) -> tuple[str, ...]:
    known = tuple(gpu_types) if gpu_types is not None else ("",) * count
    if all(known) and known:
        _refuse_needless(options, "gpu_type", "every host's GPU type")
        return known
    given = options.text("gpu_type", "")
    return tuple(gpu_type or given for gpu_type in known)


def _refuse_needless(options: TopologyOptions, key: str, what: str) -> None:
    if key in options:
        raise InputError(f"{options.where} gives {what} itself", f"leave {key} out, or edit the file")
