"""Which spans of a Kineto file are communication, and of what. Knows NCCL's and gloo's events.

NCCL: the kernels are the communication; they, or the "record_param_comms" event with the same
"External id", say collective, sizes, type and ranks. gloo: the "gloo:..." annotations on its own
threads are; the c10d operation that asked for one is the recorded function before it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from hemiola.trace.jobs.collectives import collective_of, is_nccl_kernel, size_of_type, tensors_bytes
from hemiola.trace.jobs.kineto.file import Event, KinetoFile, steps_at

__all__ = ["Communication", "communications"]


@dataclass(frozen=True)
class Communication:
    """One rank's part in one collective.

    Attributes:
        row: of the span, in the file's columns.
        collective: in Hemiola's words.
        ordinal: how many of the same collective in the same group came before it in its iteration.
        size_bytes: that the rank puts in (or gets, where it puts nothing in); NaN if not told.
        group: numbers of the ranks; empty if not told.
        group_name: of the process group; "" if not told.
        enqueued_by: row of the operation that asked for it, or of the call that launched it; -1 if not told.
        key: what is the same on every rank that takes part; None where the group cannot be told.
    """

    row: int
    collective: str
    ordinal: int
    size_bytes: float
    group: tuple[int, ...]
    group_name: str
    enqueued_by: int
    key: Hashable


def communications(file: KinetoFile) -> list[Communication]:
    """The communication in a file, in the order in which it was asked for."""
    parts = sorted(_nccl(file) + _gloo(file), key=_issued(file))
    asked_us = np.array([file.start_us[_asked_by(part)] for part in parts])
    steps = steps_at(file.steps, asked_us).tolist()
    counts: Counter[Hashable] = Counter()
    found = []
    for part, step in zip(parts, steps, strict=True):
        row, collective, size_bytes, group, name, enqueued_by, sequence = part
        place = (collective, group or name, step)
        key: Hashable = None
        if group or name:
            key = (collective, group, name, sequence) if sequence is not None else (*place, counts[place])
        found.append(Communication(row, collective, counts[place], size_bytes, group, name, enqueued_by, key))
        counts[place] += 1
    return found


_Part = tuple[int, str, float, tuple[int, ...], str, int, int | None]


def _asked_by(part: _Part) -> int:
    """The row of what asked for it, or its own."""
    return part[5] if part[5] >= 0 else part[0]


def _issued(file: KinetoFile) -> Callable[[_Part], tuple[float, float, int]]:
    """The order of asking, which is the same on every rank: gloo's threads and a GPU's streams may begin in another one."""
    return lambda part: (file.start_us[_asked_by(part)], file.start_us[part[0]], part[0])


def _nccl(file: KinetoFile) -> list[_Part]:
    groups, only = _groups(file), _only_group(file)
    asked = {
        event.arguments.get("External id"): event.arguments
        for event in file.communication
        if event.name == "record_param_comms" and "Collective name" in event.arguments
    }
    parts: list[_Part] = []
    for event in file.communication:
        if is_nccl_kernel(event.name):
            told = event.arguments
            if "Collective name" not in told:
                told = asked.get(told.get("External id"), {})
            collective = collective_of(str(told.get("Collective name", ""))) or collective_of(event.name)
            name = str(told.get("Process Group Name", ""))
            group = _group(told) or groups.get(name, () if name and groups else only)
            sequence = told.get("Seq")
            parts.append(
                (
                    event.row, collective or "unknown", _size(told), group, name, file.launches.get(event.row, -1),
                    sequence if isinstance(sequence, int) else None,
                )
            )  # fmt: skip
    return parts


def _size(told: dict[str, Any]) -> float:
    given, got = told.get("In msg nelems"), told.get("Out msg nelems")
    numbers = given if isinstance(given, int) and given > 0 else got
    return numbers * size_of_type(str(told.get("dtype", ""))) if isinstance(numbers, int) else math.nan


def _group(told: dict[str, Any]) -> tuple[int, ...]:
    """The ranks; none where the profiler cut the list short, as it does beyond 30 ("[0, 1, ...]")."""
    text = str(told.get("Process Group Ranks", ""))
    try:
        return tuple(msgspec.json.decode(text.encode(), type=list[int]))
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return ()


def _gloo(file: KinetoFile) -> list[_Part]:
    group = _only_group(file)
    calls = _calls(file)
    parts: list[_Part] = []
    for event in file.communication:
        if event.name.startswith(("gloo:", "mpi:", "ucc:")):
            collective = collective_of(event.name) or "unknown"
            size_bytes = tensors_bytes(event.arguments.get("Input Dims"), event.arguments.get("Input type"))
            if collective == "barrier" and math.isnan(size_bytes):
                size_bytes = 0.0
            call = _call(file, calls.get(collective, []), event)
            parts.append((event.row, collective, size_bytes, group, "", call, None))
    return parts


def _calls(file: KinetoFile) -> dict[str, list[tuple[int, int]]]:
    """By collective the record and row of each operation of c10d, in the order of records."""
    calls: dict[str, list[tuple[int, int]]] = {}
    for event in file.communication:
        if event.name.startswith("c10d::") and file.record[event.row] >= 0:
            calls.setdefault(collective_of(event.name), []).append((file.record[event.row], event.row))
    return {collective: sorted(rows) for collective, rows in calls.items()}


def _call(file: KinetoFile, calls: list[tuple[int, int]], event: Event) -> int:
    """The row of the operation that made the collective: the last of its kind recorded before it; -1 for none."""
    place = bisect_left(calls, (file.record[event.row], -1)) - 1
    if file.record[event.row] < 0 or place < 0:
        return -1
    row = calls[place][1]
    return row if file.start_us[row] <= file.start_us[event.row] else -1


class _Told(msgspec.Struct):
    """Of a process group in "pg_config"."""

    pg_name: str
    ranks: list[int]


def _groups(file: KinetoFile) -> dict[str, tuple[int, ...]]:
    """The ranks of each group that this one is in, by the group's name, as far as the file says."""
    about = file.about.get("distributedInfo")
    try:
        told = msgspec.convert(about.get("pg_config") if isinstance(about, dict) else [], list[_Told])
    except msgspec.ValidationError:
        return {}
    return {group.pg_name: tuple(group.ranks) for group in told}


def _only_group(file: KinetoFile) -> tuple[int, ...]:
    """The ranks of a collective that does not say its group, if there is but one set of ranks that it can be of."""
    if sets := set(_groups(file).values()):
        return sets.pop() if len(sets) == 1 else ()
    about = file.about.get("distributedInfo")
    if not isinstance(about, dict) or about.get("pg_count", 1) != 1:
        return ()
    size = about.get("world_size")
    return tuple(range(size)) if isinstance(size, int) and 0 < size <= 1 << 20 else ()
