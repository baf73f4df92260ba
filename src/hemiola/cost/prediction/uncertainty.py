"""How far off a prediction may be: spreads of operations, of whole iterations, and of transfers.

Calibration gives spreads as half the interquartile range over the median; a normal law with that spread
has the standard deviation spread / 0.6745. Calls of one measured signature are off together, different
signatures apart; what was not measured is off together with its kind. Whole iterations (`Hardware.noise`)
come on top. A transfer's spread is the library's: that of the time it needs by itself, however slow the link. What a
link carries is uncertain by `LINK_DEVIATION`.
The interval is the iteration executed again with all computing, and all sending, longer (shorter) by as
many standard deviations as the confidence asks for.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from hemiola.cost.prediction.lower import CostFactors
from hemiola.cost.prediction.setting import QUARTILE, Setting

__all__ = ["LINK_DEVIATION", "expected_maximum", "interval_scales", "straggling"]

LINK_DEVIATION = 0.025
"""Standard deviation of what transfers take on a link of known rate: the errors in docs/results/prediction.md
where the link decides (100 Mbit/s) are 1 to 8 %."""


def expected_maximum(count: int) -> float:
    """Expected largest of so many standard normal draws (Blom, "Statistical Estimates", 1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def straggling(setting: Setting) -> float:
    """Factor on computing: each iteration waits for the slowest of its ranks, where its noise was measured."""
    if not (setting.options.straggling and setting.transfers and setting.hardware.measured_on):
        return 1.0
    return 1.0 + expected_maximum(setting.place.ranks) * setting.hardware.noise / QUARTILE


def interval_scales(setting: Setting, expected: CostFactors) -> tuple[CostFactors, CostFactors] | None:
    """Factors for the interval's two ends; None where no spread is known."""
    deviations = NormalDist().inv_cdf(0.5 + setting.options.confidence / 2)
    compute = deviations * _compute_deviation(setting)
    network = deviations * _network_deviation(setting)
    if not compute and not network:
        return None
    low = CostFactors(expected.compute * max(0.0, 1 - compute), max(0.0, 1 - network))
    return low, CostFactors(expected.compute * (1 + compute), 1 + network)


def _compute_deviation(setting: Setting) -> float:
    total = float(setting.compute_s.sum())
    own = np.bincount(setting.estimates.together, weights=setting.compute_s * setting.estimates.deviation)
    of_operations = math.sqrt(float((own**2).sum())) / total if total else 0.0
    return math.hypot(of_operations, setting.hardware.noise / QUARTILE)


def _network_deviation(setting: Setting) -> float:
    """The transfers' own, all off together; and what TCP does not get of a link, for hardware that was measured."""
    seconds_s = sum(cost.seconds(setting.place) for cost in setting.costs)
    deviation_s = sum(cost.deviation_s for cost in setting.costs)
    link = LINK_DEVIATION if setting.hardware.measured_on else 0.0
    return deviation_s / seconds_s / QUARTILE + link if seconds_s else 0.0
