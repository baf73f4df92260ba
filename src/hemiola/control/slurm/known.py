"""What the driver remembers of a job between two looks at Slurm."""

from __future__ import annotations

from dataclasses import dataclass, field

from hemiola.control.slurm.memory import Clues
from hemiola.control.slurm.rows import JobRow
from hemiola.core.decisions import Placement
from hemiola.core.job import Job

__all__ = ["Known"]

PATIENCE_S = 60.0
"""So long a job may be bound to free nodes without starting, before that is taken for a failure."""


@dataclass
class Known:
    """One job, ours and Slurm's.

    Attributes:
        job: as policies see it; its id is ours.
        row: as Slurm had it last.
        name: what its user calls it.
        note: what of its comment was not understood.
        live: whether nodes may be taken from it as it runs.
        submits: every submission time that it had: a requeue sets a new one.
        wanted: where it is to run next; None if it is to wait.
        bound_s: when Slurm was told so; None if it is still to be told.
        bound_restarts: how often it had been restarted then.
        ran: whether it has been seen running since it was last bound.
        stopped_s: when Slurm was told to stop it; None if it was not, or has.
        suspended: whether it is.
        begin_s: before when its user does not want it to begin, Unix time; 0 for any time.
        advised: where its AdminComment says that it should run.
        user_held: whether its own user holds it.
        refused: why it could never run here; "" if it could.
        held: why policies may not start it, in words; "" if they may.
        binds_failed: in a row.
        not_before_s: it waits so long after a bind that failed.
        missed: looks at Slurm in a row without it.
    """

    job: Job
    row: JobRow
    name: str = ""
    note: str = ""
    live: bool = False
    submits: set[int] = field(default_factory=set)
    wanted: Placement | None = None
    bound_s: float | None = None
    bound_restarts: int = 0
    ran: bool = False
    stopped_s: float | None = None
    suspended: bool = False
    begin_s: float = 0.0
    advised: Placement | None = None
    user_held: bool = False
    refused: str = ""
    held: str = ""
    binds_failed: int = 0
    not_before_s: float = 0.0
    missed: int = 0

    def is_same(self, row: JobRow) -> bool:
        """Whether Slurm still means this job by its id."""
        return self.clues.is_same(row)

    @property
    def clues(self) -> Clues:
        """By what it is found again."""
        return Clues(tuple(sorted(self.submits)), self.row.uid, self.row.restarts)
