"""Hosts that a file describes and no job can use now: taken out of the topology, and counted in words.

Links stay as wide as the file makes them: a switch has its uplink whether or not all hosts below it are up. Why a host
cannot be used is each format's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import InputError
from hemiola.core.topology import Hosts, Level, Topology

__all__ = ["KEEP", "only_usable"]

KEEP = "add unusable=keep to count what cannot be used now"


def only_usable(
    topology: Topology, unusable: Mapping[str, str], path: str, told: Sequence[str] = (), remedy: str = KEEP
) -> Topology:
    """The topology without these hosts; its `left_out` and `source` say how many and why.

    Args:
        topology: with all hosts of the file.
        unusable: why, by name of the host; names that are no hosts count for nothing.
        path: of the file, for messages.
        told: what else was left out, in words.
        remedy: what to do where nothing is left.

    Raises:
        InputError: no host with GPUs is left.
    """
    names = topology.hosts.names
    gone = [row for row, name in enumerate(names) if name in unusable]
    if gone:
        told = [_in_words(gone, [unusable[names[row]] for row in gone], topology), *told]
    if not told:
        return topology
    rows = np.setdiff1d(np.arange(len(names)), gone)
    if not topology.hosts.gpus[rows].any():
        raise InputError(f"{path} leaves no GPU that a job can use: {'; '.join(told)}", remedy)
    return replace(
        topology,
        hosts=_only_hosts(topology.hosts, rows),
        levels=tuple(_only_level(level, rows) for level in topology.levels),
        source="; ".join([topology.source, *told]),
        left_out=(*topology.left_out, *told),
    )


def _in_words(rows: Sequence[int], whys: Sequence[str], topology: Topology) -> str:
    gpus = int(topology.hosts.gpus[np.array(rows)].sum())
    kinds = ", ".join(f"{count:,} {why}" for why, count in Counter(whys).most_common())
    return f"cluster: {len(rows):,} of {len(topology.hosts):,} hosts with {gpus:,} GPUs left out: {kinds}"


def _only_hosts(hosts: Hosts, rows: NDArray[np.int64]) -> Hosts:
    columns: dict[str, Any] = {field.name: getattr(hosts, field.name) for field in fields(hosts)}
    for name, column in columns.items():
        columns[name] = column[rows] if isinstance(column, np.ndarray) else tuple(column[row] for row in rows)
    return Hosts(**columns)


def _only_level(level: Level, rows: NDArray[np.int64]) -> Level:
    """The same level with the domains in which a host is left."""
    used, place = np.unique(level.domain_of_host[rows], return_inverse=True)
    names = tuple(level.domains[domain] for domain in used)
    return Level(level.name, names, place.astype(np.int64), level.uplink_bytes_per_s[used], level.latency_s)
