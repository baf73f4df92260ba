"""Keeps the journal's table of jobs in step with the view."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import msgspec

from hemiola.core.decisions import (
    Align,
    Decision,
    Lend,
    Move,
    Pace,
    Reallocate,
    Reclaim,
    Resize,
    Scale,
    Start,
    Stop,
    WakeAt,
)  # fmt: skip
from hemiola.core.events import (
    Adopted,
    Arrived,
    Blocked,
    Event,
    Failed,
    Finished,
    Held,
    LinkFeedback,
    Load,
    Measured,
    NodeBack,
    NodeLost,
    Profiled,
    Released,
    ReplicaLost,
    ReplicaReady,
    Requeued,
    ResourcesOffered,
    ResourcesRequested,
    Started,
    Timer,
    Undone,
    job_of,
)
from hemiola.core.job import Batch, history_of
from hemiola.cost.iteration import IterationModel, speed_at
from hemiola.live.journal import JournaledJob, Status
from hemiola.live.live_driver import LiveDriver, Vanished, is_same_place
from hemiola.live.tracked_job import done_by
from hemiola.sched.job_state import ENDED, HELD, RUNNING, WAITING, JobState
from hemiola.sched.view import ClusterView

__all__ = ["NEVER", "STATUS", "JobStore"]

STATUS: dict[int, Status] = {WAITING: "waiting", RUNNING: "running", ENDED: "ended", HELD: "held"}
NEVER = "it can never run here"
"""So begins the note of a job that is held for good."""


class JobStore:
    """What is to be written of which jobs.

    Args:
        known: what the journal has of jobs that had not ended.
        acts: whether decisions are carried out.
    """

    def __init__(
        self, view: ClusterView, driver: LiveDriver, model: IterationModel, known: Iterable[JournaledJob] = (), *,
        acts: bool = True,
    ) -> None:  # fmt: skip
        self._view, self._driver, self._model, self._acts = view, driver, model, acts
        self._known = {record.uuid: record for record in known}
        self._first_started = {record.uuid: record.first_started_s for record in self._known.values()}
        self._notes = {record.uuid: record.note for record in self._known.values() if record.note}
        self._places = {record.uuid: record.placement for record in self._known.values() if record.placement}
        self._predicted = {
            record.uuid: (record.placement, record.predicted_s, record.predicted_iteration_s)
            for record in self._known.values()
        }
        self._iterations = {record.uuid: record.iteration_s for record in self._known.values()}
        self._speeds = {
            record.uuid: record.speed for record in self._known.values() if record.speed is not None
        }
        self._touched: dict[str, None] = {}
        self._supposed: set[str] = set()
        self._outcomes: dict[str, str] = {}

    def happened(self, events: Iterable[Event]) -> None:
        """These jobs are to be written, once the view knows of it."""
        for event in events:
            if job_id := job_of(event):
                self._touched[job_id] = None
            match event:
                case Adopted() | Started() | Undone():
                    self._see_place(event, job_id)
                case Finished():
                    self._see_start(event)
                    self._see_end(event, "finished")
                case Failed():
                    self._see_end(event, event.reason)
                case NodeLost():
                    self._touched.update(dict.fromkeys(self._on(event.host)))
                case (
                    Arrived() | NodeBack() | Measured() | Timer() | Requeued() | Held() | Released() | Blocked()
                    | ResourcesOffered() | ResourcesRequested() | Profiled() | ReplicaReady() | ReplicaLost() | Load()
                    | LinkFeedback()
                ):  # fmt: skip
                    pass
                case _:
                    assert_never(event)

    def _see_place(self, event: Adopted | Started | Undone, job_id: str) -> None:
        if self._is_theirs(event):
            self._notes.pop(job_id, None)
        if not isinstance(event, Undone):
            self._see_start(event)

    def _see_end(self, event: Finished | Failed, outcome: str) -> None:
        self._measure(event.job_id, event.time_s)
        self._outcomes[event.job_id] = outcome

    def _see_start(self, event: Adopted | Started | Finished) -> None:
        """When a job ran first: what was only decided, the engine may never start."""
        start_s: float | None = event.time_s
        if isinstance(event, Adopted):
            job_id, who = event.job.id, self._driver.identity(event.job.id)
            start_s = event.since_s if event.placement is not None and who is not None and who.runs else None
        else:
            job_id, state = event.job_id, self._view.jobs.get(event.job_id)
            if isinstance(event, Finished):  # it may have run between two looks
                start_s = state.since_s if state is not None and state.status == RUNNING else None
        if self._first_started.get(job_id) is None:
            self._first_started[job_id] = start_s

    def _is_theirs(self, event: Adopted | Started | Undone) -> bool:
        """Whether a job runs where the engine has put it: no decision of ours says why."""
        if event.placement is None:
            return False
        if not isinstance(event, Adopted):
            return True
        before = self._known.get(event.job.id)
        if before is None or before.status != "running":
            return True
        return not is_same_place(before.placement, event.placement)

    def _measure(self, job_id: str, now: float) -> None:
        """Its mean speed so far, if it reports."""
        state, who = self._view.jobs.get(job_id), self._driver.identity(job_id)
        if state is not None and who is not None and who.iteration_s is not None and state.held_s(now) > 0:
            self._speeds[job_id] = state.done_at(now) / state.held_s(now)

    def decided(self, decision: Decision, refused: str) -> None:
        """So is this one; where nothing is carried out, once that is undone: at the next instant."""
        if isinstance(decision, Reallocate):
            for change in decision.changes:
                self.decided(change, refused)
            return
        name = decision.job_id
        if not name or refused:
            return
        state = self._view.jobs.get(name)
        match decision:
            case Start() | Stop() | Move() | Resize():
                if not (self._acts or state is None or state.status == ENDED):
                    self._supposed.add(name)
                self._notes[name] = decision.reason
            case WakeAt():
                if name not in self._view.running:  # of what runs: why there, not why it is looked at again
                    self._notes[name] = decision.reason
            case Reallocate():
                pass  # taken apart before
            case Pace() | Align() | Scale() | Lend() | Reclaim():  # how it runs, not why there
                pass
            case _:
                assert_never(decision)
        if name in self._supposed:
            self._touched.pop(name, None)
        else:
            self._touched[name] = None

    def _on(self, host: int) -> list[str]:
        return [
            job.id for job in self._view.running.values() if job.placement and host in job.placement.hosts
        ]

    def due(self) -> list[JournaledJob]:
        """What is to be written now."""
        touched, self._touched = self._touched, {}
        self._supposed.clear()
        records = [
            self._record(state) for name in touched if (state := self._view.jobs.get(name)) is not None
        ]
        records += [self._refused(job, why) for job, why in self._driver.refused()]
        records += [self._vanished(gone) for gone in self._driver.vanished()]
        return [record for record in records if record is not None]

    def _refused(self, job: Batch, why: str) -> JournaledJob | None:
        """It is held for good, as far as the journal goes, with what it had until now."""
        who = self._driver.identity(job.id)
        if who is None:
            return None
        note = f"{NEVER}: {why}"
        if (before := self._known.get(job.id)) is not None:
            record = msgspec.structs.replace(
                self._so_far(before, self._view.now), job=job, status="held", note=note, memory=who.memory
            )
        else:
            record = JournaledJob(
                uuid=job.id, engine_id=who.engine_id, engine_submit_s=who.submit_s, user=who.user, name=who.name,
                job=job, status="held", since_s=self._view.now, submitted_s=job.submit_s, note=note, memory=who.memory,
            )  # fmt: skip
        self._known[job.id] = record
        return record

    def _vanished(self, gone: Vanished) -> JournaledJob | None:
        """It has ended, as the engine says; else by now, and for how long it ran is not known."""
        record, now = self._known.get(gone.job_id), self._view.now
        if record is None:
            return None
        ended_s = now if gone.ended_s is None else min(max(gone.ended_s, record.since_s), now)
        started_s = record.first_started_s
        if started_s is None and gone.ran and record.status == "running":  # nobody had seen it start
            started_s = record.since_s
        return msgspec.structs.replace(
            self._so_far(record, ended_s), status="ended", ended_s=ended_s, outcome=gone.outcome,
            first_started_s=started_s, unwatched=gone.ended_s is None and record.status == "running",
        )  # fmt: skip

    def _so_far(self, record: JournaledJob, now: float) -> JournaledJob:
        """With the time since it was written, taken to have gone on as it was."""
        spent_s = max(0.0, now - record.since_s)
        ran_s, queued_s, withheld_s = (
            spent_s * (record.status == its) for its in ("running", "waiting", "held")
        )
        service, gpus = record.service_gpu_s, record.placement.gpus if record.placement else 0
        return msgspec.structs.replace(
            record,
            since_s=now,
            done_s=done_by(record, now),
            settled_s=now,
            pace=0.0,
            served_s=record.served_s + ran_s,
            queued_s=record.queued_s + queued_s,
            withheld_s=record.withheld_s + withheld_s,
            service_gpu_s=None if service is None else service + gpus * ran_s,
        )

    def _record(self, state: JobState) -> JournaledJob | None:
        who = self._driver.identity(state.id)
        if who is None:
            return None
        now, ended = self._view.now, state.status == ENDED
        if ended and state.id not in self._outcomes:
            return None  # it was written as it ended; a timer of its was still to come
        if state.placement is not None:
            self._places[state.id] = state.placement
            self._predict(state)
        if not ended:
            self._measure(state.id, now)
        _, predicted_s, predicted_iteration_s = self._predicted.get(state.id, (None, None, None))
        record = JournaledJob(
            uuid=state.id, engine_id=who.engine_id, engine_submit_s=who.submit_s, user=who.user, name=who.name,
            job=state.job.sized(state.asked_gpus), status=STATUS[state.status],
            placement=state.placement or self._places.get(state.id), since_s=state.since_s,
            settled_s=now, pace=state.speed if state.status == RUNNING else 0.0, **history_of(state.history(now)),
            service_gpu_s=state.gpus * state.served_s + state.other_gpu_s if state.elastic else None,
            binds_failed=who.binds_failed, submitted_s=state.submit_s, first_started_s=self._first_started.get(state.id),
            ended_s=state.since_s if ended else None, outcome=self._outcomes[state.id] if ended else "",
            note=self._notes.get(state.id, ""), memory=who.memory, speed=self._speeds.get(state.id),
            predicted_s=predicted_s, predicted_iteration_s=predicted_iteration_s,
            iteration_s=who.iteration_s or self._iterations.get(state.id),
        )  # fmt: skip
        if ended:
            for kept in (
                self._first_started,
                self._notes,
                self._outcomes,
                self._places,
                self._predicted,
                self._speeds,
            ):
                kept.pop(state.id, None)
        return record

    def _predict(self, state: JobState) -> None:
        """What is expected of it where it runs now: once for each place, before it says anything itself."""
        place, job = state.placement, state.job
        if place is None or is_same_place(self._predicted.get(state.id, (None,))[0], place):
            return
        predicted_s = iteration_s = None
        if job.profile is not None:
            iteration_s = self._model.alone_s(job, place, self._view.topology.hosts.gpu_types[place.hosts[0]])
            predicted_s = job.duration_s * iteration_s / self._model.alone(job).best_s
            predicted_s /= speed_at(self._model, job, state.asked_gpus, job.gpus)
        self._predicted[state.id] = place, predicted_s, iteration_s
