"""Ray as a driver of the loop: what happened since the last look, and how decisions are carried out.

A job waits in `hemiola hold`. Hemiola makes a placement group for it, pinned to nodes, sees that it stands, and tells
the wrapper, which runs the command in it. Everything is derived anew from what Ray shows: a request that was lost is
found missing at the next look, and made again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from typing import assert_never

import msgspec

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
from hemiola.core.events import Event
from hemiola.core.job import Batch, Profile
from hemiola.core.topology import Topology
from hemiola.live.engines.ray.client import Ray
from hemiola.live.engines.ray.diff import RayDiff, outcome_of, why_held
from hemiola.live.engines.ray.job_spec import Wish, job_of, take_up, wish_of
from hemiola.live.engines.ray.kv_store import ADVICE, HOLDS, PLACE, JobPlace, group_name
from hemiola.live.engines.ray.release import hand_back
from hemiola.live.engines.ray.snapshot import RayResources, RaySnapshot, RayWatcher, stray_groups, stray_notes
from hemiola.live.engines.ray.tracked_job import RayRecoveryKey, RayTrackedJob
from hemiola.live.engines.ray.wire import ENDED, RayJobRow
from hemiola.live.live_driver import Vanished
from hemiola.live.polling_driver import MISSED, USUAL_S, Clock, PollingDriver
from hemiola.live.tracked_job import RecoveredJob, entered, given_back
from hemiola.sched.machine import StateMachine

__all__ = ["RayDriver"]


_log = logging.getLogger("hemiola.ray")
LOOK_S = 0.15
HOLDS_S = 2.0
"""So often Hemiola says that jobs are to wait for it."""


class RayDriver(PollingDriver[RayTrackedJob]):
    """One Ray cluster.

    Args:
        machine: whose view the decisions are made on; read, never changed.
        acts: whether decisions are carried out; if not, Ray's own scheduler goes on, and is only watched.
        may_act: asked before each order: whether this process still leads.
        turned: called at each turn of the loop.
        recovered: jobs of the time before, by the journal.
        profile: of a model by its name.
        usual_s: how long a job is taken to run that says nothing.
    """

    supports = frozenset({Start, Stop, Move, Resize, Reallocate, WakeAt})

    def __init__(
        self, ray: Ray, machine: StateMachine, *, acts: bool = True, clock: Clock | None = None,
        may_act: Callable[[], bool] = lambda: True, turned: Callable[[], None] = lambda: None,
        recovered: Sequence[RecoveredJob[RayRecoveryKey]] = (), profile: Callable[[str], Profile], usual_s: float = USUAL_S,
    ) -> None:  # fmt: skip
        super().__init__("Ray", LOOK_S, clock, turned)
        self._ray, self._machine, self._view = ray, machine, machine.view
        self._topology = machine.view.topology
        self._watcher = RayWatcher(ray, self._topology, self._is_refused)
        self._acts, self._may_act = acts, may_act
        self._profile, self._usual_s = profile, usual_s
        self._recovered = {memory.engine_id: memory for memory in recovered}
        self._seen: RaySnapshot | None = None
        self._blocked: dict[int, int] = {}
        self._besides = RayResources()
        self._held_s = 0.0

    def _see(self, now: float) -> list[Event]:
        ids = [*self._by_id, *(self._recovered if self._first else ())]
        try:
            look = self._watcher.look(ids, now)
        except EngineError:
            self._ray.close()  # a head that has been restarted is another one to whoever knew the old one
            raise
        return self._compare(look, now)

    def _close(self) -> None:
        self._ray.close()

    def _compare(self, look: RaySnapshot, now: float) -> list[Event]:
        """A look against what is known."""
        self._gone.clear()
        self._seen = look
        changes = RayDiff(self._view, look, now, self._by_id)
        lost = changes.hosts(lambda host: not look.nodes[host], look.blocked, self._blocked)
        self._blocked = look.blocked
        for known in list(self.tracked.values()):
            row = look.jobs.get(known.row.id)
            if row is None or not known.is_same(row):
                self._miss(known, changes, at_once=row is not None)
            elif known.refused:
                known.row = row
                if row.status in ENDED:
                    self._vanished.append(Vanished(known.job.id, outcome_of(row) or "finished"))
                    self._forget(known)
            else:
                changes.lost(known, lost)
                if not changes.job(known, row):
                    self._forget(known)
        arrived = self._enter(look, now)
        if self._acts:
            for known, why in changes.failed:
                self._bind_failed(known, why, look, now)
            self._tidy(look, now)
            self._tell(changes.ready, look)
        return [*changes.with_new(arrived), *self._besides.events(look, self.tracked.values(), now)]

    def _miss(self, known: RayTrackedJob, changes: RayDiff, *, at_once: bool) -> None:
        known.missed += 1
        if known.missed >= MISSED or at_once:
            if known.refused:
                self._vanished.append(Vanished(known.job.id, "it is gone"))
            else:
                changes.gone(known)
            self._forget(known)

    def _forget(self, known: RayTrackedJob) -> None:
        super()._forget(known)
        if known.advised is not None:
            self._ask("delete", ADVICE + known.row.id)

    # ---- new jobs

    def _enter(self, look: RaySnapshot, now: float) -> list[Event]:
        """Jobs whose wrapper waits or runs, and that were not known; at the first look those of the time before."""
        events: list[Event] = []
        for row in sorted(look.jobs.values(), key=lambda row: (row.start_ms, row.id)):
            if row.status not in ENDED and row.id in look.wrappers and row.id not in self._by_id:
                memory = self._recovered.get(row.id)
                if memory is not None and memory.recovery_key.is_same(row):
                    del self._recovered[row.id]
                else:
                    memory = None
                events += self._enter_one(row, memory, look, now)
        if self._first:
            self._part(look)
        return events

    def _part(self, look: RaySnapshot) -> None:
        """Jobs of the time before that are no longer there."""
        for memory in self._recovered.values():
            row, outcome = look.jobs.get(memory.engine_id), "it ended while nobody watched"
            ended_s, ran = None, False
            if row is not None and memory.recovery_key.is_same(row):
                outcome = (
                    (outcome_of(row) or "finished")
                    if row.status in ENDED
                    else "it no longer waits for Hemiola"
                )
                ended_s = row.end_ms / 1000 if row.status in ENDED and row.end_ms else None
                ran = row.exit_code is not None
            self._vanished.append(Vanished(memory.uuid, outcome, ended_s, ran))
        self._recovered = {}

    def _enter_one(
        self, row: RayJobRow, memory: RecoveredJob[RayRecoveryKey] | None, look: RaySnapshot, now: float
    ) -> list[Event]:
        ours = memory.uuid if memory else str(uuid.uuid4())
        job, note = job_of(row, ours, self._usual_s, self._profile)
        wish = wish_of(row.words)
        known = RayTrackedJob(job, row, look.wrappers[row.id].token, cpus=wish.cpus, note=note)
        self._know(known)
        known.refused = self._refusal(wish, job)
        if known.refused:
            self._refuse(known)
            return []
        if memory is not None:
            known.binds_failed = memory.recovery_key.binds_failed
        take_up(known, look, now)
        began_s = look.wrappers[row.id].since_s if known.ran else 0.0
        return entered(
            known, memory, now, began_s or None, held=why_held(known, look, now),
            is_new=memory is None and known.wanted is None and not self._first,
        )  # fmt: skip

    def _refusal(self, wish: Wish, job: Batch) -> str:
        return wish.problem or self._machine.admission(job)

    def _is_refused(self, row: RayJobRow) -> bool:
        known = self._by_id.get(row.id)
        if known is not None and known.is_same(row):
            return bool(known.refused)
        job, _ = job_of(row, "", self._usual_s, self._profile)
        return bool(self._refusal(wish_of(row.words), job))

    def _advise(self, known: RayTrackedJob, placement: Placement, decision: Decision) -> None:
        """Into a note that the job's wrapper prints into its log."""
        names = ",".join(self._topology.hosts.names[host] for host in placement.hosts)
        count = f"{placement.gpus} GPU{'s' * (placement.gpus != 1)}"
        self._ask("put", ADVICE + known.row.id, f"{count} of {names} ({decision.reason})")

    def hand_back(self) -> None:
        """Let every job that waits be placed by Ray."""
        try:
            jobs = hand_back(self._ray)
        except EngineError as problem:
            _log.error("jobs could not be handed back: %s; try: hemiola release --engine ray", problem.what)
            return
        _log.warning("handed back to Ray: %d", len(jobs))

    # ---- decisions

    def _lines(self, known: RayTrackedJob, decision: Decision) -> list[str]:
        number = known.number + 1  # telling it to wait takes one, too
        waits = shown_place(known, msgspec.structs.replace(no_place(known), number=number))
        match decision:
            case Start(_, placement):
                return [self._shown_group(known, placement, number)]
            case Stop():
                return [waits]
            case Move(_, placement) | Resize(_, placement):
                return [waits, self._shown_group(known, placement, number + 1)]
            case Pace() | Align() | Scale() | Lend() | Reclaim() | Reallocate() | WakeAt():
                return []
            case _:
                assert_never(decision)

    def _shown_group(self, known: RayTrackedJob, placement: Placement, number: int) -> str:
        nodes = self._seen.nodes if self._seen is not None else []
        return shown_group(known, placement, group_name(known.row.id, number), nodes)

    def _carry_out(self, decided: Sequence[Decision]) -> None:
        """Tell wrappers to leave, and make groups for what is to run."""
        now = self._clock.now_s()
        for decision in decided:
            known = self.tracked.get(decision.job_id)
            if known is None:
                continue
            match decision:
                case Start(_, placement):
                    known.wanted = placement
                case Stop():
                    known.unbind()
                case Move(_, placement) | Resize(_, placement):
                    known.unbind(placement)
                case (
                    Pace() | Align() | Scale() | Lend() | Reclaim() | Reallocate() | WakeAt()
                ):  # refused or taken apart before, or no order  # fmt: skip
                    pass
                case _:
                    assert_never(decision)
        if not self._acts or self.away:
            return
        self._hold(now)
        for known in list(self.tracked.values()):
            if known.untold and self._note(known, no_place(known)):
                known.untold, known.left_s = False, now
                if known.wanted is None:
                    self._answers.append((known.job.id, True, ""))
            if known.wanted is not None and not known.group:
                self._make(known, now)

    def _hold(self, now: float) -> None:
        """Say that jobs are to wait for their places."""
        if now - self._held_s > HOLDS_S and self._ask("put", HOLDS, f"{now:.0f}") is not None:
            self._held_s = now

    def _make(self, known: RayTrackedJob, now: float) -> None:
        """A group for it. It counts once it is seen to stand."""
        assert known.wanted is not None and self._seen is not None
        nodes = nodes_of(known.wanted, self._seen.nodes)
        if not all(nodes) or not self._may_act():
            return  # a node is gone: the next look says so
        name = known.next_group()
        if self._ask("make", name, bundles_of(known, known.wanted.gpus), nodes) is not None:
            known.group, known.made_s = name, now
            self._look_soon(LOOK_S / 3)

    def _tell(self, ready: list[RayTrackedJob], look: RaySnapshot) -> None:
        """Their groups stand: their wrappers are to begin."""
        for known in ready:
            if self._note(known, place_of(known, look.groups[known.group].id, self._topology)):
                known.bound_s = self._clock.now_s()
                self._answers.append((known.job.id, True, ""))

    def _note(self, known: RayTrackedJob, place: JobPlace) -> bool:
        return self._ask("put", PLACE + known.row.id, msgspec.json.encode(place).decode()) is not None

    def _bind_failed(self, known: RayTrackedJob, why: str, look: RaySnapshot, now: float) -> None:
        """It goes back to the queue, and is left alone for a while."""
        hosts = known.wanted.hosts if known.wanted is not None else ()
        pause_s = known.leave_alone(now, now - known.made_s, hosts)
        _log.warning("job %s: %s; it is left alone for %.0f s", known.row.id, why, pause_s)
        known.unbind()
        self._answers.append((known.job.id, False, why))
        self._soon += given_back(known, self._view, why, why_held(known, look, now), now)

    def _tidy(self, look: RaySnapshot, now: float) -> None:
        """Take away groups that are nobody's, and notes for jobs that have ended."""
        for name in stray_groups(look, self._by_id, now):
            self._ask("remove", name)
        for key in stray_notes(look):
            self._ask("delete", key)

    def _ask(self, request: str, *arguments: object) -> msgspec.Raw | None:
        """What Ray answers; None where it could not be asked."""
        if not self._may_act():
            return None
        try:
            return self._ray.ask(request, *arguments)
        except EngineError as problem:
            _log.warning("Ray was asked in vain: %s", problem.what)
            return None


