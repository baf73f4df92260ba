"""What the peers' rules share: equal hosts, no network, no failures, no options."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence

from hemiola.contrib.peers.simulators.task import PeerEstimates, PeerTask
from hemiola.simulator.rules import Rules
from hemiola.core.errors import InputError, TopologyError
from hemiola.core.events import NodeBack, NodeLost
from hemiola.core.job import Job
from hemiola.core.topology import Topology
from hemiola.cost.iteration import IterationModel
from hemiola.contrib.peers.policies.policy import PeerPolicy
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView

__all__ = ["FREEDOMS", "PeerRules"]

FREEDOMS = "each has the GPUs that it asked for, and may be stopped, whatever its user said"


class PeerRules(Rules, ABC):
    """Rules of a published simulator."""

    def estimates(self, model: IterationModel) -> PeerEstimates:
        """What policies are told of jobs."""
        return PeerEstimates()

    def refusal(self, job: Job, policy: Policy, topology: Topology) -> str:
        """Why this job could never run: too large for the scheme, or with wishes the peer does not know."""
        if job.required:
            return f"it must stay within one {job.required}, a constraint that {self.name} does not know"
        if job.hosts > 1 and job.gpus != job.hosts * topology.hosts.gpus[0]:
            return f"it wants parts of {job.hosts} hosts, a constraint that {self.name} does not know"
        if isinstance(policy, PeerPolicy) and job.gpus > policy.largest(topology):
            return (
                f"it wants {job.gpus} GPUs, more than one switch has; placement=yarn never crosses switches"
            )
        return ""

    def tell(self, view: ClusterView, tasks: Mapping[str, PeerTask]) -> None:
        """Let policies see what a driver keeps in these accounts."""
        told = view.estimates
        assert isinstance(told, PeerEstimates)
        told.watch(tasks)

    def check(self, topology: Topology, node_events: Sequence[NodeLost | NodeBack]) -> None:
        """Refuse what the peer cannot describe.

        Raises:
            TopologyError: unequal hosts. InputError: failures.
        """
        kinds = set(zip(topology.hosts.gpus.tolist(), topology.hosts.gpu_types, strict=True))
        if len(kinds) > 1:
            raise TopologyError(
                f"{self.name} knows only equal hosts; {topology.name!r} has {len(kinds)} kinds",
                "choose a cluster of equal hosts, or --semantics event-driven",
            )
        if node_events:
            raise InputError(
                f"{self.name} knows no failures of hosts", "leave them out, or use --semantics event-driven"
            )
