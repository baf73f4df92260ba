"""What is remembered of a Ray job from the time before this process."""

from __future__ import annotations

import msgspec

from hemiola.control.ray.rows import JobRow

__all__ = ["Clues", "Remembered"]


class Clues(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By what a job of Ray's is found again, beside its submission id: a deleted job's id may be used again.

    Attributes:
        start_ms: when it was submitted, as Ray says.
        binds_failed: in a row.
    """

    start_ms: int
    binds_failed: int = 0


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """One job that had not ended when it was last written down.

    Attributes:
        uuid: ours.
        engine_id: Ray's submission id.
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

    def is_same(self, row: JobRow) -> bool:
        """Whether Ray still means this job by its id."""
        return (self.engine_id, self.clues.start_ms) == (row.id, row.start_ms)

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
