"""How accepted decisions are carried out: jobs are stopped, bound to nodes and released; what fails goes back and waits."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
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
from hemiola.core.errors import EngineError
from hemiola.core.events import Event, Held, Requeued
from hemiola.core.hostlist import expand
from hemiola.live.engines.slurm import requests
from hemiola.live.engines.slurm.client import SlurmInterface
from hemiola.live.engines.slurm.diff import SlurmDiff, StartLimits
from hemiola.live.engines.slurm.job_spec import is_user_held, nodes_in
from hemiola.live.engines.slurm.tracked_job import UNHEARD, SlurmTrackedJob
from hemiola.live.engines.slurm.wire import SlurmJobRow, Words
from hemiola.live.polling_driver import Clock
from hemiola.live.tracked_job import given_back
from hemiola.sched.view import ClusterView

__all__ = ["Binder"]

_log = logging.getLogger("hemiola.slurm")


class Binder:
    """Gives Slurm its orders.

    Args:
        known: jobs by our id, kept by the driver.
        may_act: asked before each order: whether this process still leads.
        add: told what the view has to know.
        answers: what became of decisions: the job, whether it was carried out, Slurm's words.
        leave: told of jobs that are Slurm's.
        limits: told of those that meet one.
    """

    def __init__(
        self, slurm: SlurmInterface, view: ClusterView, known: dict[str, SlurmTrackedJob], clock: Clock, may_act: Callable[[], bool],
        add: Callable[[Sequence[Event]], None], answers: list[tuple[str, bool, str]],
        leave: Callable[[SlurmJobRow], None], limits: StartLimits,
    ) -> None:  # fmt: skip
        self._slurm, self._view, self._known = slurm, view, known
        self._clock, self._may_act, self._add, self._answers = clock, may_act, add, answers
        self._leave, self._limits = leave, limits

    def carry_out(self, decided: Sequence[Decision]) -> bool:
        """Stop what is to be stopped, and bind what is to run and can be; whether anything was bound."""
        stopping: list[SlurmTrackedJob] = []
        told: list[str] = []
        now = self._clock.now_s()
        for decision in decided:
            known = self._known.get(decision.job_id)
            if known is None:
                continue
            match decision:
                case Resize(_, placement) if self._shrink(known, placement):
                    continue
                case Start(_, placement):
                    known.wanted = placement
                case Stop():
                    stopping.append(known)
                    told += self._stopping(known, now)
                    known.wanted = None
                case Move(_, placement) | Resize(_, placement):
                    stopping.append(known)
                    told += self._stopping(known, now)
                    known.wanted = placement
                case (
                    Pace() | Align() | Scale() | Lend() | Reclaim() | Reallocate() | WakeAt()
                ):  # refused or taken apart before, or no order  # fmt: skip
                    continue
                case _:
                    assert_never(decision)
            known.bound_s, known.ran = None, False
        complaints = self.tell(told)
        for known in stopping:
            if why := _why_not(known, complaints):
                known.stopped_s = UNHEARD
            if known.wanted is None:
                self._answers.append((known.job.id, not why, why))
        return self._bind(
            [k for k in self._known.values() if k.wanted and k.bound_s is None and k.row.state == "PENDING"]
        )

    def put_right(self, changes: SlurmDiff, unwanted: Sequence[str]) -> None:
        """After a look: what Slurm would do by itself, and what it did not do.

        Args:
            unwanted: held jobs that are not ours.
        """
        now = self._clock.now_s()
        self._tell_again(changes.late, now)
        self._answers += [(known.job.id, not why, why) for known, why in changes.began]
        if changes.loose:
            self.tell([requests.hold([known.row.id for known in changes.loose])])
        self._park(changes)
        self.tell([order for known in changes.bound for order in requests.give_back(known.row, known.hosts)])
        if unwanted:
            self.tell([requests.release(unwanted)])
        for known, why in changes.failed:
            self._failed(known, why, now)
        for known in changes.limited:
            self._limited(known, now)

    def shrinks(self, known: SlurmTrackedJob, placement: Placement) -> bool:
        """Whether nodes can be taken from a job as it runs; Slurm ends a batch job that loses its first one."""
        hosts, row = set(placement.hosts), known.row
        return (
            known.live and known.ran and row.state == "RUNNING" and known.wanted is not None
            and hosts < set(known.wanted.hosts) and expand(row.host_list)[0] in self._names(placement)
        )  # fmt: skip

    def _shrink(self, known: SlurmTrackedJob, placement: Placement) -> bool:
        """Take nodes from a job as it runs; False if it has to begin again on the others."""
        if (
            not self.shrinks(known, placement)
            or self.tell([requests.shrink(known, placement, self._view.topology)]) != ""
        ):
            return False
        known.wanted = placement
        self._answers.append((known.job.id, True, ""))
        return True

    def _names(self, placement: Placement) -> set[str]:
        return {self._view.topology.hosts.names[host] for host in placement.hosts}

    def _tell_again(self, late: Sequence[SlurmTrackedJob], now: float) -> None:
        """To leave: Slurm has not heard it, or has done nothing of it. What it refuses again is taken to run on."""
        complaints = self.tell([requests.put_back(known.row.id) for known in late])
        for known in late:
            known.stopped_s = UNHEARD if complaints is None else now
            if (why := _why_not(known, complaints)) and complaints is not None:
                known.stays = True
                self._answers.append((known.job.id, False, why))

    def _stopping(self, known: SlurmTrackedJob, now: float) -> list[str]:
        if known.ran:
            known.stopped_s = now
            return [requests.put_back(known.row.id)]
        return [requests.hold([known.row.id])] if known.bound_s is not None else []

    def _bind(self, waiting: list[SlurmTrackedJob]) -> bool:
        """Name the nodes, look whether they were taken down, and release those for which they were."""
        for known in waiting:
            if known.wanted:
                known.named.add(frozenset(self._names(known.wanted)))
        complaints = self.tell(
            [requests.bind(known, known.wanted, self._view.topology) for known in waiting if known.wanted]
        )
        if not waiting or complaints is None:
            return False
        try:
            found = self._slurm.jobs_and_words([known.row.id for known in waiting])
        except EngineError as problem:
            _log.warning("bound jobs could not be looked at, and are bound again: %s", problem.what)
            return False
        for known in waiting:
            row, words = found.get(known.row.id, (known.row, Words()))
            known.user_held = is_user_held(words)
            why = row.kept or ("its user holds it" if known.user_held else "")
            if why:  # somebody has come to hold it meanwhile
                self._take_back(known, why)
        rows = {job_id: row for job_id, (row, _) in found.items()}
        self._release([known for known in waiting if known.wanted is not None], rows, complaints)
        return True

    def _release(self, waiting: list[SlurmTrackedJob], rows: dict[str, SlurmJobRow], complaints: str) -> None:
        now, good = self._clock.now_s(), []
        for known in waiting:
            row = rows.get(known.row.id)
            if row is None or not known.is_same(row) or row.state != "PENDING":
                continue  # the next look tells
            known.row = row
            if self._is_bound(known, row):
                known.named = {nodes_in(row.bound_to)}
                good.append(known)
            else:
                said = said_of(complaints, row.id) or "it says nothing"
                self._failed(known, f"Slurm does not take these nodes: {said}", now)
        ids = [known.row.id for known in good]
        if good and self.tell([requests.release(ids), requests.go_first(ids)]) is not None:
            for known in good:
                known.bound_s, known.bound_restarts = now, known.row.restarts
                self._answers.append((known.job.id, True, ""))

    def _is_bound(self, known: SlurmTrackedJob, row: SlurmJobRow) -> bool:
        assert known.wanted is not None
        return set(expand(row.bound_to)) == self._names(known.wanted)

    def _failed(self, known: SlurmTrackedJob, why: str, now: float) -> None:
        """It goes back to the queue, and is left alone for a while; to Slurm, if it does not take the nodes that policies choose."""
        if self._excludes(known.row.id):
            self._give_away(known, "it names nodes that it must not have: it is Slurm's own scheduler's")
            return
        hosts = known.wanted.hosts if known.wanted is not None else ()
        pause_s = known.leave_alone(now, 0.0 if known.bound_s is None else now - known.bound_s, hosts)
        _log.warning("job %s: %s; it is left alone for %.0f s", known.row.id, why, pause_s)
        if known.bound_s is not None:
            self.tell([requests.hold([known.row.id])])
        known.wanted, known.bound_s, known.ran = None, None, False
        self._answers.append((known.job.id, False, why))
        self._add(given_back(known, self._view, why, why, now))

    def _excludes(self, job_id: str) -> bool:
        try:
            return bool(self._slurm.excluding([job_id]))
        except EngineError:
            return False  # asked after its next failure

    def _give_away(self, known: SlurmTrackedJob, why: str) -> None:
        """Slurm has it from now on; the looks to come do not show it any more."""
        _log.warning("job %s: %s", known.row.id, why)
        known.left = why
        self._leave(known.row)
        self.tell([requests.unbind(known.row, known.hosts), requests.release([known.row.id])])
        self._take_back(known, why)

    def _park(self, changes: SlurmDiff) -> None:
        """Dependencies are Slurm's to look after, and it does not for held jobs; what their users hold stays held."""
        wall_s = self._clock.now_s() + self._clock.behind_s()  # as begin times are
        told: list[str] = []
        for known in self._not_users(changes.parked):
            if not known.row.begins_far(wall_s):
                known.begin_s = float(known.row.eligible_s or 0)
            known.parked = True
            told += requests.park(known)
        for known in changes.unparked:
            told += requests.unpark(known.row.id, known.begin_s - wall_s)
        told += [requests.begin(known.row.id, known.begin_s - wall_s) for known in changes.moved]
        self.tell(told)

    def _not_users(self, held: Sequence[SlurmTrackedJob]) -> list[SlurmTrackedJob]:
        """Those of these jobs that their users do not hold, as job_submit.lua says; none if Slurm cannot be asked."""
        try:
            words = self._slurm.words([known.row.id for known in held]) if held else {}
        except EngineError as problem:
            _log.warning("jobs that wait for others are left to Slurm later: %s", problem.what)
            return []
        for known in held:
            known.user_held = known.row.id in words and is_user_held(words[known.row.id])
        return [known for known in held if known.row.id in words and not known.user_held]

    def _limited(self, known: SlurmTrackedJob, now: float) -> None:
        """It waits without holding GPUs, and is tried again."""
        why = self._limits.met(known, self._known.values(), now)
        self.tell([requests.hold([known.row.id])])
        self._take_back(known, why)

    def _take_back(self, known: SlurmTrackedJob, why: str) -> None:
        """It waits again, held, and nobody is to blame."""
        now = self._clock.now_s()
        known.wanted, known.bound_s, known.ran = None, None, False
        known.held = why
        self._answers.append((known.job.id, False, why))
        self._add([Requeued(now, known.job.id, why, False), Held(now, known.job.id, why)])

    def tell(self, told: list[str]) -> str | None:
        """What Slurm complained of; None where it could not be told."""
        if not self._may_act():
            return None
        try:
            return self._slurm.tell(told)
        except EngineError as problem:
            _log.warning("Slurm could not be told: %s", problem.what)
            return None


def _why_not(known: SlurmTrackedJob, complaints: str | None) -> str:
    """Why Slurm does not stop a job, as it was told to; "" if it does."""
    why = "it gives no answer" if complaints is None else said_of(complaints, known.row.id)
    if why:
        _log.warning("Slurm does not stop job %s: %s", known.row.id, why)
    return why


def said_of(complaints: str, job_id: str) -> str:
    """What of them is about a job, the first line; "" for nothing."""
    about = re.compile(rf"\b{job_id}\b")
    return next((line.strip() for line in complaints.splitlines() if about.search(line)), "")
