"""What policies with rounds share: one timer for all of them, and how a round's shares become decisions.

A policy says which jobs are to have how many GPUs of which type (`Share`); `reassign` finds a place for each, leaves alone
who keeps what it has, and changes all others at once. It must not know how the shares came about.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from hemiola.core.decisions import Change, Decision, Move, Placement, Reallocate, Resize, Start, Stop, WakeAt
from hemiola.core.job import Configuration
from hemiola.sched.inventory import GpuPool
from hemiola.sched.job_state import RUNNING, WAITING, JobState
from hemiola.sched.placement import Rule, find
from hemiola.sched.queues import Order, Queue
from hemiola.sched.view import ClusterView, Index, Supposition

__all__ = [
    "Rounds",
    "RoundsEvery",
    "Share",
    "capacity_of",
    "fill",
    "reassign",
    "reorder",
    "sizes_of",
    "type_of",
]


@dataclass(frozen=True, slots=True)
class Share:
    """What a job is to have.

    Attributes:
        job: who.
        gpus: how many.
        gpu_type: of which type; None for any that it accepts.
        configuration: how it splits its batch; None where it decides that by itself.
    """

    job: JobState
    gpus: int
    gpu_type: str | None = None
    configuration: Configuration | None = None


def capacity_of(view: ClusterView, pool: GpuPool) -> int:
    """GPUs of a type that a round can give out: those of hosts that are up, but for what jobs hold that may not be stopped."""
    fixed = [job for job in view.running.values() if job.job.pinned and type_of(view, job) == pool.gpu_type]
    return pool.capacity - sum(job.gpus for job in fixed)


def sizes_of(view: ClusterView, job: JobState) -> tuple[int, ...]:
    """The numbers of GPUs that a job may be given here and now."""
    if not job.elastic or (job.status == RUNNING and (job.job.pinned or Resize in view.cannot)):
        return (job.gpus,)
    return view.sizes_of(job)


def type_of(view: ClusterView, job: JobState) -> str:
    """The type of the GPUs that a running job has."""
    assert job.placement is not None
    return view.inventory.pool_of[job.placement.hosts[0]].gpu_type


# ---- from shares to decisions


def reassign(
    view: ClusterView, shares: Iterable[Share], rule: Rule, reason: str, stopped: str
) -> Iterator[Decision]:
    """Give each job its share and stop all others, but for those that may not be stopped, in one decision.

    The largest go first, so that those of whole hosts find them whole. Who keeps its share keeps its place where all
    others have room beside it. A share for which there is no place is left out: its job waits for the next round.

    Args:
        reason: why jobs get what they get.
        stopped: why jobs are stopped.
    """
    wanted = {share.job.index: share for share in shares}
    running = [job for job in view.running.values() if not job.job.pinned]
    kept = {job.index for job in running if _is_kept(view, job, wanted.get(job.index))}
    placed = _placed(view, wanted, running, kept, rule)
    if len(placed) + len(kept) < len(wanted) and kept:
        again = _placed(view, wanted, running, set(), rule)
        if _gpus(again) > _gpus(placed) + sum(wanted[index].gpus for index in kept):
            placed, kept = again, set()
    yield from _at_once(view, _changes(running, wanted, kept, placed, reason, stopped), reason)


def _is_kept(view: ClusterView, job: JobState, share: Share | None) -> bool:
    """Whether a running job has its share already."""
    return (
        share is not None
        and share.gpus == job.gpus
        and share.gpu_type in (None, type_of(view, job))
        and (share.configuration is None or share.configuration == job.configuration)
    )


def _gpus(placed: dict[int, tuple[Share, Placement]]) -> int:
    return sum(share.gpus for share, _ in placed.values())


def _placed(
    view: ClusterView, wanted: dict[int, Share], running: list[JobState], kept: set[int], rule: Rule
) -> dict[int, tuple[Share, Placement]]:
    """A place for each share but those of `kept`, the largest first, with all other running jobs gone."""
    placed: dict[int, tuple[Share, Placement]] = {}
    with view.supposing() as trial:
        trial.without(job for job in running if job.index not in kept)
        waiting = sorted(
            (s for i, s in wanted.items() if i not in kept), key=lambda s: (-s.gpus, s.job.index)
        )
        for share in waiting:
            placement = _place(view, share, rule)
            if placement is not None:
                _occupy(trial, share.job, placement)
                placed[share.job.index] = share, placement
    return placed


def _occupy(trial: Supposition, job: JobState, placement: Placement) -> None:
    trial.occupy(placement, job)


def _place(view: ClusterView, share: Share, rule: Rule) -> Placement | None:
    """Its own place where that is free and what it is to have, else what the rule finds."""
    job, held = share.job, share.job.placement
    same = held is not None and share.gpus == job.gpus and share.gpu_type in (None, type_of(view, job))
    if (
        same
        and held is not None
        and view.inventory.is_free(held)
        and not view.inventory.spare.lack(job, held)
    ):
        return held
    sized = view.at_size(job, share.gpus)
    return find(view.inventory, sized, rule, pools=_pools(sized, share.gpu_type))


def _pools(job: JobState, gpu_type: str | None) -> tuple[GpuPool, ...] | None:
    if gpu_type is None:
        return None
    return tuple(pool for pool in job.pools if pool.gpu_type == gpu_type)


def _changes(
    running: list[JobState],
    wanted: dict[int, Share],
    kept: set[int],
    placed: dict[int, tuple[Share, Placement]],
    reason: str,
    stopped: str,
) -> Iterator[Change]:
    for job in running:
        if job.index not in kept and job.index not in placed:
            why = "no room for its share beside the others'" if job.index in wanted else stopped
            yield Stop(job.id, why)
    for share, placement in placed.values():
        job, split = share.job, share.configuration
        if job.status == WAITING:
            yield Start(job.id, placement, reason, split)
        elif placement != job.placement or (split is not None and split != job.configuration):
            if job.elastic and (split is not None or share.gpus != job.gpus):
                yield Resize(job.id, placement, reason, split)
            else:
                yield Move(job.id, placement, reason)


def _at_once(view: ClusterView, changes: Iterable[Change], reason: str) -> Iterator[Decision]:
    """All in one decision; where the engine turns out not to know how to, in a way that it can."""
    changes = tuple(changes)
    knew = set(view.cannot)
    yield from _together(view, changes, reason)
    if Reallocate in view.cannot and Reallocate not in knew:
        yield from changes
    if Configuration in view.cannot and Configuration not in knew:
        plain = tuple(_unsplit(change) for change in changes if not _is_done(view, change))
        yield from _together(view, plain, reason)


def _together(view: ClusterView, changes: tuple[Change, ...], reason: str) -> Iterator[Decision]:
    if len(changes) > 1 and Reallocate not in view.cannot:
        yield Reallocate(changes, reason)
    else:
        yield from changes


def _unsplit(change: Change) -> Change:
    """The same, with the batch left to the job."""
    return replace(change, configuration=None) if isinstance(change, Start | Resize) else change


def _is_done(view: ClusterView, change: Change) -> bool:
    """Whether the job is as the change wants it: it was carried out alone."""
    placement = None if isinstance(change, Stop) else change.placement
    return view.jobs[change.job_id].placement == placement


# ---- between rounds


def fill(view: ClusterView, order: Order, rule: Rule) -> Iterator[Decision]:
    """Let waiting jobs have GPUs that are free until the next round: in order, at the size that they asked for, or the
    largest smaller one of an elastic job that fits."""
    if not view.waiting or not view.free:
        return
    queue = view.queue(order)
    while view.free and view.waiting and (job := queue.next()) is not None:
        placement = _widest_fit(view, job, rule)
        if placement is not None:
            says, split = f"{order.says}; {rule.says}", split_at(view, job, placement)
            yield Start(job.id, placement, says, split)
            if split is not None and job.status == WAITING and Configuration in view.cannot:
                yield Start(job.id, placement, says)
        if job.status == WAITING:  # no room, or refused
            queue.block(job)


def split_at(view: ClusterView, job: JobState, placement: Placement) -> Configuration | None:
    """How an elastic job trains best there; None where nobody can tell it, or knows."""
    if not job.elastic or Configuration in view.cannot:
        return None
    kind = view.inventory.pool_of[placement.hosts[0]].gpu_type
    return view.estimates.goodput(job, placement.gpus, view.topology.span(placement.hosts), kind)[1]


def _widest_fit(view: ClusterView, job: JobState, rule: Rule) -> Placement | None:
    for gpus in reversed(view.sizes_of(job)):
        if gpus <= min(job.gpus, view.free):
            placement = find(view.inventory, view.at_size(job, gpus), rule)
            if placement is not None:
                return placement
    return None


# ---- when rounds are held


class Rounds(Index):
    """Rounds at multiples of a period; an index, so that each view has its own.

    Args:
        period_s: time from one round to the next.
    """

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self._asked_s = -math.inf
        self._held_s = -math.inf

    def enter(self, job: JobState, now: float) -> None:
        """Of no interest here."""

    def leave(self, job: JobState) -> None:
        """Of no interest here."""

    def refresh(self, job: JobState, now: float) -> None:
        """Of no interest here."""

    def is_due(self, now: float) -> bool:
        """Whether a round that was asked for is to be held now; true once for each."""
        if self._held_s < self._asked_s <= now:
            self._held_s = self._asked_s
            return True
        return False

    def ask(
        self, view: ClusterView, reason: str, *, alone: bool = False, idle: bool = False
    ) -> Iterator[WakeAt]:
        """Ask for the next round if there may be something to exchange, and only once.

        Args:
            alone: whether a round is of use when nobody waits.
            idle: whether a round is of use when nothing runs: where nobody is let in between rounds.
        """
        if not (view.running or idle) or not (alone or view.waiting):
            return
        rounds = math.floor(view.now / self.period_s) + 1
        if rounds * self.period_s <= view.now:  # the quotient was rounded down
            rounds += 1
        next_s = rounds * self.period_s
        if next_s > self._asked_s:
            self._asked_s = next_s
            yield WakeAt(next_s, "", reason)


@dataclass(frozen=True)
class RoundsEvery:
    """Says which `Rounds` a policy needs: `view.index(RoundsEvery(60.0))`."""

    period_s: float

    def build(self, view: ClusterView) -> Rounds:
        """The first round is still to be asked for."""
        return Rounds(self.period_s)


def reorder(view: ClusterView, queue: Queue, order: Order) -> None:
    """Sort a queue's jobs by another order from now on."""
    jobs = [*view.waiting.values(), *view.running.values()]
    for job in jobs:
        queue.leave(job)
    queue.order = order
    for job in jobs:
        queue.enter(job, view.now)
    queue.unblock()
