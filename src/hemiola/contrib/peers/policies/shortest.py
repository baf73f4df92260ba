"""What the re-packing policies sort by: GPUs, remaining time, or remaining service."""

from __future__ import annotations

from dataclasses import dataclass

from hemiola.sched.job_state import JobState
from hemiola.contrib.peers.policies.progress import Progress
from hemiola.contrib.peers.policies.repack import Repack

__all__ = ["Shortest", "ShortestGpu", "PeerSjf", "PeerSrsf", "PeerSrtf"]


@dataclass(frozen=True)
class PeerSjf(Repack):
    """Fewest GPUs first (the peer's "smallest job first")."""

    name = "sjf"
    source = "Tiresias's simulator, --schedule sjf"
    says = "fewest GPUs first"

    def key(self, progress: Progress, job: JobState, now: float) -> float:
        return job.gpus


@dataclass(frozen=True)
class Shortest(Repack):
    """Least remaining time first."""

    name = "shortest"
    source = "Tiresias's simulator, --schedule shortest"
    says = "least remaining time first"

    def key(self, progress: Progress, job: JobState, now: float) -> float:
        return progress.remaining_s(job, now)


@dataclass(frozen=True)
class ShortestGpu(Repack):
    """Least remaining time times GPUs first."""

    name = "shortest-gpu"
    source = "Tiresias's simulator, --schedule shortest-gpu"
    says = "least remaining service first"

    def key(self, progress: Progress, job: JobState, now: float) -> float:
        return progress.remaining_s(job, now) * job.gpus


@dataclass(frozen=True)
class PeerSrtf(Repack):
    """Muri's SRTF: least remaining time first."""

    name = "srtf"
    source = "Muri's simulator (SIGCOMM'22), --schedule shortest"
    says = "least remaining time first"

    def key(self, progress: Progress, job: JobState, now: float) -> float:
        return progress.remaining_s(job, now)


@dataclass(frozen=True)
class PeerSrsf(Repack):
    """Muri's SRSF: least remaining time times GPUs first."""

    name = "srsf"
    source = "Muri's simulator (SIGCOMM'22), --schedule shortest-gpu"
    says = "least remaining service first"

    def key(self, progress: Progress, job: JobState, now: float) -> float:
        return progress.remaining_s(job, now) * job.gpus
