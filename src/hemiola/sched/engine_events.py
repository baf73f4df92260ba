"""What live engines do by themselves, and no simulation does: events of the state machine.

They come from an engine that is shared with other people, so each is taken as it comes: one that no longer
matches the view (a job that has ended meanwhile) changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from hemiola.core.decisions import Placement
from hemiola.core.errors import InternalError
from hemiola.core.events import (
    Adopted,
    Blocked,
    Held,
    Measured,
    Profiled,
    Released,
    Requeued,
    ResourcesOffered,
    ResourcesRequested,
    Started,
    Undone,
)
from hemiola.core.job import Batch
from hemiola.core.resources import ResourceRequest
from hemiola.sched.inventory import pick
from hemiola.sched.job_state import ENDED, HELD, RUNNING, WAITING, JobState
from hemiola.sched.reach import Reaches
from hemiola.sched.view import ClusterView

__all__ = ["Transitions", "outside_handlers", "started_elsewhere"]


class _Run(Protocol):
    def __call__(self, job: JobState, placement: Placement, since_s: float | None = None) -> None: ...


class _Requeue(Protocol):
    def __call__(self, job: JobState, since_s: float | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Transitions:
    """The moves of the state machine that these events are made of; the machine hands its own methods in."""

    view: ClusterView
    reaches: Reaches
    enter: Callable[[Batch, float], JobState]
    wait: Callable[[JobState], None]
    unwait: Callable[[JobState], None]
    run: _Run
    halt: Callable[[JobState], None]
    requeue: _Requeue
    measured: Callable[[Measured], None]


def outside_handlers(machine: Transitions) -> dict[type, Callable[[Any], None]]:
    """What the machine does on each of these events."""
    view = machine.view

    def adopted(event: Adopted) -> None:
        job = machine.enter(event.job, event.time_s)
        job.remember(event)
        if event.service_gpu_s is not None:
            job.other_gpu_s = event.service_gpu_s - job.gpus * job.served_s
        if event.placement is None:
            job.since_s = event.since_s
            machine.wait(job)
        else:
            machine.run(job, _fitted(machine, event.placement), event.since_s)

    def requeued(event: Requeued) -> None:
        job = view.jobs[event.job_id]
        if job.status == RUNNING:
            served_s, waited_s = job.served_s, view.now - job.since_s
            if event.refused and job.placement is not None:
                machine.reaches.shun(job, job.placement.hosts)
            if event.ran:
                job.done_s = job.done_at(view.now)
            machine.halt(job)
            if not event.ran:
                job.served_s = served_s
                job.queued_s += waited_s
            machine.requeue(job)
            view.returned.append(job)

    def held(event: Held) -> None:
        job = view.jobs[event.job_id]
        if job.status == WAITING:
            machine.unwait(job)
            job.queued_s += event.time_s - job.since_s
            job.status, job.since_s = HELD, event.time_s

    def released(event: Released) -> None:
        job = view.jobs[event.job_id]
        if job.status == HELD:
            job.withheld_s += event.time_s - job.since_s
            job.status, job.since_s = WAITING, event.time_s
            machine.wait(job)
            view.returned.append(job)

    def blocked(event: Blocked) -> None:
        view.inventory.block(event.host, event.gpus)

    def furnished(event: ResourcesOffered) -> None:
        view.inventory.furnish(event.host, event.ours, event.total)

    def filed_anew(job: JobState, change: Callable[[], None]) -> None:
        """Indexes file it by what it is after the change."""
        indexes = [
            index
            for index in view.indexes.values()
            if job.status == WAITING or (job.status == RUNNING and index.tracks)
        ]
        for index in indexes:
            index.leave(job)
        change()
        for index in indexes:
            index.enter(job, view.now)

    def claimed(event: ResourcesRequested) -> None:
        job, claim = view.jobs[event.job_id], None if event.claim == ResourceRequest() else event.claim
        if job.status == WAITING:
            filed_anew(job, lambda: machine.reaches.claim(job, claim))
        else:
            machine.reaches.claim(job, claim)
        if job.placement is not None:
            view.inventory.spare.give(job.id)
            view.inventory.spare.take(job.id, job.claim, job.placement)

    def profiled(event: Profiled) -> None:
        job = view.jobs[event.job_id]

        def change() -> None:
            job.job = msgspec.structs.replace(job.job, profile=event.profile)

        filed_anew(job, change)

    def undone(event: Undone) -> None:
        job = view.jobs[event.job_id]
        if job.status == RUNNING:
            machine.halt(job)
        elif job.status == WAITING:
            machine.unwait(job)
        else:
            return
        placement = event.placement
        gpus = job.asked_gpus if placement is None else placement.gpus
        if job.elastic and gpus != job.gpus:  # before its books, which are of that size
            machine.reaches.resize(job, gpus)
        job.done_s, job.settled_s = event.done_s, view.now
        job.served_s, job.queued_s = event.served_s, event.queued_s
        if event.service_gpu_s is not None:
            job.other_gpu_s = event.service_gpu_s - job.gpus * job.served_s
        job.preemptions, job.migrations, job.stopped_in = event.preemptions, event.migrations, -1
        for index in view.indexes.values():
            index.undone(job, view.now)
        if placement is None:
            machine.requeue(job, event.since_s)
        else:
            job.configuration = event.configuration
            _goes_on(machine, job, placement, event.since_s)
            if event.speed is not None:
                machine.measured(Measured(event.time_s, job.id, event.speed))

    return {
        Undone: undone,
        Adopted: adopted,
        Requeued: requeued,
        Held: held,
        Released: released,
        Blocked: blocked,
        ResourcesOffered: furnished,
        ResourcesRequested: claimed,
        Profiled: profiled,
    }


def started_elsewhere(machine: Transitions, event: Started, placement: Placement) -> None:
    """Nobody decided it, or it was to be elsewhere: the job runs there, on GPUs that are free in the view."""
    view = machine.view
    job = view.jobs[event.job_id]
    if job.status == ENDED:
        return
    if job.status == RUNNING:
        job.done_s = job.done_at(view.now)
        machine.halt(job)
    elif job.status == WAITING:
        machine.unwait(job)
        job.wait_s = event.time_s - job.since_s
        job.queued_s += job.wait_s
    else:
        job.withheld_s += event.time_s - job.since_s
    _goes_on(machine, job, placement)
    view.returned.append(job)


def _goes_on(machine: Transitions, job: JobState, placement: Placement, since_s: float | None = None) -> None:
    """It runs there, though GPUs that it had until now may be blocked already."""
    with machine.view.inventory.unblocked(placement.hosts):
        machine.run(job, _fitted(machine, placement), since_s)


def _fitted(machine: Transitions, placement: Placement) -> Placement:
    """The same hosts and counts; an engine does not say which GPUs, so they are chosen here."""
    inventory = machine.view.inventory
    masks = []
    for host, mask in zip(placement.hosts, placement.masks, strict=True):
        free = inventory.masks[host]
        if free & mask != mask:
            if free.bit_count() < mask.bit_count():
                raise InternalError(
                    f"{mask.bit_count()} GPUs of {machine.view.topology.hosts.names[host]} are taken by a job of "
                    f"the engine, but in the view only {free.bit_count()} are free"
                )
            mask = pick(free, mask.bit_count(), inventory.island_masks[host])
        masks.append(mask)
    return Placement(placement.hosts, tuple(masks))
