"""Which running jobs sit on which host."""

from __future__ import annotations

from dataclasses import dataclass

from hemiola.sched.job_state import RUNNING, JobState
from hemiola.sched.view import ClusterView, Index

__all__ = ["ByHost", "HostsIndex"]


class HostsIndex(Index):
    """Running jobs by host, kept up to date by the view."""

    def __init__(self) -> None:
        self._jobs: dict[int, dict[int, JobState]] = {}

    def on(self, host: int) -> list[JobState]:
        """The jobs that hold GPUs of this host, in order of arrival."""
        jobs = self._jobs.get(host)
        return [jobs[index] for index in sorted(jobs)] if jobs else []

    def enter(self, job: JobState, now: float) -> None:
        """A job has a new status."""
        if job.status == RUNNING and job.placement is not None:
            for host in job.placement.hosts:
                self._jobs.setdefault(host, {})[job.index] = job

    def leave(self, job: JobState) -> None:
        """A job's status is about to change."""
        if job.status == RUNNING and job.placement is not None:
            for host in job.placement.hosts:
                self._jobs[host].pop(job.index, None)


@dataclass(frozen=True)
class ByHost:
    """Asks a view for running jobs by host."""

    def build(self, view: ClusterView) -> HostsIndex:
        """An empty index."""
        return HostsIndex()
