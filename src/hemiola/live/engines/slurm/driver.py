"""Slurm as a driver of the loop: what happened since the last look, and how decisions are carried out.

Hemiola binds a held job to nodes and releases it; Slurm starts it there and nowhere else. Everything is derived
anew from what Slurm shows: a request that was lost is found missing at the next look, and made again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from typing import assert_never

from hemiola.core.decisions import (
    Align,
    Decision,
    Lend,
    Move,
    Pace,
    Placement,
    Reallocate,
    Reclaim,
    Resize,
    Scale,
    Start,
    Stop,
    WakeAt,
)  # fmt: skip
from hemiola.core.errors import EngineError, InternalError
from hemiola.core.events import Event
from hemiola.core.job import Profile
from hemiola.live.engines.slurm import requests
from hemiola.live.engines.slurm.admission import HOLDS_S, NAMED, Admission
from hemiola.live.engines.slurm.client import SlurmInterface
from hemiola.live.engines.slurm.diff import SlurmDiff, StartLimits, outcome_of
from hemiola.live.engines.slurm.executor import Binder
from hemiola.live.engines.slurm.job_spec import asks_otherwise, is_user_held, unnamed, wants_features
from hemiola.live.engines.slurm.release import HandingBack
from hemiola.live.engines.slurm.snapshot import ENDED, HOLDS, SlurmResources, SlurmSnapshot, SlurmWatcher
from hemiola.live.engines.slurm.tracked_job import SlurmRecoveryKey, SlurmTrackedJob
from hemiola.live.engines.slurm.wire import SlurmJobRow
from hemiola.live.live_driver import Vanished
from hemiola.live.polling_driver import MISSED, USUAL_S, Clock, PollingDriver, Wake
from hemiola.live.tracked_job import RecoveredJob
from hemiola.sched.machine import StateMachine

__all__ = ["SlurmDriver"]

_log = logging.getLogger("hemiola.slurm")
LOOK_S = 0.08
COMMENTS_S = 30.0
"""So often the comments of jobs that wait are read again."""
FEATURES = "its user wants nodes with features that not all have: it is Slurm's own scheduler's"
CHANGED = "its user changed what it asks for: it is taken for a new job"
LOST_S = 2.0
"""A job of which Slurm says nothing for so long, not even how it ended, is lost."""


class SlurmDriver(PollingDriver[SlurmTrackedJob]):
    """One partition of a Slurm.

    Args:
        machine: whose view the decisions are made on; read, never changed.
        partition: the one that Hemiola manages.
        may_act: asked before each order: whether this process still leads.
        turned: called at each turn of the loop.
        wake: what job_submit.lua writes when a job comes.
        acts: whether decisions are carried out; if not, Slurm's own scheduler goes on, and is only watched.
        recovered: jobs of the time before, by the journal.
        profile: of a model by its name.
        usual_s: how long a job is taken to run that says nothing.
    """

    supports = frozenset({Start, Stop, Move, Resize, Reallocate, WakeAt})

    def __init__(
        self, slurm: SlurmInterface, machine: StateMachine, partition: str, *, acts: bool = True, clock: Clock | None = None, may_act: Callable[[], bool] = lambda: True,
        turned: Callable[[], None] = lambda: None, wake: Wake | None = None,
        recovered: Sequence[RecoveredJob[SlurmRecoveryKey]] = (), profile: Callable[[str], Profile], usual_s: float = USUAL_S,
    ) -> None:  # fmt: skip
        super().__init__("Slurm", LOOK_S, clock, turned, wake)
        self._slurm, self._view = slurm, machine.view
        self._partition = partition
        self._topology = machine.view.topology
        self._watcher = SlurmWatcher(slurm, self._topology, partition)
        self._acts = acts
        self._admission = Admission(
            slurm, machine, self._watcher, self._clock, acts=acts, recovered=recovered, profile=profile,
            usual_s=usual_s,
        )  # fmt: skip
        self._limits = StartLimits()
        self._binder = Binder(
            slurm,
            machine.view,
            self.tracked,
            self._clock,
            may_act,
            self.add,
            self._answers,
            self._watcher.leave,
            self._limits,
        )
        self._blocked: dict[int, int] = {}
        self._besides = SlurmResources(self._watcher.hosts)
        self._words_s = 0.0
        self._comments_s = self._clock.now_s()
        self._handing_back: HandingBack | None = None

    def _see(self, now: float) -> list[Event]:
        look = self._watcher.look(now)
        if self._handing_back is not None:
            self._handing_back.seen(look.jobs.values(), now)
        changed = self._changed(look, now)
        try:
            return self._compare(look, changed, now)
        except EngineError as problem:  # what was compared already would be forgotten
            raise InternalError(f"Slurm went away in the middle of a look: {problem.what}") from problem

    def _carry_out(self, decided: Sequence[Decision]) -> None:
        if self._binder.carry_out(decided):
            self._look_soon(LOOK_S)

    def _compare(self, look: SlurmSnapshot, changed: Set[str], now: float) -> list[Event]:
        """A look against what is known; `changed`: jobs that are to be read anew."""
        self._gone.clear()
        self._see_holds(now)
        self._limits.line_up(self.tracked.values(), now)
        changes = SlurmDiff(self._view, self._watcher, now, self._leaving(look), self._clock.behind_s())
        new: list[SlurmJobRow] = []
        for row in look.jobs.values():
            known = self._by_id.get(row.id)
            why = self._why_slurms(known, row) if known is not None and known.is_same(row) else ""
            if known is not None and (why or row.id in changed or not known.is_same(row)):
                known.left = known.left or why or (CHANGED if row.id in changed else "")
                if why and row.state == "PENDING":
                    self._let_go(known, row, changes)
                self._depart(known, {row.id: row} if known.is_same(row) else {}, changes)
                known = None
            if known is None:
                new.append(row)
            elif known.refused:
                known.row, known.missed = row, 0
            elif not changes.job(known, row):
                self._forget(known)
        self._missing(look, changes, now)
        changes.give_way(self.tracked.values())
        jobs, arrived = self._admission.enter(new, now, first=self._first)
        for known in jobs:
            self._know(known)
        inside = {name for name, known in self._by_id.items() if name in look.jobs and not known.refused}
        blocked = self._watcher.blocked(look, inside)
        changes.hosts(look.down.__contains__, blocked, self._blocked)
        self._blocked = blocked
        if self._acts:
            self._binder.put_right(changes, self._admission.unwanted)
        self._admission.unwanted.clear()
        self._refused += self._admission.take_refused()
        self._vanished += self._admission.take_vanished()
        return [*changes.with_new(arrived), *self._besides.events(look, self.tracked.values(), now)]

    def _why_slurms(self, known: SlurmTrackedJob, row: SlurmJobRow) -> str:
        """Why a job that was Hemiola's is Slurm's by what it is now, in words; "" if it is not."""
        if row.strange or known.is_named_by_user(row):
            return row.strange or NAMED
        asks_anew = row.state == "PENDING" and row.features != known.row.features
        return FEATURES if asks_anew and wants_features(row, self._watcher.everywhere) else ""

    def _let_go(self, known: SlurmTrackedJob, row: SlurmJobRow, changes: SlurmDiff) -> None:
        """Nothing that Hemiola has set is to stay with a job that waits: begin time, nodes, priority."""
        if known.parked and row.begins_far(self._clock.now_s() + self._clock.behind_s()):
            changes.moved.append(known)
        known.row = unnamed(row) if known.is_named_by_user(row) else row
        changes.bound.append(known)

    def _changed(self, look: SlurmSnapshot, now: float) -> set[str]:
        """Jobs that wait, and of which their users have changed what they ask for."""
        looks_at_all = now - self._comments_s > COMMENTS_S
        if looks_at_all:
            self._comments_s = now
        wall_s = now + self._clock.behind_s()
        waiting = [
            (known, row)
            for row in look.jobs.values()
            if row.state == "PENDING" and not row.is_parked(wall_s)
            and (known := self._by_id.get(row.id)) is not None and known.wanted is None and known.is_same(row)
            and (looks_at_all or self._asks_otherwise(known, row))
        ]  # fmt: skip
        words = self._slurm.words([row.id for _, row in waiting]) if waiting else {}
        changed = set()
        for known, row in waiting:
            said = words.get(row.id)
            if said is None or (said.comment == known.comment and not self._asks_otherwise(known, row)):
                continue
            known.asked, known.comment = row, said.comment
            if self._admission.is_changed(known, row, said):
                changed.add(row.id)
        return changed

    @staticmethod
    def _asks_otherwise(known: SlurmTrackedJob, row: SlurmJobRow) -> bool:
        assert known.asked is not None
        tried = known.binds_failed > 0
        return row != known.row and asks_otherwise(known.asked, row, known.job, tried=tried)

    def _leaving(self, look: SlurmSnapshot) -> set[int]:
        """Hosts of jobs that are ending, or were told to."""
        told = {known.row.id for known in self.tracked.values() if known.stopped_s is not None}
        rows = [
            row for row in look.rows if row.state == "COMPLETING" or (row.id in told and row.state in HOLDS)
        ]
        return {host for row in rows for host in self._watcher.parts(row)}

    def _see_holds(self, now: float) -> None:
        """Whether users have lifted their own holds."""
        held = {known.row.id: known for known in self.tracked.values() if known.user_held}
        if held and now - self._words_s > HOLDS_S:
            self._words_s = now
            for job_id, words in self._slurm.words(list(held)).items():
                if job_id in held:
                    held[job_id].user_held = is_user_held(words)

    def _missing(self, look: SlurmSnapshot, changes: SlurmDiff, now: float) -> None:
        """Jobs that are no longer listed: they have ended, or are lost; then Slurm has some time to find them again."""
        missing = [known for known in self.tracked.values() if known.row.id not in look.jobs]
        rows = self._watcher.ends([known.row.id for known in missing])
        left: list[str] = []
        for known in missing:
            known.missed += 1
            known.missing_s = now if known.missed == 1 else known.missing_s
            row = rows.get(known.row.id)
            if row is not None and not known.is_same(row):
                row = None
            if known.missed < MISSED and not (row is not None and row.state in ENDED):
                continue
            if row is None and now - known.missing_s < LOST_S:
                continue
            if row is not None and row.state == "PENDING":
                self._let_go(known, row, changes)
                if not row.priority and not row.kept:
                    left.append(row.id)
            self._depart(known, rows, changes)
        words = self._slurm.words(left) if left else {}
        self._admission.unwanted += [job_id for job_id, said in words.items() if not is_user_held(said)]

    def _depart(self, known: SlurmTrackedJob, rows: dict[str, SlurmJobRow], changes: SlurmDiff) -> None:
        """It is no longer there."""
        if known.refused:
            row = rows.get(known.row.id)
            outcome = known.left or (outcome_of(row) if row else "")
            self._vanished.append(Vanished(known.job.id, outcome or "it is gone"))
        else:
            changes.gone([known], rows)
        self._forget(known)

    def _advise(self, known: SlurmTrackedJob, placement: Placement, decision: Decision) -> None:
        """Into the job's AdminComment."""
        self._binder.tell([requests.advise(known, placement, self._topology)])

    def hand_back(self) -> None:
        """Release what is held, and name no nodes; so, too, what is about to come back held."""
        self._handing_back = HandingBack(self._slurm, self._partition)
        self._handing_back.do()

    # ---- decisions

    def _lines(self, known: SlurmTrackedJob, decision: Decision) -> list[str]:
        return [f"scontrol {order}" for order in self._orders(known, decision)]

    def _orders(self, known: SlurmTrackedJob, decision: Decision) -> list[str]:
        again, ids = requests.put_back(known.row.id), [known.row.id]
        match decision:
            case Start(_, placement):
                return [
                    requests.bind(known, placement, self._topology),
                    requests.release(ids),
                    requests.go_first(ids),
                ]
            case Stop():
                return [again]
            case Resize(_, placement) if self._binder.shrinks(known, placement):
                return [requests.shrink(known, placement, self._topology)]
            case Move(job_id, placement) | Resize(job_id, placement):
                return [again, *self._orders(known, Start(job_id, placement, decision.reason))]
            case Pace() | Align() | Scale() | Lend() | Reclaim() | Reallocate() | WakeAt():
                return []
            case _:
                assert_never(decision)
