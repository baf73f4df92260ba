"""Elastic jobs shrink to let others in, and grow into what nobody wants.

In the style of Lyra (Li, Xu, Zhu, Liu, Guo, Chen, "Lyra: Elastic scheduling for deep learning clusters", EuroSys'23,
section 5): the least that jobs can run with goes to as many of them as possible, and what is left to those whom it
speeds up most. Lyra knows run times, allocates anew at fixed intervals and solves a knapsack for the second part.
Here something is done when something happens, in order of arrival, and:

- what is left, also while somebody waits whom it does not help, is given host by host (or GPU by GPU) to whom it
  speeds up most per GPU, which is optimal where each further one gains less than the one before. What one has no use
  for as the hosts stand is dealt out to the others;
- a resize restarts its job. One that shrinks for a waiting job keeps all that this one does not need; one grows only
  if the time that it is expected to save is above what restarting costs it, now and when it must shrink again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import takewhile
from math import inf

from hemiola.core.decisions import Decision, Placement, Resize, Start, WakeAt
from hemiola.core.errors import PolicyError
from hemiola.core.job import Batch, Elastic, Service
from hemiola.sched.autoscaling import autoscaler_from_text
from hemiola.sched.delay import work_left_s
from hemiola.sched.job_state import RUNNING, WAITING, JobState
from hemiola.sched.placement import Rule, TierAware, find, gpu_speed, no_slower
from hemiola.sched.policies.fifo import ByArrival
from hemiola.sched.policy import Policy
from hemiola.sched.shared_cluster import beside_services
from hemiola.sched.view import ClusterView

__all__ = ["ElasticSharing"]

REVIEW_S, REVIEW_SHARE = 300.0, 0.25
"""A job that could grow is looked at again so much later, by its age: what it is expected to do yet grows with that."""
Step = tuple[float, int, JobState, int]
"""(less speed gained per GPU, index, job, GPUs more)"""
Room = tuple[list[tuple[JobState, Placement]], Placement]
"""Who keeps what, and where the waiting job then goes."""


@dataclass(frozen=True)
class ByArrivalAndSizes(ByArrival):
    """Earliest submission first; waiting jobs form a group only with those that may have the same sizes."""

    def group(self, job: JobState) -> Hashable:
        return job.shape, job.job.sizes


ORDER = ByArrivalAndSizes()


@dataclass(frozen=True)
class ElasticSharing(Policy):
    """Order of arrival; elastic jobs take the sizes between.

    Args:
        placement: which free GPUs a job gets.
        settle_s: a job grows no sooner after it began, or was resized.
        oracle: whether it knows the true work left when it weighs a restart.
        autoscaler: how many replicas services have, where there are any: these stay on their virtual cluster, jobs on
            theirs, and nothing is lent.
    """

    placement: Rule = TierAware()
    settle_s: float = 300.0
    oracle: bool = False
    autoscaler: str = "forecast"
    name = "elastic"
    source = "in the style of Li et al., Lyra, EuroSys'23: the least first, then by gain; of Gandiva, OSDI'18: grow-shrink"

    job_kinds = frozenset({Batch, Elastic, Service})

    def __post_init__(self) -> None:
        if not 0 <= self.settle_s < inf:
            raise PolicyError(f"settle_s is {self.settle_s}", "give seconds, 0 or more")
        autoscaler_from_text(self.autoscaler)

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        if view.services:
            return beside_services(view, self.train, self.autoscaler)
        return self.train(view)

    def train(self, view: ClusterView) -> Iterator[Decision]:
        """What is done about jobs, on the hosts that are to be seen."""
        yield from self._admit(view)
        if view.free:
            yield from self.grow(view)
            yield from self._admit(view)  # who grew on one host may have left another
        yield from self.look_again(view)

    def look_again(self, view: ClusterView) -> Iterator[Decision]:
        """Set the next timer of those whose last one is due."""
        for job in dict.fromkeys((*view.timers, *view.returned)):
            if job.status == RUNNING and job.wake_s <= view.now and job.gpus < view.sizes_of(job)[-1]:
                yield from self._wake(view, job)

    def card(self) -> dict[str, str]:
        return {
            "order": "arrival",
            "backfill": "whoever fits, no reservation",
            "preemption": "elastic jobs are resized, none is stopped",
            "elastic jobs": "each GPU keeps its batch; a resize costs what a pre-emption does",
            **({"remaining time": "known (oracle)"} if self.oracle else {}),
        }

    # ---- letting jobs in

    def _admit(self, view: ClusterView) -> Iterator[Decision]:
        """Start who fits at any size, and then who would if others shrank."""
        queue = view.queue(ORDER)
        while view.waiting and (job := queue.next()) is not None:
            yield from self.start(view, job, ORDER.says)
            if job.status == WAITING:
                queue.block(job)

    def start(
        self, view: ClusterView, job: JobState, says: str, widest: int | None = None
    ) -> Iterator[Decision]:
        """Start a job at the largest size that fits, or beside others that are made smaller; nothing where neither can be.

        Args:
            says: why it goes first, in words.
            widest: tier that it may span; what its user said unless given.
        """
        if (placement := self._largest(view, job, widest)) is not None:
            why = f"{says}; {_of(placement.gpus, job)}{self.placement.says}"
        elif (room := self._shrunk(view, job, widest)) is not None:
            shrinking, placement = room
            for other, kept in shrinking:
                yield Resize(
                    other.id, kept, f"{job.id} needs {other.gpus - kept.gpus} of its {other.gpus} GPUs"
                )
                yield from self._wake(view, other)
            names = ", ".join(other.id for other, _ in shrinking)
            why = f"{says}; {_of(placement.gpus, job)}beside {names}, made smaller"
        else:
            return
        yield Start(job.id, placement, why)
        if job.status == RUNNING and job.elastic:
            yield from self._wake(view, job)

    def _largest(self, view: ClusterView, job: JobState, widest: int | None) -> Placement | None:
        """A place at the largest of its sizes, up to what it asked for, for which there is one."""
        for gpus in reversed(view.sizes_of(job)):
            if (
                gpus <= min(job.gpus, view.free)
                and (placement := find(view.inventory, view.at_size(job, gpus), self.placement, widest))
                is not None
            ):
                return placement
        return None

    def _shrunk(self, view: ClusterView, job: JobState, widest: int | None) -> Room | None:
        """Let elastic jobs keep the least they can run with, the largest excess first, until the least of this one fits."""
        least = view.at_size(job, view.sizes_of(job)[0])
        others = [
            other
            for other in view.running.values()
            if _may_change(other) and other.gpus > other.job.sizes[0] and not _is_on_owing(view, other)
        ]
        others.sort(key=lambda other: (other.job.sizes[0] - other.gpus, other.index))
        if view.free + sum(other.gpus - other.job.sizes[0] for other in others) < least.gpus:
            return None
        tried = []
        with view.supposing() as trial:
            for other in others:
                assert other.placement is not None
                trial.without([other])
                trial.occupy(_first(other.placement, other.job.sizes[0]), other)
                tried.append(other)
                if (placement := find(view.inventory, least, self.placement, widest)) is not None:
                    break
            else:
                return None
        kept = [(other, _beside(other, placement)) for other in tried]
        return [(other, keeps) for other, keeps in kept if keeps != other.placement], placement

    # ---- growing

    def grow(self, view: ClusterView) -> Iterator[Decision]:
        """What nobody wants goes to those whom it speeds up most."""
        now = view.now
        growing = [
            job
            for job in view.running.values()
            if _may_change(job) and job.gpus < view.sizes_of(job)[-1] and job.since_s + self.settle_s <= now
            if self._may_gain(view, job)
        ]
        for job, placement in self._shared_out(view, growing):
            more = placement.gpus - job.gpus
            yield Resize(job.id, placement, f"nobody else can use {more} GPU{'s' * (more > 1)} more")
            yield from self._wake(view, job)

    def _shared_out(self, view: ClusterView, jobs: list[JobState]) -> list[tuple[JobState, Placement]]:
        """Who grows where. As long as some have no use for all of their shares, everything is dealt out anew: the later half
        of them goes without, and the others may have one for more."""
        free = view.free
        most = {job.index: view.sizes_of(job)[-1] for job in jobs}
        steps = {job.index: _step(view, job, job.gpus, free, most[job.index]) for job in jobs}
        while True:
            grown: list[tuple[JobState, Placement]] = []
            short: list[tuple[JobState, int]] = []
            with view.supposing() as trial:
                for job, share in self._deal(view, jobs, steps, most):
                    taken = job.gpus
                    if (placement := self._larger(view, job, share)) is not None:
                        trial.without([job])
                        trial.occupy(placement, job)
                        grown.append((job, placement))
                        taken = placement.gpus
                    if taken < share:
                        short.append((job, taken))
            if not short:
                return grown
            for job, taken in short[len(short) // 2 :]:
                most[job.index] = taken
                steps[job.index] = _step(view, job, job.gpus, free, taken)

    def _deal(
        self, view: ClusterView, jobs: list[JobState], steps: dict[int, Step | None], most: dict[int, int]
    ) -> list[tuple[JobState, int]]:
        """Who gets how many GPUs."""
        return _dealt(view, jobs, steps, most)

    def _may_gain(self, view: ClusterView, job: JobState) -> bool:
        """Whether any larger size that is free would pay, wherever it lies: who deals out is spared whoever has no use for it."""
        least = self._least_speed(view, job)
        if least == inf:
            return False
        fastest = _fastest(view, job)
        larger = (gpus for gpus in view.sizes_of(job) if job.gpus < gpus <= job.gpus + view.free)
        return any(fastest * view.estimates.speed_at(job, gpus) > least for gpus in larger)

    def _larger(self, view: ClusterView, job: JobState, most: int) -> Placement | None:
        """Its fastest place at a larger size up to `most`, on no slower GPUs than it has; None if none pays."""
        fastest, speed = None, self._least_speed(view, job)
        held, inventory, top = job.placement, view.inventory, _fastest(view, job)
        assert held is not None
        with view.supposing() as trial:
            trial.without([job])
            for gpus in reversed(view.sizes_of(job)):
                if job.gpus < gpus <= min(most, view.free):
                    best = view.estimates.speed_at(job, gpus)
                    if top * best <= speed:
                        continue
                    sized = view.at_size(job, gpus)
                    pools = [p for p in no_slower(inventory, sized, held) if gpu_speed(job, p) * best > speed]
                    placement = find(inventory, sized, self.placement, pools=tuple(pools))
                    if placement is not None and (then := _speed_on(view, sized, placement)) > speed:
                        fastest, speed = placement, then
        return fastest

    def _least_speed(self, view: ClusterView, job: JobState) -> float:
        """Above it a job would save more time than two restarts take, as far as one may expect."""
        if job.speed <= 0:
            return inf
        left_s = work_left_s(view, job, self.oracle)
        then_s = left_s / job.speed - 2 * view.estimates.switch_s(job)
        return max(job.speed, left_s / then_s) if then_s > 0 else inf

    def _wake(self, view: ClusterView, job: JobState) -> Iterator[Decision]:
        """The job's one timer; none while an earlier one is on its way, which asks for it then."""
        due_s, why = job.since_s + self.settle_s, "it may grow from then on"
        if due_s <= view.now:
            later_s, why = max(REVIEW_S, REVIEW_SHARE * job.held_s(view.now)), "growing may pay later"
            due_s = view.now + later_s
        if not view.now < job.wake_s <= due_s:
            job.wake_s = due_s
            yield WakeAt(due_s, job.id, why)


