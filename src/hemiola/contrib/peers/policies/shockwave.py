"""Three policies of Shockwave's cluster (Zheng et al., NSDI'23; github.com/uw-mad-dash/shockwave), which come from Gavel's.

Each gives every job a share x of time; the rounds then go to who has had least of it. In the middle of a round it is decided
who runs in the next one. GPUs are all alike, and only their number counts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, cast

from hemiola.core.decisions import Decision, Start, Stop
from hemiola.core.errors import PolicyError
from hemiola.sched.job_state import WAITING, JobState
from hemiola.sched.placement import BestFit, find
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView, Index

__all__ = ["PeerFinishTimeFairness", "PeerMaxMin", "PeerThroughput", "RoundProgress", "RoundsPolicy"]

RESET_S = 1000.0
"""What jobs have had is counted anew when shares changed and so much time has passed."""
ROUND_S = 120.0
FIRST_S = ROUND_S / 2
"""What every job is taken to have had when counting begins."""
FIRST_PRIORITY = 1e9
SLACK = 0.5
"""How much of what fairness leaves free is given out. The peer's solver stops somewhere between; the middle is chosen."""
PLACE = BestFit()


class RoundProgress(Protocol):
    """What the rules of Shockwave's cluster tell beside other estimates.

    Attributes:
        planning: whether it is the middle of a round, and not its end.
    """

    planning: bool

    def steps_per_s(self, job: JobState) -> float:
        """Training steps in a second, at the batch that the job has now."""

    def steps_left(self, job: JobState) -> float:
        """Training steps that are left, at that batch."""

    def ran_s(self, job: JobState) -> float:
        """Seconds in which it ran, of finished rounds."""

    def ran_in_round_s(self, job: JobState) -> float:
        """Seconds in which it runs in the present round."""

    def batches(self) -> int:
        """How often any job changed its batch."""


def progress_of_rounds(view: ClusterView, policy: str) -> RoundProgress:
    """The progress of the view's jobs.

    Raises:
        PolicyError: under other semantics.
    """
    if not hasattr(view.estimates, "ran_in_round_s"):
        raise PolicyError(
            f"the policy {policy!r} of Shockwave's cluster runs only under its semantics",
            "add --semantics shockwave-sim",
        )
    return cast(RoundProgress, view.estimates)


class _Book(Index):
    """Shares, what jobs have had of them, and who is to run next; an index."""

    def __init__(self) -> None:
        self.shares: dict[int, float] = {}
        self.deficit_s: dict[int, float] = {}
        self.since_s: dict[int, float] = {}
        self.reset_s = 0.0
        self.changed = False
        self.known: tuple[object, ...] = ()
        self.next: list[JobState] = []
        self.alone: dict[int, tuple[float, float, float]] = {}

    def enter(self, job: JobState, now: float) -> None:
        """Of no interest here."""

    def leave(self, job: JobState) -> None:
        """Of no interest here."""

    def refresh(self, job: JobState, now: float) -> None:
        """Of no interest here."""


@dataclass(frozen=True)
class _BookSpec:
    def build(self, view: ClusterView) -> _Book:
        return _Book()


BOOK = _BookSpec()


class RoundsPolicy(Policy):
    """What the three share: rounds that go to who has had least of its share."""

    source = "Zheng et al., Shockwave, NSDI'23: its cluster's rounds, which are Gavel's"

    @abstractmethod
    def shares(
        self, view: ClusterView, told: RoundProgress, book: _Book, jobs: list[JobState]
    ) -> list[float]:
        """Share of time of each job."""

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        told, book = progress_of_rounds(view, self.name), view.index(BOOK)
        if told.planning:
            book.next = self._plan(view, told, book)
        else:
            yield from _begin(view, book)

    def _plan(self, view: ClusterView, told: RoundProgress, book: _Book) -> list[JobState]:
        """Who runs in the next round."""
        jobs = sorted((*view.running.values(), *view.waiting.values()), key=lambda job: job.index)
        known = (*(job.index for job in jobs), told.batches())
        if known != book.known and jobs:
            shares = self.shares(view, told, book, jobs)
            book.shares = {job.index: share for job, share in zip(jobs, shares, strict=True)}
            book.known, book.changed = known, True
        if book.changed and (view.now - book.reset_s >= RESET_S or not book.reset_s):
            _count_anew(view, told, book, jobs)
        return _served(view, told, book, jobs)

    def card(self) -> dict[str, str]:
        return {
            "order": f"{self.__doc__ or self.name}".split("\n")[0].rstrip(".") + "; least served of its share first",
            "backfill": "whoever fits in a round",
            "preemption": f"every {ROUND_S:g} s, planned in the middle of the round before",
        }  # fmt: skip


def _count_anew(view: ClusterView, told: RoundProgress, book: _Book, jobs: list[JobState]) -> None:
    """What a job missed becomes its deficit, and counting begins again."""
    for job in jobs:
        owed_s = book.shares.get(job.index, 0.0) * (view.now - book.reset_s)
        had_s = told.ran_s(job) - book.since_s.get(job.index, 0.0)
        book.deficit_s[job.index] = book.deficit_s.get(job.index, 0.0) + owed_s - had_s
        book.since_s[job.index] = told.ran_s(job)
    book.reset_s, book.changed = view.now, False