# What Ray is asked for.


def bundles_of(known: RayTrackedJob, gpus: int) -> list[dict[str, int]]:
    """One for each rank."""
    return [{"CPU": known.cpus, "GPU": 1} if known.cpus else {"GPU": 1}] * gpus


def nodes_of(placement: Placement, ids: list[str]) -> list[str]:
    """The node of each rank; `ids` are those of hosts."""
    return [ids[host] for host, _ in placement.ranks()]


def no_place(known: RayTrackedJob) -> JobPlace:
    """What its wrapper is told that is to wait."""
    return JobPlace(token=known.token, number=known.number)


def place_of(known: RayTrackedJob, group_id: str, topology: Topology) -> JobPlace:
    """What its wrapper is told that is to run."""
    assert known.wanted is not None
    names = tuple(topology.hosts.names[host] for host, _ in known.wanted.ranks())
    return JobPlace(token=known.token, number=known.number, group=known.group, group_id=group_id, nodes=names)


def shown_group(known: RayTrackedJob, placement: Placement, name: str, ids: list[str]) -> str:
    """The request that makes a group, in Python."""
    (bundle, *_), gpus = bundles_of(known, 1), placement.gpus
    selectors = " + ".join(
        f"[{{'ray.io/node-id': '{ids[host]}'}}] * {mask.bit_count()}"
        for host, mask in zip(placement.hosts, placement.masks, strict=True)
    )
    return (
        f"placement_group([{bundle}] * {gpus}, strategy='PACK', name='{name}', lifetime='detached', "
        f"bundle_label_selector={selectors})"
    )


def shown_place(known: RayTrackedJob, place: JobPlace) -> str:
    """The note to its wrapper, in Python."""
    value = msgspec.json.encode(place).decode()
    return f"internal_kv_put('{PLACE}{known.row.id}', '{value}', namespace='hemiola')"
