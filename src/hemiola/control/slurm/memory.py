"""What is remembered of a Slurm job from the time before this process."""

from __future__ import annotations

import msgspec

from hemiola.control.slurm.rows import JobRow

__all__ = ["Clues", "Remembered"]


class Clues(msgspec.Struct, frozen=True):
    """By what a job of Slurm's is found again, beside its id.

    Attributes:
        submits: its submission times, Unix seconds.
        uid: of its owner.
        restarts: how often it has been requeued.
    """

    submits: tuple[int, ...]
    uid: int
    restarts: int

    def is_same(self, row: JobRow) -> bool:
        """Whether Slurm still means this job by its id: a controller that was killed may have given it to another one.

        Each restart brings one new submission time, a moment before or after it is counted. A job of the same number
        that was submitted anew has no restart.
        """
        new_time = row.restarts > self.restarts or len(self.submits) <= row.restarts
        return self.uid == row.uid and (row.submit_s in self.submits or new_time)


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """One job that had not ended when it was last written down.

    Attributes:
        uuid: ours.
        engine_id: Slurm's id.
        running: whether it ran.
        since_s: since when it did, or waited.
        done_s, served_s, queued_s, preemptions: what it had had by then (`Adopted`).
    """

    uuid: str
    engine_id: str
    clues: Clues
    running: bool = False
    since_s: float = 0.0
    done_s: float = 0.0
    served_s: float = 0.0
    queued_s: float = 0.0
    preemptions: int = 0

    def history(self, now_s: float, running: bool) -> dict[str, float]:
        """As an `Adopted` event tells it; while nobody looked, it is taken to have gone on as it was."""
        had: dict[str, float] = {
            "done_s": self.done_s, "served_s": self.served_s, "queued_s": self.queued_s, "preemptions": self.preemptions,
        }  # fmt: skip
        if running == self.running:
            return {**had, "since_s": self.since_s}
        spent_s = max(0.0, now_s - self.since_s)
        had["served_s" if self.running else "queued_s"] += spent_s
        return {**had, "since_s": now_s}
