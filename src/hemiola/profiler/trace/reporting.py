"""What a job tells the scheduler of its iterations, now and then: rank 0, on the keeper's thread. See `trace.reports`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hemiola.core.errors import InputError
from hemiola.profiler.trace.keeper import Keeper
from hemiola.profiler.trace.recorder import logger
from hemiola.profiler.trace.totals import union_ns, waits
from hemiola.profiler.trace.values import IterationDraft, Iteration
from hemiola.trace.reports import JobReport, write_report

__all__ = ["Reporting", "job_name"]

REPORTS = "HEMIOLA_REPORTS"
"""Names the folder."""
EVERY_S, LEAST = 5.0, 5
"""A report is of so many seconds, and of so many iterations at least."""
_ALL_REDUCE = "all-reduce"
_SHARED = frozenset({"all-gather", "reduce-scatter", "all-to-all"})


def job_name(environment: Mapping[str, str]) -> str:
    """What the engine calls this job; "" if that cannot be known."""
    if array := environment.get("SLURM_ARRAY_JOB_ID"):
        return f"{array}_{environment.get('SLURM_ARRAY_TASK_ID', '')}"
    return environment.get("HEMIOLA_JOB") or environment.get("SLURM_JOB_ID", "")


class Reporting:
    """Sums iterations up and reports their means.

    Args:
        job: as the engine calls it.
        now: Unix time.
    """

    def __init__(self, keeper: Keeper, folder: Path, job: str, now: Callable[[], float] = time.time) -> None:
        self._keeper, self._folder, self._job, self._now = keeper, folder, job, now
        self._began_s = now()
        self._total = 0
        self._failed = False
        self._clear()
        keeper.on_iteration.append(self._add)
        keeper.every.append(self._report_when_due)

    def _clear(self) -> None:
        self._count = self._time_ns = self._exposed_ns = 0
        self._reduced_bytes = self._other_bytes = self._sent_bytes = self._received_bytes = 0.0

    def _add(self, draft: IterationDraft, iteration: Iteration) -> None:
        if not iteration.complete or iteration.profiled:
            return
        self._count += 1
        self._total += 1
        self._time_ns += iteration.end - iteration.start
        self._exposed_ns += union_ns(waits(iteration))
        world = self._keeper.head.world_size if self._keeper.head is not None else 1
        for row in iteration.transfers:
            part = 1.0 - 1.0 / self._keeper.ranks_of.get(row[3], world)
            if row[2] == _ALL_REDUCE:
                self._reduced_bytes += 2 * part * row[4]
            elif row[2] == "send":
                self._sent_bytes += row[4]
            elif row[2] == "recv":
                self._received_bytes += row[4]
            else:
                self._other_bytes += (part if row[2] in _SHARED else 1.0) * row[4]

    def _report_when_due(self) -> None:
        head = self._keeper.head
        if self._failed or head is None or head.rank != 0:
            return
        if self._count < LEAST or self._now() < self._began_s + EVERY_S:
            return
        # what comes has a link's other direction; collectives fill both
        sent = self._reduced_bytes + self._other_bytes + max(self._sent_bytes, self._received_bytes)
        iteration_s = self._time_ns / self._count / 1e9
        report = JobReport(
            job=self._job, time_s=self._began_s, gpus=head.world_size, iterations=self._total, iteration_s=iteration_s,
            compute_s=max(iteration_s / 1e6, (self._time_ns - self._exposed_ns) / self._count / 1e9),
            traffic_bytes=sent / self._count, all_reduced=self._reduced_bytes / sent if sent else 1.0,
        )  # fmt: skip
        self._began_s = self._now()
        self._clear()
        try:
            write_report(self._folder, report)
        except InputError as problem:
            logger.warning("the scheduler is told no more of this job: %s", problem.what)
            self._failed = True

    @classmethod
    def begin(cls, keeper: Keeper) -> None:
        """Report, if the environment says where, and whose job it is."""
        folder, job = os.environ.get(REPORTS, ""), job_name(os.environ)
        if folder and job:
            cls(keeper, Path(folder), job)
