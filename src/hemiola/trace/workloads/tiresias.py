"""Tiresias's job file (Gu et al., NSDI'19): seconds, one row per job.

Source: github.com/SymbioticLab/Tiresias. Columns: job_id, num_gpu, submit_time [s], iterations,
model_name, duration [s], interval [s] ("from this job to the next job"). Muri took the columns over,
added more and counts milliseconds: a file whose intervals do not add up to its arrivals, or whose
every time is a whole number of thousands, is refused.
"""

from __future__ import annotations

import statistics
from itertools import pairwise

from hemiola.core.errors import FormatError
from hemiola.trace.workloads.cells import Cells, read_rows, table
from hemiola.trace.workloads.ledger import JobDraft, ReadLedger
from hemiola.trace.workloads.source import Source, WorkloadFormat

__all__ = ["MURI", "TIRESIAS"]


COLUMNS = frozenset({"job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "interval"})
_ENOUGH = 3
_MIXED = 100.0


def _match(source: Source) -> str:
    if source.columns >= COLUMNS and "iteration_time" not in source.columns:
        return "its header has job_id, num_gpu, iterations, duration and interval, but no iteration_time"
    return ""


def _read(source: Source, ledger: ReadLedger) -> None:
    intervals: list[tuple[float, float]] = []

    def make(cells: Cells) -> JobDraft:
        draft = JobDraft(
            id=cells.text("job_id"),
            submit_s=cells.seconds("submit_time"),
            gpus=cells.gpus("num_gpu"),
            duration_s=cells.seconds("duration"),
            model=cells.text("model_name"),
        )
        intervals.append((draft.submit_s, cells.seconds("interval")))
        return draft

    read_rows(table(source, ledger), ledger, make, "job_id")
    _refuse_mixed(source, ledger, intervals)
    if not source.forced:
        _refuse_thousands(source, ledger.drafts)


def _refuse_mixed(source: Source, ledger: ReadLedger, intervals: list[tuple[float, float]]) -> None:
    ratios = [
        (later - now) / interval
        for (now, interval), (later, _) in pairwise(intervals)
        if interval > 0 and later > now
    ]
    if len(ratios) < _ENOUGH:
        ledger.note("seconds throughout (too few intervals to check it)")
        return
    ratio = statistics.median(ratios)
    if not 1 / _MIXED < ratio < _MIXED:
        raise FormatError(
            f"{source.path}: submit_time advances {ratio:g} times as fast as interval says: two units are mixed",
            "give all of submit_time, duration and interval in seconds",
        )
    ledger.note(f"seconds throughout (submit_time advances {ratio:g} times as fast as interval says)")


def _refuse_thousands(source: Source, drafts: list[JobDraft]) -> None:
    times = [time for draft in drafts for time in (draft.submit_s, draft.duration_s) if time]
    if len(times) >= 2 * _ENOUGH and all(time % 1000 == 0 for time in times):
        raise FormatError(
            f"{source.path}: every submit_time and duration is a whole number of thousands, "
            "so they may be milliseconds, as Muri counts",
            "divide them by 1000 if so; if they are seconds, say so by tiresias:FILE",
        )


TIRESIAS = WorkloadFormat("tiresias", "Tiresias's job file, seconds", _match, _read, from_first=False)


# Muri's trace (Zhao et al., SIGCOMM'22): Tiresias's columns and more, in milliseconds.

_MS = 1000.0
_APART = 0.02
_MURI_MIXED = 20.0
_SHORTEST_STEP_S = 0.005
_FACTS = ("iterations", "iteration_time")
_STAGES = ("resource_time_0", "resource_time_1", "resource_time_2")


def _match_muri(source: Source) -> str:
    if source.columns >= COLUMNS | {"iteration_time", *_STAGES}:
        return "its header has iteration_time and resource_time_0 to _2 beside Tiresias's columns"
    return ""


def _read_muri(source: Source, ledger: ReadLedger) -> None:
    steps_s: list[float] = []
    ratios: list[float] = []

    def make(cells: Cells) -> JobDraft:
        draft = JobDraft(
            id=cells.text("job_id"),
            submit_s=cells.seconds("submit_time", _MS),
            gpus=cells.gpus("num_gpu"),
            duration_s=cells.seconds("duration", _MS),
            model=cells.text("model_name"),
            facts={column: cells.number(column) for column in _FACTS},
        )
        step_s = cells.seconds("iteration_time", _MS)
        steps_s.append(step_s)
        if draft.duration_s:
            ratios.append(cells.number("iterations") * step_s / draft.duration_s)
        return draft

    read_rows(table(source, ledger), ledger, make, "job_id")
    _check_units(source, steps_s, ratios)
    apart = sum(abs(ratio - 1) > _APART for ratio in ratios)
    ledger.note("milliseconds in the file; priority and the times of the stages are not read")
    ledger.note(f"duration is used; in {apart} rows iterations * iteration_time differs from it by over 2 %")


def _check_units(source: Source, steps_s: list[float], ratios: list[float]) -> None:
    remedy = "give submit_time, duration, interval and iteration_time in milliseconds"
    if ratios and not 1 / _MURI_MIXED < statistics.median(ratios) < _MURI_MIXED:
        raise FormatError(
            f"{source.path}: iterations * iteration_time is {statistics.median(ratios):g} times the duration: "
            "two units are mixed",
            remedy,
        )
    if steps_s and max(steps_s) < _SHORTEST_STEP_S:
        raise FormatError(
            f"{source.path}: no iteration_time exceeds {max(steps_s) * _MS:g}: the file seems to be in seconds",
            remedy,
        )


MURI = WorkloadFormat("muri", "Muri's trace, milliseconds", _match_muri, _read_muri, from_first=False)
