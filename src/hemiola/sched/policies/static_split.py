"""Two clusters side by side: nothing is lent, and no job changes its size. What sharing is compared with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hemiola.core.decisions import Decision
from hemiola.core.job import Batch, Elastic, Service
from hemiola.sched.autoscaling import autoscaler_from_text
from hemiola.sched.placement import Rule, TierAware
from hemiola.sched.policies.fifo import FifoBackfill
from hemiola.sched.policy import Policy
from hemiola.sched.shared_cluster import beside_services
from hemiola.sched.view import ClusterView

__all__ = ["StaticSplit"]


@dataclass(frozen=True)
class StaticSplit(Policy):
    """Jobs in order of arrival on training's hosts, services on inference's.

    Args:
        placement: which free GPUs a job gets.
        autoscaler: how many replicas a service has; all that fit by default.
    """

    placement: Rule = TierAware()
    autoscaler: str = "peak"
    name = "static-split"
    source = "two clusters of fixed size, the usual practice; order of arrival with back-filling"
    job_kinds = frozenset({Batch, Elastic, Service})

    def __post_init__(self) -> None:
        autoscaler_from_text(self.autoscaler)

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        training = FifoBackfill(placement=self.placement)
        return beside_services(view, training.decide, self.autoscaler)

    def card(self) -> dict[str, str]:
        training = FifoBackfill(placement=self.placement)
        return {**training.card(), "loans": "none", "services": f"replicas by {self.autoscaler}"}