def _served(view: ClusterView, told: RoundProgress, book: _Book, jobs: list[JobState]) -> list[JobState]:
    """The next round's jobs: share over the part of all time that they had, the largest first."""
    had_s = {job.index: _had_s(told, book, job) for job in jobs}
    total_s = sum(had_s.values())

    def place(job: JobState) -> tuple[float, float, float]:
        share, part = book.shares.get(job.index, 0.0), had_s[job.index] / total_s
        return share / part if part > 0 else share * FIRST_PRIORITY, book.deficit_s.get(job.index, 0.0), share

    left, served = view.topology.gpus, []
    for job in sorted(jobs, key=place, reverse=True):
        if job.gpus <= left:
            left -= job.gpus
            served.append(job)
    return served


def _had_s(told: RoundProgress, book: _Book, job: JobState) -> float:
    ran_s = told.ran_s(job) - book.since_s.get(job.index, 0.0)
    return FIRST_S + ran_s + told.ran_in_round_s(job)


def _begin(view: ClusterView, book: _Book) -> Iterator[Decision]:
    """Stop who is not in the round, then start who is."""
    served = {job.index for job in book.next}
    for job in list(view.running.values()):
        if job.index not in served:
            yield Stop(job.id, "others have had less of their share of time")
    for job in book.next:
        if job.status == WAITING and (place := find(view.inventory, job, PLACE)) is not None:
            yield Start(job.id, place, "it has had least of its share of time")


def _filled(jobs: list[JobState], shares: list[float], gpus: int, part: float = 1.0) -> list[float]:
    """With what is left dealt out: to each as much of what it lacks."""
    left = gpus - sum(job.gpus * share for job, share in zip(jobs, shares, strict=True))
    lack = sum(job.gpus * (1 - share) for job, share in zip(jobs, shares, strict=True))
    more = part * min(1.0, left / lack) if lack > 0 and left > 0 else 0.0
    return [share + (1 - share) * more for share in shares]


@dataclass(frozen=True)
class PeerMaxMin(RoundsPolicy):
    """The least share times GPUs is as large as can be."""

    name = "max-min"

    def shares(
        self, view: ClusterView, told: RoundProgress, book: _Book, jobs: list[JobState]
    ) -> list[float]:
        gpus = view.topology.gpus
        least = min(1.0, gpus / len(jobs))
        return _filled(jobs, [least / job.gpus for job in jobs], gpus)


@dataclass(frozen=True)
class PeerThroughput(RoundsPolicy):
    """The most training steps per second of all jobs together."""

    name = "throughput"

    def shares(
        self, view: ClusterView, told: RoundProgress, book: _Book, jobs: list[JobState]
    ) -> list[float]:
        left, share = float(view.topology.gpus), {}
        for job in sorted(jobs, key=lambda job: -told.steps_per_s(job) / job.gpus):
            share[job.index] = min(1.0, left / job.gpus)
            left -= share[job.index] * job.gpus
        return [share[job.index] for job in jobs]


@dataclass(frozen=True)
class PeerFinishTimeFairness(RoundsPolicy):
    """The largest finish-time fairness is as small as can be."""

    name = "finish-time-fairness"

    def shares(
        self, view: ClusterView, told: RoundProgress, book: _Book, jobs: list[JobState]
    ) -> list[float]:
        gpus = view.topology.gpus
        left = [max(told.steps_left(job), 0.0) for job in jobs]
        alone_s = [_alone_s(view, told, book, job, len(jobs), steps) for job, steps in zip(jobs, left, strict=True)]  # fmt: skip

        def needed(rho: float) -> list[float] | None:
            shares = []
            for job, steps, whole_s in zip(jobs, left, alone_s, strict=True):
                until_s = rho * whole_s - (view.now - job.submit_s)
                share = steps / told.steps_per_s(job) / until_s if until_s > 0 else 2.0
                shares.append(share if steps else 0.0)
            used = sum(job.gpus * share for job, share in zip(jobs, shares, strict=True))
            return None if max(shares) > 1 or used > gpus else shares

        low, high = 0.0, 1.0
        while needed(high) is None:
            high *= 2
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if needed(middle) is None else (low, middle)
        return _filled(jobs, needed(high) or [0.0] * len(jobs), gpus, SLACK)


def _alone_s(
    view: ClusterView, told: RoundProgress, book: _Book, job: JobState, count: int, left: float
) -> float:
    """How long it would take with an equal share: what it has done at what that was, the rest at what it is."""
    speed = told.steps_per_s(job) * min(1.0, view.topology.gpus / count / job.gpus)
    so_far_s, before, before_speed = book.alone.get(job.index, (0.0, left, speed))
    so_far_s += (before - left) / before_speed
    book.alone[job.index] = so_far_s, left, speed
    return so_far_s + left / speed
