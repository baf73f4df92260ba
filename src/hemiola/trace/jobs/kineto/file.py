"""One file of PyTorch's profiler (Kineto, Chrome trace events), as columns. Knows the format only.

Facts about the format: libkineto `output_json.cpp` (categories, "External id", "correlation", the
"Collective name" ... fields of NCCL), torch `profiler_kineto.cpp` ("Record function id", "Input
Dims"), c10d `ParamCommsUtils` (record_param_comms). Times stand as microseconds since
`baseTimeNanoseconds`. A kernel and the call that launched it share one "correlation", which is also
what the arrows of category "ac2g" say.
"""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import InputError
from hemiola.trace.jobs.collectives import collective_of, is_nccl_kernel, size_of_type, tensors_bytes
from hemiola.trace.jobs.json_stream import JsonStream, decoding

__all__ = ["KINETO_LIST", "Communication", "Event", "KinetoFile", "communications", "read_file", "steps_at"]

KINETO_LIST = "traceEvents"

_GPU = {"kernel": "kernel", "gpu_memcpy": "copy", "memcpy": "copy", "gpu_memset": "copy", "memset": "copy"}
_CPU = {
    "cpu_op": "cpu", "operator": "cpu", "cuda_runtime": "call", "runtime": "call", "cuda_driver": "call",
    "user_annotation": "note",
}  # fmt: skip
_STEP = re.compile(r"ProfilerStep#(\d+)$")
_OPTIMIZER_STEP = re.compile(r"Optimizer\.step#.*\.step$")
_COMMUNICATION_NAMES = ("gloo:", "c10d::", "mpi:", "ucc:", "nccl:", "record_param_comms")


@dataclass(frozen=True)
class Event:
    """An event whose arguments are needed to understand communication: its row, its name, its arguments."""

    row: int
    name: str
    arguments: dict[str, Any]


@dataclass
class KinetoFile:
    """What one process did, one entry per span in each column; times in microseconds of its own clock.

    Attributes:
        path: the file.
        about: its members beside the events ("distributedInfo", "baseTimeNanoseconds", ...).
        sort: per span "kernel", "copy" (on a GPU), "cpu", "call" (of CUDA) or "note" (an annotation), as an
            index into `SORTS`.
        lane, name: indices into `lanes` (GPU and stream, or "thread" and which) and `names`.
        start_us, end_us: from, to.
        correlation: what a launch and its kernel share; -1 for none.
        record: the id of the recorded function; -1 for none.
        communication: events that say something of communication.
        steps: number, start and end of each iteration: "ProfilerStep#N", or else from the end of one step of the
            optimizer to that of the next.
        threads: what the threads are called.
        devices: how many spans each GPU has.
        process: its id in the operating system; -1 if no event says it.
        left_out: how many events of which category are not in the columns.
        first_us: when the first span or step began.
        damage: what is wrong with the file, if it was read in spite of it.
    """

    SORTS = ("kernel", "copy", "cpu", "call", "note")

    path: Path
    about: dict[str, Any] = field(default_factory=dict)
    lanes: dict[tuple[str, str], int] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    sort: array[int] = field(default_factory=lambda: array("b"))
    lane: array[int] = field(default_factory=lambda: array("l"))
    name: array[int] = field(default_factory=lambda: array("l"))
    start_us: array[float] = field(default_factory=lambda: array("d"))
    end_us: array[float] = field(default_factory=lambda: array("d"))
    correlation: array[int] = field(default_factory=lambda: array("q"))
    record: array[int] = field(default_factory=lambda: array("q"))
    communication: list[Event] = field(default_factory=list)
    steps: list[tuple[int, float, float]] = field(default_factory=list)
    threads: dict[str, str] = field(default_factory=dict)
    devices: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    process: int = -1
    first_us: float = math.inf
    damage: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether the process computed on a GPU, as far as the file shows."""
        return bool(self.devices)

    @cached_property
    def launches(self) -> dict[int, int]:
        """The launching call's row, by the row of what ran on a GPU, of a file that has been read."""
        on_gpu = [self.SORTS[sort] in ("kernel", "copy") for sort in self.sort]
        calls = {
            correlation: row
            for row, correlation in enumerate(self.correlation)
            if correlation > 0 and not on_gpu[row]
        }
        return {
            row: calls[correlation]
            for row, correlation in enumerate(self.correlation)
            if on_gpu[row] and correlation in calls
        }

    @property
    def base_ns(self) -> int:
        """What the times count from, in nanoseconds since 1970."""
        return int(self.about.get("baseTimeNanoseconds", 0))

    def add(self, event: dict[str, Any]) -> None:
        """Take one element of "traceEvents"."""
        phase = event.get("ph")
        if phase == "M":
            if event.get("name") == "thread_name":
                self.threads[_thread(event)] = str(event["args"]["name"])
            return
        category = str(event.get("cat", "")).lower()
        if phase != "X" or (category not in _GPU and category not in _CPU):
            self.left_out[category or f"ph {phase}"] += 1
            return
        name, start_us = str(event["name"]), float(event["ts"])
        end_us = start_us + float(event["dur"])
        if end_us < start_us:
            self.left_out["negative duration, taken as 0"] += 1
            end_us = start_us
        self.first_us = min(self.first_us, start_us)
        step = _STEP.match(name) if category == "user_annotation" else None
        if step:
            self.steps.append((int(step[1]), start_us, end_us))
            return
        self._span(event, category, name, start_us, end_us)

    def _span(self, event: dict[str, Any], category: str, name: str, start_us: float, end_us: float) -> None:
        arguments = event.get("args") or {}
        sort = _GPU.get(category) or _CPU[category]
        if is_nccl_kernel(name) or name.startswith(_COMMUNICATION_NAMES):
            self.communication.append(Event(len(self.start_us), name, arguments))
        if category in _GPU:
            self.devices[str(arguments.get("device", event.get("pid")))] += 1
            lane = (
                str(arguments.get("device", event.get("pid"))),
                str(arguments.get("stream", event.get("tid"))),
            )
        else:
            lane = ("thread", _thread(event))
            if self.process < 0 and isinstance(event.get("pid"), int):
                self.process = event["pid"]
        self.sort.append(self.SORTS.index(sort))
        self.lane.append(self.lanes.setdefault(lane, len(self.lanes)))
        self.name.append(self.names.setdefault(name, len(self.names)))
        self.start_us.append(start_us)
        self.end_us.append(end_us)
        self.correlation.append(int(arguments.get("correlation", -1)))
        self.record.append(int(arguments.get("Record function id", -1)))


