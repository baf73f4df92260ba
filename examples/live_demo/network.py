"""The cluster of the live demo: nodes, racks, and how fast the links between them are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hemiola.lab.slurm import SlurmLab

__all__ = ["Network"]


@dataclass(frozen=True)
class Network:
    """Nodes with one GPU each, in racks of equal size.

    Attributes:
        rate_mbit: of each node's link, each way.
        uplink_mbit: of each rack's uplink, each way.
    """

    nodes: int = 8
    racks: int = 4
    rate_mbit: int = 200
    uplink_mbit: int = 100

    @property
    def per_rack(self) -> int:
        """Nodes of a rack."""
        return self.nodes // self.racks

    @property
    def oversubscription(self) -> float:
        """What a rack's nodes can send together over what its uplink can."""
        return self.per_rack * self.rate_mbit / self.uplink_mbit

    @property
    def speeds(self) -> dict[str, str]:
        """What Slurm's own configuration does not say of it, as Hemiola reads it behind a topology."""
        return {"nic": f"{self.rate_mbit}mbit", "oversubscription": f"{self.oversubscription:g}"}

    @contextmanager
    def lab(self) -> Iterator[SlurmLab]:
        """A Slurm on it, for as long as the block lasts."""
        rate, uplink = f"{self.rate_mbit}mbit", f"{self.uplink_mbit}mbit"
        with SlurmLab(self.nodes, gpus=1, racks=self.racks, rate=rate, uplink=uplink) as lab:
            yield lab
