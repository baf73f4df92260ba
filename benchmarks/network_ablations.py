"""Sections: which timer, which reset rule, which law of contention."""

from __future__ import annotations

from collections.abc import Sequence

from clocks import table
from network_findings import METRICS, Points, regret, verdict
from network_grid import DALLY, LAWS, RESETS, TIMERS, Study
from network_points import Cell
from network_words import CLAIMED_AGAINST, RIVALS, label, percent

from hemiola.report.metrics import ConfidenceInterval


def timers_section(points: Points, study: Study) -> str:
    """Regret of each timer, over groups of cells."""
    cells = list(study.cells())
    groups = {mix: [cell for cell in cells if cell.mix == mix] for mix in study.mixes}
    groups["uplinks 1:1"] = [cell for cell in cells if cell.oversubscription == 1]
    parts = [
        "## Which timer\n\n*Regret* is a timer's figure over that of the timer that is best on average in the same cell, "
        "minus one: mean and largest over the cells, and in brackets in how many it is worse by the rule above. "
        "Being compared with the best of six, each timer has some regret by chance alone."
    ]
    for metric, key in METRICS.items():
        regrets = {cell: regret(points, cell, TIMERS, key) for cell in cells}
        rows = [
            [name, *(_regret([regrets[cell][name] for cell in mine]) for mine in groups.values())]
            for name in TIMERS
        ]
        head = [f"regret in {metric}", *(f"{name}, {len(mine)} cells" for name, mine in groups.items())]
        parts.append(table(head, rows))
    return "\n\n".join(parts)


def _regret(found: Sequence[ConfidenceInterval]) -> str:
    if not found:
        return ""
    means = [100 * one.mean for one in found]
    worse = sum(verdict(one) == "worse" for one in found)
    return f"{sum(means) / len(means):.1f} %, {max(means):.1f} % ({worse})"


def resets_section(points: Points, study: Study) -> str:
    """The rule for the reset of timers."""
    rows = []
    for mix, nic, over in study.special:
        cell = Cell(mix, nic, over, scale=study.scale)
        for name, policy in RESETS.items():
            if policy != DALLY and mix in study.mixes:
                found = [percent(points.difference(cell, policy, DALLY, key)) for key in METRICS.values()]
                rows.append([label(cell), name, *found])
    return (
        "## Which reset rule\n\nA job that is pre-empted after it has waited keeps what it paid (after SPARK-18886). "
        "The other two rules, against that one:\n\n" + table(["where", "rule", *METRICS], rows)
    )


def laws_section(points: Points, study: Study) -> str:
    """The headline under other contention laws."""
    rows = []
    for mix, nic, over in study.special:
        for law in LAWS if mix in study.mixes else ():
            cell = Cell(mix, nic, over, law=law, scale=study.scale)
            for name in CLAIMED_AGAINST:
                found = [
                    percent(points.difference(cell, DALLY, RIVALS[name], key)) for key in METRICS.values()
                ]
                rows.append([f"{mix}, {nic:g} Gbit/s, {over:g}:1", law, name, *found])
    return (
        "## Under other laws of contention\n\nDally's differences if jobs that share a link do so by "
        "[another law](../concepts/contention.md). *Isolated* switches contention off: what remains is the speed of "
        "the tier itself.\n\n" + table(["where", "law", "against", *METRICS], rows)
    )
