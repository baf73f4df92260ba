"""Training and inference lend each other hosts, and jobs take whatever size there is room for.

In the style of FaPES ("Enabling Efficient Elastic Scaling for Serverless Machine Learning Platforms", SoCC'24,
10.1145/3698038.3698548). Known of it: loans between virtual clusters, servers that are taken back on demand with little
pre-emption so that services keep their objective, a performance model, a prediction board. Its formulas are not at hand.
Chosen here: `sched.shared_cluster` says step by step what is done, `sched.autoscaling.ForecastLoad` how many replicas a service
needs, `sched.board` when a lent host is likely wanted back, and `elastic` which job has which size.

Parameters switch parts off: `loans=none` is elastic jobs without loans, `training=fifo-backfill` loans without elastic jobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from hemiola.core.decisions import Decision
from hemiola.core.errors import PolicyError
from hemiola.core.job import Batch, Elastic, Service
from hemiola.sched.autoscaling import Autoscaler, autoscaler_from_text
from hemiola.sched.board import HORIZONS_S
from hemiola.sched.policies.elastic import ElasticSharing
from hemiola.sched.policy import Policy
from hemiola.sched.reclaim import spread_cost
from hemiola.sched.shared_cluster import LoanRules, shared_decisions
from hemiola.sched.view import ClusterView

__all__ = ["Fapes"]

LOANS = {
    "both": (True, True), "to-training": (True, False), "to-inference": (False, True), "none": (False, False),
}  # fmt: skip
COSTS = {"work": None, "servers": spread_cost}


@dataclass(frozen=True)
class Fapes(Policy):
    """Forecast, lend what is idle, take it back before it is missed.

    Args:
        training: the policy that decides about training's hosts, own and borrowed.
        autoscaler: how many replicas a service has: "forecast", "ray-serve", "kpa", "hpa", "dynamo", "peak", with parameters
            behind slashes ("forecast/headroom=1.3").
        loans: "both" ways, "to-training", "to-inference" or "none".
        risk: a host is lent if it is wanted back within `ahead_s` with at most this probability.
        ahead_s: 60, 300, 900 or 1800 seconds.
        most: share of training's hosts that inference may borrow.
        reclaim_s: until when a recalled host is to be back.
        cost: of stopping jobs for a host: "work" that is lost, or "servers" that they have, as Lyra counts.
    """

    training: str = "elastic"
    autoscaler: str = "forecast"
    loans: str = "both"
    risk: float = 0.2
    ahead_s: float = 900.0
    most: float = 0.5
    reclaim_s: float = 30.0
    cost: str = "work"
    name = "fapes"
    source = "in the style of FaPES, SoCC'24 (10.1145/3698038.3698548): loans both ways, forecast, prediction board"
    job_kinds = frozenset({Batch, Elastic, Service})

    def __post_init__(self) -> None:
        _parts(self)

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        training, autoscaler, rules = _parts(self)
        if isinstance(training, ElasticSharing):
            return shared_decisions(view, training.train, autoscaler, rules)
        return shared_decisions(view, training.decide, autoscaler, rules)

    def card(self) -> dict[str, str]:
        training, _, _ = _parts(self)
        return {
            **training.card(),
            "training": self.training,
            "loans": f"{self.loans}; lent where wanted back within {self.ahead_s:g} s with at most {self.risk:.0%}",
            "services": f"replicas by {self.autoscaler}; at most {self.most:.0%} of training's hosts",
            "reclaim": f"idle, then hosts where jobs only shrink, then by {self.cost}; stopped after {self.reclaim_s:g} s",
        }


@lru_cache(maxsize=64)
def _parts(policy: Fapes) -> tuple[Policy, Autoscaler, LoanRules]:
    """What the parameters say. Raises PolicyError for a value that cannot be."""
    from hemiola.sched.policies import policy_from_text

    for name, known in (("loans", LOANS), ("cost", COSTS)):
        if getattr(policy, name) not in known:
            raise PolicyError(f"{name} is {getattr(policy, name)!r}", f"choose one of {', '.join(known)}")
    for name, value, most in (
        ("risk", policy.risk, 1.0),
        ("most", policy.most, 1.0),
        ("reclaim_s", policy.reclaim_s, 86400.0),
    ):
        if not 0 <= value <= most:
            raise PolicyError(f"{name} is {value}", f"give 0 to {most:g}")
    if policy.ahead_s not in HORIZONS_S:
        raise PolicyError(
            f"ahead_s is {policy.ahead_s:g}", f"choose one of {', '.join(f'{h:g}' for h in HORIZONS_S)}"
        )
    training = policy_from_text(policy.training)
    if "loans" in training.card():
        raise PolicyError(
            f"training is {training.name}, which lends by itself", "name a policy for jobs, such as elastic"
        )
    to_training, to_inference = LOANS[policy.loans]
    rules = replace(
        LoanRules(), to_training=to_training, to_inference=to_inference, risk=policy.risk, ahead_s=policy.ahead_s,
        most=policy.most, reclaim_s=policy.reclaim_s, cost=COSTS[policy.cost],
    )  # fmt: skip
    return training, autoscaler_from_text(policy.autoscaler), rules
