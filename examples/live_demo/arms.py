"""The ways of scheduling that are compared. Pure: needs nothing that has to be installed."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ARMS", "Arm"]


@dataclass(frozen=True)
class Arm:
    """One way of scheduling the stream.

    Attributes:
        name: as it is shown.
        policy: Hemiola's; "" is Slurm's own scheduler.
        options: of sbatch, beside those that every job has.
    """

    name: str
    policy: str = ""
    options: tuple[str, ...] = ()


ARMS = {
    "slurm": Arm("Slurm"),
    "slurm-switches": Arm("Slurm, --switches=1", options=("--switches=1",)),
    "no-wait": Arm("Hemiola, Dally that never waits", "dally:timer=never-wait,review_s=0"),
    "dally": Arm("Hemiola, Dally", "dally:timer=break-even"),
}
"""By the names for which one asks."""
