"""Several changes at once, all or none: what the state machine does on `Reallocate`.

First everything is tried on a view that is put back as it was; only what holds as a whole is carried out, and then
nothing can fail any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hemiola.core.decisions import Change, Move, Reallocate, Resize, Start, Stop
from hemiola.core.errors import InternalError
from hemiola.sched.job_state import JobState
from hemiola.sched.view import ClusterView

__all__ = ["ChangeSteps", "reallocate"]


@dataclass(frozen=True, slots=True)
class ChangeSteps:
    """The steps of the state machine that changes are made of; the machine hands its own methods in.

    Attributes:
        standing: why a job cannot be changed so as it stands; "" if it can.
        misplaced: why it cannot run where that says; "" if it can.
        start, stop: do so; return why not.
        leave, arrive: off its GPUs, and onto those that it is moved to.
    """

    view: ClusterView
    standing: Callable[[Change], str]
    misplaced: Callable[[JobState, Start | Move | Resize], str]
    start: Callable[[Start], str]
    stop: Callable[[Stop], str]
    leave: Callable[[JobState], None]
    arrive: Callable[[JobState, Move | Resize], None]


def reallocate(machine: ChangeSteps, decision: Reallocate) -> str:
    """Carry all of it out, or nothing; return why not."""
    changes = decision.changes
    why = _flaw(changes) or _problem(machine, changes)
    if not why:
        _carry_out(machine, changes)
    return why


def _flaw(changes: tuple[Change, ...]) -> str:
    if not changes:
        return "it changes nothing"
    if not all(isinstance(change, Change) for change in changes):
        return "it holds what is no Start, Stop, Move or Resize"
    ids = [change.job_id for change in changes]
    twice = next((name for name in ids if ids.count(name) > 1), "")
    return f"it changes {twice!r} twice" if twice else ""


def _problem(machine: ChangeSteps, changes: tuple[Change, ...]) -> str:
    """Why one of them cannot be, when all others are; "" if all can."""
    for change in changes:
        if why := machine.standing(change):
            return f"{change.job_id}: {why}"
    jobs = machine.view.jobs
    with machine.view.supposing() as trial:
        trial.without(jobs[change.job_id] for change in changes if not isinstance(change, Start))
        for change in changes:
            if isinstance(change, Stop):
                continue
            if why := machine.misplaced(jobs[change.job_id], change):
                return f"{change.job_id}: {why}"
            trial.occupy(change.placement, jobs[change.job_id])
    return ""


def _carry_out(machine: ChangeSteps, changes: tuple[Change, ...]) -> None:
    """Whoever leaves leaves before anybody comes."""
    jobs = machine.view.jobs
    moving: list[tuple[JobState, Move | Resize]] = []
    for change in changes:
        if isinstance(change, Stop):
            _sure(change, machine.stop(change))
        elif not isinstance(change, Start):
            job = jobs[change.job_id]
            machine.leave(job)
            moving.append((job, change))
    for job, change in moving:
        machine.arrive(job, change)
    for change in changes:
        if isinstance(change, Start):
            _sure(change, machine.start(change))


def _sure(change: Change, why: str) -> None:
    if why:
        raise InternalError(f"{change} was found possible, and is not: {why}", "please report it")
