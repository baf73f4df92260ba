"""Placement: which of the free GPUs a job gets."""

from hemiola.sched.placement.rule import Rule, find
from hemiola.sched.placement.rules import (
    RULES,
    BestFit,
    Consolidated,
    FirstFit,
    Random,
    TierAware,
    Yarn,
    rule_by_name,
)

__all__ = [
    "RULES",
    "BestFit",
    "Consolidated",
    "FirstFit",
    "Random",
    "Rule",
    "TierAware",
    "Yarn",
    "find",
    "rule_by_name",
]