def _dealt(
    view: ClusterView, jobs: list[JobState], steps: dict[int, Step | None], most: dict[int, int]
) -> list[tuple[JobState, int]]:
    """Who gets how many GPUs, up to its `most`: each step, these first, to the job that it speeds up most per GPU."""
    free = view.free
    shares = {job.index: job.gpus for job in jobs}
    heap = [step for step in steps.values() if step]
    heapify(heap)
    while heap and free:
        _, index, job, more = heappop(heap)
        if more <= free:
            free -= more
            shares[index] += more
        if step := _step(view, job, shares[index], free, most[index]):
            heappush(heap, step)
    return [(job, shares[job.index]) for job in jobs if shares[job.index] > job.gpus]


def _step(view: ClusterView, job: JobState, gpus: int, free: int, most: int) -> Step | None:
    """The larger size that gains most per GPU; None if none gains. Speed may fall before it rises, where a job leaves its
    host, so sizes are tried further and further away."""
    speed_at, sizes = view.estimates.speed_at, view.sizes_of(job)
    speed, more, best = speed_at(job, gpus), job.job.sizes.step, (0.0, 0)
    while more <= free and gpus + more <= most:
        if gpus + more in sizes:
            best = min(best, ((speed - speed_at(job, gpus + more)) / more, more))
        more = min(2 * more, most - gpus) if gpus + more < most else free + 1
    return (best[0], job.index, job, best[1]) if best[1] else None


