"""Delay scheduling for gangs: how long a job declines wide offers, by network tier.

Zaharia et al., "Delay scheduling" (EuroSys'10), for jobs whose speed depends on the widest tier
they span. A job accepts an offer at tier l if l <= allowed, which grows from its narrowest
feasible tier by one each time a timer of its present tier runs out.

The clock runs from the first offer that the job declines: a job that waits because nothing is free
delays nothing. When a timer ends is settled as its clock starts; the next tier's starts as it ends.
Reset rule, after SPARK-18886: a timer that ran out counts as paid. A job that is pre-empted keeps
what it paid if it last started by having waited; it starts anew only if it last started without
declining anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass

from hemiola.sched.index import Index
from hemiola.sched.job_state import RUNNING, WAITING, JobState
from hemiola.sched.view import ClusterView

__all__ = [
    "Accepted",
    "AcceptedBy",
    "AlwaysWait",
    "AutoTimer",
    "BreakEvenTimer",
    "Delay",
    "DelayTimer",
    "ManualTimer",
    "NeverWait",
]  # fmt: skip

NEVER = float("inf")
REMEMBERED = 64
INSENSITIVE = 1.01
"""A slowdown below this is not worth a second of waiting."""


class Delay:
    """What a job has declined so far.

    Attributes:
        allowed: widest tier it accepts now.
        until_s: until when it holds out for that, `inf` for as long as it takes; None while its clock stands.
        declined: whether it declined anything since it last started.
    """

    __slots__ = ("_before", "allowed", "declined", "until_s")

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.until_s: float | None = None
        self.declined = False
        self._before: tuple[int, float | None, bool] | None = None

    def started(self, narrowest: int) -> None:
        """The job got an offer: what it paid is kept, unless it paid nothing."""
        self._before = self.allowed, self.until_s, self.declined
        if not self.declined:
            self.allowed = narrowest
        self.until_s = None
        self.declined = False

    def undo(self) -> None:
        """It did not start after all."""
        if self._before is not None:
            self.allowed, self.until_s, self.declined = self._before
            self._before = None


class Accepted(Index):
    """What each waiting job accepts, known before a queue groups it by that: ask for it before the queue.

    Attributes:
        advanced: jobs whose timer ran out and whose next one runs; whoever wakes them up clears the list.
    """

    tracks = False

    def __init__(self, view: ClusterView, timer: DelayTimer) -> None:
        self._view, self._timer = view, timer
        self._last = len(view.topology.tiers) - 1
        self.advanced: list[JobState] = []

    def enter(self, job: JobState, now: float) -> None:
        """Let a waiting job accept all that it may by now."""
        if job.status != WAITING:
            return
        note: Delay = job.note
        if note is None:
            note = job.note = Delay(job.narrowest)
        last = job.widest if job.widest < self._last else self._last
        self._skip(job, note, last)
        ended_s = note.until_s
        while note.until_s is not None and note.until_s <= now:
            note.allowed += 1
            note.until_s = None
            self._skip(job, note, last)
            if note.allowed < last:
                note.until_s = now + self._timer.wait_s(self._view, job, note.allowed)
        if note.until_s != ended_s and note.until_s is not None:
            self.advanced.append(job)

    def leave(self, job: JobState) -> None:
        """Nothing: what it declined is its own note."""

    def undone(self, job: JobState, now: float) -> None:
        """Nor did it get an offer."""
        if job.note is not None:
            job.note.undo()

    def _skip(self, job: JobState, note: Delay, last: int) -> None:
        """Accept the next wider tier as long as it is as good as this one."""
        slowdown = self._view.estimates.slowdown
        while note.allowed < last:
            if slowdown(job, note.allowed + 1) >= INSENSITIVE * slowdown(job, note.allowed):
                return
            note.allowed += 1
            note.until_s = None


@dataclass(frozen=True, eq=False)
class AcceptedBy:
    """Says that a policy needs `Accepted` with this timer; found by identity, because it is asked for at every instant."""

    timer: DelayTimer

    def build(self, view: ClusterView) -> Accepted:
        """Empty; the view enters every job."""
        self.timer.watch(view)
        return Accepted(view, self.timer)


class RecentWaits(Index):
    """How long jobs waited lately until they got a tier, by their GPUs and that tier."""

    def __init__(self) -> None:
        self.waits: dict[tuple[int, int], deque[float]] = {}
        self._unqueued: JobState | None = None
        self._now = -NEVER
        self._noted: dict[int, tuple[int, int]] = {}  # by job index, what was noted at this instant

    def enter(self, job: JobState, now: float) -> None:
        """A job that starts out of the queue has waited `wait_s`; one that is moved has not."""
        if job.status == RUNNING and job is self._unqueued:
            if now > self._now:
                self._now = now
                self._noted.clear()
            key = self._noted[job.index] = job.gpus, job.tier
            self.waits.setdefault(key, deque(maxlen=REMEMBERED)).append(job.wait_s)
        self._unqueued = None

    def leave(self, job: JobState) -> None:
        """Remember who left the queue; what was seen stays seen."""
        self._unqueued = job if job.status == WAITING else None

    def refresh(self, job: JobState, now: float) -> None:
        """Nothing: no job started."""

    def undone(self, job: JobState, now: float) -> None:
        """Nor did this one."""
        self._unqueued = None
        if now == self._now and (key := self._noted.pop(job.index, None)) is not None:
            self.waits[key].remove(job.wait_s)


@dataclass(frozen=True)
class _RecentWaitsSpec:
    def build(self, view: ClusterView) -> RecentWaits:
        return RecentWaits()


RECENT_WAITS = _RecentWaitsSpec()


class DelayTimer(ABC):
    """How long a job holds out at a tier before it accepts the next wider one. A value."""

    @abstractmethod
    def wait_s(self, view: ClusterView, job: JobState, tier: int) -> float:
        """Seconds from its first declined offer; `inf` for as long as it takes."""

    def watch(self, view: ClusterView) -> None:  # noqa: B027 - to do nothing is the rule
        """Note from now on what it learns from. Most timers learn nothing."""


@dataclass(frozen=True)
class NeverWait(DelayTimer):
    """Takes whatever is offered first."""

    def wait_s(self, view: ClusterView, job: JobState, tier: int) -> float:
        """Nothing."""
        return 0.0


@dataclass(frozen=True)
class AlwaysWait(DelayTimer):
    """Holds out for its narrowest tier, however long."""

    def wait_s(self, view: ClusterView, job: JobState, tier: int) -> float:
        """For ever."""
        return NEVER


@dataclass(frozen=True)
class ManualTimer(DelayTimer):
    """The operator's timers.

    Attributes:
        host_s: at the host tier.
        rack_s: at every wider one.
    """

    host_s: float
    rack_s: float

    def wait_s(self, view: ClusterView, job: JobState, tier: int) -> float:
        """The timer of this tier, the same for every job."""
        return self.host_s if tier == 0 else self.rack_s


@dataclass(frozen=True)
class AutoTimer(DelayTimer):
    """Tuned from recent waits of jobs of the same size, sized by the job's network sensitivity.

    D = (1 - s(l) / s(l+1)) * quantile of the recent waits until such a job got tier l. The first
    factor is the share of its time that the job would lose by going one tier wider; the second is
    how long tier l takes to come by at present.

    Attributes:
        quantile: of recent waits.
        untuned: timers while fewer than `least` such waits are known.
        least: waits needed.
    """

    quantile: float
    untuned: ManualTimer
    least: int = 4

    def wait_s(self, view: ClusterView, job: JobState, tier: int) -> float:
        """Seconds, from what was seen lately."""
        here, wider = view.estimates.slowdown(job, tier), view.estimates.slowdown(job, tier + 1)
        loss = 1.0 - here / wider
        usual_s = self.usual_s(view, job, tier)
        if usual_s is None:
            return loss * self.untuned.wait_s(view, job, tier)
        return loss * usual_s

    def watch(self, view: ClusterView) -> None:
        """Note every job's wait, not only those since somebody declined an offer."""
        view.index(RECENT_WAITS)

    def usual_s(self, view: ClusterView, job: JobState, tier: int) -> float | None:
        """The quantile of recent waits until a job of this size got this tier; None if too few are known."""
        recent: RecentWaits = view.index(RECENT_WAITS)
        waits = recent.waits.get((job.gpus, tier), ())
        if len(waits) < self.least:
            return None
        return sorted(waits)[min(len(waits) - 1, int(self.quantile * len(waits)))]


