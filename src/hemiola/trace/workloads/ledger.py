"""What a reader has found so far: jobs at their recorded times, what was left out, what was assumed.

Turns that into a `Workload`: arrivals in order, seconds from the first. Knows no format.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

import msgspec

from hemiola.core.errors import InputError, RowError
from hemiola.core.job import Job, Profile, Workload
from hemiola.trace.workloads.clock import Clock, origin_note

__all__ = ["Draft", "Ledger"]


class Draft(msgspec.Struct, kw_only=True, gc=False):
    """A job as its file tells it: like `core.job.Job`, but in the file's own time.

    Attributes:
        submit_s: arrival, seconds since an origin that all jobs of the file share.
        recorded_start_s: seconds since the same origin.
    """

    id: str
    submit_s: float
    gpus: int
    duration_s: float
    profile: Profile | None = None
    model: str = ""
    user: str = ""
    queue: str = ""
    gpu_type: str = ""
    required: str = ""
    preferred: str = ""
    estimate_s: float | None = None
    recorded_start_s: float | None = None
    recorded_state: str = ""
    recorded_hosts: tuple[str, ...] = ()
    facts: dict[str, float] = {}


class Ledger:
    """Collects jobs, reasons and notes while a file is read.

    Attributes:
        drafts: jobs in the order of the file.
        skipped: rows left out, by reason.
        notes: what the reader assumed.
        clock: reads the file's dates, where it has any.
    """

    def __init__(self, path: str, *, skip_bad_rows: bool = False) -> None:
        self.path = path
        self.skip_bad_rows = skip_bad_rows
        self.drafts: list[Draft] = []
        self.skipped: dict[str, int] = {}
        self.notes: list[str] = []
        self.clock = Clock()
        self._ids: set[str] = set()

    def add(self, draft: Draft, line: int, id_column: str) -> None:
        """Keep a job; refuse an id that is empty or was seen before."""
        if draft.id in self._ids or not draft.id:
            problem = "names a second job" if draft.id else "is empty"
            self.reject(
                RowError(self.path, line, id_column, draft.id, problem, "give every job an id of its own")
            )
            return
        self._ids.add(draft.id)
        self.drafts.append(draft)

    def leave_out(self, reason: str, count: int = 1) -> None:
        """Count rows that are sound, but no job for a GPU scheduler."""
        self.skipped[reason] = self.skipped.get(reason, 0) + count

    def reject(self, error: RowError) -> None:
        """Raise a bad row's error, or count it where bad rows are skipped."""
        if not self.skip_bad_rows:
            raise error
        self.leave_out(f"{error.column} {error.problem}")

    def note(self, text: str) -> None:
        """Say what was assumed, once."""
        if text not in self.notes:
            self.notes.append(text)

    def workload(
        self, *, name: str, format: str, why: str, limit: int | None = None, from_first: bool = True
    ) -> Workload:
        """The jobs in order of arrival.

        Args:
            name: what to call the workload.
            format: the reader's name.
            why: how the format was recognised.
            limit: keep the first so many arrivals.
            from_first: count time from the first arrival; otherwise keep the file's origin.
        """
        if not self.drafts:
            reasons = "; ".join(f"{count} x {reason}" for reason, count in self.skipped.items())
            raise InputError(
                f"{self.path} holds no GPU job" + (f" ({reasons})" if reasons else ""),
                "give a file with at least one job that ran on GPUs",
            )
        drafts = sorted(self.drafts, key=attrgetter("submit_s"))
        origin_s = drafts[0].submit_s if from_first else 0.0
        self.note(origin_note(self.clock, origin_s) if from_first else "time 0 is the file's own")
        return Workload(
            jobs=tuple(_jobs(drafts[:limit], origin_s)),
            name=name,
            format=format,
            why=why,
            skipped=self.skipped,
            notes=tuple(self.notes),
        )


def _jobs(drafts: Iterable[Draft], origin_s: float) -> Iterable[Job]:
    for d in drafts:
        yield Job(
            id=d.id,
            submit_s=d.submit_s - origin_s,
            gpus=d.gpus,
            duration_s=d.duration_s,
            profile=d.profile,
            model=d.model,
            user=d.user,
            queue=d.queue,
            gpu_type=d.gpu_type,
            required=d.required,
            preferred=d.preferred,
            estimate_s=d.estimate_s,
            recorded_start_s=None if d.recorded_start_s is None else d.recorded_start_s - origin_s,
            recorded_state=d.recorded_state,
            recorded_hosts=d.recorded_hosts,
            facts=d.facts,
        )
