"""Policies against each other: means over seeds, and paired differences with their uncertainty.

Knows nothing of how a figure is shown. Differences are paired: each seed's run is compared with
the baseline's run of the same seed, because both saw the same jobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from hemiola.analysis.cluster_metrics import Fairness, Summary, conservation, finish_time_fairness, summary
from hemiola.core.errors import InputError
from hemiola.core.result import Comparison, GpuSeconds, Run

__all__ = [
    "ConfidenceInterval",
    "Fairness",
    "Figures",
    "Summary",
    "conservation",
    "difference",
    "finish_time_fairness",
    "interval",
    "summary",
]

# Student's t, two-sided 95 %, by degrees of freedom (NIST/SEMATECH e-Handbook, table 1.3.6.7.2).
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_T95_MORE = ((120, 1.980), (60, 2.000), (40, 2.021))


class ConfidenceInterval(msgspec.Struct, frozen=True):
    """A mean over seeds and its 95 % confidence interval; the bounds are None for one seed."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


def interval(values: Sequence[float]) -> ConfidenceInterval:
    """Mean and 95 % t interval of at least one value."""
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return ConfidenceInterval(mean, None, None, 1)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = _t95(count - 1) * deviation / math.sqrt(count)
    return ConfidenceInterval(mean, mean - half, mean + half, count)


class Figures:
    """Every figure of a comparison, each computed once.

    Attributes:
        policies: in the order of their first run.
        seeds: those that means are over, `comparison.seeds`; of () each policy's means are over its own.
        summaries: one per run, in the order of `comparison.runs`.
    """

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.policies = tuple(dict.fromkeys(run.policy for run in comparison.runs))
        self.seeds = comparison.seeds
        self.summaries = tuple(summary(run, comparison.topology) for run in comparison.runs)

    def counts(self, run: Run) -> bool:
        """Whether it is in its policy's means."""
        return not self.seeds or run.seed in self.seeds

    def runs(self, policy: str) -> list[Run]:
        """Those that are in a policy's means."""
        return [run for run in self.comparison.runs if run.policy == policy and self.counts(run)]

    def by_seed(self, policy: str, metric: str) -> dict[int, float | None]:
        """A figure of each of a policy's seeds."""
        runs = zip(self.comparison.runs, self.summaries, strict=True)
        values = {run.seed: _pick(whole, metric) for run, whole in runs if run.policy == policy}
        if not values:
            known = ", ".join(self.policies) or "none"
            raise InputError(f"no run of the policy {policy!r}", f"the policies here are {known}")
        return values

    def mean(self, policy: str, metric: str) -> ConfidenceInterval | None:
        """A figure's mean over the seeds that all policies have run; None if one has no such figure."""
        of_seed = self.by_seed(policy, metric)
        values = [of_seed[run.seed] for run in self.runs(policy)]
        known = [value for value in values if value is not None]
        return interval(known) if len(known) == len(values) else None

    def difference(self, policy: str, metric: str) -> ConfidenceInterval | None:
        """See the function `difference`."""
        of_seed, partners = self.by_seed(policy, metric), self.by_seed(self.comparison.baseline, metric)
        ratios = []
        for seed in (run.seed for run in self.runs(policy) if run.seed in partners):
            value, base = of_seed[seed], partners[seed]
            if value is None or not base:
                return None
            ratios.append(value / base - 1.0)
        return interval(ratios) if ratios else None


def difference(comparison: Comparison, policy: str, metric: str) -> ConfidenceInterval | None:
    """Mean relative difference to the baseline (-0.2: a fifth less), over paired seeds.

    Paired are those of the policy's means that the baseline has run, too. `metric` is a field of
    `Summary`, `Fairness` or `GpuSeconds`. None where a seed lacks the figure, the baseline's is 0,
    or no seed has a partner.

    Raises:
        InputError: for a policy or metric that is not there.
    """
    return Figures(comparison).difference(policy, metric)


def _pick(whole: Summary, metric: str) -> float | None:
    for part in (whole, whole.fairness, whole.gpu_seconds):
        value = getattr(part, metric, None)
        if metric in part.__struct_fields__ and (value is None or isinstance(value, int | float)):
            return value
    raise InputError(f"there is no metric {metric!r}", f"use one of {', '.join(_names())}")


def _names() -> list[str]:
    fields = (*Summary.__struct_fields__, *Fairness.__struct_fields__, *GpuSeconds.__struct_fields__)
    return [name for name in fields if name not in ("gpu_seconds", "fairness")]


def _t95(freedom: int) -> float:
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    return next((t for least, t in _T95_MORE if freedom >= least), _T95[-1])
