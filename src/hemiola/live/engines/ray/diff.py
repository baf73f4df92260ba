"""What has changed between two looks at Ray, as events for the state machine."""

from __future__ import annotations

from collections.abc import Mapping

from hemiola.core.decisions import Placement
from hemiola.core.events import (
    Event,
    Failed,
    Finished,
    Requeued,
    Started,
)
from hemiola.live.engines.ray.kv_store import ALONE, Wrapper, group_name
from hemiola.live.engines.ray.snapshot import RaySnapshot, is_late
from hemiola.live.engines.ray.tracked_job import RayTrackedJob
from hemiola.live.engines.ray.wire import ENDED, GroupRow, RayJobRow
from hemiola.live.polling_driver import Diff
from hemiola.live.tracked_job import PATIENCE_S
from hemiola.sched.job_state import RUNNING, JobState
from hemiola.sched.view import ClusterView

__all__ = ["RayDiff", "outcome_of", "why_held"]


class RayDiff(Diff):
    """The events of one look at Ray.

    Args:
        known: jobs by submission id.

    Attributes:
        ready: jobs whose group stands where it should, and whose wrapper is to be told.
        failed: jobs that were bound and do not start, and why.
    """

    def __init__(
        self, view: ClusterView, look: RaySnapshot, now_s: float, known: Mapping[str, RayTrackedJob]
    ) -> None:
        super().__init__(view, now_s)
        self._look, self._known = look, known
        self.ready: list[RayTrackedJob] = []
        self.failed: list[tuple[RayTrackedJob, str]] = []

    def job(self, known: RayTrackedJob, row: RayJobRow) -> bool:
        """One job; whether it is still there."""
        known.row, known.missed = row, 0
        state = self._view.jobs[known.job.id]
        if row.status in ENDED:
            self._freed.append(self._end(known))
            return False
        wrapper = self._look.wrappers.get(row.id)
        if wrapper is None:
            return True
        if wrapper.token != known.token:
            self._anew(known, wrapper, state)
        elif state.status == RUNNING:
            self._runs(known, wrapper)
        else:
            self._waits(known, wrapper, state)
        return True

    def _end(self, known: RayTrackedJob) -> Event:
        why = outcome_of(known.row)
        uuid = known.job.id
        return Failed(self._now, uuid, why) if why else Finished(self._now, uuid)

    def gone(self, known: RayTrackedJob) -> None:
        """A job that Ray no longer lists."""
        self._freed.append(Failed(self._now, known.job.id, "Ray no longer knows it"))

    def lost(self, known: RayTrackedJob, hosts: set[int]) -> None:
        """Some hosts have gone; the state machine takes their jobs back by itself."""
        if known.wanted is not None and hosts & set(known.wanted.hosts):
            known.unbind()

    def _anew(self, known: RayTrackedJob, wrapper: Wrapper, state: JobState) -> None:
        """Another `hemiola hold` of the same job, which waits for a place of its own."""
        known.token = wrapper.token
        if state.status == RUNNING:
            self.requeued(known, "it waits for another place")

    def _runs(self, known: RayTrackedJob, wrapper: Wrapper) -> None:
        """It is to be somewhere, or is there."""
        if known.wanted is None or not known.group:
            return  # it was told to go, or its group is still to be made
        stands = self._look.placement(known.group)
        at = self._look.groups[known.group].number if known.group in self._look.groups else -1
        if known.bound_s is None:
            self._made(known, stands is not None and stands == _counted(known))
        elif stands is None:
            self.requeued(known, "its placement group is gone, or has lost a node")
        elif wrapper.state == "runs" and wrapper.number == at:
            if not known.ran:
                known.ran, known.binds_failed, known.left_s = True, 0, None
                known.refusing.clear()
                self._started.append(Started(self._now, known.job.id))
        elif wrapper.state == "waits" and known.ran:
            self.requeued(known, "its command has left its place")
        elif not known.ran and self._now - known.bound_s > PATIENCE_S + wrapper.grace_s:
            self.failed.append((known, f"its command did not begin within {PATIENCE_S:g} s"))

    def _made(self, known: RayTrackedJob, stands: bool) -> None:
        if stands:
            self.ready.append(known)
        elif self._awaited(known):
            known.made_s = self._now
        elif self._now - known.made_s > PATIENCE_S:
            self.failed.append((known, f"its placement group did not stand within {PATIENCE_S:g} s"))

    def _awaited(self, known: RayTrackedJob) -> bool:
        """Whether somebody is still leaving its hosts."""
        assert known.wanted is not None
        wanted = {self._look.nodes[host] for host in known.wanted.hosts}
        return any(
            group.state == "CREATED" and wanted & set(group.nodes) and self._is_left(group)
            for group in self._look.groups.values()
        )

    def _is_left(self, group: GroupRow) -> bool:
        if group.number == ALONE:
            known, wrapper = self._known.get(group.job), self._look.wrappers.get(group.job)
            if known is None or wrapper is None or known.left_s is None:
                return False
            return not is_late(known, wrapper, self._now)
        place = self._look.places.get(group.job)
        return place is None or place.group != group.name

    def _waits(self, known: RayTrackedJob, wrapper: Wrapper, state: JobState) -> None:
        name = group_name(known.row.id, wrapper.number)
        placement = self._look.placement(name)
        if wrapper.state == "waits":
            known.left_s = None
        elif placement is not None and known.goes_on(wrapper):
            known.wanted, known.group, known.bound_s, known.ran = placement, name, self._now, True
            self._started.append(Started(self._now, known.job.id, placement))
            return
        known.held = why_held(known, self._look, self._now)
        self._may_start(state, known.held)

    def requeued(self, known: RayTrackedJob, reason: str) -> None:
        """It waits again, though nobody here has stopped it."""
        ran = known.ran
        known.unbind()
        self._freed.append(Requeued(self._now, known.job.id, reason, ran))


def _counted(known: RayTrackedJob) -> Placement:
    """Where it is to run, as far as Ray counts: GPUs have numbers only within a node."""
    assert known.wanted is not None
    counts = [mask.bit_count() for mask in known.wanted.masks]
    return Placement(known.wanted.hosts, tuple((1 << count) - 1 for count in counts))


def outcome_of(row: RayJobRow) -> str:
    """How a job ended, in words; "" for well."""
    if row.status == "SUCCEEDED":
        return ""
    what = "cancelled" if row.status == "STOPPED" else "failed"
    return what + (f", exit code {row.exit_code}" if row.exit_code else "")


def why_held(known: RayTrackedJob, look: RaySnapshot, now_s: float) -> str:
    """Why policies may not start it now; "" if they may. It would end a command that runs where they do not see it."""
    if why := known.why_left_alone(now_s):
        return why
    wrapper = look.wrappers[known.row.id]
    if known.goes_on(wrapper) and not look.is_lost(group_name(known.row.id, wrapper.number)):
        return "it runs outside the topology"
    return known.refused
