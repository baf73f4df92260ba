"""Muri's trace (Zhao et al., SIGCOMM'22): Tiresias's columns and more, in milliseconds.

Source: github.com/Rivendile/Muri, whose simulator divides submit_time, duration and iteration_time by
1000. Columns: job_id, num_gpu, submit_time, iterations, model_name, batch_size, duration, interval,
iteration_time, resource_time_0 (storage, CPU), _1 (GPU), _2 (network), priority; all times in ms.
iterations * iteration_time repeats the duration and gives a wrong unit away.
"""

from __future__ import annotations

import statistics

from hemiola.core.errors import FormatError
from hemiola.trace.workloads import tiresias
from hemiola.trace.workloads.cells import Cells, read_rows, table
from hemiola.trace.workloads.format import WorkloadFormat
from hemiola.trace.workloads.ledger import JobDraft, ReadLedger
from hemiola.trace.workloads.source import Source

__all__ = ["MURI"]

_MS = 1000.0
_APART = 0.02
_MIXED = 20.0
_SHORTEST_STEP_S = 0.005
_FACTS = ("iterations", "iteration_time")
_STAGES = ("resource_time_0", "resource_time_1", "resource_time_2")


def _match(source: Source) -> str:
    if source.columns >= tiresias.COLUMNS | {"iteration_time", *_STAGES}:
        return "its header has iteration_time and resource_time_0 to _2 beside Tiresias's columns"
    return ""


def _read(source: Source, ledger: ReadLedger) -> None:
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
    if ratios and not 1 / _MIXED < statistics.median(ratios) < _MIXED:
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


MURI = WorkloadFormat("muri", "Muri's trace, milliseconds", _match, _read, from_first=False)
