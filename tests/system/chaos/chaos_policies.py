"""A policy that resizes jobs more often than any sane one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from zlib import crc32

from hemiola.core.decisions import Decision, Resize, Start, WakeAt
from hemiola.sched.job_state import JobState
from hemiola.sched.placement import TierAware, find
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView

__all__ = ["Restless"]


@dataclass(frozen=True)
class Restless(Policy):
    """Every job begins at some size, and gets others while it runs; of the view's time alone, so that a replay agrees."""

    most: int = 3
    name = "restless"

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        for job in list(view.waiting.values()):
            placement = find(view.inventory, view.at_size(job, _size(view, job)), TierAware())
            if placement is not None:
                yield Start(job.id, placement, "for a while")
        for job in list(view.running.values()):
            if not job.elastic or job.migrations >= self.most or view.now - job.since_s < 0.3:
                continue
            gpus = _size(view, job)
            with view.supposing() as trial:
                trial.without([job])
                placement = find(view.inventory, view.at_size(job, gpus), TierAware())
            if placement is not None and gpus != job.gpus:
                yield Resize(job.id, placement, "for a change")
        if any(job.elastic for job in view.running.values()):
            yield WakeAt(view.now + 0.4, "", "to go on so")


def _size(view: ClusterView, job: JobState) -> int:
    sizes = job.job.sizes
    return sizes[crc32(f"{job.id} {view.now * 2:.0f}".encode()) % len(sizes)]
