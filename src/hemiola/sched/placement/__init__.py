"""Placement: which of the free GPUs a job gets."""

from hemiola.sched.placement.rule import Rule, find, gpu_speed, no_slower
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
    "gpu_speed",
    "no_slower",
    "rule_by_name",
]