def read_file(path: Path, *, salvage: bool = False) -> KinetoFile:
    """Read one file; with `salvage` as much of a damaged one as can be.

    Raises:
        InputError: if it is no such file, or damaged (naming where).
    """
    found = KinetoFile(path)
    stream = JsonStream(path, [KINETO_LIST, ""], salvage=salvage)
    with stream.members() as members:
        for key, value in members:
            if key in (KINETO_LIST, ""):
                with decoding(f"{path}: event {stream.elements}", "trace event"):
                    found.add(value)
            else:
                found.about[key] = value
    found.damage = stream.damage
    if not found.start_us:
        others = ", ".join(f"{count:,} of {kind!r}" for kind, count in found.left_out.most_common(4))
        raise InputError(
            f"{str(path)!r} holds no event of an operation, a kernel or an annotation that took time"
            + (f" (events by category or phase: {others})" if others else ""),
            "record with torch.profiler.profile(activities=[...]) and export_chrome_trace",
        )
    if not found.steps:
        found.steps = _between_optimizer_steps(found)
    return found


def _between_optimizer_steps(file: KinetoFile) -> list[tuple[int, float, float]]:
    """Iterations of a loop that never called `profiler.step()`: each ends with a step of the optimizer that is last to step."""
    is_step = np.array([bool(_OPTIMIZER_STEP.match(name)) for name in file.names])[np.array(file.name)]
    is_step &= np.array(file.sort) == file.SORTS.index("note")
    if not is_step.any():
        return []
    name, end_us = np.array(file.name)[is_step], np.array(file.end_us)[is_step]
    ends = np.sort(end_us[name == name[np.argmax(end_us)]]).tolist()
    return list(zip(range(len(ends)), [file.first_us, *ends], ends, strict=False))


def steps_at(steps: Sequence[tuple[int, float, float]], times: NDArray[np.float64]) -> NDArray[np.int64]:
    """For each time the number of the step (number, start, end) that it lies in; -1 for none."""
    if not steps:
        return np.full(len(times), -1, dtype=np.int64)
    numbers, starts, ends = (
        np.array(column) for column in zip(*sorted(steps, key=lambda step: step[1]), strict=True)
    )
    place = np.searchsorted(starts, times, side="right") - 1
    return np.where((place >= 0) & (times < ends[place]), numbers[place], -1)


def _thread(event: dict[str, Any]) -> str:
    process, thread = event.get("pid"), event.get("tid")
    return "main thread" if process == thread else f"thread {thread}"


# Which spans of a Kineto file are communication, and of what. Knows NCCL's and gloo's events.
#
# NCCL: the kernels are the communication; they, or the "record_param_comms" event with the same
# "External id", say collective, sizes, type and ranks. gloo: the "gloo:..." annotations on its own
# threads are; the c10d operation that asked for one is the recorded function before it.


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
