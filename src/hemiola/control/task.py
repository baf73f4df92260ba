"""One job as the simulated cluster runs it: its work, its speed, and where its time goes."""

from __future__ import annotations

from hemiola.core.decisions import Placement
from hemiola.core.job import Job
from hemiola.cost.iteration import Crossing

__all__ = ["Task"]


class Task:
    """Physical truth about one job; the state machine only knows what it is told.

    Attributes:
        left_s: work left, seconds at ideal speed, as of `settled_s`.
        speed: work per second at present.
        resume_s: until then it saves, loads or waits for GPUs.
        version: counts changes of its finish; older finishes in the heap are void.
        best_s, iteration_s, compute_s: iteration time at its best, now, and the compute in it.
        slot: its slot in the shared network, or -1.
        ran: whether it made progress before its present span, so that there is a state to load.
        saved_s: when its state is saved.
        useful_s, exposed_s, checkpoint_s, lost_s: where its time with GPUs went.
    """

    __slots__ = (
        "best_s",
        "checkpoint_s",
        "compute_s",
        "crossing",
        "exposed_s",
        "finish_s",
        "first_start_s",
        "index",
        "iteration_s",
        "job",
        "left_s",
        "lost_s",
        "placement",
        "ran",
        "resume_s",
        "saved_s",
        "settled_s",
        "slot",
        "span_exposed_s",
        "span_left_s",
        "span_useful_s",
        "speed",
        "start_s",
        "tier",
        "tiers_s",
        "useful_s",
        "version",
    )

    def __init__(self, job: Job, index: int, tiers: int) -> None:
        self.job = job
        self.index = index
        self.left_s = job.duration_s
        self.speed = 1.0
        self.settled_s = 0.0
        self.resume_s = 0.0
        self.start_s = 0.0
        self.version = 0
        self.best_s = 1.0
        self.iteration_s = 1.0
        self.compute_s = 1.0
        self.slot = -1
        self.crossing: Crossing | None = None
        self.placement: Placement | None = None
        self.tier = 0
        self.ran = False
        self.saved_s = 0.0
        self.first_start_s: float | None = None
        self.finish_s: float | None = None
        self.useful_s = 0.0
        self.exposed_s = 0.0
        self.checkpoint_s = 0.0
        self.lost_s = 0.0
        self.span_left_s = 0.0
        self.span_useful_s = 0.0
        self.span_exposed_s = 0.0
        self.tiers_s = [0.0] * tiers

    def begin(self, placement: Placement, tier: int, now: float, delay_s: float) -> None:
        """It gets GPUs, and makes progress after `delay_s`."""
        self.placement = placement
        self.tier = tier
        self.start_s = self.settled_s = now
        self.resume_s = now + delay_s
        self.span_left_s = self.left_s
        self.span_useful_s = self.useful_s
        self.span_exposed_s = self.exposed_s
        if self.first_start_s is None:
            self.first_start_s = now

    def settle(self, now: float) -> None:
        """Account for the time since the last change, at the speed it had."""
        since = self.settled_s
        if now <= since:
            return
        resume = self.resume_s
        if resume > since:
            if now <= resume:
                self.checkpoint_s += now - since
                self.settled_s = now
                return
            self.checkpoint_s += resume - since
            since = resume
        active = now - since
        self.left_s -= active * self.speed
        share = self.compute_s / self.iteration_s
        self.useful_s += active * share
        self.exposed_s += active * (1.0 - share)
        self.settled_s = now

    def end(self, now: float) -> None:
        """It gives its GPUs back."""
        self.settle(now)
        self.tiers_s[self.tier] += now - self.start_s
        self.version += 1
        self.placement = None
        if now > self.resume_s:
            self.ran = True

    def roll_back(self, now: float, interval_s: float) -> float:
        """Lose what was done since the last periodic checkpoint; return the work lost."""
        active = max(0.0, now - self.resume_s)
        work = self.span_left_s - self.left_s
        if active <= 0.0 or work <= 0.0:
            return 0.0
        part = (active % interval_s) / active
        for name, before in (("useful_s", self.span_useful_s), ("exposed_s", self.span_exposed_s)):
            lost_s = (getattr(self, name) - before) * part
            setattr(self, name, getattr(self, name) - lost_s)
            self.lost_s += lost_s
        self.left_s += work * part
        return work * part

    def due_s(self) -> float:
        """When it will finish at its present speed."""
        return max(self.settled_s, self.resume_s) + max(0.0, self.left_s) / self.speed
