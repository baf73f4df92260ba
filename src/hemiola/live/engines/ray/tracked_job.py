"""What the driver remembers of a job between two looks at Ray."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from hemiola.core.decisions import Placement
from hemiola.core.job import Batch
from hemiola.live.engines.ray.kv_store import ALONE, Wrapper, group_name
from hemiola.live.engines.ray.wire import RayJobRow
from hemiola.live.tracked_job import TrackedJob

__all__ = ["RayRecoveryKey", "RayTrackedJob"]


# What is remembered of a Ray job from the time before this process.


class RayRecoveryKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By what a job of Ray's is found again, beside its submission id: a deleted job's id may be used again.

    Attributes:
        start_ms: when it was submitted, as Ray says.
        binds_failed: in a row.
    """

    start_ms: int
    binds_failed: int = 0

    def is_same(self, row: RayJobRow) -> bool:
        """Whether Ray still means this job by its id."""
        return self.start_ms == row.start_ms


@dataclass
class RayTrackedJob(TrackedJob):
    """One job, ours and Ray's.

    Attributes:
        job: as it was submitted; its id is ours.
        row: as Ray had it last.
        token: of its wrapper.
        cpus: that it wants beside each GPU.
        number: of its last placement group.
        group: the name of the group that was made for what is `wanted`, or in which Ray has put it; "" if it is still to be made.
        made_s: when, or when there was last somebody to wait for.
        untold: whether its wrapper is still to be told that it has no place.
        left_s: when it was told so last; None if it has left.
    """

    job: Batch
    row: RayJobRow
    token: str
    cpus: int = 1
    number: int = 0
    group: str = ""
    made_s: float = 0.0
    untold: bool = False
    left_s: float | None = None

    @property
    def recovery_key(self) -> RayRecoveryKey:
        """By what it is found again."""
        return RayRecoveryKey(self.row.start_ms, self.binds_failed)

    @property
    def submit_s(self) -> float:
        """When it was submitted, as Ray says."""
        return self.row.start_ms / 1000

    def goes_on(self, wrapper: Wrapper) -> bool:
        """Whether its command runs, and is not to leave; a place that Ray gave it is its own until it was told."""
        leaves = self.left_s is not None or (self.untold and wrapper.number != ALONE)
        return wrapper.state == "runs" and not leaves

    def next_group(self) -> str:
        """A name that no group of the job has had."""
        self.number += 1
        return group_name(self.row.id, self.number)

    def unbind(self, wanted: Placement | None = None) -> None:
        """It has no place any more, and its wrapper is to be told."""
        self.number += 1
        self.wanted, self.group, self.bound_s, self.ran, self.untold = wanted, "", None, False, True
