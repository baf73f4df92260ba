"""PyTorch profiler traces of a job's ranks as one timeline: GPU with NCCL, CPU with gloo.

What each column means for these traces, and how clocks are brought together, is said in
`docs/reference/traces.md`. `kineto.file` reads the files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hemiola.core.errors import InputError
from hemiola.core.job_timeline import Ints, JobTimeline, TimelineBuilder
from hemiola.trace.jobs.collectives import MEETINGS, Meeting, offset_between, on_one_clock
from hemiola.trace.jobs.kineto.file import Communication, KinetoFile, communications, read_file, steps_at
from hemiola.trace.struct_json import as_text

__all__ = ["KinetoJob", "read_kineto", "read_kineto_job"]

_INPUT_NAMES = ("enumerate(DataLoader)",)


@dataclass(frozen=True)
class KinetoJob:
    """A timeline and what joins other traces of the same processes to it.

    Attributes:
        timeline: of all files.
        spans_of: per process id of the operating system, the span of each recorded function's id.
    """

    timeline: JobTimeline
    spans_of: dict[int, dict[int, int]]


def read_kineto(paths: Sequence[Path], *, salvage: bool = False) -> JobTimeline:
    """The timeline of a job from the files of its ranks, one each; with `salvage` also from damaged files.

    Raises:
        InputError: if a file is none or damaged, or it cannot be told which rank wrote which.
    """
    return read_kineto_job(paths, salvage=salvage).timeline


def read_kineto_job(paths: Sequence[Path], *, salvage: bool = False) -> KinetoJob:
    """As `read_kineto`, with the identities of the spans."""
    files = [read_file(path, salvage=salvage) for path in paths]
    numbers = _ranks(files)
    order = sorted(range(len(files)), key=numbers.__getitem__)
    files, numbers = [files[at] for at in order], [numbers[at] for at in order]
    found = [communications(file) for file in files]
    offsets_s, errors_s, clocks = _clocks(files, found)
    first_s = min(
        _seconds(files, file, file.first_us) + offset for file, offset in zip(files, offsets_s, strict=True)
    )
    names = [as_text(file.path.name) for file in files]
    builder = TimelineBuilder(
        names[0].split(".")[0] if len(files) == 1 else as_text(files[0].path.resolve().parent.name)
    )
    spans_of: dict[int, dict[int, int]] = {}
    for file, number, comms, offset, error in zip(files, numbers, found, offsets_s, errors_s, strict=True):
        place = builder.rank(
            number,
            host=str(file.about.get("host_name", "")),
            device=f"cuda:{file.devices.most_common(1)[0][0]}" if file.on_gpu else "cpu",
            clock_offset_s=offset,
            clock_error_s=error,
        )
        first = len(builder)
        begin_s = _seconds(files, file, file.first_us) + offset - first_s
        _Rank(builder, place, file, comms, begin_s, f" of rank {number}" if len(files) > 1 else "").add()
        records = {record: first + row for row, record in enumerate(file.record) if record >= 0}
        spans_of[file.process] = (
            {} if file.process in spans_of else records
        )  # one id on two hosts tells nothing
    timeline = builder.build(
        origin_unix_s=files[0].first_us * 1e-6 + files[0].base_ns * 1e-9 + first_s,
        facts=_facts(files, clocks),
        source=f"PyTorch profiler (Kineto), {len(files)} files: {', '.join(names[:4])}"
        + (" ..." if len(files) > 4 else ""),
    )
    return KinetoJob(timeline, spans_of)


class _Rank:
    """Adds one file to the timeline."""

    def __init__(
        self,
        builder: TimelineBuilder,
        place: int,
        file: KinetoFile,
        comms: list[Communication],
        first_s: float,
        whose: str,
    ) -> None:
        self._builder = builder
        self._place = place
        self._file = file
        self._comms = {found.row: found for found in comms}
        self._whose = whose
        self._start_s, self._end_s = (
            (np.array(times) - file.first_us) * 1e-6 + first_s for times in (file.start_us, file.end_us)
        )
        self._steps = [
            (number, (start - file.first_us) * 1e-6 + first_s, (end - file.first_us) * 1e-6 + first_s)
            for number, start, end in file.steps
        ]
        self._inside = _inside(file, comms)

    def add(self) -> None:
        file, builder = self._file, self._builder
        iteration = self._iterations()
        first = len(builder)
        lanes = [_lane(file, lane) for lane in file.lanes]
        names = list(file.names)
        arguments = {event.row: event.arguments for event in file.communication}
        for row, (start_s, end_s) in enumerate(
            zip(self._start_s.tolist(), self._end_s.tolist(), strict=True)
        ):
            name = names[file.name[row]]
            found = self._comms.get(row)
            builder.span(
                self._place, lanes[file.lane[row]], name, self._kind(row, name), start_s, end_s,
                iteration=int(iteration[row]),
                transfer=self._transfer(found, iteration) if found else -1,
                attributes=arguments.get(row),
            )  # fmt: skip
        for kernel, launch in file.launches.items():
            builder.depend(first + launch, first + kernel)
        for number, start_s, end_s in self._steps:
            builder.iteration(self._place, number, start_s, end_s)

    def _kind(self, row: int, name: str) -> str:
        sort = KinetoFile.SORTS[self._file.sort[row]]
        if row in self._comms:
            return "communication"
        if sort in ("kernel", "copy"):
            return "compute" if sort == "kernel" else "copy"
        if name.startswith(_INPUT_NAMES):
            return "input"
        asks = sort != "cpu" or self._file.on_gpu or name.startswith("c10d::") or row in self._inside
        return "other" if asks else "compute"

    def _transfer(self, found: Communication, iteration: Ints) -> int:
        enqueued = found.enqueued_by
        name = f"{found.collective} {found.ordinal}"
        if not found.group:  # with one name on two ranks they would be taken for one collective
            name += f" of group {found.group_name}" if found.group_name else self._whose
        return self._builder.transfer(
            self._place,
            name,
            found.collective,
            found.size_bytes,
            float(self._start_s[enqueued]) if enqueued >= 0 else math.nan,
            float(self._start_s[found.row]),
            float(self._end_s[found.row]),
            group=found.group,
            iteration=int(iteration[found.row]),
        )

    def _iterations(self) -> Ints:
        """Of each span the iteration in which it, or the call that asked for it, began."""
        begins = self._start_s.copy()
        for found in self._comms.values():
            if found.enqueued_by >= 0:
                begins[found.row] = self._start_s[found.enqueued_by]
        if launches := self._file.launches:
            begins[list(launches)] = self._start_s[list(launches.values())]
        return steps_at(self._steps, begins)


def _inside(file: KinetoFile, comms: list[Communication]) -> set[int]:
    """Rows that lie inside a communication of their lane: what gloo's threads do to carry it out."""
    lane, start_us = np.array(file.lane), np.array(file.start_us)
    order = np.lexsort((start_us, lane))
    start_us = start_us[order]
    first = np.searchsorted(lane[order], np.arange(len(file.lanes) + 1))
    inside: set[int] = set()
    for found in comms:
        low, high = first[file.lane[found.row]], first[file.lane[found.row] + 1]
        both = (file.start_us[found.row], file.end_us[found.row])
        begin, end = low + np.searchsorted(start_us[low:high], both)
        inside.update(row for row in order[begin:end].tolist() if file.end_us[row] <= both[1])
    return inside


