"""The rules under which a workload is replayed: a value, printed as a card with every result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from hemiola.control.simulated import Costs, Estimates, SimulatedDriver
from hemiola.core.errors import InputError
from hemiola.core.events import NodeBack, NodeLost
from hemiola.core.job import Job
from hemiola.cost.contention import Law, MaxMin
from hemiola.cost.iteration import IterationModel
from hemiola.sched.policies import POLICIES
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView

__all__ = ["Semantics", "semantics_by_name"]


@dataclass(frozen=True)
class Semantics:
    """How time passes and what things cost.

    Attributes:
        name: "event-driven", or the peer whose rules these are.
        costs: of changing a running job.
        law: how jobs that share a link slow each other.
        policies: the policies that exist under these rules, by name.
    """

    name: str = "event-driven"
    costs: Costs = Costs()
    law: Law = MaxMin()
    policies: dict[str, type[Policy]] = field(default_factory=lambda: POLICIES)

    @property
    def uses_profiles(self) -> bool:
        """Whether a job's model matters to its speed under these rules."""
        return True

    def changed(
        self, *, law: Law | None = None, scale: float = 1.0, checkpoint_interval_s: float = 1800.0
    ) -> Semantics:
        """The same rules with what the user set: the law, the cost of pre-emption, periodic checkpoints."""
        costs = msgspec.structs.replace(self.costs, scale=scale, checkpoint_interval_s=checkpoint_interval_s)
        return replace(self, law=law or self.law, costs=costs)

    def estimates(self, model: IterationModel) -> Estimates:
        """What policies are told of jobs."""
        return Estimates(model, self.costs)

    def driver(
        self,
        view: ClusterView,
        jobs: Sequence[Job],
        model: IterationModel,
        *,
        node_events: Sequence[NodeLost | NodeBack],
        record: bool,
        record_traffic: bool,
        progress: Callable[[int], None] | None,
    ) -> SimulatedDriver:
        """The cluster that plays by these rules."""
        return SimulatedDriver(
            view,
            jobs,
            model,
            self.law.sharing(),
            costs=self.costs,
            node_events=node_events,
            record=record,
            record_traffic=record_traffic,
            progress=progress,
        )

    def card(self, policy: Policy, seed: int) -> dict[str, str]:
        """Every rule that shaped the numbers, by name."""
        costs = self.costs
        placement = getattr(policy, "placement", None)
        return {
            "semantics": self.name,
            "time": "event-driven: decisions at every arrival, end, timer, failure and repair; no rounds",
            "allocation reset": "none: a running job keeps its GPUs until it ends or the policy stops it",
            "duration": "a job's run time in the trace is its run time on its best placement, alone",
            "contention": f"{self.law}: {self.law.sentence}",
            "preemption cost": (
                f"save, then load, by model; {costs.checkpoint_s:g} s + {costs.restore_s:g} s without one"
                + ("" if costs.scale == 1 else f"; all times {costs.scale:g}")
            ),
            "host failure": f"work since the last multiple of {costs.checkpoint_interval_s:g} s is done again",
            "tie-break": "order of arrival",
            "placement": f"{placement.name}: {placement.says}"
            if placement is not None
            else "the policy's own",
            **policy.card(),
            "seed": str(seed),
        }


def semantics_by_name(name: str) -> Semantics:
    """The rules of that name."""
    known = {"event-driven": Semantics}
    if name not in known:
        raise InputError(f"no semantics is called {name!r}", f"choose one of {', '.join(known)}")
    return known[name]()
