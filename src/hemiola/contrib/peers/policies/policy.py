"""What the peers' policies share: a placement scheme by name, and the largest job that it can hold."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass

from hemiola.core.topology import Topology
from hemiola.sched.placement import Rule
from hemiola.contrib.peers.policies.placing import largest_job, scheme
from hemiola.sched.policy import Policy

__all__ = ["PeerPolicy"]


@dataclass(frozen=True)
class PeerPolicy(Policy, ABC):
    """A policy of Tiresias's or Muri's simulator.

    Args:
        placement: "yarn" (all under one switch) or "count" (numbers only).
    """

    placement: str = "yarn"

    def __post_init__(self) -> None:
        scheme(self.placement)

    @property
    def rule(self) -> Rule:
        """The rule behind `placement`."""
        return scheme(self.placement)

    def largest(self, topology: Topology) -> int:
        """GPUs of the largest job that it could ever start."""
        return largest_job(self.placement, topology)
