"""What a reader has found so far: jobs at their recorded times, what was left out, what was assumed.

Turns that into a `Workload`: arrivals in order, seconds from the first. Knows no format.
"""

from __future__ import annotations

from operator import attrgetter

import msgspec

from hemiola.core.errors import InputError, RowError
from hemiola.core.job import Batch, Configuration, Profile, Service, Utility, Workload, batch_job
from hemiola.core.resources import ResourceRequest
from hemiola.trace.workloads.clock import Timestamps, origin_note

__all__ = ["JobDraft", "ReadLedger"]


class JobDraft(msgspec.Struct, kw_only=True, gc=False):
    """A job as its file tells it: like `core.job.Batch`, but in the file's own time.

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
    hosts: int = 0
    pinned: bool = False
    gpus_min: int = 0
    gpus_max: int = 0
    configurations: tuple[Configuration, ...] = ()
    estimate_s: float | None = None
    recorded_start_s: float | None = None
    recorded_state: str = ""
    recorded_hosts: tuple[str, ...] = ()
    resources: ResourceRequest | None = None
    utility: Utility | None = None
    facts: dict[str, float] = {}


class ReadLedger:
    """Collects jobs, reasons and notes while a file is read.

    Attributes:
        drafts: jobs that end, in the order of the file.
        services: jobs that do not, in the file's own time.
        skipped: rows left out, by reason.
        notes: what the reader assumed.
        clock: reads the file's dates, where it has any.
    """

    def __init__(self, path: str, *, skip_bad_rows: bool = False) -> None:
        self.path = path
        self.skip_bad_rows = skip_bad_rows
        self.drafts: list[JobDraft] = []
        self.services: list[Service] = []
        self.skipped: dict[str, int] = {}
        self.notes: list[str] = []
        self.clock = Timestamps()
        self._ids: set[str] = set()

    def add(self, draft: JobDraft, line: int, id_column: str) -> None:
        """Keep a job; refuse sizes that cannot be, and an id that is empty or was seen before."""
        error = _misfit(self.path, line, draft)
        if error is not None:
            self.reject(error)
        elif self._is_new(draft.id, line, id_column):
            self.drafts.append(draft)

    def add_service(self, service: Service, line: int, id_column: str) -> None:
        """Keep a service; refuse one that cannot be, and an id that is empty or was seen before."""
        if flaw := service.flaw():
            self.reject(
                RowError(self.path, line, id_column, service.id, "names no service", f"{flaw}; correct it")
            )
        elif self._is_new(service.id, line, id_column):
            self.services.append(service)

    def _is_new(self, id: str, line: int, id_column: str) -> bool:
        if id in self._ids or not id:
            problem = "names a second job" if id else "is empty"
            self.reject(RowError(self.path, line, id_column, id, problem, "give every job an id of its own"))
            return False
        self._ids.add(id)
        return True

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
        if not self.drafts and not self.services:
            reasons = "; ".join(f"{count} x {reason}" for reason, count in self.skipped.items())
            raise InputError(
                f"{self.path} holds no GPU job" + (f" ({reasons})" if reasons else ""),
                "give a file with at least one job that ran on GPUs",
            )
        drafts = sorted(self.drafts, key=attrgetter("submit_s"))
        origin_s = drafts[0].submit_s if from_first and drafts else 0.0
        self.note(origin_note(self.clock, origin_s) if from_first else "time 0 is the file's own")
        return Workload(
            jobs=tuple(_job(draft, origin_s) for draft in drafts[:limit]),
            services=tuple(sorted(self.services, key=attrgetter("submit_s"))),
            name=name,
            format=format,
            why=why,
            skipped=self.skipped,
            notes=tuple(self.notes),
        )


def _misfit(path: str, line: int, draft: JobDraft) -> RowError | None:
    """What is wrong with the hosts and the sizes that a job asks for, if anything."""
    if draft.hosts and draft.gpus % draft.hosts:
        remedy = f"spread its {draft.gpus} GPUs evenly, or leave hosts out"
        return RowError(path, line, "hosts", draft.hosts, "does not divide the job's GPUs", remedy)
    if not (draft.gpus_min or draft.gpus_max or draft.configurations):
        return None
    job = _job(draft, 0.0)
    flaw = job.flaw()
    if not flaw:
        return None
    column = next(
        name for name in ("gpus_min", "gpus_max", "configurations") if _job(_only(draft, name), 0.0).flaw()
    )
    problem, remedy = "does not fit the job's GPUs and hosts", f"{flaw}; correct it, or leave both out"
    return RowError(path, line, column, getattr(draft, column), problem, remedy)


def _only(draft: JobDraft, column: str) -> JobDraft:
    """The same job as if nothing that comes after this column were said of its sizes."""
    unsaid: dict[str, object] = {
        "gpus_min": {"gpus_max": 0, "configurations": ()},
        "gpus_max": {"configurations": ()},
    }
    return msgspec.structs.replace(draft, **unsaid.get(column, {}))  # type: ignore[arg-type]


def _job(draft: JobDraft, origin_s: float) -> Batch:
    start_s = draft.recorded_start_s
    return batch_job(
        id=draft.id,
        submit_s=draft.submit_s - origin_s,
        gpus=draft.gpus,
        duration_s=draft.duration_s,
        profile=draft.profile,
        model=draft.model,
        user=draft.user,
        queue=draft.queue,
        gpu_type=draft.gpu_type,
        required=draft.required,
        preferred=draft.preferred,
        hosts=draft.hosts,
        pinned=draft.pinned,
        gpus_min=draft.gpus_min,
        gpus_max=draft.gpus_max,
        configurations=draft.configurations,
        estimate_s=draft.estimate_s,
        recorded_start_s=None if start_s is None else start_s - origin_s,
        recorded_state=draft.recorded_state,
        recorded_hosts=draft.recorded_hosts,
        resources=draft.resources,
        utility=draft.utility,
        facts=draft.facts,
    )
