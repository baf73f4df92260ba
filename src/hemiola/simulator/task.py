"""One job as the simulated cluster runs it: its work, its speed, and where its time goes."""

from __future__ import annotations

import math

import msgspec

from hemiola.core.decisions import Placement
from hemiola.core.job import Batch, Configuration
from hemiola.cost.iteration import Alone, Crossing

__all__ = ["ElasticTask", "Task"]


class Task(msgspec.Struct, eq=False, gc=False):
    """Physical truth about one job; the state machine only knows what it is told.

    Attributes:
        left_s: work left, seconds at ideal speed, as of `settled_s`.
        speed: work per second at present.
        resume_s: until then it saves, loads or waits for GPUs.
        version: counts changes of its finish; older finishes in the heap are void.
        best_s, iteration_s, compute_s: iteration time where it was recorded (of an elastic job, times its share of the
            GPUs that it asked for), now, and the compute in it.
        due_s: when it will finish at its present speed.
        entry_s: the time of its entry in the heap of finishes, at most `due_s`.
        ideal_s: run time on its best placement here, alone.
        interval_s: from one periodic checkpoint to the next; infinite where no host fails.
        slot: its slot in the shared network, or -1.
        ran: whether it made progress before its present span, so that there is a state to load.
        saved_s: when its state is saved.
        kept_s: when it last got GPUs and was ready, or the last periodic checkpoint since.
        weight: its share of links, relative to others'.
        alone: how fast it runs where nobody disturbs it, once it has started.
        useful_s, exposed_s, checkpoint_s, lost_s: where its time with GPUs went.
        span: work left, useful and exposed time as of `kept_s`.
    """

    job: Batch
    index: int
    left_s: float
    tiers_s: list[float]
    ideal_s: float
    interval_s: float = math.inf
    settled_s: float = 0.0
    resume_s: float = 0.0
    start_s: float = 0.0
    saved_s: float = 0.0
    kept_s: float = 0.0
    speed: float = 1.0
    version: int = 0
    best_s: float = 1.0
    due_s: float = math.inf
    entry_s: float = math.inf
    iteration_s: float = 1.0
    compute_s: float = 1.0
    slot: int = -1
    weight: float = 1.0
    tier: int = 0
    ran: bool = False
    alone: Alone | None = None
    crossing: Crossing | None = None
    placement: Placement | None = None
    first_start_s: float | None = None
    finish_s: float | None = None
    useful_s: float = 0.0
    exposed_s: float = 0.0
    checkpoint_s: float = 0.0
    lost_s: float = 0.0
    span: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def begin(self, placement: Placement, tier: int, now: float, delay_s: float) -> None:
        """It gets GPUs, and makes progress after `delay_s`."""
        self.placement = placement
        self.tier = tier
        self.start_s = self.settled_s = now
        self.resume_s = self.kept_s = now + delay_s
        self.span = self.left_s, self.useful_s, self.exposed_s
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
        share = self.compute_s / self.iteration_s
        if now - self.kept_s >= self.interval_s:
            self._keep(since, now, share)
        active = now - since
        self.left_s -= active * self.speed
        self.useful_s += active * share
        self.exposed_s += active * (1.0 - share)
        self.settled_s = now

    def _keep(self, since: float, now: float, share: float) -> None:
        """What there is at the last periodic checkpoint of this while, in which its speed is the same."""
        self.kept_s += (now - self.kept_s) // self.interval_s * self.interval_s
        active = self.kept_s - since
        useful_s, exposed_s = active * share, active * (1.0 - share)
        self.span = self.left_s - active * self.speed, self.useful_s + useful_s, self.exposed_s + exposed_s

    def end(self, now: float) -> None:
        """It gives its GPUs back."""
        self.settle(now)
        self.tiers_s[self.tier] += now - self.start_s
        self.version += 1
        self.entry_s = math.inf
        self.placement = None
        if now > self.resume_s:
            self.ran = True

    def finish(self, now: float) -> None:
        """It is done, and gives its GPUs back for good."""
        self.settle(now)
        self.tiers_s[self.tier] += now - self.start_s
        self.placement = None
        self.left_s = 0.0
        self.finish_s = now

    def roll_back(self) -> float:
        """Lose what was done since the last periodic checkpoint, as of `settled_s`; return the work lost."""
        left_s, useful_s, exposed_s = self.span
        work = left_s - self.left_s
        if work <= 0.0:
            return 0.0
        self.lost_s += self.useful_s - useful_s + self.exposed_s - exposed_s
        self.left_s, self.useful_s, self.exposed_s = self.span
        return work

    def predict(self) -> bool:
        """Work out `due_s`; return whether the heap needs a new entry, because it comes earlier than that."""
        begin, resume = self.settled_s, self.resume_s
        if resume > begin:
            begin = resume
        left = self.left_s
        due_s = self.due_s = begin + left / self.speed if left > 0.0 else begin
        if due_s >= self.entry_s:
            return False
        self.version += 1
        self.entry_s = due_s
        return True


class ElasticTask(Task):
    """A job whose number of GPUs may change.

    Attributes:
        more: GPUs beyond those that it asked for, in its present span.
        more_gpu_s: GPU-seconds beyond those: useful, exposed, checkpoint, lost.
        configuration: how it splits its batch in its present span; None where each GPU keeps its own.
        watch: counts what was predicted of its gradients' noise; older predictions are void.
    """

    more: int = 0
    more_gpu_s: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    configuration: Configuration | None = None
    watch: int = 0

    @property
    def done_share(self) -> float:
        """Share of its work that is done as of `settled_s`."""
        work_s = self.job.duration_s
        return min(1.0, max(0.0, 1.0 - self.left_s / work_s)) if work_s > 0 else 1.0

    def reaches_s(self, share: float) -> float:
        """When that share of its work will be done at its present speed."""
        left_s = self.left_s - (1.0 - share) * self.job.duration_s
        return max(self.settled_s, self.resume_s) + left_s / self.speed if self.speed > 0 else math.inf

    def begin(self, placement: Placement, tier: int, now: float, delay_s: float) -> None:
        """It gets GPUs, as many as they are."""
        super().begin(placement, tier, now, delay_s)
        self.more = placement.gpus - self.job.gpus

    def settle(self, now: float) -> None:
        """Account for the time since the last change, and for the GPUs it had then."""
        before = self._seconds()
        super().settle(now)
        self._count(before)

    def roll_back(self) -> float:
        """Lose what was done since the last periodic checkpoint, on as many GPUs."""
        before = self._seconds()
        work = super().roll_back()
        self._count(before)
        return work

    def _seconds(self) -> tuple[float, float, float, float]:
        return self.useful_s, self.exposed_s, self.checkpoint_s, self.lost_s

    def _count(self, before: tuple[float, float, float, float]) -> None:
        if self.more:
            useful, exposed, checkpoint, lost = (
                gpu_s + self.more * (after - then)
                for gpu_s, after, then in zip(self.more_gpu_s, self._seconds(), before, strict=True)
            )
            self.more_gpu_s = useful, exposed, checkpoint, lost
