"""The same stream on one Slurm, under one way of scheduling after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from live_demo.arms import Arm
from live_demo.calibrate import calibrate
from live_demo.cluster import run
from live_demo.measured import Alone, Run
from live_demo.network import Network
from live_demo.stream import Ask

__all__ = ["Compared", "compare"]


@dataclass(frozen=True)
class Compared:
    """The same stream under several arms."""

    alone: Alone
    runs: list[Run]


Said = Callable[[str, int, int, int], None]
"""Told again and again of which run how many jobs wait, run and have ended."""


def compare(
    network: Network, asks: Sequence[Ask], arms: Sequence[Arm], *, folder: Path, said: Said
) -> Compared:
    """Bring a Slurm up, measure the model on it, and run the stream under each arm in turn.

    Args:
        folder: that jobs can write to; clocks and logs stay there.
    """
    with network.lab() as lab:
        profiles = folder / "profiles.json"
        alone = calibrate(
            lab,
            network,
            folder=folder / "alone",
            profiles=profiles,
            told=lambda *now: said("one job alone", *now),
        )
        runs = []
        for number, arm in enumerate(arms):

            def told(*now: int, name: str = arm.name) -> None:
                said(name, *now)

            where = folder / f"run{number}"
            runs.append(run(lab, network, asks=asks, arm=arm, folder=where, profiles=profiles, told=told))
    return Compared(alone, runs)
