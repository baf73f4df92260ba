"""Words and numbers that the sections of the study of network sensitivity share."""

from __future__ import annotations

from collections.abc import Iterable

from network_findings import Points
from network_grid import BASELINES, NO_PREEMPTION, TIMERS, Study
from network_points import Cell

from hemiola.report.metrics import ConfidenceInterval

BATCH = 10.0
"""A load from here on means: all jobs at once."""
RIVALS = {
    **BASELINES,
    "Dally, always-wait": TIMERS["always-wait"],
    "Dally, never-wait": TIMERS["never-wait"],
    "Dally, break-even": TIMERS["break-even"],
    "Dally, no pre-emption": NO_PREEMPTION,
}
CLAIMED_AGAINST = ("FIFO, consolidated", "Tiresias, consolidated", "Tiresias", "Gandiva")


def percent(found: ConfidenceInterval) -> str:
    """A difference with its interval, and with real minus signs."""
    text = f"{100 * found.mean:+.1f} %"
    if found.low is not None and found.high is not None:
        text += f" ({100 * found.low:+.1f} to {100 * found.high:+.1f})"
    return text.replace("-", "−")


def hours(found: ConfidenceInterval) -> str:
    """A time with half the width of its interval."""
    half = "" if found.high is None else f" ±{(found.high - found.mean) / 3600:.2f}"
    return f"{found.mean / 3600:.2f}{half}"


def label(cell: Cell) -> str:
    """A cell in words."""
    load = "all at once" if cell.load >= BATCH else f"load {cell.load:g}"
    return f"{cell.mix}, {cell.nic_gbit:g} Gbit/s, {cell.oversubscription:g}:1, {load}"


def tenths(share: float) -> str:
    """A signed share in percent, without the sign of the unit."""
    return f"{100 * share:+.1f}".replace("-", "−")


def whole(share: float) -> str:
    """A signed share in whole percent; nought has no sign."""
    text = f"{share:+.0%}"
    return "0%" if text in ("+0%", "-0%") else text.replace("-", "−")


def listed(values: Iterable[float]) -> str:
    """Numbers, joined by commas."""
    return ", ".join(f"{value:g}" for value in values)


def sweep(study: Study, mix: str) -> list[Cell]:
    """The fabric sweep's cells of a mix, slow to fast."""
    return [Cell(mix, nic, study.over, scale=study.scale) for nic in study.nics]


def differences(points: Points, cell: Cell, policy: str, metric: str, names: Iterable[str]) -> list[str]:
    """A policy's difference to each of these baselines."""
    return [percent(points.difference(cell, policy, RIVALS[name], metric)) for name in names]
