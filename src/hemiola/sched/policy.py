"""The one seam between Hemiola and a policy, and the loop that most policies share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from hemiola.core.decisions import Decision, Placement, Start, Stop
from hemiola.core.job import Batch, Elastic, Job
from hemiola.sched.inventory import Inventory, pick
from hemiola.sched.job_state import WAITING, JobState
from hemiola.sched.placement import Rule, find
from hemiola.sched.queues import Order, Queue
from hemiola.sched.view import ClusterView, Supposition

__all__ = ["Policy", "by_order"]


ONE_BY_ONE = 16


class Policy(ABC):
    """Decides which jobs run where. A value: a frozen dataclass whose fields are its parameters.

    Attributes:
        name: as in `--policy NAME`.
        source: the paper or system it follows.
        job_kinds: the kinds of job that it decides about; a workload with others is refused.
    """

    name: ClassVar[str] = ""
    source: ClassVar[str] = ""
    job_kinds: ClassVar[frozenset[type[Job]]] = frozenset({Batch, Elastic})

    @abstractmethod
    def decide(self, view: ClusterView) -> Iterable[Decision]:
        """What to do now. Called after every instant at which something happened."""

    def card(self) -> dict[str, str]:
        """Its rules for the semantics card: order, placement, back-filling, pre-emption."""
        return {}


def by_order(
    view: ClusterView,
    order: Order,
    rule: Rule,
    *,
    backfill: bool = True,
    preempt: bool = False,
) -> Iterable[Decision]:
    """Start waiting jobs in order; with `preempt` at the cost of running ones later in order.

    1. Take the first waiting job. 2. If it fits, start it. 3. Else, if stopping jobs that come
    after it makes room, stop just those whose GPUs it needs. 4. Else pass over it (`backfill`) or
    hold everyone behind it.
    """
    if not view.waiting:
        return ()
    return _by_order(view, order, rule, backfill, preempt)


def _by_order(
    view: ClusterView, order: Order, rule: Rule, backfill: bool, preempt: bool
) -> Iterator[Decision]:
    queue = view.queue(order)
    inventory, now = view.inventory, view.now
    waiting = view.waiting
    while waiting and (job := queue.next(inventory.free if backfill and not preempt else None)) is not None:
        placement = find(inventory, job, rule)
        if placement is not None:
            yield Start(job.id, placement, f"{order.says}; {rule.says}")
        elif (
            preempt
            and (preempt := outranks_any(queue, job, now))
            and (found := make_room(view, queue, job, rule))
        ):
            victims, placement = found
            for victim in victims:
                yield Stop(victim.id, f"{job.id} goes first ({order.says}) and needs its GPUs")
            yield Start(job.id, placement, f"{order.says}, in place of {_names(victims)}; {rule.says}")
        elif backfill or is_hopeless(view, job, rule):
            queue.block(job)
        else:
            queue.hold(job)
            return
        if placement is not None and job.status == WAITING:  # refused
            queue.block(job)


def outranks_any(queue: Queue, job: JobState, now: float) -> bool:
    """Whether any running job comes after this one; if not, none comes after later ones either."""
    return not queue.is_last(job, now)


def make_room(
    view: ClusterView, queue: Queue, job: JobState, rule: Rule, widest: int | None = None
) -> tuple[list[JobState], Placement] | None:
    """The running jobs to stop, last in order first, and where `job` then goes; None if it cannot.

    Stops adding victims as soon as the job fits, and spares those whose GPUs it does not use.
    Pinned jobs are not among them.
    The caller has seen that `job` does not fit as things are, and that it outranks some running job.
    After a failure it is not tried again before as many GPUs were released as were short: until
    then, what is free and what later jobs hold together cannot have grown by more. Where only
    their scatter was in the way, before a quarter of its size was released.
    """
    now = view.now
    inventory = view.inventory
    if queue.short.get(job.index, 0) > inventory.released_gpus:
        return None
    worst = queue.worst(now)
    if worst is not None and job.claim is None and (place := _in_place_of(inventory, worst, job)) is not None:
        return [worst], place
    need = job.gpus - sum([pool.free for pool in job.pools])
    later = _Later(queue, job, queue.key(job), now)
    trial = Supposition(inventory)
    try:
        for victims in later.batches(need):
            trial.without(victims)
            placement = find(inventory, job, rule, widest)
            if placement is not None:
                return _victims(inventory, job, trial.gone, placement), placement
    finally:
        trial.undo()
    queue.short[job.index] = inventory.released_gpus + max(need - later.gpus, job.gpus // 4, 1)
    return None


def _victims(
    inventory: Inventory, job: JobState, gone: list[JobState], placement: Placement
) -> list[JobState]:
    """Of those that are supposed to be gone, whose GPUs it takes, or what they have beside them."""
    needed = [victim for victim in gone if _makes_room(inventory, victim, placement)]
    if job.claim is None:
        return needed
    spare, spared = inventory.spare, []
    for victim in gone:
        if victim not in needed:
            assert victim.placement is not None
            spare.take(victim.id, victim.claim, victim.placement)
            if spare.lack(job, placement):
                spare.give(victim.id)
            else:
                spared.append(victim)
    for victim in spared:
        spare.give(victim.id)
    return [victim for victim in gone if victim not in spared]


class _Later:
    """Running jobs that come after a waiting one and may be stopped, last first.

    Attributes:
        gpus: GPUs of those seen so far.
    """

    def __init__(self, queue: Queue, job: JobState, key: tuple[Any, int], now: float) -> None:
        self._queue, self._job, self._key, self._now = queue, job, key, now
        self.gpus = 0

    def batches(self, need: int) -> Iterator[list[JobState]]:
        """As many as free `need` GPUs; then one more at a time, and after `ONE_BY_ONE` twice as many each time."""
        running, now = self._queue.order.running, self._now
        batch: list[JobState] = []
        tried, size = 0, 1
        for victim in self._queue.worst_first(now):
            if (running(victim, now), victim.index) <= self._key:
                break
            if victim.job.pinned or not _shares_pool(victim, self._job):
                continue
            batch.append(victim)
            self.gpus += victim.gpus
            if self.gpus >= need and len(batch) >= size:
                yield batch
                batch = []
                tried += 1
                size = 1 if tried < ONE_BY_ONE else size * 2
        if batch and self.gpus >= need:
            yield batch


def _in_place_of(inventory: Inventory, victim: JobState, job: JobState) -> Placement | None:
    """The victim's one host, if it may be stopped and that is enough: nothing else fitted, so no rule could choose another."""
    held = victim.placement
    assert held is not None
    if victim.job.pinned or len(held.hosts) > 1 or job.job.hosts > 1 or job.gpus > victim.gpus:
        return None
    if not _shares_pool(victim, job):
        return None
    host = held.hosts[0]
    if host in inventory.owed:  # not all of its GPUs would be free
        return None
    return Placement(
        (host,), (pick(inventory.masks[host] | held.masks[0], job.gpus, inventory.island_masks[host]),)
    )


