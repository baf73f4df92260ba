"""What one run of the journal tells beside its jobs: hosts that are away, timers, reasons, the last decisions."""

from __future__ import annotations

from collections import deque
from typing import assert_never

import msgspec

from hemiola.live.journal import Instant, JournaledJob, Journal
from hemiola.live.job_store import NEVER
from hemiola.core.decisions import Decision, Move, Pace, Placement, Resize, Start, Stop, WakeAt, asks_engine
from hemiola.core.events import (
    Adopted,
    Arrived,
    Blocked,
    ResourcesRequested,
    Event,
    Failed,
    Finished,
    ResourcesOffered,
    Held,
    Measured,
    NodeBack,
    NodeLost,
    Profiled,
    Released,
    Requeued,
    Started,
    Undone,
)
from hemiola.core.events import PendingTimer as TimerEvent

__all__ = ["Following", "Made", "RunSoFar", "PendingTimer"]

RECENT = 50


class PendingTimer(msgspec.Struct, frozen=True):
    """A policy looks at a waiting job again, and why not before.

    Attributes:
        made_s, due_s: Unix time.
    """

    made_s: float
    due_s: float
    reason: str


class Made(msgspec.Struct, frozen=True):
    """A decision about a job, timers left out.

    Attributes:
        refused: why it was not carried out; "" if it was.
    """

    time_s: float
    decision: Decision
    refused: str


class RunSoFar(msgspec.Struct):
    """A run up to its last instant.

    Attributes:
        seen_s: time of its last instant; 0 before the first.
        instants: how many it has.
        blocked: by host, GPUs that are not ours to give.
        down: hosts that are away.
        timers: by job, the last that is about its present wait.
        held: by job, why it may not start.
        put_back: by job that went back to the queue, why; until it starts again.
        placed: by job, where it was last, with the reason: "" where the engine chose, None where it ran before this run.
        recent: the last decisions, oldest first.
    """

    seen_s: float = 0.0
    instants: int = 0
    blocked: dict[int, int] = {}
    down: set[int] = set()
    timers: dict[str, PendingTimer] = {}
    held: dict[str, str] = {}
    put_back: dict[str, str] = {}
    placed: dict[str, tuple[Placement, str | None]] = {}
    recent: deque[Made] = deque(maxlen=RECENT)

    def why_held(self, record: JournaledJob) -> str:
        """Why a job may not start; its note may be why it ran before."""
        never = record.note if record.note.startswith(NEVER) else ""
        return self.held.get(record.uuid) or never or "it is held"


class Following:
    """A run of the journal as it goes on: each reading takes up where the one before has ended."""

    def __init__(self) -> None:
        self._run, self._last, self._is_decided = -1, -1, True
        self._told = RunSoFar()

    def read(self, journal: Journal, run: int) -> RunSoFar:
        """The run up to its last instant; the same object each time while the run is the same.

        Raises:
            JournalError: the journal cannot be read.
        """
        if run != self._run:
            self._run, self._last, self._is_decided = run, -1, True
            self._told = RunSoFar(recent=deque(maxlen=RECENT))
        for instant in journal.instants(run, since=self._last):
            if instant.instant > self._last:
                self._happened(instant)
            elif self._is_decided:
                continue
            for decision, refused in instant.decisions or ():
                _decision(self._told, decision, refused)
            self._last, self._is_decided = instant.instant, instant.decisions is not None
        return self._told

    def _happened(self, instant: Instant) -> None:
        told = self._told
        told.instants += 1
        told.seen_s = max(told.seen_s, instant.events[0].time_s)
        for event in instant.events:
            _event(told, event)


def _event(run: RunSoFar, event: Event) -> None:
    match event:
        case Blocked():
            run.blocked[event.host] = event.gpus
        case NodeLost():
            run.down.add(event.host)
        case NodeBack():
            run.down.discard(event.host)
        case Held():
            run.held[event.job_id] = event.reason
        case Released():
            run.held.pop(event.job_id, None)
        case Requeued():
            run.put_back[event.job_id] = event.reason
            run.timers.pop(event.job_id, None)
        case Started():
            if event.placement is not None:
                run.placed[event.job_id] = event.placement, ""
                run.put_back.pop(event.job_id, None)
        case Undone():
            _undone(run, event)
        case Adopted():
            if event.placement is not None:
                run.placed[event.job.id] = event.placement, None
        case (
            Arrived() | Finished() | Failed() | Measured() | TimerEvent() | ResourcesOffered() | ResourcesRequested() | Profiled()
        ):  # fmt: skip
            pass
        case _:
            assert_never(event)


def _undone(run: RunSoFar, event: Undone) -> None:
    run.timers.pop(event.job_id, None)
    run.put_back.pop(event.job_id, None)
    run.placed.pop(event.job_id, None)
    if event.placement is not None:
        run.placed[event.job_id] = event.placement, ""


def _decision(run: RunSoFar, decision: Decision, refused: str) -> None:
    if asks_engine(decision):
        run.recent.append(Made(run.seen_s, decision, refused))
    if refused:
        return
    job = decision.job_id
    match decision:
        case WakeAt():
            if job:
                run.timers[job] = PendingTimer(run.seen_s, decision.time_s, decision.reason)
        case Stop():
            run.timers.pop(job, None)
            run.put_back[job] = f"pre-empted: {decision.reason}"
        case Start() | Move() | Resize():
            run.timers.pop(job, None)
            run.placed[job] = decision.placement, decision.reason
            run.put_back.pop(job, None)
        case Pace():
            pass
        case _:
            assert_never(decision)
