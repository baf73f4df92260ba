"""Jobs that a run has not seen before: new ones, and at its beginning those of the time before it."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Sequence

from hemiola.core.events import Event
from hemiola.core.hostlist import expand
from hemiola.core.job import Batch, Profile
from hemiola.live.engines.slurm.client import SlurmInterface
from hemiola.live.engines.slurm.diff import element_of, outcome_of, placement_of, why_held
from hemiola.live.engines.slurm.job_spec import (
    begin_of,
    is_alike,
    is_slurms,
    is_user_held,
    job_of,
    names_nodes,
    nodes_in,
    shrinks_live,
)
from hemiola.live.engines.slurm.snapshot import ENDED, HOLDS, SlurmWatcher
from hemiola.live.engines.slurm.tracked_job import SlurmRecoveryKey, SlurmTrackedJob
from hemiola.live.engines.slurm.wire import RunSpan, SlurmJobRow, Words
from hemiola.live.live_driver import Vanished
from hemiola.live.polling_driver import Clock
from hemiola.live.tracked_job import RecoveredJob, entered
from hemiola.sched.machine import StateMachine

__all__ = ["HOLDS_S", "NAMED", "Admission"]

_log = logging.getLogger("hemiola.slurm")
HOLDS_S = 1.0
"""So often users' own holds are asked after."""
NAMED = "its user names its nodes: it is Slurm's own scheduler's"