def _fastest(view: ClusterView, job: JobState) -> float:
    """How fast it computes on the fastest GPUs that there are."""
    return max(gpu_speed(job, pool) for pool in view.inventory.pools.values())


def _speed_on(view: ClusterView, job: JobState, placement: Placement) -> float:
    """Work per second that a job of the placement's size may count on there."""
    there = gpu_speed(job, view.inventory.pool_of[placement.hosts[0]])
    slowdown = view.estimates.slowdown(job, view.topology.span(placement.hosts))
    return there * view.estimates.speed_at(job, job.gpus) / slowdown


def _may_change(job: JobState) -> bool:
    return job.elastic and not job.job.pinned


def _is_on_owing(view: ClusterView, job: JobState) -> bool:
    """Whether GPUs that it gave up would not all be ours to give."""
    assert job.placement is not None
    return not view.inventory.owed.keys().isdisjoint(job.placement.hosts)


def _of(gpus: int, job: JobState) -> str:
    return "" if gpus == job.asked_gpus else f"on {gpus} GPUs rather than {job.asked_gpus}; "


def _first(placement: Placement, gpus: int) -> Placement:
    """Its first GPUs, in the order of the ranks."""
    hosts, masks = [], []
    for host, mask in zip(placement.hosts, placement.masks, strict=True):
        if gpus <= 0:
            break
        while mask.bit_count() > gpus:
            mask &= ~(1 << mask.bit_length() - 1)
        hosts.append(host)
        masks.append(mask)
        gpus -= mask.bit_count()
    return Placement(tuple(hosts), tuple(masks))


def _beside(job: JobState, taken: Placement) -> Placement:
    """What a job can keep of its own if these GPUs are another's: as much as one of its sizes has."""
    assert job.placement is not None
    gone = dict(zip(taken.hosts, taken.masks, strict=True))
    left = {
        host: mask & ~gone.get(host, 0)
        for host, mask in zip(job.placement.hosts, job.placement.masks, strict=True)
    }
    if job.job.hosts:
        each = job.gpus // job.job.hosts
        left = {host: mask for host, mask in left.items() if mask.bit_count() == each}
    left = {host: mask for host, mask in left.items() if mask}
    rest = Placement(tuple(left), tuple(left.values()))
    *_, gpus = takewhile(lambda size: size <= rest.gpus, job.job.sizes)
    return _first(rest, gpus)