def _lane(file: KinetoFile, lane: tuple[str, str]) -> str:
    what, name = lane
    if what != "thread":
        return f"cuda:{what} stream {name}" if len(file.devices) > 1 else f"stream {name}"
    called = file.threads.get(name, "").partition("(")[2].rstrip(")")
    return f"{name} ({called})" if called and name != "main thread" else name


def _ranks(files: list[KinetoFile]) -> list[int]:
    told = [file.about.get("distributedInfo") for file in files]
    numbers = [info.get("rank") if isinstance(info, dict) else None for info in told]
    if len(files) == 1 and numbers[0] is None:
        return [0]
    for file, number in zip(files, numbers, strict=True):
        if not isinstance(number, int):
            raise InputError(
                f"{str(file.path)!r} does not say which rank wrote it (distributedInfo.rank)",
                "record after init_process_group, or give one file alone",
            )
    if len(set(numbers)) != len(numbers):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise InputError(f"two files are of rank {twice}", "give one file of each rank of one job")
    return [int(number) for number in numbers if number is not None]


def _clocks(
    files: list[KinetoFile], found: list[list[Communication]]
) -> tuple[list[float], list[float], str]:
    hosts = [str(file.about.get("host_name", "")) for file in files]
    if len(files) == 1 or (len(set(hosts)) == 1 and hosts[0]):
        return [0.0] * len(files), [0.0] * len(files), "one host: one clock, offsets are zero"
    meetings: dict[str | int, list[Meeting]] = {}  # by clock: a host's, or that of a file that names none
    clocks = [host or place for place, host in enumerate(hosts)]
    for clock, file, comms in zip(clocks, files, found, strict=True):
        meetings.setdefault(clock, []).append(_meetings(files, file, comms))
    met = {clock: on_one_clock(ranks) for clock, ranks in meetings.items()}
    told = {clock: offset_between(met[clocks[0]], other) for clock, other in met.items()}
    told[clocks[0]] = 0.0, 0.0
    offsets_s, errors_s = ([told[clock][part] for clock in clocks] for part in (0, 1))
    if any(math.isinf(error) for error in errors_s):
        words = "several hosts: offsets are unknown where no collective is found in both files, or they contradict"
    else:
        words = (
            "several hosts: offsets from the ends of matching collectives, errors from their begins and ends"
        )
    return offsets_s, errors_s, words


def _meetings(files: list[KinetoFile], file: KinetoFile, comms: list[Communication]) -> Meeting:
    return {
        found.key: (
            _seconds(files, file, file.start_us[found.row]),
            _seconds(files, file, file.end_us[found.row]),
        )
        for found in comms
        if found.collective in MEETINGS and found.key is not None
    }


def _seconds(files: list[KinetoFile], file: KinetoFile, time_us: float) -> float:
    """Since the first file's first event, by the file's own clock.

    Differences are taken before seconds are made: seconds since 1970 leave no digits for nanoseconds.
    """
    return (time_us - files[0].first_us) * 1e-6 + (file.base_ns - files[0].base_ns) * 1e-9


def _facts(files: list[KinetoFile], clocks: str) -> dict[str, Any]:
    left_out: dict[str, int] = {}
    for file in files:
        for category, count in file.left_out.items():
            left_out[category] = left_out.get(category, 0) + count
    facts: dict[str, Any] = {"clocks": clocks, "left_out_events": left_out}
    about = files[0].about
    for key in ("distributedInfo", "deviceProperties"):
        if about.get(key):
            facts[key] = about[key]
    damaged = {as_text(file.path.name): file.damage for file in files if file.damage}
    return facts | ({"damaged": damaged} if damaged else {})
