"""What one run of the journal tells beside its jobs: hosts that are away, timers, reasons, the last decisions."""

from __future__ import annotations

from collections import deque

import msgspec

from hemiola.control.journal import Instant, JobRecord, Journal
from hemiola.control.live.book import NEVER
from hemiola.core.decisions import Decision, Move, Placement, Resize, Start, Stop, WakeAt
from hemiola.core.events import (
    Adopted,
    Blocked,
    Held,
    NodeBack,
    NodeLost,
    Released,
    Requeued,
    Started,
    Undone,
)

__all__ = ["Following", "Made", "RunSoFar", "Timer"]

RECENT = 50
_CHANGING = Start | Stop | Move | Resize


class Timer(msgspec.Struct, frozen=True):
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
    timers: dict[str, Timer] = {}
    held: dict[str, str] = {}
    put_back: dict[str, str] = {}
    placed: dict[str, tuple[Placement, str | None]] = {}
    recent: deque[Made] = deque(maxlen=RECENT)

    def why_held(self, record: JobRecord) -> str:
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


def _event(run: RunSoFar, event: object) -> None:
    if isinstance(event, Blocked):
        run.blocked[event.host] = event.gpus
    elif isinstance(event, NodeLost):
        run.down.add(event.host)
    elif isinstance(event, NodeBack):
        run.down.discard(event.host)
    elif isinstance(event, Held):
        run.held[event.job_id] = event.reason
    elif isinstance(event, Released):
        run.held.pop(event.job_id, None)
    elif isinstance(event, Requeued):
        run.put_back[event.job_id] = event.reason
        run.timers.pop(event.job_id, None)
    elif isinstance(event, Started) and event.placement is not None:
        run.placed[event.job_id] = event.placement, ""
        run.put_back.pop(event.job_id, None)
    elif isinstance(event, Undone):
        run.timers.pop(event.job_id, None)
        run.put_back.pop(event.job_id, None)
        run.placed.pop(event.job_id, None)
        if event.placement is not None:
            run.placed[event.job_id] = event.placement, ""
    elif isinstance(event, Adopted) and event.placement is not None:
        run.placed[event.job.id] = event.placement, None


def _decision(run: RunSoFar, decision: Decision, refused: str) -> None:
    if isinstance(decision, WakeAt):
        if decision.job_id and not refused:
            run.timers[decision.job_id] = Timer(run.seen_s, decision.time_s, decision.reason)
    elif isinstance(decision, _CHANGING):
        run.recent.append(Made(run.seen_s, decision, refused))
        if not refused:
            run.timers.pop(decision.job_id, None)
            if isinstance(decision, Stop):
                run.put_back[decision.job_id] = f"pre-empted: {decision.reason}"
            else:
                run.placed[decision.job_id] = decision.placement, decision.reason
                run.put_back.pop(decision.job_id, None)
