"""Hosts that differ by their NICs, with a rank on every GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hemiola.core.topology import Level, Topology
from hemiola.cost.places import RankPlaces, place_ranks


def hosts(
    rates: Sequence[float],
    racks: list[int] | None = None,
    uplinks: Sequence[float] | None = None,
    gpus: int = 1,
    pods: list[int] | None = None,
    above: Sequence[float] = (),
) -> RankPlaces:
    """Hosts with NICs of these rates, in racks with uplinks of those, and in pods with uplinks above them."""
    flat = Topology.flat(hosts=len(rates), gpus_per_host=gpus)
    own = replace(flat.hosts, nic_bytes_per_s=np.array(rates, dtype=float))
    levels: tuple[Level, ...] = ()
    if racks and uplinks:
        names = tuple(f"r{number}" for number in range(len(uplinks)))
        levels = (Level("rack", names, np.array(racks), np.array(uplinks, dtype=float)),)
    if pods:
        levels += (Level("pod", ("p", "q"), np.array(pods), np.array(above, dtype=float)),)
    return place_ranks(replace(flat, hosts=own, levels=levels).check(), len(rates) * gpus)
