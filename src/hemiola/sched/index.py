"""What keeps itself up to date as jobs change: the base of queues and of policies' own indices."""

from __future__ import annotations

from abc import ABC, abstractmethod

from hemiola.sched.job_state import JobState

__all__ = ["Index"]


class Index(ABC):
    """Something a policy keeps about the jobs: entered and left as their status changes.

    Attributes:
        tracks: whether it wants to know of running jobs, too.
    """

    __slots__ = ()

    tracks: bool = True

    @abstractmethod
    def enter(self, job: JobState, now: float) -> None:
        """A job has a new status."""

    @abstractmethod
    def leave(self, job: JobState) -> None:
        """A job's status is about to change."""

    def refresh(self, job: JobState, now: float) -> None:
        """A timer about the job is due; its status did not change."""
        self.leave(job)
        self.enter(job, now)

    def measured(self, job: JobState, now: float) -> None:  # noqa: B027 - to do nothing is the rule
        """The job's speed changed. Most indexes do not care."""

    def undone(self, job: JobState, now: float) -> None:  # noqa: B027 - to do nothing is the rule
        """What was decided of the job at this instant is not carried out; it is entered next as it was before."""
