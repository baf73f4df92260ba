"""What every driver that looks at its engine remembers of a job between two looks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from hemiola.core.decisions import Placement
from hemiola.core.events import Adopted, Arrived, Event, Held, Requeued, Timer
from hemiola.core.job import Batch, JobHistory, history_of
from hemiola.live.journal import JournaledJob
from hemiola.sched.job_state import RUNNING
from hemiola.sched.view import ClusterView

__all__ = [
    "PATIENCE_S",
    "EngineRow",
    "JobFinder",
    "RecoveredJob",
    "TrackedJob",
    "adopted",
    "back_off_s",
    "done_by",
    "entered",
    "given_back",
    "recovered",
]


PATIENCE_S = 60.0
"""So long a job may be bound to free GPUs without starting, before that is taken for a failure."""
BACK_OFF_S, BACK_OFF_MOST_S = 2.0, 3600.0
ELSEWHERE_S = 30.0
"""Nor is it left alone for longer, as long as there are other hosts to try."""


def back_off_s(failures: int, kept_s: float) -> float:
    """How long to leave a job alone after so many failed binds in a row, the last of which kept GPUs from others for
    `kept_s`."""
    doublings = min(failures - 1, 11)  # with more it is the most, too, until floats end
    return min(BACK_OFF_MOST_S, max(BACK_OFF_S, kept_s / 2) * 2.0**doublings)


class EngineRow(Protocol):
    """A job as its engine shows it."""

    @property
    def id(self) -> str:
        """The engine's; it may be used again for another job."""


class JobFinder(Protocol):
    """By what a job is found again after a restart, beside the engine's id: a `msgspec.Struct`."""

    def is_same(self, row: Any) -> bool:
        """Whether the engine still means this job by its id."""


@dataclass(kw_only=True)
class TrackedJob:
    """What does not depend on the engine.

    Attributes:
        job: as policies see it; its id is ours.
        row: as the engine had it last.
        name: what its user calls it.
        note: what of its user's words was not understood.
        wanted: where it is to run next; None if it is to wait.
        bound_s: when the engine was told so; None if it is still to be told.
        ran: whether it has been seen running since it was last bound.
        advised: where it was said that it should run.
        refused: why it could never run here; "" if it could.
        held: why policies may not start it, in words; "" if they may.
        binds_failed: in a row.
        not_before_s: it waits so long after a bind that failed.
        refusing: hosts on which the engine would not start it since it ran last.
        missed: looks at the engine in a row without it.
        missing_s: when the first of them was.
    """

    job: Batch
    row: EngineRow
    name: str = ""
    note: str = ""
    wanted: Placement | None = None
    bound_s: float | None = None
    ran: bool = False
    advised: Placement | None = None
    refused: str = ""
    held: str = ""
    binds_failed: int = 0
    not_before_s: float = 0.0
    refusing: set[int] = field(default_factory=set)
    missed: int = 0
    missing_s: float = 0.0

    @property
    def recovery_key(self) -> JobFinder:
        """By what it is found again."""
        raise NotImplementedError

    @property
    def submit_s(self) -> float:
        """When it was submitted, as the engine says."""
        raise NotImplementedError

    @property
    def failures(self) -> int:
        """How often in a row the engine did not start it."""
        return self.binds_failed

    def is_same(self, row: EngineRow) -> bool:
        """Whether the engine still means this job by its id."""
        return self.recovery_key.is_same(row)

    def why_left_alone(self, now_s: float) -> str:
        """Why it is not tried again yet; "" if it may be."""
        if self.not_before_s <= now_s:
            return ""
        return f"it was bound {self.binds_failed} times without starting, and is tried again later"

    @property
    def why_not(self) -> str:
        """Why it cannot be placed; "" if it can."""
        return self.refused or self.held

    def leave_alone(self, now_s: float, kept_s: float, hosts: Collection[int] = ()) -> float:
        """Its bind to these hosts has failed, which kept GPUs from others for `kept_s`; for how long it is left alone now."""
        self.binds_failed += 1
        pause_s = back_off_s(self.binds_failed, kept_s)
        if not self.refusing.issuperset(hosts):
            pause_s = min(pause_s, ELSEWHERE_S)
        self.refusing.update(hosts)
        self.not_before_s = now_s + pause_s
        return pause_s


def given_back(known: TrackedJob, view: ClusterView, why: str, held: str, now_s: float) -> list[Event]:
    """A job that was bound and has not begun waits again, held for a while; nothing where the view knows it so already."""
    state = view.jobs.get(known.job.id)
    if state is None or state.status != RUNNING:
        return []
    known.held = held
    return [Requeued(now_s, known.job.id, why, False, True), Held(now_s, known.job.id, held)]


# What a driver is given of jobs that had not ended when they were last written down.

RecoveryKey = TypeVar("RecoveryKey", bound=msgspec.Struct)


