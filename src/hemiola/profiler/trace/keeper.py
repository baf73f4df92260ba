"""The thread beside the training: settles finished iterations, writes them and counts them.

All that is slow or talks to others happens here. It holds up a training thread only by what Python's lock does.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hemiola.core.errors import InputError
from hemiola.profiler.trace.parts import PartWriter
from hemiola.profiler.trace.profile import refine, rows
from hemiola.profiler.trace.recorder import IterationRecorder, logger
from hemiola.profiler.trace.server import Totals, union_ns, waits
from hemiola.profiler.trace.values import (
    End,
    FirstBytes,
    Instant,
    Iteration,
    IterationDraft,
    LateTransfers,
    Line,
    PartHead,
    RankGroup,
    TransferRow,
    is_heard,
    is_settled,
    is_told,
    settle,
    under_way,
)
from hemiola.trace.reports import JobReport, write_report

__all__ = ["Keeper", "Reporting", "job_name"]


_TICK_S = 0.25
_PATIENCE_S = 10.0
"""So long an iteration waits for its last transfers to end, and to be waited for, before it is written without that.
A transfer that has been on its way for so long is named before its iteration ends: the rank may hang on it until it is
killed."""
_LAST_WORD_S = 1.0
"""So long the end waits for the backends' threads, which need Python's lock to say that a transfer has ended."""
_WHY_CHARACTERS = 1000
"""So much is kept of what a rank crashed with: who waits for a part's end looks at the end of the file (`parts`)."""


class Keeper:
    """Owns a rank's part.

    Args:
        patience_s: how long an iteration waits for its last transfers, and what is on its way is not yet named.

    Attributes:
        every: called several times a second, on this thread.
        at_end: called once, on this thread, before the end is written.
        on_iteration: called with each iteration that has been written.
        device: reads the device's events; None without a device.
        ranks_of: how many ranks the process groups have, by their numbers.
    """

    def __init__(
        self,
        recorder: IterationRecorder,
        writer: PartWriter,
        head: Callable[[], PartHead],
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self.writer = writer
        self.every: list[Callable[[], None]] = []
        self.at_end: list[Callable[[], None]] = []
        self.on_iteration: list[Callable[[IterationDraft, Iteration], None]] = []
        self.device: Any = None
        self.ranks_of: dict[int, int] = {}
        self.totals = Totals()
        self.head: PartHead | None = None
        self._recorder = recorder
        self._make_head = head
        self._patience_s = patience_s
        self._under_way: list[TransferRow] = []
        self._first_bytes = FirstBytes()
        self._unsettled: deque[tuple[IterationDraft, float]] = deque()
        self._lines: deque[Line] = deque()
        self._why = ""
        self._thread = threading.Thread(target=self._run, name="hemiola-keeper", daemon=True)

    def start(self) -> None:
        """Begin to keep."""
        self._thread.start()

    def tell(self, line: Line) -> None:
        """Have the line written, in its turn."""
        if isinstance(line, RankGroup):
            self.ranks_of[line.number] = len(line.ranks)
        self._lines.append(line)

    def finish(self, why: str, timeout_s: float) -> None:
        """Write what is left and the end; give up after `timeout_s`."""
        self._why = why
        self._recorder.close()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while True:
                self._identify()
                self._take()
                self._tell_under_way()
                self._drain(force=False)
                for action in self.every:
                    action()
                if self._recorder.closed.wait(_TICK_S):
                    break
            self._take()
            self._identify()
            self._hear_last()
            self._drain(force=True)
            for action in self.at_end:
                action()
            self._end()
        except Exception as problem:
            self._recorder.fail(problem)
            self._why = f"recording failed: {type(problem).__name__}: {problem}"
            for action in (*self.at_end, self._end):
                with suppress(Exception):  # the disk may be full
                    action()
        finally:
            self.writer.close()

    def _take(self) -> None:
        """Fetch the iterations that have finished since the last time."""
        finished = self._recorder.finished
        while finished:
            self._unsettled.append((finished.popleft(), time.monotonic()))

    def _identify(self) -> None:
        """Write who this is, once more whenever that has changed: the rank may be known only later."""
        head = self._make_head()
        if head != self.head:
            self.head = head
            self.writer.write(head)

    def _drain(self, *, force: bool) -> None:
        while self._lines:
            self.writer.write(self._lines.popleft())
        while self._unsettled:
            draft, since = self._unsettled[0]
            late = time.monotonic() - since > self._patience_s
            ready = is_told if late else is_settled  # a device that hangs would have this thread hang, too
            if not force and not ready(draft, self._is_known):
                return
            self._unsettled.popleft()
            self._keep(draft)

    def _hear_last(self) -> None:
        """Wait for word of the last transfers that have ended."""
        end_s = time.monotonic() + _LAST_WORD_S
        while time.monotonic() < end_s and not all(is_heard(draft) for draft, _ in self._unsettled):
            time.sleep(0.001)

    def _tell_under_way(self) -> None:
        """Write what has not ended for long, once more whenever that has changed."""
        drafts = [draft for draft, _ in self._unsettled]
        if (last := self._recorder.draft) is not None:
            drafts.append(last)
        found = under_way(drafts, self._recorder.now() - round(self._patience_s * 1e9), self._is_known)
        if found != self._under_way:
            self._under_way = found
            self.writer.write(LateTransfers(found))

    def _keep(self, draft: IterationDraft) -> None:
        spans = rows(*draft.operations) if draft.operations is not None else []
        if spans:  # the profiler may have run on from iterations before
            begin = self._resolve(draft.start)
            spans = [span for span in spans if span[4] > begin]
        refine(draft.transfers, spans)
        iteration = settle(draft, self._resolve, self._first_bytes)
        iteration.operations = [span for span in spans if span[2] != "gloo"]
        self.writer.write(iteration)
        self.totals.add(iteration)
        for action in self.on_iteration:
            action(draft, iteration)

    def _end(self) -> None:
        while self._lines:
            self.writer.write(self._lines.popleft())
        end = End(
            why=self._why[:_WHY_CHARACTERS].encode(errors="backslashreplace").decode(),
            iterations=self.totals.iterations,
            cost_ns=self._recorder.cost_ns,
            forgotten_iterations=self.writer.forgotten_iterations,
        )
        self.writer.write(end)

    def _is_known(self, instant: Instant) -> bool:
        return self.device is not None and bool(self.device.is_known(instant))

    def _resolve(self, instant: Instant) -> int:
        return instant if isinstance(instant, int) else int(self.device.resolve(instant))


# What a job tells the scheduler of its iterations, now and then: rank 0, on the keeper's thread. See
# `trace.reports`.

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
