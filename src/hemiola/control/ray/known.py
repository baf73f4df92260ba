"""What the driver remembers of a job between two looks at Ray."""

from __future__ import annotations

from dataclasses import dataclass

from hemiola.control.ray.board import group_name
from hemiola.control.ray.memory import Clues
from hemiola.control.ray.rows import JobRow
from hemiola.core.decisions import Placement
from hemiola.core.job import Job

__all__ = ["PATIENCE_S", "Known"]

PATIENCE_S = 60.0
"""So long a placement group may take to stand on free GPUs, or a command to begin, before that is taken for a failure."""


@dataclass
class Known:
    """One job, ours and Ray's.

    Attributes:
        job: as it was submitted; its id is ours.
        row: as Ray had it last.
        token: of its wrapper.
        cpus: that it wants beside each GPU.
        note: what of its metadata was not understood.
        number: of its last placement group.
        wanted: where it is to run next; None if it is to wait.
        group: the name of the group that was made for that, or in which Ray has put it; "" if it is still to be made.
        made_s: when, or when there was last somebody to wait for.
        bound_s: when its wrapper was told of it; None if that is still to be done.
        ran: whether its command has been seen running there.
        untold: whether its wrapper is still to be told that it has no place.
        left_s: when it was told so last; None if it has left.
        advised: where it was said that it should run.
        refused: why it could never run here; "" if it could.
        held: why policies may not start it, in words; "" if they may.
        binds_failed: in a row.
        not_before_s: it waits so long after a bind that failed.
        missed: looks at Ray in a row without it.
    """

    job: Job
    row: JobRow
    token: str
    cpus: int = 1
    note: str = ""
    number: int = 0
    wanted: Placement | None = None
    group: str = ""
    made_s: float = 0.0
    bound_s: float | None = None
    ran: bool = False
    untold: bool = False
    left_s: float | None = None
    advised: Placement | None = None
    refused: str = ""
    held: str = ""
    binds_failed: int = 0
    not_before_s: float = 0.0
    missed: int = 0

    def is_same(self, row: JobRow) -> bool:
        """Whether Ray still means this job by its id."""
        return self.row.start_ms == row.start_ms

    @property
    def clues(self) -> Clues:
        """By what it is found again."""
        return Clues(self.row.start_ms, self.binds_failed)

    def next_group(self) -> str:
        """A name that no group of the job has had."""
        self.number += 1
        return group_name(self.row.id, self.number)

    def unbind(self, wanted: Placement | None = None) -> None:
        """It has no place any more, and its wrapper is to be told."""
        self.number += 1
        self.wanted, self.group, self.bound_s, self.ran, self.untold = wanted, "", None, False, True