class RecoveredJob(JobHistory, Generic[RecoveryKey], frozen=True, kw_only=True):
    """One job.

    Attributes:
        uuid: ours.
        engine_id: the engine's.
        recovery_key: by what the engine's driver finds it again.
        running, held: whether it ran, or was held; else it waited.
        since_s: since when it did; `service_gpu_s` is of before, as its history is (`Adopted`).
        settled_s, pace: when its work was as the history says, and how it went on (`JournaledJob`).
        gpus: that it had last.
    """

    uuid: str
    engine_id: str
    recovery_key: RecoveryKey
    running: bool = False
    held: bool = False
    since_s: float = 0.0
    settled_s: float = 0.0
    pace: float = 0.0
    service_gpu_s: float | None = None
    gpus: int = 0

    def history(self, now_s: float, running: bool, began_s: float | None = None) -> dict[str, Any]:
        """As an `Adopted` event tells it; while nobody looked, it is taken to have gone on as it was.

        An adopted job runs or waits; one that was held and is so still is held anew from then on.

        Args:
            began_s: since when it runs, as far as anybody knows.
        """
        since_s = min(self.since_s, now_s)  # the clock by which it was written may have been ahead
        changed = self.held or running != self.running
        turned_s = now_s if began_s is None or not running else min(max(since_s, began_s), now_s)
        spent_s = turned_s - since_s if changed else 0.0
        served_s, queued_s, withheld_s = (
            spent_s * its for its in (self.running, not (self.running or self.held), self.held)
        )
        service = self.service_gpu_s
        return history_of(self) | {
            "done_s": done_by(self, now_s), "served_s": self.served_s + served_s, "queued_s": self.queued_s + queued_s,
            "withheld_s": self.withheld_s + withheld_s, "since_s": turned_s if changed else since_s,
            "service_gpu_s": None if service is None else service + self.gpus * served_s,
        }  # fmt: skip


def adopted(
    job: Batch, placement: Placement | None, memory: RecoveredJob[RecoveryKey] | None, now_s: float, began_s: float | None = None, *,
    rests: bool = False,
) -> Adopted:  # fmt: skip
    """A job that was there before us, with what it had.

    Args:
        placement: where it runs; None: it waits.
        memory: None: nobody has seen it before.
        began_s: since when it runs, as the engine says by a clock of its own; None where it does not.
        rests: whether it has its GPUs and does nothing; for how long, nobody knows.
    """
    if memory is not None:
        event = Adopted(now_s, job, placement, **memory.history(now_s, placement is not None, began_s))
    elif placement is None:
        event = Adopted(now_s, job, None, min(now_s, job.submit_s))
    elif began_s is None:
        event = Adopted(now_s, job, placement, now_s)
    else:
        since_s = min(max(began_s, job.submit_s), now_s)
        event = Adopted(now_s, job, placement, since_s, queued_s=max(0.0, since_s - job.submit_s))
    if placement is None or rests or (memory is not None and memory.running):
        return event  # what it has done is what was written of it, or nothing is known
    done_s = event.done_s + (now_s - event.since_s) * placement.gpus / job.gpus
    return msgspec.structs.replace(event, done_s=done_s)


def entered(
    known: TrackedJob, memory: RecoveredJob[RecoveryKey] | None, now_s: float, began_s: float | None = None, *,
    is_new: bool, held: str = "", rests: bool = False,
) -> list[Event]:  # fmt: skip
    """What is told of a job that was not known, placed or not (`known.wanted`).

    Args:
        memory, began_s, rests: as for `adopted`.
        is_new: nobody can have seen it before.
        held: why policies may not start it; "" if they may.
    """
    job = known.job
    if is_new:
        events: list[Event] = [Arrived(now_s, job)]
    else:
        # policies ask for timers as they start a job: of one that is there already they are told here
        events = [adopted(job, known.wanted, memory, now_s, began_s, rests=rests), Timer(now_s, job.id)]
    if known.wanted is None and held:
        known.held = held
        events.append(Held(now_s, job.id, held))
    return events


def done_by(job: JournaledJob | RecoveredJob[RecoveryKey], now_s: float) -> float:
    """Of a job's work, what is done by then if it has gone on as it did, in seconds at ideal speed."""
    return job.done_s + max(0.0, now_s - job.settled_s) * job.pace


def recovered(
    records: Iterable[JournaledJob], recovery_key: type[RecoveryKey]
) -> list[RecoveredJob[RecoveryKey]]:
    """What the journal has of jobs; those of another engine are left out."""
    found = []
    for record in records:
        try:
            its = msgspec.json.decode(record.memory, type=recovery_key)
        except msgspec.DecodeError:
            continue
        found.append(
            RecoveredJob(
                uuid=record.uuid, engine_id=record.engine_id, recovery_key=its, running=record.status == "running",
                held=record.status == "held", since_s=record.since_s, settled_s=record.settled_s,
                pace=record.pace, service_gpu_s=record.service_gpu_s, gpus=record.placement.gpus if record.placement else 0,
                **history_of(record),
            )
        )  # fmt: skip
    return found
