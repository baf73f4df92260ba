"""What kinds of jobs generated workloads are made of: sizes and durations after published figures.

Facts, no chance and no time. A duration is lognormal, fixed by its published median and mean
(mu = ln median, sigma^2 = 2 ln(mean / median)) and cut at the longest run on record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["MIXES", "JobMix"]


@dataclass(frozen=True)
class JobMix:
    """Sizes and durations of jobs.

    Attributes:
        name: as a specification names it.
        shares: number of jobs, or weight, by GPUs per job; any scale.
        median_s: median run time.
        mean_s: mean run time before the cut.
        longest_s: no job runs longer.
        source: where the figures come from, and what in them is a choice.
    """

    name: str
    shares: dict[int, float]
    median_s: float
    mean_s: float
    longest_s: float
    source: str

    @property
    def mu(self) -> float:
        """Mean of the logarithm of the run time in seconds."""
        return math.log(self.median_s)

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm of the run time."""
        return math.sqrt(2 * math.log(self.mean_s / self.median_s))


def _halving(largest: int, ratio: float) -> dict[int, float]:
    """Powers of two up to `largest`, each `ratio` times as frequent as the one below it."""
    return {2**k: ratio**k for k in range(largest.bit_length())}


PHILLY = JobMix(
    "philly",
    {1: 76627, 2: 1818, 4: 1870, 8: 1643, 12: 7, 16: 199, 24: 7, 32: 67, 64: 6, 128: 3},
    median_s=1144.0,
    mean_s=13135.9,
    longest_s=4628226.0,
    source="counts, median, mean and longest of the 82,247 jobs of AdaptDL's philly.csv, derived from "
    "Jeon et al., ATC'19; run time is drawn apart from size",
)
HELIOS = JobMix(
    "helios",
    _halving(2048, 0.44),
    median_s=206.0,
    mean_s=6651.7,
    longest_s=4320009.0,
    source="median, mean and longest run and largest job of Helios in AcmeTrace's cluster_summary.csv (Hu et "
    "al., SC'21, NSDI'24); shares fall by 0.44 per doubling, a choice that meets its median of 1 and "
    "mean of 3.7 GPUs",
)
ACME = JobMix(
    "acme",
    _halving(1024, 0.5),
    median_s=122.0,
    mean_s=1414.3,
    longest_s=1209604.0,
    source="median, mean and longest run and largest job of Seren in AcmeTrace's cluster_summary.csv (Hu et "
    "al., NSDI'24); shares halve per doubling, a choice that meets its median of 1 and comes near its "
    "mean of 5.7 GPUs (5.5)",
)
LINGJUN = JobMix(
    "lingjun",
    _halving(512, 0.78),
    median_s=2160.0,
    mean_s=10800.0,
    longest_s=1209600.0,
    source="in the style of the cluster of Crux (Cao et al., SIGCOMM'24), whose jobs are not at hand: shares "
    "fall by 0.78 per doubling to 512 GPUs, one job in ten asks for 128 or more (a choice); a mean "
    "run of 3 h makes 5,000 such jobs in two weeks 0.8 of 2,000 GPUs, the counts the paper gives",
)
MURI = JobMix(
    "muri",
    {1: 1814, 2: 287, 4: 645, 8: 773, 16: 3, 32: 108},
    median_s=3375.5,
    mean_s=99531.2,
    longest_s=4014063.0,
    source="counts, median, mean and longest of the 3,630 jobs of Muri's trace3.csv and trace4.csv (Zhao et "
    "al., SIGCOMM'22), after Philly; run time is drawn apart from size",
)

MIXES = {mix.name: mix for mix in (PHILLY, HELIOS, ACME, LINGJUN, MURI)}
