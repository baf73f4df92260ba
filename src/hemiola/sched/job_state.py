"""What a policy sees of one job. Written by the state machine alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hemiola.core.decisions import Placement
from hemiola.core.job import Job

if TYPE_CHECKING:
    from hemiola.sched.inventory import Pool

__all__ = ["ENDED", "RUNNING", "WAITING", "JobState"]

WAITING, RUNNING, ENDED = 0, 1, 2


class JobState:
    """One job as it stands now.

    Attributes:
        job: what was submitted.
        id, index, gpus, submit_s: from the job; `index` is its order of arrival.
        status: WAITING, RUNNING or ENDED.
        since_s: since when it has that status.
        placement: where it runs; None unless RUNNING.
        tier: narrowest tier that holds its placement; -1 unless RUNNING.
        work_s: run time on its best placement, alone (`Job.duration_s`).
        done_s: of it, what is done as of `settled_s`.
        speed: work done per second at present.
        resume_s: until then it saves or loads and makes no progress.
        finish_s: when it will end at its present speed.
        served_s: seconds it has held GPUs before its present span.
        queued_s: seconds it waited before its present wait.
        preemptions, migrations: how often.
        narrowest: narrowest tier that could ever hold it.
        widest: widest tier it may span (its `required` constraint).
        preferred: tier to try first.
        pools: GPU pools it accepts, in order.
        shape: what decides whether it fits: jobs of equal shape fit or fail alike.
        mark: an order's own note on the job (Tiresias: service at its last promotion).
        note: a policy's own note on the job (Dally: its delay).
    """

    __slots__ = (
        "done_s",
        "finish_s",
        "gpus",
        "id",
        "index",
        "job",
        "mark",
        "migrations",
        "narrowest",
        "note",
        "placement",
        "pools",
        "preemptions",
        "preferred",
        "queued_s",
        "resume_s",
        "served_s",
        "settled_s",
        "shape",
        "since_s",
        "speed",
        "status",
        "submit_s",
        "tier",
        "widest",
        "work_s",
    )

    def __init__(self, job: Job, index: int, now: float) -> None:
        self.job = job
        self.id = job.id
        self.index = index
        self.gpus = job.gpus
        self.submit_s = job.submit_s
        self.work_s = job.duration_s
        self.status = WAITING
        self.since_s = now
        self.placement: Placement | None = None
        self.tier = -1
        self.done_s = 0.0
        self.settled_s = now
        self.speed = 0.0
        self.resume_s = now
        self.finish_s = math.inf
        self.served_s = 0.0
        self.queued_s = 0.0
        self.preemptions = 0
        self.migrations = 0
        self.narrowest = 0
        self.widest = 0
        self.preferred = 0
        self.pools: tuple[Pool, ...] = ()
        self.shape: tuple[int, str, int, int] = (0, "", 0, 0)
        self.mark = 0.0
        self.note: Any = None

    def done_at(self, now: float) -> float:
        """Work done by `now`, in seconds at ideal speed."""
        if self.status != RUNNING:
            return self.done_s
        return self.done_s + max(0.0, now - max(self.settled_s, self.resume_s)) * self.speed

    def remaining_s(self, now: float) -> float:
        """Work left at `now`, in seconds at ideal speed."""
        return max(0.0, self.work_s - self.done_at(now))

    def held_s(self, now: float) -> float:
        """Seconds it has held GPUs by `now`."""
        return self.served_s + (now - self.since_s if self.status == RUNNING else 0.0)

    def service_gpu_s(self, now: float) -> float:
        """Attained service: GPUs times seconds held (Tiresias, section 3.1)."""
        return self.gpus * self.held_s(now)

    def waited_s(self, now: float) -> float:
        """Seconds without GPUs since arrival."""
        return self.queued_s + (now - self.since_s if self.status == WAITING else 0.0)
