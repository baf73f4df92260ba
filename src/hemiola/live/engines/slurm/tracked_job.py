"""What the driver remembers of a job between two looks at Slurm."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from hemiola.core.job import Batch
from hemiola.core.resources import ResourceRequest
from hemiola.live.engines.slurm.job_spec import nodes_in
from hemiola.live.engines.slurm.wire import SlurmJobRow
from hemiola.live.tracked_job import TrackedJob

__all__ = ["UNHEARD", "SlurmRecoveryKey", "SlurmTrackedJob"]


# What is remembered of a Slurm job from the time before this process.


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


UNHEARD = float("-inf")
"""When a job was told to stop that could not be told: it is told again at once."""


@dataclass
class SlurmTrackedJob(TrackedJob):
    """One job, ours and Slurm's.

    Attributes:
        job: as policies see it; its id is ours.
        row: as Slurm had it last.
        name: what its user calls it.
        live: whether nodes may be taken from it as it runs.
        submits: every submission time that it had: a requeue sets a new one.
        bound_restarts: how often it had been restarted when it was bound.
        stopped_s: when Slurm was told to stop it, or `UNHEARD`; None if it was not, or has.
        stays: whether Slurm has refused to stop it.
        suspended: whether it is.
        begin_s: before when its user does not want it to begin, Unix time; 0 for any time.
        parked: whether it has another begin time, for Slurm to look after its dependency.
        user_held: whether its own user holds it.
        free_s: since when nobody is leaving the nodes that it was bound to, as far as was seen; None while somebody is.
        limited: how often in a row it met a limit of Slurm's after it was bound.
        limit: which one, in words.
        behind: whether others of its array come first.
        left: why it was left to Slurm; "" if it was not.
        asked: as Slurm had it when its wishes were read; None: as it has it in `row`.
        comment: its user's, then.
        named: the nodes to which Hemiola has bound it, of all tries since one was seen to succeed; others are its user's.
        claim: what it takes of its nodes beside GPUs, as the state machine was told; None: it was told nothing.
    """

    job: Batch
    row: SlurmJobRow
    name: str = ""
    live: bool = False
    submits: set[int] = field(default_factory=set)
    bound_restarts: int = 0
    stopped_s: float | None = None
    stays: bool = False
    suspended: bool = False
    begin_s: float = 0.0
    parked: bool = False
    user_held: bool = False
    free_s: float | None = None
    limited: int = 0
    limit: str = ""
    behind: bool = False
    left: str = ""
    asked: SlurmJobRow | None = None
    comment: str = ""
    named: set[frozenset[str]] = field(default_factory=set)
    claim: ResourceRequest | None = None

    def __post_init__(self) -> None:
        self.asked = self.asked or self.row

    @property
    def hosts(self) -> tuple[int, int]:
        """The fewest and the most nodes that an elastic job was submitted for."""
        sizes = self.job.sizes
        return sizes[0] // sizes.step, sizes[-1] // sizes.step

    def is_named_by_user(self, row: SlurmJobRow) -> bool:
        """Whether its user has named the nodes on which it is to run."""
        return row.state == "PENDING" and bool(row.bound_to) and nodes_in(row.bound_to) not in self.named

    @property
    def recovery_key(self) -> SlurmRecoveryKey:
        """By what it is found again."""
        return SlurmRecoveryKey(tuple(sorted(self.submits)), self.row.uid, self.row.restarts, self.begin_s)

    @property
    def submit_s(self) -> float:
        """When it was submitted last, as Slurm says."""
        return float(self.row.submit_s)

    @property
    def failures(self) -> int:
        """How often in a row Slurm did not start it, or met a limit."""
        return self.binds_failed + self.limited