@dataclass(frozen=True)
class BreakEvenTimer(DelayTimer):
    """Ski rental: never wait longer than going wider would cost.

    D = R * (s(l+1) - s(l)) with R the time left at its best. Waiting just so long is 2-competitive against
    whoever knows when tier l comes free. If recent waits for tier l exceed it, waiting is
    hopeless and D = 0. R is what is not known: taken as the larger of what the job has done and
    the mean work of finished jobs, unless `oracle`.

    Attributes:
        tuned: the auto-tuner whose quantile bounds the wait from below.
        oracle: use the true work left.
    """

    tuned: AutoTimer
    oracle: bool = False

    def wait_s(self, view: ClusterView, job: JobState, tier: int) -> float:
        """Seconds, at most the break-even."""
        slowdown = view.estimates.slowdown
        worth_s = time_left_s(view, job, self.oracle) * (slowdown(job, tier + 1) - slowdown(job, tier))
        usual_s = self.tuned.usual_s(view, job, tier)
        return 0.0 if usual_s is not None and usual_s > worth_s else worth_s

    def watch(self, view: ClusterView) -> None:
        """What the auto-tuner does."""
        self.tuned.watch(view)


def work_left_s(view: ClusterView, job: JobState, oracle: bool) -> float:
    """Work left of a job, or what one may expect of it: as much as it did, at least the mean."""
    if oracle:
        return job.remaining_s(view.now)
    return max(job.done_at(view.now), view.mean_work_s)


def time_left_s(view: ClusterView, job: JobState, oracle: bool) -> float:
    """What that takes on its best place here; run times may be those of another cluster."""
    return work_left_s(view, job, oracle) / view.estimates.speed_at(job, job.gpus)
