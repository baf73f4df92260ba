"""What has changed between two looks at Slurm, as events for the state machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass

from hemiola.core.decisions import Placement
from hemiola.core.events import Failed, Finished, Held, Measured, Requeued, Started
from hemiola.live.engines.slurm.snapshot import ENDED, HOLDS, SlurmWatcher
from hemiola.live.engines.slurm.tracked_job import SlurmTrackedJob
from hemiola.live.engines.slurm.wire import SlurmJobRow
from hemiola.live.polling_driver import Diff
from hemiola.live.tracked_job import PATIENCE_S
from hemiola.sched.job_state import RUNNING, JobState
from hemiola.sched.view import ClusterView

__all__ = [
    "ARRAY",
    "SlurmDiff",
    "StartLimits",
    "element_of",
    "is_limited",
    "outcome_of",
    "patience_s",
    "placement_of",
    "why_held",
]


# Jobs that Slurm does not start though their nodes are free: limits of arrays, of users and accounts, of
# licences.

ARRAY = "JobArrayTaskLimit"
WHY_ARRAY = "of its array no more may run at once"
_OTHERS = ("Licenses", "Assoc", "QOS", "Max", "Account", "Partition", "InvalidQOS", "InvalidAccount")
_AWAY = ("ReqNodeNotAvail", "Nodes required")
"""Slurm also says so for a moment, of nodes on which a job has just ended."""
LACKING, LACKING_S = "Resources", 3.0
AGAIN_S, AGAIN_MOST_S = 5.0, 60.0
RAISED_S = 60.0
"""So often one element more is tried: somebody may have raised the limit."""


@dataclass
class _Array:
    """How many elements may run at once.

    Attributes:
        seen: that did, together.
        most: that are tried until `until_s`.
    """

    seen: int
    most: int
    until_s: float


class StartLimits:
    """What was learnt of limits."""

    def __init__(self) -> None:
        self._arrays: dict[str, _Array] = {}

    def met(self, known: SlurmTrackedJob, jobs: Iterable[SlurmTrackedJob], now: float) -> str:
        """A job that was bound met one; why it waits now, in words."""
        known.limited += 1
        doublings = min(known.limited - 1, 9)  # with more it is the most, too, until floats end
        known.not_before_s = now + min(AGAIN_MOST_S, AGAIN_S * 2.0**doublings)
        if known.row.reason != ARRAY:
            known.limit = f"Slurm says that a limit is reached: {known.row.reason}"
            return known.limit
        array = known.row.array
        running = sum(one.ran for one in jobs if one.row.array == array)
        before = self._arrays[array].seen if array in self._arrays else 0
        seen = max(1, running, before)
        self._arrays[array] = _Array(seen, seen, now + RAISED_S)
        known.limit = WHY_ARRAY
        return known.limit

    def line_up(self, jobs: Collection[SlurmTrackedJob], now: float) -> None:
        """Of arrays that met their limit, let no more elements be bound than could start."""
        if not self._arrays:
            return
        of_arrays = [one for one in jobs if one.row.array in self._arrays]
        running = Counter(one.row.array for one in of_arrays if one.ran)
        waiting = [one for one in of_arrays if not one.ran]
        for one in of_arrays:
            one.behind = one.behind and not one.ran  # its array may be forgotten before it waits again
        for array in self._arrays.keys() - {one.row.array for one in waiting}:
            del self._arrays[array]
        for array, known in self._arrays.items():
            known.seen = max(known.seen, running[array])
            known.most = max(known.most, known.seen)
            if now >= known.until_s:
                known.most, known.until_s = known.most + 1, now + RAISED_S
        for one in sorted(waiting, key=lambda one: _turn(one, now)):
            array = one.row.array
            one.behind = running[array] >= self._arrays[array].most
            running[array] += 1


def _turn(one: SlurmTrackedJob, now: float) -> tuple[bool, bool, int]:
    """Those that are bound first, then those that may be, in their order."""
    return one.bound_s is None, one.not_before_s > now, element_of(one.row)


def is_limited(row: SlurmJobRow) -> bool:
    """Whether Slurm says that it waits for something other than its nodes."""
    return row.reason == ARRAY or row.reason.startswith(_OTHERS)


def patience_s(row: SlurmJobRow) -> float:
    """So long a job may be bound without starting, before that is taken for a failure: it keeps GPUs from others.

    Where Slurm has found that the nodes lack something (processors or memory, which nobody here counts) and nobody is
    about to leave them, it finds so again.
    """
    if not row.priority:
        return 0.0
    return LACKING_S if row.reason.startswith((LACKING, *_AWAY)) else PATIENCE_S


def element_of(row: SlurmJobRow) -> int:
    """Its number in its array; 0 where it is in none."""
    element = row.id.partition("_")[2]
    return int(element) if element.isdigit() else 0


STOPS_WITHIN_S = 60.0
"""So long a job may take to leave after it was stopped, before it is taken to go on."""


class SlurmDiff(Diff):
    """The events of one look at Slurm.

    Args:
        leaving: hosts of which jobs are about to go.
        behind_s: `now_s` is so far behind the wall clock, by which Slurm's own times go.

    Attributes:
        loose: jobs that Slurm would start by itself, though nobody has placed them.
        late: jobs that run where they no longer should: they began before they could be held, or were told in vain.
        began: jobs that Slurm began by itself as they were bound, and why that is not what was decided; they run on.
        failed: jobs that were bound and do not start.
        limited: jobs that were bound, and do not start within some limit of Slurm's.
        parked, unparked: jobs whose dependency is to be left to Slurm, and those for which it is fulfilled.
        moved: parked jobs that are no longer ours.
        bound: jobs that are no longer ours, and wait for the nodes that they were given.
    """

    def __init__(
        self, view: ClusterView, watcher: SlurmWatcher, now_s: float, leaving: Set[int] = frozenset(), behind_s: float = 0.0
    ) -> None:  # fmt: skip
        super().__init__(view, now_s)
        self._watcher, self._leaving, self._behind_s = watcher, leaving, behind_s
        self.loose: list[SlurmTrackedJob] = []
        self.late: list[SlurmTrackedJob] = []
        self.began: list[tuple[SlurmTrackedJob, str]] = []
        self.failed: list[tuple[SlurmTrackedJob, str]] = []
        self.limited: list[SlurmTrackedJob] = []
        self.parked: list[SlurmTrackedJob] = []
        self.unparked: list[SlurmTrackedJob] = []
        self.moved: list[SlurmTrackedJob] = []
        self.bound: list[SlurmTrackedJob] = []

    def job(self, known: SlurmTrackedJob, row: SlurmJobRow) -> bool:
        """One job; whether it is still there."""
        known.row, known.missed = row, 0
        known.submits.add(row.submit_s)
        state = self._view.jobs[known.job.id]
        if row.state in ENDED:
            self._end(known, row)
            return False
        if row.state in HOLDS:
            self._holds(known, row, state)
        elif row.state == "PENDING":
            self._waits(known, row, state)
        return True

    def _holds(self, known: SlurmTrackedJob, row: SlurmJobRow, state: JobState) -> None:
        """It has nodes."""
        uuid = known.job.id
        if row.state == "COMPLETING":
            return  # it is leaving, and keeps its GPUs until it has: to its end, or back into the queue
        if state.status == RUNNING:
            self._confirm(known, row, state)
        elif self._may_be_told(known):
            if known.stopped_s is None or known.stays:
                self._start(known, row)
            else:
                self.late.append(known)
        if (row.state == "SUSPENDED") != known.suspended:
            known.suspended = row.state == "SUSPENDED"
            speed = 0.0 if known.suspended else state.gpus / state.asked_gpus
            self._others.append(Measured(self._now, uuid, speed))

    def _may_be_told(self, known: SlurmTrackedJob) -> bool:
        """Whether nobody has told it to go, or too long ago."""
        return known.stopped_s is None or self._now - known.stopped_s > STOPS_WITHIN_S

    def _confirm(self, known: SlurmTrackedJob, row: SlurmJobRow, state: JobState) -> None:
        if known.ran:
            return
        parts = self._watcher.parts(row)
        hosts = {host for host, gpus in parts.items() if gpus}
        if known.bound_s is None and known.wanted is not None:
            if row.state != "RUNNING":
                return
            there = hosts == set(known.wanted.hosts)
            # it is to move, and has not left yet
            if known.stopped_s is not None or (row.bound_to and not there):
                if self._may_be_told(known):
                    if known.stays:
                        self._start(known, row)
                    else:
                        self.late.append(known)
                return
            self.began.append((known, "" if there else "Slurm began it elsewhere by itself"))
            known.bound_s, known.bound_restarts = self._now, row.restarts
        assert state.placement is not None
        if hosts == set(state.placement.hosts):
            known.ran, known.binds_failed, known.limited = True, 0, 0
            known.refusing.clear()
            self._started.append(Started(self._now, known.job.id, self._dealt(known, state.placement, parts)))
        else:
            self._start(known, row)

    @staticmethod
    def _dealt(known: SlurmTrackedJob, placement: Placement, parts: dict[int, int]) -> Placement | None:
        """As Slurm has divided its GPUs among these hosts; None if so was decided."""
        masks = tuple((1 << parts[host]) - 1 for host in placement.hosts)
        if [mask.bit_count() for mask in masks] == [mask.bit_count() for mask in placement.masks]:
            return None
        known.wanted = Placement(placement.hosts, masks)
        return known.wanted

    def _start(self, known: SlurmTrackedJob, row: SlurmJobRow) -> None:
        """It runs where nobody has placed it."""
        placement = placement_of(self._watcher.parts(row))
        if placement is None:
            return
        known.ran, known.wanted, known.bound_s = True, placement, self._now
        known.stopped_s, known.stays = None, False
        known.bound_restarts = row.restarts
        self._started.append(Started(self._now, known.job.id, placement))

    def give_way(self, jobs: Iterable[SlurmTrackedJob]) -> None:
        """Where jobs have begun otherwise than was decided, those that were to have some of their GPUs wait again."""
        if not any(isinstance(event, Started) and event.placement is not None for event in self._started):
            return
        left = dict(enumerate(self._view.topology.hosts.gpus.tolist()))
        for known in sorted(jobs, key=lambda known: not known.ran):
            if known.wanted is None:
                continue
            masks = zip(known.wanted.hosts, known.wanted.masks, strict=True)
            parts = {host: mask.bit_count() for host, mask in masks}
            if not known.ran and any(left[host] < gpus for host, gpus in parts.items()):
                self.requeued(known, "Slurm has given its GPUs to another job")
                continue
            for host, gpus in parts.items():
                left[host] -= gpus

    def _waits(self, known: SlurmTrackedJob, row: SlurmJobRow, state: JobState) -> None:
        known.stopped_s, known.stays = None, False
        if state.status == RUNNING:
            unseen = (
                known.bound_s is not None and row.restarts > known.bound_restarts
            )  # it ran between two looks
            if known.ran or known.wanted is None or unseen:
                self.requeued(known, f"Slurm put it back: {row.reason}", ran=known.ran or unseen)
            elif row.kept:
                self.requeued(known, row.kept)
            elif known.bound_s is not None and not row.bound_to:
                self.requeued(known, "its user took its nodes off it")
                if row.priority:
                    self.loose.append(known)
            elif known.bound_s is not None and is_limited(row):
                self.limited.append(known)
            elif known.bound_s is not None and self._kept_s(known, row) > patience_s(row):
                self.failed.append((known, f"Slurm does not start it: {row.reason}"))
            return
        # once it is held again, by us or by its user, a parked job still has the begin time that it was given
        known.parked = known.parked and row.begins_far(self._now + self._behind_s)
        is_held = bool(row.kept) or known.user_held
        if row.dependency and not row.priority and not is_held:
            self.parked.append(known)
        elif known.parked and not row.dependency and not is_held:
            self.unparked.append(known)
        elif row.priority and not known.parked:
            self.loose.append(known)
        known.held = why_held(known, row, self._now, self._behind_s)
        self._may_start(state, known.held)

    def _kept_s(self, known: SlurmTrackedJob, row: SlurmJobRow) -> float:
        """For how long it has kept its nodes from others: the jobs that were stopped for it may take their time."""
        assert known.bound_s is not None and known.wanted is not None
        kept_s = self._now - known.bound_s
        if row.reason != LACKING or kept_s > PATIENCE_S:
            return kept_s
        if not self._leaving.isdisjoint(known.wanted.hosts):
            known.free_s = None
            return 0.0
        if known.free_s is None or known.free_s < known.bound_s:
            known.free_s = self._now
        return self._now - known.free_s

    def requeued(self, known: SlurmTrackedJob, reason: str, *, ran: bool = False) -> None:
        """It waits again, though nobody here has stopped it."""
        known.wanted, known.bound_s, known.ran = None, None, False
        self._freed.append(Requeued(self._now, known.job.id, reason, ran))
        if why := why_held(known, known.row, self._now, self._behind_s):
            known.held = why
            self._others.append(Held(self._now, known.job.id, why))

    def gone(self, missing: Iterable[SlurmTrackedJob], found: dict[str, SlurmJobRow]) -> None:
        """Jobs that Slurm no longer lists, and what it still knows of their end."""
        for known in missing:
            self._end(known, found.get(known.row.id))

    def _end(self, known: SlurmTrackedJob, row: SlurmJobRow | None) -> None:
        """It has ended; one that shows nodes has run there, perhaps between two looks."""
        had_nodes = row is not None and known.is_same(row) and row.host_list != ""
        if had_nodes and known.wanted is not None and known.bound_s is not None and not known.ran:
            self._freed.append(Started(self._now, known.job.id))
        self._freed.append(ended_as(known, row, self._now))


def ended_as(known: SlurmTrackedJob, row: SlurmJobRow | None, now_s: float) -> Finished | Failed:
    """How a job ended, as far as Slurm says."""
    uuid = known.job.id
    if row is None or not known.is_same(row):
        return Failed(now_s, uuid, "Slurm no longer knows it")
    elsewhere = "it was taken out of this partition"
    why = known.left or (outcome_of(row) if row.state in ENDED else elsewhere)
    return Failed(now_s, uuid, why) if why else Finished(now_s, uuid)


def outcome_of(row: SlurmJobRow) -> str:
    """How a job ended, in words; "" for well."""
    if row.state in ("COMPLETED", "COMPLETING") and not row.exit_code:
        return ""
    what = "failed" if row.state == "COMPLETING" else row.state.lower().replace("_", " ")
    return what + (f", exit code {row.exit_code >> 8 or row.exit_code}" if row.exit_code else "")


def placement_of(parts: dict[int, int]) -> Placement | None:
    """So many GPUs of these hosts, whichever; None for none."""
    hosts = tuple(sorted(host for host, gpus in parts.items() if gpus))
    return Placement(hosts, tuple((1 << parts[host]) - 1 for host in hosts)) if hosts else None


def why_held(known: SlurmTrackedJob, row: SlurmJobRow, now_s: float, behind_s: float = 0.0) -> str:
    """Why policies may not start it now, which is so far behind the wall clock; "" if they may."""
    if row.kept:
        return row.kept
    if known.user_held:
        return "its user holds it"
    if row.dependency:
        return f"it waits for {row.dependency.replace('(unfulfilled)', '')}"
    if row.eligible_s is not None and row.eligible_s > now_s + behind_s and not row.restarts:
        return "it is to begin later"
    if known.behind:
        return WHY_ARRAY
    if known.not_before_s > now_s and known.limited:
        return known.limit
    return known.why_left_alone(now_s) or known.refused
