"""Sections: how far the paper's three figures go, and where network-awareness buys nothing or costs."""

from __future__ import annotations

from collections.abc import Sequence

from clocks import table
from network_findings import METRICS, Best, Points, best, counts, verdict
from network_grid import BASELINES, DALLY, Study
from network_points import Cell
from network_words import CLAIMED_AGAINST, RIVALS, label, listed, percent, sweep

PAPER = {"makespan": "69 %", "mean JCT": "83 %", "exposed communication": "98 %"}


def claims(points: Points, study: Study) -> list[Best]:
    """Per figure and baseline, the cell in which Dally gains most."""
    cells = list(study.cells())
    return [
        best(points, DALLY, BASELINES[name], metric, cells)
        for metric in METRICS.values()
        for name in CLAIMED_AGAINST
    ]


def claims_section(points: Points, study: Study, found: Sequence[Best]) -> str:
    """Each of the paper's figures against each baseline, found and found again."""
    figures = {key: name for name, key in METRICS.items()}
    names = {policy: name for name, policy in BASELINES.items()}
    rows = [
        [
            figures[one.metric],
            PAPER[figures[one.metric]],
            names[one.baseline],
            percent(one.found),
            percent(points.difference(one.cell, DALLY, one.baseline, one.metric, fresh=True)),
            label(one.cell),
        ]
        for one in found
    ]
    return f"""## How far the paper's figures go

The abstract of the paper (arXiv 2401.16492) claims reductions of up to 69 % in makespan, 83 % in mean
JCT and 98 % in communication overhead against scheduling by consolidation under congested networking, in
simulation. Here is `dally` with its default parameters: for each figure and baseline the cell, of
{len(list(study.cells()))}, in which it gains most. The best of many is flattered by chance, so that cell was run again on
{study.fresh} fresh seeds: **the column "again" is the one to quote.**

{table(["figure", "paper, up to", "against", "found", "again, fresh seeds", "where"], rows)}

{_explained(points, found)}"""


def _explained(points: Points, found: Sequence[Best]) -> str:
    """What follows from what consolidation means, with the figure to it."""
    strict = [one for one in found if one.metric == "exposed_gpu_s" and "consolidated" in one.baseline]
    again = [points.difference(o.cell, DALLY, o.baseline, o.metric, fresh=True).mean for o in strict]
    return (
        "The word *consolidation* decides. Waiting for the narrowest tier (*consolidated*) leaves little more than the "
        "communication that nobody can avoid, so there is little to take from it: "
        f"{100 * max(0.0, -min(again)):.0f} % where it is most. Consolidation as best effort (the narrowest tier that has room at "
        "the moment) spreads jobs whenever the cluster is full, and the large reductions are reductions of that. The `tiresias` of these rows takes "
        "wide places at once and moves no running job, so a long one that starts badly stays so until it is pre-empted or ends; the paper on "
        "Tiresias consolidates the models whose tensors are skewed and spreads the others, which lies between the two rows."
    )


def nothing_section(points: Points, study: Study) -> str:
    """Counts of better, neither and worse; the worst cells; the speeds at which anything differs."""
    cells = list(study.cells())
    parts = [
        """## Where it buys nothing, or costs

In how many cells `dally` (default parameters) is better / neither / worse than each other policy. The last
rows are variants of Dally itself: where they win, what the default adds to them costs more than it brings."""
    ]
    for mix in study.mixes:
        mine = [cell for cell in cells if cell.mix == mix]
        rows = [
            [name, *(_counted(points, policy, key, mine) for key in METRICS.values())]
            for name, policy in RIVALS.items()
        ]
        parts.append(table([f"{mix}, {len(mine)} cells, against", *METRICS], rows))
    return "\n\n".join([*parts, _worst(points, cells), _differing(points, study)])


def _counted(points: Points, policy: str, key: str, cells: Sequence[Cell]) -> str:
    found = counts(points, DALLY, policy, key, cells)
    return f"{found['better']} / {found['neither']} / {found['worse']}"


def _worst(points: Points, cells: Sequence[Cell]) -> str:
    rows = []
    for name, policy in RIVALS.items():
        for metric, key in METRICS.items():
            worse = [
                (found.mean, percent(found), label(cell))
                for cell in cells
                if verdict(found := points.difference(cell, DALLY, policy, key)) == "worse"
            ]
            if worse:
                rows.append([name, metric, str(len(worse)), *max(worse)[1:]])
    if not rows:
        return "In no cell is it worse than any of them."
    head = ["against", "figure", "cells where worse", "worst difference", "where"]
    return "Where it is worse at all, its worst cell:\n\n" + table(head, rows)


def _differing(points: Points, study: Study) -> str:
    """The fabric speeds at which it matters whether one is aware of the network."""
    rows = []
    for mix in study.mixes:
        for name in CLAIMED_AGAINST:
            row = [f"{mix}, {name}"]
            for cell in sweep(study, mix):
                found = points.difference(cell, DALLY, BASELINES[name], "jct_mean_s")
                row.append({"better": "better", "worse": "**worse**", "neither": "–"}[verdict(found)])
            rows.append(row)
    head = ["mean JCT against, NIC Gbit/s", *(listed([nic]) for nic in study.nics)]
    return f"Over fabric speed, at load 1 and {study.over:g}:1:\n\n" + table(head, rows)
