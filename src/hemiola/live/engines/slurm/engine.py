"""What the driver needs of a Slurm, whichever way it is spoken to: by its commands (`client`) or over REST (`rest`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hemiola.live.engines.slurm.wire import SlurmJobRow, SlurmNodeRow, SlurmRules, RunSpan, Words

__all__ = ["SlurmInterface"]


class SlurmInterface(Protocol):
    """A Slurm. Each question may raise EngineError: it is away, or its answer is not whole; then nothing of it is used."""

    def jobs(self, *, ids: Sequence[str] = (), partition: str = "", states: str = "") -> list[SlurmJobRow]:
        """Jobs as Slurm has them, each element of an array for itself.

        Args:
            ids: of these only; those that Slurm does not know any more are left out.
            partition: of this one only.
            states: "all" or a state such as "PENDING"; those that have not ended unless given.
        """

    def words(self, ids: Sequence[str]) -> dict[str, Words]:
        """What users call their jobs, and say of them, by job."""

    def jobs_and_words(self, ids: Sequence[str]) -> dict[str, tuple[SlurmJobRow, Words]]:
        """Both, at one moment."""

    def nodes(self, partition: str = "") -> list[SlurmNodeRow]:
        """Nodes as Slurm has them, once for each of their partitions; those of one partition where it is named."""

    def excluding(self, ids: Sequence[str]) -> set[str]:
        """Which of these jobs name nodes that they must not have."""

    def rules(self, partition: str) -> SlurmRules:
        """What of its nodes Slurm counts for the jobs of a partition, and what it gives them unasked."""

    def shares(self, job_id: str) -> dict[str, int]:
        """How many GPUs a running job has on each of its nodes; none of one that has ended."""

    def spans(self, ids: Sequence[str]) -> dict[str, RunSpan]:
        """When jobs began and ended; those that Slurm does not know any more are left out."""

    def tell(self, orders: Sequence[str]) -> str:
        """Several orders, each carried out whether or not others fail; what Slurm complained of, a line each."""
