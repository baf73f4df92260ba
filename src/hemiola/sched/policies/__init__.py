"""The policies of the field, one file each, and how to ask for one by name.

A policy from outside needs no entry here: `--policy mypackage.module:MyPolicy`, or `--policy my_policy.py:MyPolicy`.
"""

from __future__ import annotations

from typing import Any

from hemiola.core.chosen import Family, parameters
from hemiola.core.errors import PolicyError
from hemiola.sched.placement import Rule, rule_by_name
from hemiola.sched.policies.crux import Crux
from hemiola.sched.policies.dally import Dally
from hemiola.sched.policies.elastic import ElasticSharing
from hemiola.sched.policies.fifo import Fifo, FifoBackfill
from hemiola.sched.policies.gandiva import Gandiva
from hemiola.sched.policies.gittins import Gittins
from hemiola.sched.policies.lwf import Lwf
from hemiola.sched.policies.shortest import Sjf, Srsf, Srtf
from hemiola.sched.policies.themis import Themis
from hemiola.sched.policies.tiresias import Tiresias
from hemiola.sched.policy import Policy

__all__ = ["POLICIES", "parameters", "policy_from_text", "policy_text"]

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Fifo, FifoBackfill, Sjf, Srtf, Srsf, Tiresias, Gittins, Gandiva, Themis, Lwf, Crux, ElasticSharing, Dally,
    )
}  # fmt: skip


def policy_from_text(text: str, known: dict[str, type[Policy]] | None = None) -> Policy:
    """A policy from "name", "name:parameter=value,...", or one of your own as `core.chosen` reads it.

    Args:
        known: the names to choose from; `POLICIES` unless given.

    Raises:
        PolicyError: an unknown name, parameter or value, naming what is known.
    """
    return _POLICY.read(text, POLICIES if known is None else known)


def _rule(value: str, text: str) -> Any:
    rule, _, options = value.partition(":")
    return _RULE.build(type(rule_by_name(rule)), options, text)


_RULE: Family[Rule] = Family("rule", "choose(inventory, pool, job, widest)", "hemiola.Rule", PolicyError)
_POLICY: Family[Policy] = Family("policy", "decide(view)", "hemiola.Policy", PolicyError, {"Rule": _rule})


def policy_text(policy: Policy | Rule) -> str:
    """What `policy_from_text` reads back: the name, and the parameters that are not default."""
    set_ = [
        f"{name}={policy_text(value) if isinstance(value, Rule) else value}"
        for name, f in parameters(type(policy)).items()
        if (value := getattr(policy, name)) != f.default
    ]
    name = policy.name or type(policy).__name__
    return f"{name}:{','.join(set_)}" if set_ else name
