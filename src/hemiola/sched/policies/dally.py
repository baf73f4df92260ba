"""Dally: delay scheduling by network tier, network-sensitive pre-emption, self-tuning timers.

In the style of Sharma, Bhasi, Singh, Kesidis, Kandemir and Das, "Dally: A network-placement
sensitive cluster scheduler for deep learning" (arXiv 2401.16492): only its abstract is public to
us, its formulas are not. What the abstract says is here: (i) delay scheduling for placement, (ii)
network-sensitive pre-emption, (iii) an auto-tuner of the timers. Where it is silent we chose:

- Order: discretised least attained service, as in Tiresias, so that no run time need be known;
  within a queue by arrival. Network sensitivity decides how long a job waits and who moves aside,
  not who goes first.
- Sensitivity: s_j(tier) = t_j(tier) / t_j(narrowest), from the cost model (`cost.iteration`).
- Timers: see `sched.delay`; "auto" is (iii), "break-even" bounds it by what waiting can be worth,
  "manual", "always-wait" and "never-wait" are the baselines without which a gain means nothing.
- Pre-emption: (a) of jobs in a lower queue, as in Tiresias, but only for a place within the tier
  the job accepts; (b) a job that declines a wide offer may move insensitive jobs aside, and a job
  that runs wide may move to a narrower place, if the gain

      delta = sum over jobs of (gain in progress rate x GPUs) x time left - (save + load) x GPUs

  is positive with each job's measured costs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from hemiola.core.decisions import Decision, Move, Placement, Start, Stop, WakeAt
from hemiola.core.errors import PolicyError
from hemiola.sched.delay import (
    NEVER,
    Accepted,
    AcceptedBy,
    AlwaysWait,
    AutoTimer,
    BreakEvenTimer,
    Delay,
    DelayTimer,
    ManualTimer,
    NeverWait,
    time_left_s,
)
from hemiola.sched.hosts_index import ByHost
from hemiola.sched.job_state import RUNNING, WAITING, JobState
from hemiola.sched.placement import Rule, TierAware, find, no_slower
from hemiola.sched.policies.tiresias import ByAttainedService, Tiresias, with_timers
from hemiola.sched.policy import Policy, is_hopeless, make_room, outranks_any
from hemiola.sched.queues import Queue
from hemiola.sched.view import ClusterView, Index

__all__ = ["Dally"]

Way = tuple[list[Move], Placement, str]  # who moves aside, where the job then goes, and why it pays
BY_HOST = ByHost()
CANDIDATES = 4


@dataclass(frozen=True)
class ByServiceAndTier(ByAttainedService):
    """Least attained service first; waiting jobs form a group only with those that accept the same tier now."""

    def group(self, job: JobState) -> Hashable:
        note = job.note
        return (job.shape, job.narrowest if note is None else note.allowed)


@dataclass(frozen=True)
class Dally(Policy):
    """Waits for a narrow place as long as that pays, and makes one where that pays.

    Args:
        placement: what is offered: among free GPUs.
        timer: auto, break-even, manual, always-wait or never-wait.
        host_s: manual timer (and auto's before it has seen waits) at the host tier.
        rack_s: the same at wider tiers.
        quantile: of recent waits that the auto-tuner takes.
        oracle: whether break-even and pre-emption know the true work left.
        thresholds: attained service in GPU-seconds at which a job moves down a queue.
        promote: waiting time over time run after which a job is promoted; 0 for never.
        preempt: whether it pre-empts and moves jobs.
        review_s: how often jobs that run wide are reviewed for a narrower place; 0 for never.
    """

    placement: Rule = TierAware()
    timer: str = "auto"
    host_s: float = 1800.0
    rack_s: float = 3600.0
    quantile: float = 0.9
    oracle: bool = False
    thresholds: str = "3250/7200"
    promote: float = 8.0
    preempt: bool = True
    review_s: float = 300.0
    name = "dally"
    source = "in the style of Sharma et al., Dally, arXiv 2401.16492 (its formulas are not public to us)"

    def __post_init__(self) -> None:
        for name in ("host_s", "rack_s", "review_s", "promote"):
            if not 0 <= getattr(self, name) < NEVER:
                raise PolicyError(f"{name} is {getattr(self, name)}", "give seconds, 0 or more")
        if not 0 <= self.quantile <= 1:
            raise PolicyError(f"quantile is {self.quantile}", "give a number from 0 to 1")
        _ = self.accepted, self.order

    @cached_property
    def waits(self) -> DelayTimer:
        """The timer that its name stands for."""
        manual = ManualTimer(self.host_s, self.rack_s)
        auto = AutoTimer(self.quantile, manual)
        timers: dict[str, DelayTimer] = {
            "auto": auto,
            "break-even": BreakEvenTimer(auto, self.oracle),
            "manual": manual,
            "always-wait": AlwaysWait(),
            "never-wait": NeverWait(),
        }
        if self.timer not in timers:
            raise PolicyError(f"no timer is called {self.timer!r}", f"choose one of {', '.join(timers)}")
        return timers[self.timer]

    @cached_property
    def accepted(self) -> AcceptedBy:
        """What its jobs accept, by this timer."""
        return AcceptedBy(self.waits)

    @cached_property
    def order(self) -> ByServiceAndTier:
        """Its order of jobs."""
        tiresias = Tiresias(thresholds=self.thresholds, promote=self.promote)
        return ByServiceAndTier(tiresias.limits(), self.promote)

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        return with_timers(view, self.order, self._decide(view))

    def _decide(self, view: ClusterView) -> Iterator[Decision]:
        """1. Go on to the next timers. 2. Offer what is free, in order. 3. Review those that run wide."""
        accepted: Accepted = view.index(self.accepted)
        queue = view.queue(self.order)
        yield from self._hold_out(view, accepted)
        yield from self._offer(view, queue)
        if self.preempt and self.review_s:
            yield from self._review(view, queue)

    def _offer(self, view: ClusterView, queue: Queue) -> Iterator[Decision]:
        """To each in turn who waits, until nobody is left whom it has not been offered to."""
        while (job := queue.next(None if self.preempt else view.free)) is not None:
            offer = find(view.inventory, job, self.placement)
            if offer is None:
                yield from self._displace(view, queue, job)
            elif (tier := _tier(view, offer)) <= job.note.allowed:
                yield from self._start(job, offer, self._why(view, job, tier))
            elif (made := self._make_way(view, queue, job, offer, tier)) is not None:
                job, (moves, place, why) = made
                yield from moves
                yield from self._start(job, place, why)
            else:
                yield from self._decline(view, queue, job, tier)
            if job.status == WAITING:
                queue.block(job)

    # ---- (i) delay scheduling ---------------------------------------------------------------

    def _hold_out(self, view: ClusterView, accepted: Accepted) -> Iterator[Decision]:
        """Wake those whose timer ran out when that of the next tier does."""
        advanced, accepted.advanced = accepted.advanced, []
        for job in advanced:
            note: Delay = job.note
            if note.until_s is not None and note.until_s < NEVER:
                due_s, tier = max(note.until_s, view.now), view.topology.tiers[note.allowed]
                why = f"accepts {tier} by now, and holds out for that for {due_s - view.now:.0f} s"
                yield WakeAt(due_s, job.id, why)

    def _decline(self, view: ClusterView, queue: Queue, job: JobState, tier: int) -> Iterator[Decision]:
        """Turn a wide offer down and start the clock of everyone who would."""
        names = view.topology.tiers
        for other in list(queue.group_of(job)):
            note: Delay = other.note
            if note.until_s is not None:
                continue
            wait_s = self.waits.wait_s(view, other, note.allowed)
            note.until_s = view.now + wait_s
            note.declined = True
            if wait_s == 0.0:
                yield WakeAt(view.now, other.id, "it does not wait at this tier")
            elif wait_s < NEVER:
                yield WakeAt(
                    note.until_s,
                    other.id,
                    f"declined a place that spans {names[tier]}; holds out for {names[note.allowed]} "
                    f"for {wait_s:.0f} s because it would run {view.estimates.slowdown(other, tier):.2f}x slower",
                )

    def _start(self, job: JobState, place: Placement, why: str) -> Iterator[Decision]:
        yield Start(job.id, place, why)
        if job.status == RUNNING and job.note is not None:
            job.note.started(job.narrowest)

    def _why(self, view: ClusterView, job: JobState, tier: int) -> str:
        if tier <= job.narrowest:
            return f"{self.order.says}; its narrowest tier ({view.topology.tiers[tier]}) is free"
        return f"{self.order.says}; accepts {view.topology.tiers[tier]} now; {self.placement.says}"

    # ---- (ii) network-sensitive pre-emption ---------------------------------------------------

    def _displace(self, view: ClusterView, queue: Queue, job: JobState) -> Iterator[Decision]:
        """Nothing is free: take the GPUs of jobs in lower queues, within the tier it accepts."""
        if not self.preempt or is_hopeless(view, job, self.placement):
            return
        if outranks_any(queue, job, view.now) and (
            found := make_room(view, queue, job, self.placement, job.note.allowed)
        ):
            victims, place = found
            for victim in victims:
                yield Stop(victim.id, f"{job.id} has had less service and needs its GPUs")
            yield from self._start(
                job,
                place,
                f"{self.order.says}, in place of {len(victims)} other{'s' * (len(victims) != 1)}",
            )

    def _make_way(
        self, view: ClusterView, queue: Queue, job: JobState, offer: Placement, tier: int
    ) -> tuple[JobState, Way] | None:
        """Move insensitive jobs off one host for a job that one host can hold: the first of those that fit like this one
        for which delta > 0 over the offer. Of one model only those that have more work left can gain more."""
        if not self.preempt or job.narrowest > 0 or job.widest < 0:
            return None
        too_little_s: dict[int, float] = {}
        now, mean_s = view.now, view.mean_work_s  # of many jobs at once: `work_left_s` of those that wait
        for other in queue.group_of(job):
            work_s = other.remaining_s(now) if self.oracle else max(other.done_s, mean_s)
            model = id(other.job.profile)
            if work_s > too_little_s.get(model, -1.0):
                slower = view.estimates.slowdown(other, tier) - 1.0
                gain = time_left_s(view, other, self.oracle) * slower * other.gpus
                if (way := self._way_for(view, other, offer, gain)) is not None:
                    return other, way
                too_little_s[model] = work_s
        return None

    def _way_for(self, view: ClusterView, job: JobState, offer: Placement, gain: float) -> Way | None:
        """What makes way for this job and costs less than it gains, on GPUs as fast as those of the offer."""
        for pool in no_slower(view.inventory, job, offer):
            for seen, (host, free) in enumerate(pool.hosts.descending()):
                if seen >= CANDIDATES or free * 2 < job.gpus:
                    break
                way = self._clear(view, job, host, free, gain)
                if way is not None:
                    return way
        return None

    def _clear(self, view: ClusterView, job: JobState, host: int, free: int, gain: float) -> Way | None:
        """Moves that leave `job.gpus` free on this host and cost less than the gain, and the start."""
        movable = [
            v for v in view.index(BY_HOST).on(host) if len(v.placement.hosts) == 1 and not v.job.pinned
        ]
        movable.sort(key=lambda v: (view.estimates.switch_s(v) * v.gpus, v.index))
        cost = 0.0
        chosen: list[JobState] = []
        for victim in movable:
            if free >= job.gpus:
                break
            cost += view.estimates.switch_s(victim) * (victim.gpus + job.gpus)
            if cost >= gain:
                return None
            chosen.append(victim)
            free += victim.gpus
        if free < job.gpus:
            return None
        return self._relocate(view, job, host, chosen, cost, gain)

    def _relocate(
        self, view: ClusterView, job: JobState, host: int, chosen: list[JobState], cost: float, gain: float
    ) -> Way | None:
        """Where each chosen job goes instead; None if one of them would suffer."""
        inventory = view.inventory
        moves: list[Move] = []
        with view.supposing() as trial:
            if inventory.masks[host]:
                trial.occupy(Placement((host,), (inventory.masks[host],)))
            places: list[Placement] = []
            for victim in chosen:
                assert victim.placement is not None
                pools = no_slower(inventory, victim, victim.placement)
                place = find(inventory, victim, self.placement, victim.tier, pools)
                if place is None:
                    return None
                trial.occupy(place, victim)
                places.append(place)
                moves.append(Move(victim.id, place, f"makes way for {job.id}, which needs one host"))
            trial.undo()
            for victim, place in zip(chosen, places, strict=True):
                trial.occupy(place, victim)
            trial.without(chosen)
            target = find(inventory, job, self.placement, 0, (inventory.pool_of[host],))
        if target is None:
            return None
        why = f"moving {len(chosen)} jobs aside costs {cost:.0f} GPU-s and saves it {gain:.0f}"
        return moves, target, why

    def _review(self, view: ClusterView, queue: Queue) -> Iterator[Decision]:
        """Now and then move jobs that run wide to narrower places, if delta > 0, and offer what they leave."""
        wide: WideIndex = view.index(WIDE)
        if not wide.jobs:
            return
        if view.now >= wide.next_s:
            wide.next_s = view.now + self.review_s
            if view.free:
                yield from self._gather(view, list(wide.jobs.values()))
                yield from self._offer(view, queue)
        if wide.jobs and wide.asked_s < wide.next_s:
            wide.asked_s = wide.next_s
            yield WakeAt(wide.next_s, "", "review of jobs that run wide")

    def _gather(self, view: ClusterView, wide: list[JobState]) -> Iterator[Decision]:
        for job in wide:
            place = self._narrower(view, job)
            if place is not None:
                yield Move(
                    job.id, place, f"a narrower place ({view.topology.tiers[_tier(view, place)]}) is free"
                )

    def _narrower(self, view: ClusterView, job: JobState) -> Placement | None:
        if job.placement is None or job.tier <= job.narrowest:
            return None
        slowdown = view.estimates.slowdown
        left_s = time_left_s(view, job, self.oracle)
        if left_s * (slowdown(job, job.tier) - 1.0) <= view.estimates.switch_s(job):
            return None
        with view.supposing() as trial:
            trial.without((job,))
            pools = no_slower(view.inventory, job, job.placement)
            place = find(view.inventory, job, self.placement, job.tier - 1, pools)
        if place is None:
            return None
        saved_s = left_s * (slowdown(job, job.tier) - slowdown(job, _tier(view, place)))
        return place if saved_s > view.estimates.switch_s(job) else None

    def card(self) -> dict[str, str]:
        return {
            "order": f"attained service (GPU-s), queues cut at {self.thresholds}, FIFO within",
            "backfill": "whoever fits and accepts",
            "delay": f"timer {self.timer}; clock from the first declined offer; paid delay is kept (SPARK-18886)",
            "preemption": "lower queues, within the accepted tier; moves where delta > 0"
            if self.preempt
            else "none",
            **({"remaining time": "known (oracle)"} if self.oracle else {}),
        }


class WideIndex(Index):
    """Running jobs that may move and span more than they need.

    Attributes:
        jobs: by index.
        next_s: no review before; `asked_s`: the last one that a timer was set for.
    """

    def __init__(self) -> None:
        self.jobs: dict[int, JobState] = {}
        self.next_s = self.asked_s = -NEVER

    def enter(self, job: JobState, now: float) -> None:
        """A job has a new status."""
        if job.status == RUNNING and job.tier > job.narrowest and not job.job.pinned:
            self.jobs[job.index] = job

    def leave(self, job: JobState) -> None:
        """A job's status is about to change."""
        self.jobs.pop(job.index, None)


@dataclass(frozen=True)
class _Wide:
    def build(self, view: ClusterView) -> WideIndex:
        return WideIndex()


WIDE = _Wide()


def _tier(view: ClusterView, place: Placement) -> int:
    return 0 if len(place.hosts) == 1 else view.topology.span(place.hosts)
