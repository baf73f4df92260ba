"""What is remembered of a Ray job from the time before this process."""

from __future__ import annotations

import msgspec

from hemiola.live.engines.ray.wire import RayJobRow

__all__ = ["RayRecoveryKey"]


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
