"""Hosts that fail and return, from a CSV: time_s,host,event with event "down" or "up"."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from hemiola.core.errors import InputError, RowError
from hemiola.core.events import NodeBack, NodeLost
from hemiola.core.topology import Topology

__all__ = ["read_failures"]

COLUMNS = ["time_s", "host", "event"]


def read_failures(
    path: str | Path, topology: Topology, origin_s: float = 0.0
) -> tuple[NodeLost | NodeBack, ...]:
    """Failures and repairs in order of time.

    Args:
        path: the CSV; times are seconds on the workload's clock.
        topology: where the hosts are.
        origin_s: added to every time.

    Raises:
        InputError: a file that cannot be read or is no CSV, or wrong columns.
        RowError: a row with an unknown host, event or time.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the failures in {path}: {error}", "give a CSV in UTF-8") from error
    reader = csv.DictReader(text.splitlines())
    index = {name: i for i, name in enumerate(topology.hosts.names)}
    try:
        if reader.fieldnames is None or [*reader.fieldnames] != COLUMNS:
            raise InputError(f"{path}: columns are {reader.fieldnames}", f"write {','.join(COLUMNS)}")
        events = [_event(str(path), reader.line_num, row, index, origin_s) for row in reader]
    except csv.Error as error:
        raise InputError(f"{path}: {error}", "check its quotes") from error
    return tuple(sorted(events, key=lambda event: event.time_s))


def _event(
    path: str, line: int, row: dict[str, str], index: dict[str, int], origin_s: float
) -> NodeLost | NodeBack:
    try:
        time_s = float(row["time_s"] or "nan")
    except ValueError:
        time_s = math.nan
    if not math.isfinite(time_s):
        raise RowError(path, line, "time_s", row["time_s"], "is not a time", "write seconds")
    if row["host"] not in index:
        raise RowError(path, line, "host", row["host"], "is not in the topology", "use the topology's names")
    if row["event"] not in ("down", "up"):
        raise RowError(path, line, "event", row["event"], "is not an event", "write down or up")
    kind = NodeLost if row["event"] == "down" else NodeBack
    return kind(time_s + origin_s, index[row["host"]])
