"""Section: the study of network sensitivity in a few lines, each computed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from network_claims import PAPER
from network_findings import METRICS, Best, Points, counts, regret, verdict
from network_grid import BASELINES, DALLY, TIMERS, Study
from network_words import CLAIMED_AGAINST, RIVALS, label, listed, percent, sweep, tenths


def short_section(points: Points, study: Study, found: Sequence[Best]) -> str:
    """The page in a few lines: what it gains at best, in the usual case, from where on nothing, and what it costs."""
    lines = [_at_best(points, found, metric) for metric in METRICS]
    lines += [_usually(points, study, name) for name in CLAIMED_AGAINST]
    lines += [_until(points, study), _costs(points, study), _timers(points, study)]
    return "## In short\n\n" + "\n".join(f"- {line}" for line in lines)


def _at_best(points: Points, found: Sequence[Best], metric: str) -> str:
    key = METRICS[metric]
    names = {policy: name for name, policy in BASELINES.items()}
    again = {
        one: points.difference(one.cell, DALLY, one.baseline, key, fresh=True)
        for one in found
        if one.metric == key
    }
    one = min(again, key=lambda one: again[one].mean)
    return (
        f"**{metric[0].upper()}{metric[1:]}**: {percent(again[one])} at best, against {names[one.baseline]} "
        f"({label(one.cell)}; {again[one].seeds} fresh seeds). The paper: up to {PAPER[metric]}."
    )


def _usually(points: Points, study: Study, name: str) -> str:
    cells = list(study.cells())
    policy = BASELINES[name]
    tally = counts(points, DALLY, policy, "jct_mean_s", cells)
    middle = median(points.difference(cell, DALLY, policy, "jct_mean_s").mean for cell in cells)
    return (
        f"Against **{name}**, mean JCT is better in {tally['better']} of {len(cells)} cells, worse in {tally['worse']}, "
        f"indistinguishable in {tally['neither']}; in the median cell {tenths(middle)} %."
    )


def _until(points: Points, study: Study) -> str:
    """Up to which fabric speed anything differs, at load 1."""
    said = []
    for name in CLAIMED_AGAINST:
        differing = [
            cell.nic_gbit
            for mix in study.mixes
            for cell in sweep(study, mix)
            if verdict(points.difference(cell, DALLY, BASELINES[name], "jct_mean_s")) != "neither"
        ]
        said.append(
            f"{listed([max(differing)])} Gbit/s ({name})" if differing else f"no speed at all ({name})"
        )
    return f"At load 1 and {study.over:g}:1, the fastest fabric on which mean JCT differs at all: {'; '.join(said)}."


def _costs(points: Points, study: Study) -> str:
    """The worst mean JCT, against whom."""
    worse = [
        (found.mean, name, percent(found), label(cell))
        for name, policy in RIVALS.items()
        for cell in study.cells()
        if verdict(found := points.difference(cell, DALLY, policy, "jct_mean_s")) == "worse"
    ]
    if not worse:
        return "In no cell is its mean JCT worse than any other's."
    _, name, said, where = max(worse)
    names = sorted({one[1] for one in worse})
    return (
        f"**It also loses**: mean JCT is worse than that of {', '.join(names)} in {len({one[3] for one in worse})} cells in "
        f"all; at worst {said} against {name} ({where})."
    )


def _timers(points: Points, study: Study) -> str:
    """Mean regret of each timer that needs no oracle."""
    cells = list(study.cells())
    regrets = [regret(points, cell, TIMERS, "jct_mean_s") for cell in cells]
    means = {
        name: fmean(one[name].mean for one in regrets)
        for name, policy in TIMERS.items()
        if "oracle" not in policy
    }
    said = [f"{name} {100 * mean:.1f} %" for name, mean in sorted(means.items(), key=lambda pair: pair[1])]
    return f"Mean regret of its timers in mean JCT: {', '.join(said)}. The default is auto."
