"""What is remembered of a Slurm job from the time before this process."""

from __future__ import annotations

import msgspec

from hemiola.live.engines.slurm.wire import SlurmJobRow

__all__ = ["SlurmRecoveryKey"]


class SlurmRecoveryKey(msgspec.Struct, frozen=True):
    """By what a job of Slurm's is found again, beside its id.

    Attributes:
        submits: its submission times, Unix seconds.
        uid: of its owner.
        restarts: how often it has been requeued.
        begin_s: before when its user does not want it to begin, Unix time; 0 for any time.
    """

    submits: tuple[int, ...]
    uid: int
    restarts: int
    begin_s: float = 0.0

    def is_same(self, row: SlurmJobRow) -> bool:
        """Whether Slurm still means this job by its id: a controller that was killed may have given it to another one.

        Each restart brings one new submission time, a moment before or after it is counted. A job of the same number
        that was submitted anew has no restart.
        """
        new_time = row.restarts > self.restarts or len(self.submits) <= row.restarts
        return self.uid == row.uid and (row.submit_s in self.submits or new_time)
