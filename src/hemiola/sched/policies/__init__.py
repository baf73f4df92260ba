"""The policies of the field, one file each, and how to ask for one by name.

A policy from outside needs no entry here: `--policy mypackage.module:MyPolicy`, or `--policy my_policy.py:MyPolicy`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from hemiola.core.chosen import Family, parameters
from hemiola.core.errors import PolicyError
from hemiola.sched.placement import Rule, rule_by_name
from hemiola.sched.policy import Policy

__all__ = ["POLICIES", "parameters", "policy_from_text", "policy_text"]


class PolicyTable(Mapping[str, type[Policy]]):
    """Policies by name, each imported when it is first asked for: a comparison enters the files of those it names.

    Args:
        places: "module:Class" by name, in the order in which they are listed.
    """

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> type[Policy]:
        module, _, attribute = self._places[name].partition(":")
        found: type[Policy] = getattr(importlib.import_module(module), attribute)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


POLICIES = PolicyTable(
    {
        "fifo": "hemiola.sched.policies.fifo:Fifo",
        "fifo-backfill": "hemiola.sched.policies.fifo:FifoBackfill",
        "sjf": "hemiola.sched.policies.shortest:Sjf",
        "srtf": "hemiola.sched.policies.shortest:Srtf",
        "srsf": "hemiola.sched.policies.shortest:Srsf",
        "tiresias": "hemiola.sched.policies.tiresias:Tiresias",
        "gittins": "hemiola.sched.policies.gittins:Gittins",
        "gandiva": "hemiola.sched.policies.gandiva:Gandiva",
        "themis": "hemiola.sched.policies.themis:Themis",
        "lwf": "hemiola.sched.policies.lwf:Lwf",
        "crux": "hemiola.sched.policies.crux:Crux",
        "elastic": "hemiola.sched.policies.elastic:ElasticSharing",
        "static-split": "hemiola.sched.policies.static_split:StaticSplit",
        "lyra": "hemiola.sched.policies.lyra:Lyra",
        "fapes": "hemiola.sched.policies.fapes:Fapes",
        "dally": "hemiola.sched.policies.dally:Dally",
        "hemiola": "hemiola.sched.policies.hemiola:Hemiola",
        "pd-ors": "hemiola.sched.policies.pd_ors:PdOrs",
        "earliest-finish": "hemiola.sched.policies.pd_ors:EarliestFinish",
        "oasis": "hemiola.sched.policies.oasis:Oasis",
        "optimus": "hemiola.sched.policies.optimus:Optimus",
        "drf": "hemiola.sched.policies.drf:Drf",
        "afs": "hemiola.sched.policies.afs:Afs",
        "gavel": "hemiola.sched.policies.gavel:Gavel",
        "pollux": "hemiola.sched.policies.pollux:Pollux",
        "shockwave": "hemiola.sched.policies.shockwave:Shockwave",
        "sia": "hemiola.sched.policies.sia:Sia",
    }
)


def policy_from_text(text: str, known: Mapping[str, type[Policy]] | None = None) -> Policy:
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
