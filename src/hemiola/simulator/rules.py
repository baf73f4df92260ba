"""The rules under which a workload is replayed: a value, printed as a card with every result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import ClassVar

import msgspec

from hemiola.core.decisions import EVERY_ABILITY
from hemiola.core.errors import InputError
from hemiola.core.events import NodeBack, NodeLost
from hemiola.core.job import Batch
from hemiola.core.topology import Topology
from hemiola.cost.contention import Law, MaxMin
from hemiola.cost.iteration import IterationModel
from hemiola.sched.placement import Rule
from hemiola.sched.policies import POLICIES
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView
from hemiola.sched.view import Estimates as Told
from hemiola.simulator.cluster import Costs, SimulatedDriver, SimulatedEstimates
from hemiola.simulator.records import SimulatedReplay

__all__ = ["Rules", "Semantics", "known_semantics", "semantics_by_name"]

DEFAULT_INTERVAL_S = 1800.0
FITTED = (
    "all-reduces by schedules that fit the links of each placement, where these gain over 10 % on the ring; "
    "a job does as many iterations as by rings"
)


class Rules(ABC):
    """How time passes and what things cost. Values: frozen.

    Attributes:
        name: "event-driven", or the peer whose rules these are.
        policies: the policies that exist under these rules, by name.
        default_policies: those compared where none is named.
        uses_profiles: whether a job's model matters to its speed under these rules.
        runs_services: whether services run beside jobs under these rules.
        fitted: whether all-reduces go by schedules that fit the links (`cost.iteration.IterationModel`).
    """

    name: ClassVar[str]
    policies: ClassVar[Mapping[str, type[Policy]]]
    default_policies: ClassVar[tuple[str, ...]]
    uses_profiles: ClassVar[bool] = False
    runs_services: ClassVar[bool] = False
    fitted: bool = False

    @abstractmethod
    def estimates(self, model: IterationModel) -> Told:
        """What policies are told of jobs."""

    @abstractmethod
    def driver(
        self,
        view: ClusterView,
        jobs: Sequence[Batch],
        model: IterationModel,
        *,
        node_events: Sequence[NodeLost | NodeBack],
        record: bool,
        record_traffic: bool,
        progress: Callable[[int], None] | None,
    ) -> SimulatedReplay:
        """The cluster that plays by these rules.

        Raises:
            InputError, TopologyError: it cannot be played by these rules, and why.
        """

    @abstractmethod
    def card(self, policy: Policy, seed: int) -> dict[str, str]:
        """Every rule that shaped the numbers, by name."""

    def refusal(self, job: Batch, policy: Policy, topology: Topology) -> str:
        """Why this job could never run under these rules and this policy, or ""."""
        return ""

    def changed(
        self,
        *,
        law: Law | None = None,
        scale: float = 1.0,
        checkpoint_interval_s: float = DEFAULT_INTERVAL_S,
        fitted: bool = False,
    ) -> Rules:
        """The same rules with what the user set: the law, the cost of pre-emption, periodic checkpoints, collectives.

        Raises:
            InputError: these rules are fixed.
        """
        if law is not None or scale != 1.0 or checkpoint_interval_s != DEFAULT_INTERVAL_S or fitted:
            what = "cost of pre-emption or of checkpoints"
            what = "contention" if law is not None else "collectives' schedules" if fitted else what
            raise InputError(
                f"{self.name} has its own fixed rules; its {what} cannot be set",
                "leave the option out, or use --semantics event-driven",
            )
        return self


@dataclass(frozen=True)
class Semantics(Rules):
    """Hemiola's own rules.

    Attributes:
        costs: of changing a running job.
        law: how jobs that share a link slow each other.
        fitted: whether all-reduces go by schedules that fit the links of each placement.
        supports: kinds of decision that are carried out; fewer than all where it stands in for an engine that can less.
    """

    costs: Costs = Costs()
    law: Law = MaxMin()
    fitted: bool = False
    supports: frozenset[type] = EVERY_ABILITY
    name = "event-driven"
    policies = POLICIES
    default_policies = ("fifo", "tiresias", "dally")
    uses_profiles = True
    runs_services = True

    def changed(
        self,
        *,
        law: Law | None = None,
        scale: float = 1.0,
        checkpoint_interval_s: float = DEFAULT_INTERVAL_S,
        fitted: bool = False,
    ) -> Semantics:
        """The same rules with what the user set."""
        costs = msgspec.structs.replace(self.costs, scale=scale, checkpoint_interval_s=checkpoint_interval_s)
        return replace(self, law=law or self.law, costs=costs, fitted=fitted or self.fitted)

    def estimates(self, model: IterationModel) -> SimulatedEstimates:
        """What policies are told of jobs."""
        return SimulatedEstimates(model, self.costs)

    def driver(
        self,
        view: ClusterView,
        jobs: Sequence[Batch],
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
            supports=self.supports,
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
            if isinstance(placement, Rule)
            else "the policy's own",
            **({"collectives": FITTED} if self.fitted else {}),
            **policy.card(),
            "seed": str(seed),
        }


PEERS = {
    "tiresias-sim": "hemiola.contrib.peers.simulators.tiresias:TiresiasSim",
    "muri-sim": "hemiola.contrib.peers.simulators.muri:MuriSim",
    "pollux-sim": "hemiola.contrib.peers.simulators.pollux:PolluxSim",
    "shockwave-sim": "hemiola.contrib.peers.simulators.shockwave:ShockwaveSim",
}
"""Rules that come with Hemiola and are loaded as anybody's own when they are asked for: module:class, by name."""


def known_semantics() -> dict[str, Rules]:
    """All rules, by name; Hemiola's own first."""
    return {name: semantics_by_name(name) for name in (Semantics.name, *PEERS)}


def semantics_by_name(name: str) -> Rules:
    """The rules of that name."""
    if name == Semantics.name:
        return Semantics()
    if name not in PEERS:
        known = ", ".join((Semantics.name, *PEERS))
        raise InputError(f"no semantics is called {name!r}", f"choose one of {known}")
    module, _, attribute = PEERS[name].partition(":")
    rules = getattr(import_module(module), attribute)()
    assert isinstance(rules, Rules)
    return rules
