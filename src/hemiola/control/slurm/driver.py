"""Slurm as a driver of the loop: what happened since the last look, and how decisions are carried out.

Hemiola binds a held job to nodes and releases it; Slurm starts it there and nowhere else. Everything is derived
anew from what Slurm shows: a request that was lost is found missing at the next look, and made again.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Iterator, Sequence

import msgspec

from hemiola.control.clock import Clock
from hemiola.control.live.engine import Identity, LiveDriver
from hemiola.control.slurm import orders
from hemiola.control.slurm.binding import Binder
from hemiola.control.slurm.changes import Changes, outcome_of
from hemiola.control.slurm.client import Slurm
from hemiola.control.slurm.entering import Entrance
from hemiola.control.slurm.handback import hand_back
from hemiola.control.slurm.jobs import is_user_held, words_of
from hemiola.control.slurm.known import Known
from hemiola.control.slurm.looks import ENDED, Look, Watcher
from hemiola.control.slurm.memory import Remembered
from hemiola.control.slurm.rows import JobRow
from hemiola.core.decisions import Decision, Move, Start, Stop, WakeAt
from hemiola.core.errors import EngineError, InternalError
from hemiola.core.events import Event, Timer
from hemiola.core.job import Job, Profile
from hemiola.sched.machine import StateMachine

__all__ = ["SlurmDriver"]

_log = logging.getLogger("hemiola.slurm")
LOOK_S, LOOK_SHARE = 0.1, 5.0
"""Looks are so far apart, and so many times as far as one takes: Slurm has other things to do."""
AWAY_S, AWAY_MOST_S = 1.0, 15.0
MISSED = 2
"""A job of which Slurm shows nothing so many looks in a row, not even its end, is gone."""
USUAL_S = 86400.0
HOLDS_S = 1.0


class SlurmDriver(LiveDriver):
    """One partition of a Slurm.

    Args:
        machine: whose view the decisions are made on; read, never changed.
        partition: the one that Hemiola manages.
        may_act: asked before each order: whether this process still leads.
        turned: called at each turn of the loop.
        acts: whether decisions are carried out; if not, Slurm's own scheduler goes on, and is only watched.
        remembered: jobs of the time before, by the journal.
        profile: of a model by its name.
        usual_s: how long a job is taken to run that says nothing.

    Attributes:
        known: jobs, by our id.
        away: why Slurm cannot be asked at the moment; "" if it can.
    """

    def __init__(
        self, slurm: Slurm, machine: StateMachine, partition: str, *, acts: bool = True, clock: Clock | None = None, may_act: Callable[[], bool] = lambda: True,
        turned: Callable[[], None] = lambda: None,
        remembered: Sequence[Remembered] = (), profile: Callable[[str], Profile], usual_s: float = USUAL_S,
    ) -> None:  # fmt: skip
        self._slurm, self._view = slurm, machine.view
        self._partition = partition
        self._topology = machine.view.topology
        self._watcher = Watcher(slurm, self._topology, partition)
        self._acts, self._clock, self._turned = acts, clock or Clock(), turned
        self.known: dict[str, Known] = {}
        self._by_id: dict[str, Known] = {}
        self._entrance = Entrance(
            slurm, machine, self._watcher, acts=acts, remembered=remembered, profile=profile, usual_s=usual_s
        )
        self._binder = Binder(slurm, machine.view, self.known, self._clock, may_act)
        self.away = ""
        self._away_s = 0.0
        self._blocked: dict[int, int] = {}
        self._words_s = 0.0
        self._decided: list[Decision] = []
        self._timers: list[tuple[float, str]] = []
        self._soon: list[Event] = []
        self._gone: dict[str, Known] = {}
        self._next_look_s = 0.0
        self._first = True
        self._stop = threading.Event()

    def stop(self) -> None:
        """End the events after the present instant; any thread may ask for it."""
        self._stop.set()

    def add(self, events: Sequence[Event]) -> None:
        """With what the next turn brings."""
        self._soon += events

    # ---- events

    def events(self) -> Iterator[list[Event]]:
        """One list per instant at which something happened; the first has all that is there."""
        while not self._stop.is_set():
            self._turned()
            decided, self._decided = self._decided, []
            if self._binder.carry_out(decided):
                self._next_look_s = min(self._next_look_s, self._clock.now_s() + LOOK_S)
            events = self._wait()
            told = self._entrance.refused or self._entrance.vanished
            if events or told or (self._first and not self.away):
                self._first = self._first and bool(self.away)
                yield events or [Timer(self._clock.now_s(), "")]

    def _wait(self) -> list[Event]:
        """Until the next look or timer is due, and then what it brings."""
        due_s = min(self._next_look_s, self._timers[0][0] if self._timers else float("inf"))
        self._soon, self._binder.events = self._soon + self._binder.events, []
        if not self._soon and self._stop.wait(max(0.0, due_s - self._clock.now_s())):
            return []
        events, self._soon = self._soon, []
        now = self._clock.now_s()
        if now >= self._next_look_s:
            events += self._look()
        while self._timers and self._timers[0][0] <= now:
            events.append(Timer(now, heapq.heappop(self._timers)[1]))
        return events

    def _look(self) -> list[Event]:
        began_s = self._clock.now_s()
        try:
            look = self._watcher.look(began_s)
        except EngineError as problem:
            self._away_s = min(AWAY_MOST_S, max(AWAY_S, 2 * self._away_s))
            self._next_look_s = self._clock.now_s() + self._away_s
            if self.away != problem.what:
                _log.warning("Slurm cannot be asked: %s", problem.what)
            self.away = problem.what
            return []
        try:
            events = self._compare(look, began_s)
        except EngineError as problem:  # what was compared already would be forgotten
            raise InternalError(f"Slurm went away in the middle of a look: {problem.what}") from problem
        if self.away:
            _log.warning("Slurm answers again")
        self.away, self._away_s = "", 0.0
        took_s = self._clock.now_s() - began_s
        self._next_look_s = began_s + max(LOOK_S, LOOK_SHARE * took_s)
        return events

    def _compare(self, look: Look, now: float) -> list[Event]:
        """A look against what is known."""
        self._gone.clear()
        self._see_holds(now)
        changes = Changes(self._view, self._watcher, now)
        new: list[JobRow] = []
        changes.nodes(look, self._blocked)
        for row in look.jobs.values():
            known = self._by_id.get(row.id)
            if known is not None and not known.is_same(row):
                self._depart(known, {}, changes)
                known = None
            if known is None:
                new.append(row)
            elif known.refused:
                known.row, known.missed = row, 0
            elif not changes.job(known, row):
                self._forget(known)
        self._missing(look, changes)
        jobs, arrived = self._entrance.enter(new, now, first=self._first)
        for known in jobs:
            self.known[known.job.id] = self._by_id[known.row.id] = known
        self._blocked = look.blocked
        if self._acts:
            self._binder.put_right(changes, self._entrance.unwanted)
        self._entrance.unwanted.clear()
        return changes.with_new(arrived)

    def _see_holds(self, now: float) -> None:
        """Whether users have lifted their own holds."""
        held = {known.row.id: known for known in self.known.values() if known.user_held}
        if held and now - self._words_s > HOLDS_S:
            self._words_s = now
            for job_id, words in words_of(self._slurm, list(held)).items():
                if job_id in held:
                    held[job_id].user_held = is_user_held(words)

    def _missing(self, look: Look, changes: Changes) -> None:
        """Jobs that are no longer listed: they have ended, or are lost."""
        missing = [known for known in self.known.values() if known.row.id not in look.jobs]
        rows = self._watcher.ends([known.row.id for known in missing])
        for known in missing:
            known.missed += 1
            row = rows.get(known.row.id)
            there = row is not None and known.is_same(row)
            if known.missed < MISSED and not (there and row is not None and row.state in ENDED):
                continue
            if (
                there
                and row is not None
                and row.state == "PENDING"
                and not row.priority
                and not known.user_held
            ):
                self._entrance.unwanted.append(row.id)
            self._depart(known, rows, changes)

    def _depart(self, known: Known, rows: dict[str, JobRow], changes: Changes) -> None:
        """It is no longer there."""
        if known.refused:
            row = rows.get(known.row.id)
            self._entrance.vanished.append((known.job.id, (outcome_of(row) if row else "") or "it is gone"))
        else:
            changes.gone([known], rows)
        self._forget(known)

    def _forget(self, known: Known) -> None:
        self._gone[known.job.id] = self.known.pop(known.job.id)
        self._by_id.pop(known.row.id, None)

    def identity(self, job_id: str) -> Identity | None:
        """Of a job by our id; also of one that ended at the present instant."""
        known = self.known.get(job_id) or self._gone.get(job_id)
        if known is None:
            return None
        return Identity(
            engine_id=known.row.id, submit_s=float(known.row.submit_s), user=known.job.user, name=known.name,
            memory=msgspec.json.encode(known.clues).decode(), note=known.refused or known.held or known.note,
            binds_failed=known.binds_failed,
        )  # fmt: skip

    def refused(self) -> list[tuple[Job, str]]:
        """Jobs that could never run here, and why."""
        refused, self._entrance.refused = self._entrance.refused, []
        return refused

    def vanished(self) -> list[tuple[str, str]]:
        """Jobs that ended while nobody looked, and how."""
        vanished, self._entrance.vanished = self._entrance.vanished, []
        return vanished

    def answers(self) -> list[tuple[str, bool, str]]:
        """What became of decisions."""
        answers, self._binder.answers = self._binder.answers, []
        return answers

    def advise(self, decision: Decision) -> None:
        """Into the job's AdminComment; each advice once."""
        known = self.known.get(getattr(decision, "job_id", ""))
        if known is not None and isinstance(decision, Start | Move) and known.advised != decision.placement:
            known.advised = decision.placement
            self._binder.tell([orders.advise(known, decision.placement, self._topology)])

    def hand_back(self) -> None:
        """Release what is held, and name no nodes."""
        try:
            released, held = hand_back(self._slurm, self._partition)
        except EngineError as problem:
            _log.error("held jobs could not be handed back: %s; try: hemiola release", problem.what)
            return
        _log.warning("%d jobs were handed back to Slurm, %d are still held", len(released), len(held))

    # ---- decisions

    def execute(self, decision: Decision) -> None:
        """Take note of an accepted decision; it is carried out before the next instant."""
        if isinstance(decision, WakeAt):
            heapq.heappush(self._timers, (decision.time_s, decision.job_id))
        else:
            self._decided.append(decision)

    def render(self, decision: Decision) -> str:
        """The orders that Slurm would be given, one per line."""
        known = self.known.get(getattr(decision, "job_id", ""))
        if known is None or isinstance(decision, WakeAt):
            return ""
        if isinstance(decision, Stop):
            return f"scontrol {orders.put_back(known.row.id)}"
        if isinstance(decision, Start | Move):
            lines = [orders.bind(known, decision.placement, self._topology), orders.release([known.row.id])]
            if isinstance(decision, Move):
                lines.insert(0, orders.put_back(known.row.id))
            return "\n".join(f"scontrol {line}" for line in lines)
        return f"(Slurm has no request for {type(decision).__name__})"