class Admission:
    """Makes jobs of Slurm's rows.

    Args:
        machine: whose view they enter; read, never changed.
        clock: the driver's, which may be behind that of Slurm's times.
        acts: whether decisions are carried out.
        recovered: jobs of the time before, by the journal.
        profile: of a model by its name.
        usual_s: how long a job is taken to run that says nothing.

    Attributes:
        unwanted: jobs that are held and not ours, as they want no GPUs or name their nodes: Slurm may have them.
    """

    def __init__(
        self, slurm: SlurmInterface, machine: StateMachine, watcher: SlurmWatcher, clock: Clock, *, acts: bool,
        recovered: Sequence[RecoveredJob[SlurmRecoveryKey]], profile: Callable[[str], Profile], usual_s: float,
    ) -> None:  # fmt: skip
        self._slurm, self._machine, self._watcher, self._acts = slurm, machine, watcher, acts
        self._clock = clock
        self._recovered = {memory.engine_id: memory for memory in recovered}
        self._profile, self._usual_s = profile, usual_s
        self._not_before: dict[tuple[str, int], float] = {}
        self._vanished: list[Vanished] = []
        self._refused: list[tuple[Batch, str]] = []
        self._excluding: set[str] = set()
        self.unwanted: list[str] = []

    def take_refused(self) -> list[tuple[Batch, str]]:
        """Jobs that could never run here, and why; each once."""
        refused, self._refused = self._refused, []
        return refused

    def take_vanished(self) -> list[Vanished]:
        """Jobs of the time before that ended while nobody looked; each once."""
        vanished, self._vanished = self._vanished, []
        return vanished

    def enter(
        self, rows: Sequence[SlurmJobRow], now: float, *, first: bool
    ) -> tuple[list[SlurmTrackedJob], list[Event]]:
        """The jobs of these rows, and what the view is told of them; `first`: with all that is there.

        A job that has nodes comes in once Slurm has said what it has there: a policy that took it to wait would have it
        started anew.
        """
        if self._not_before:
            self._not_before = {key: then for key, then in self._not_before.items() if then > now}
            rows = [row for row in rows if (row.id, row.submit_s) not in self._not_before]
        unclear = {row.id for row in rows if self._is_unclear(row)}
        rows = [row for row in rows if row.id not in unclear]
        words = self._slurm.words([row.id for row in rows]) if rows else {}
        waiting = [row.id for row in rows if row.state == "PENDING"]
        self._excluding = self._slurm.excluding(waiting) if waiting else set()
        running = [row.id for row in rows if row.state in HOLDS and not self._ran(row)]
        spans = self._slurm.spans(running) if running else {}
        taken: Counter[int] = Counter()
        for row in rows:
            if row.state in HOLDS:
                taken.update(self._watcher.parts(row))
        jobs: list[SlurmTrackedJob] = []
        events: list[Event] = []
        for row in sorted(rows, key=_line):
            memory = self._recovered.pop(row.id, None)
            if memory is not None and not memory.recovery_key.is_same(row):
                self._part([memory])
                memory = None
            known = self._known(row, words.get(row.id, Words()), memory, now)
            if known is not None:
                jobs.append(known)
                new = memory is None and row.state == "PENDING" and not first
                began_s = self._by_our_clock(spans.get(row.id, RunSpan(None, None)).began_s)
                events += [] if known.refused else self._told(known, memory, new, now, taken, began_s)
        if self._recovered:
            self._part([memory for name, memory in self._recovered.items() if name not in unclear])
            self._recovered = {name: self._recovered[name] for name in unclear & self._recovered.keys()}
        return jobs, events

    def _ran(self, row: SlurmJobRow) -> bool:
        """Whether it ran when the journal was written last: since when is known."""
        memory = self._recovered.get(row.id)
        return memory is not None and memory.running and memory.recovery_key.is_same(row)

    def _by_our_clock(self, wall_s: int | None) -> float | None:
        return None if wall_s is None else wall_s - self._clock.behind_s()

    def _is_unclear(self, row: SlurmJobRow) -> bool:
        """Whether it has nodes, and nobody knows yet how many of their GPUs."""
        if row.state not in HOLDS or not row.takes_gpus or self._watcher.parts(row):
            return False
        names = expand(row.host_list)
        return not names or not self._watcher.hosts.keys().isdisjoint(names)

    def _known(
        self, row: SlurmJobRow, words: Words, memory: RecoveredJob[SlurmRecoveryKey] | None, now: float
    ) -> SlurmTrackedJob | None:
        """The job; None if it is Slurm's."""
        ours = memory.uuid if memory else str(uuid.uuid4())
        job, note = job_of(row, ours, words, self._watcher.most_gpus, self._usual_s, self._profile)
        left = row.strange or self._elsewhere(row) or self._named(row, words)
        if left or not job.gpus or (memory is None and self._is_slurms(row, words)):
            if memory is not None and left:
                self._vanished.append(Vanished(memory.uuid, left, now))
            self._leave(row, words, now)
            return None
        known = SlurmTrackedJob(
            job,
            row,
            name=words.name,
            note=note,
            comment=words.comment,
            live=shrinks_live(words),
            submits={row.submit_s, *(memory.recovery_key.submits if memory else ())},
        )
        known.named = {nodes_in(row.bound_to)}
        known.user_held = is_user_held(words)
        begin_s = begin_of(words) if row.begins_far(now + self._clock.behind_s()) else None
        known.parked = begin_s is not None
        if begin_s is None:
            begin_s = memory.recovery_key.begin_s if memory else float(row.eligible_s or 0)
        known.begin_s = begin_s
        known.refused = self._machine.admission(job)
        if known.refused:
            _log.warning("job %s can never run here: %s", row.id, known.refused)
            self._refused.append((job, known.refused))
        return known

    def _is_slurms(self, row: SlurmJobRow, words: Words) -> bool:
        excludes = row.id in self._excluding
        return is_slurms(row, words, self._watcher.everywhere, excludes=excludes)

    @staticmethod
    def _named(row: SlurmJobRow, words: Words) -> str:
        """Why a job that waits is Slurm's: its user names its nodes, perhaps since it was known."""
        return NAMED if row.state == "PENDING" and names_nodes(row, words) else ""

    def _elsewhere(self, row: SlurmJobRow) -> str:
        """Why a job that has GPUs is Slurm's: none of them is Hemiola's."""
        has = row.state in HOLDS and row.takes_gpus
        return "" if not has or any(self._watcher.parts(row).values()) else "it runs outside the topology"

    def is_changed(self, known: SlurmTrackedJob, row: SlurmJobRow, words: Words) -> bool:
        """Whether its user has changed what it asks for."""
        job, _ = job_of(row, known.job.id, words, self._watcher.most_gpus, self._usual_s, self._profile)
        return not is_alike(job, known.job)

    def _leave(self, row: SlurmJobRow, words: Words, now: float) -> None:
        """It is Slurm's, once its user does not hold it: what users lift, job_submit.lua holds for Hemiola."""
        is_held = row.state == "PENDING" and row.reason == "JobHeldUser"
        if is_held or (row.state == "PENDING" and is_user_held(words)):
            self._not_before[row.id, row.submit_s] = (
                now + HOLDS_S
            )  # and it is looked at again if it is held still
        if row.state == "PENDING" and is_user_held(words):
            return
        self._watcher.leave(row)
        if is_held:
            self.unwanted.append(row.id)

    def _told(
        self, known: SlurmTrackedJob, memory: RecoveredJob[SlurmRecoveryKey] | None, new: bool, now: float, taken: Counter[int],
        began_s: float | None,
    ) -> list[Event]:  # fmt: skip
        if not new:
            self._place(known, memory, now, taken)
        return entered(
            known, memory, now, began_s, is_new=new, rests=known.row.state == "SUSPENDED",
            held="" if known.wanted else why_held(known, known.row, now, self._clock.behind_s()),
        )  # fmt: skip

    def _part(self, memories: list[RecoveredJob[SlurmRecoveryKey]]) -> None:
        """Jobs of the time before that are no longer there."""
        rows = self._watcher.ends([memory.engine_id for memory in memories])
        ended = [row.id for row in rows.values() if row.state in ENDED]
        spans = self._slurm.spans(ended) if ended else {}
        for memory in memories:
            row, outcome = rows.get(memory.engine_id), "it ended while nobody watched"
            ended_s, ran = None, False
            if row is not None and memory.recovery_key.is_same(row) and row.state in ENDED:
                outcome = outcome_of(row) or "finished"
                ended_s = self._by_our_clock(spans.get(row.id, RunSpan(None, None)).ended_s)
                ran = row.host_list != ""
            self._vanished.append(Vanished(memory.uuid, outcome, ended_s, ran))

    def _place(
        self, known: SlurmTrackedJob, memory: RecoveredJob[SlurmRecoveryKey] | None, now: float, taken: Counter[int]
    ) -> None:  # fmt: skip
        """Note where a job is that was there before us.

        One that is bound has its nodes as if it ran there, unless others have them (`taken`: GPUs by host): a
        controller that was killed may have taken up again what had ended.
        """
        row, job = known.row, known.job
        known.bound_restarts = row.restarts
        if row.state in HOLDS:
            known.wanted, known.ran, known.bound_s = placement_of(self._watcher.parts(row)), True, now
        elif (
            self._acts and row.priority and row.bound_to and memory is not None and row.reason != "BeginTime"
        ):
            index, names = self._watcher.hosts, expand(row.bound_to)
            hosts = [index[name] for name in names if name in index]
            each = job.sizes.step if job.hosts else job.gpus // max(1, len(names))
            if len(hosts) == len(names) and all(
                taken[host] + each <= int(self._machine.view.topology.hosts.gpus[host]) for host in hosts
            ):
                taken.update(dict.fromkeys(hosts, each))
                known.wanted, known.bound_s = placement_of(dict.fromkeys(hosts, each)), now


def _line(row: SlurmJobRow) -> tuple[int, int, int]:
    """Jobs as they stood in line: submission times are whole seconds, ids tell the rest."""
    return row.submit_s, int(row.array), element_of(row)