def is_hopeless(view: ClusterView, job: JobState, rule: Rule) -> bool:
    """Whether this rule could not place the job even in an empty cluster, all of it up and ours (found once per shape)."""
    key = (rule, job.shape)
    if key not in view.hopeless:
        pools = tuple([view.empty.pools[pool.gpu_type] for pool in job.pools])
        view.hopeless[key] = find(view.empty, job, rule, pools=pools) is None
    return bool(view.hopeless[key])


def _shares_pool(victim: JobState, job: JobState) -> bool:
    if len(job.pools) != 1:
        return True
    assert victim.placement is not None
    return bool(job.pools[0].members >> victim.placement.hosts[0] & 1)


def _makes_room(inventory: Inventory, victim: JobState, placement: Placement) -> bool:
    """Whether a victim, supposed to be gone, leaves GPUs of this placement, or others that are owed beside them."""
    assert victim.placement is not None
    blocked = inventory.blocked
    needed = {
        host: mask | blocked.get(host, 0) for host, mask in zip(placement.hosts, placement.masks, strict=True)
    }
    return any(
        needed.get(host, 0) & mask
        for host, mask in zip(victim.placement.hosts, victim.placement.masks, strict=True)
    )


def _names(jobs: list[JobState]) -> str:
    shown = ", ".join(job.id for job in jobs[:3])
    return shown if len(jobs) <= 3 else f"{shown} and {len(jobs) - 3} more"
