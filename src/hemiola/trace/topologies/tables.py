"""Clusters that simulators and data sets publish as CSV: Lingjun's hosts, Tiresias's counts."""

from __future__ import annotations

import csv
from collections.abc import Sequence

from hemiola.core.errors import HemiolaError, InputError, RowError
from hemiola.core.topology import MAX_HOSTS, Topology
from hemiola.trace.topologies.levels import HARDWARE_OPTIONS, LEVEL_OPTIONS, make_hosts, make_levels
from hemiola.trace.topologies.options import LINGJUN_COLUMNS, TIRESIAS_COLUMNS, TopologyOptions, whole

__all__ = ["read_lingjun", "read_tiresias"]

_OPTIONS = (*HARDWARE_OPTIONS, *LEVEL_OPTIONS, "name")

_CRUX_GPUS = "8"
_CRUX_GPU_TYPE = "a100"
_CRUX_NIC = "800gbit"
_CRUX_NOTE = (
    "assumed hosts are the testbed's of Crux (SIGCOMM 2024, figure 18: 8 A100, 4x200 Gbit/s), "
    "as the data set does not describe its own"
)


def read_lingjun(text: str, path: str, options: TopologyOptions) -> Topology:
    """Alibaba's Lingjun cluster: one row per host with its core, aggregation and ToR switch.

    ToR labels (ASW) are reused below each aggregation group (PSW), so a rack is the pair. A core
    group (DSW) becomes a level only where there are several.
    Source: alibaba-lingjun-dataset-2023, published with Crux (Cao et al., SIGCOMM 2024).

    Raises:
        RowError: a row with an empty or missing field.
    """
    options.only(_OPTIONS)
    rows = _rows(text, path, LINGJUN_COLUMNS)
    names, cores, pods, racks = (list(column) for column in zip(*rows, strict=True))
    facts = [f"Lingjun topo.csv {path}"]
    if "gpus_per_host" not in options or "nic" not in options:
        facts.append(_CRUX_NOTE)
    filled = _with_defaults(options, {"gpus_per_host": _CRUX_GPUS, "gpu_type": _CRUX_GPU_TYPE})
    hosts = make_hosts(filled, names, nic=_CRUX_NIC)
    depth = 3 if len(set(cores)) > 1 else 2
    levels = make_levels(hosts, ("rack", "pod", "core")[:depth], (racks, pods, cores)[:depth], filled)
    options.assumed.update(filled.assumed)
    return Topology(options.values.get("name", "lingjun"), hosts, levels, options.notes(facts)).check()


def read_tiresias(text: str, path: str, options: TopologyOptions) -> Topology:
    """A Tiresias cluster: so many switches, hosts per switch and GPUs per host; a switch is a rack.

    Source: Gu et al., NSDI 2019, and its simulator's `num_switch,...` files; CPUs and memory are
    left out.

    Raises:
        RowError: a count that is none, or other than one row.
    """
    options.only(_OPTIONS)
    rows = _rows(text, path, TIRESIAS_COLUMNS)
    if len(rows) != 1:
        raise RowError(path, 3, TIRESIAS_COLUMNS[0], rows[1][0], "is a second cluster", "keep one row")
    switches, per_switch, gpus = _counts(path, rows[0])
    count = switches * per_switch
    if count > MAX_HOSTS:
        raise InputError(f"{path} describes {count:,} hosts", f"give at most {MAX_HOSTS:,}")
    hosts = make_hosts(options, [f"n{i}" for i in range(count)], [gpus] * count)
    racks = [f"r{i // per_switch}" for i in range(count)]
    levels = make_levels(hosts, ["rack"], [racks], options)
    name = options.values.get("name", f"tiresias-{switches}x{per_switch}x{gpus}")
    return Topology(name, hosts, levels, options.notes([f"Tiresias cluster {path}"])).check()


def _counts(path: str, row: Sequence[str]) -> list[int]:
    counts = []
    for column, value in zip(TIRESIAS_COLUMNS, row, strict=True):
        try:
            counts.append(whole(value, 1))
        except HemiolaError as error:
            raise RowError(path, 2, column, value, "is not a whole number above 0", "write digits") from error
    return counts


def _with_defaults(options: TopologyOptions, defaults: dict[str, str]) -> TopologyOptions:
    """The same options with a data set's own defaults; those that are taken count as assumed."""
    missing = {key: value for key, value in defaults.items() if key not in options}
    options.assumed.update(missing)
    return TopologyOptions({**options.values, **missing}, options.where)


def _rows(text: str, path: str, columns: Sequence[str]) -> list[list[str]]:
    """The wanted columns of every row, none of them empty."""
    reader = csv.reader(text.splitlines())
    try:
        header = [name.strip() for name in next(reader, [])]
        places = [header.index(column) for column in columns]
        rows = [_fields(path, reader.line_num, row, places, columns) for row in reader if row]
    except (csv.Error, ValueError) as error:
        raise InputError(f"{path}: {error}", f"give a CSV with the columns {','.join(columns)}") from error
    if not rows:
        raise InputError(f"{path} has no rows", "give at least one below the header")
    return rows


def _fields(path: str, line: int, row: list[str], places: list[int], columns: Sequence[str]) -> list[str]:
    for place, column in zip(places, columns, strict=True):
        if place >= len(row) or not row[place].strip():
            raise RowError(path, line, column, "", "is missing", "fill it in or drop the row")
    return [row[place].strip() for place in places]
