"""What the points of the study say: paired differences, best and worst cells, regret. Writes no text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean, median

from network_study import BASELINES, DALLY, FRESH, LAWS, NO_PREEMPTION, RESETS, TIMERS, Cell, Row, Study
from page import table

from hemiola.report.metrics import ConfidenceInterval, interval

METRICS = {"makespan": "makespan_s", "mean JCT": "jct_mean_s", "exposed communication": "exposed_gpu_s"}
NOTICEABLE = 0.01
"""A difference below this counts as none, however sure."""


class Points:
    """Rows by cell, policy and seed."""

    def __init__(self, rows: Iterable[Row]) -> None:
        names = [field.name for field in fields(Cell)]
        self._rows: dict[tuple[Cell, str], dict[int, Row]] = {}
        for row in rows:
            cell = Cell(**{name: row[name] for name in names})
            self._rows.setdefault((cell, row["policy"]), {})[row["seed"]] = row

    def __contains__(self, of: tuple[Cell, str]) -> bool:
        return of in self._rows

    def cells(self, policy: str) -> list[Cell]:
        """Every cell in which this policy was run."""
        return [cell for cell, name in self._rows if name == policy]

    def seeds(self, cell: Cell, policy: str, fresh: bool = False) -> dict[int, Row]:
        """Rows by seed: those of the search, or the fresh ones."""
        return {seed: row for seed, row in self._rows[cell, policy].items() if (seed >= FRESH) == fresh}

    def mean(self, cell: Cell, policy: str, metric: str) -> ConfidenceInterval:
        """A figure over the seeds."""
        return interval([row[metric] for row in self.seeds(cell, policy).values()])

    def difference(
        self, cell: Cell, policy: str, baseline: str, metric: str, fresh: bool = False
    ) -> ConfidenceInterval:
        """Mean relative difference to the baseline over paired seeds: -0.2 for a fifth less."""
        base = self.seeds(cell, baseline, fresh)
        return interval(
            [
                row[metric] / base[seed][metric] - 1.0 if base[seed][metric] else 0.0
                for seed, row in self.seeds(cell, policy, fresh).items()
                if seed in base
            ]
        )


def verdict(found: ConfidenceInterval) -> str:
    """better, worse or neither: the whole interval on one side and the mean beyond a percent."""
    if found.high is not None and found.high < 0 and found.mean <= -NOTICEABLE:
        return "better"
    if found.low is not None and found.low > 0 and found.mean >= NOTICEABLE:
        return "worse"
    return "neither"


@dataclass(frozen=True)
class Best:
    """Where a policy gains most on a baseline in one figure."""

    metric: str
    baseline: str
    cell: Cell
    found: ConfidenceInterval


def best(points: Points, policy: str, baseline: str, metric: str, cells: Sequence[Cell]) -> Best:
    """The cell with the largest mean reduction."""
    return min(
        (Best(metric, baseline, cell, points.difference(cell, policy, baseline, metric)) for cell in cells),
        key=lambda one: one.found.mean,
    )


def counts(points: Points, policy: str, baseline: str, metric: str, cells: Sequence[Cell]) -> dict[str, int]:
    """In how many cells the policy is better, worse, or neither."""
    all_of = [verdict(points.difference(cell, policy, baseline, metric)) for cell in cells]
    return {name: all_of.count(name) for name in ("better", "neither", "worse")}


def regret(
    points: Points, cell: Cell, timers: Mapping[str, str], metric: str
) -> dict[str, ConfidenceInterval]:
    """Each timer's figure over that of the timer that is best on average in this cell, minus one."""
    winner = min(timers.values(), key=lambda policy: points.mean(cell, policy, metric).mean)
    return {name: points.difference(cell, policy, winner, metric) for name, policy in timers.items()}


def above_floor(points: Points, cell: Cell, policy: str) -> ConfidenceInterval:
    """Exposed communication beyond what the jobs would expose alone on their best places, over that floor."""
    return interval(
        [row["exposed_gpu_s"] / row["floor_gpu_s"] - 1.0 for row in points.seeds(cell, policy).values()]
    )


# Words and numbers that the sections of the study of network sensitivity share.

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


# Sections: how far the paper's three figures go, and where network-awareness buys nothing or costs.

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


# Sections: figures over fabric speed, oversubscription and load.

ALL = {
    **BASELINES,
    **{f"Dally, {name}": policy for name, policy in TIMERS.items()},
    "Dally, no pre-emption": NO_PREEMPTION,
}
SOME = {name: ALL[name] for name in (*CLAIMED_AGAINST, "Dally, auto", "Dally, break-even")}


def fabric_section(points: Points, study: Study) -> str:
    """Mean JCT, exposed share and excess over the floor, by NIC."""
    head = [listed([nic]) for nic in study.nics]
    parts = [
        f"## Over fabric speed\n\nLoad 1, uplinks {study.over:g}:1. Mean JCT in hours, with half the width of its 95 % "
        "interval over seeds (of the seeds' own spread: the paired differences above are far tighter)."
    ]
    for mix in study.mixes:
        rows = [
            [name, *(hours(points.mean(cell, policy, "jct_mean_s")) for cell in sweep(study, mix))]
            for name, policy in ALL.items()
        ]
        parts.append(table([f"{mix}, NIC Gbit/s", *head], rows))
    parts.append(
        "The share of busy GPU-time that is exposed communication:\n\n"
        + _by_nic(study, lambda c, p: f"{points.mean(c, p, 'exposed_fraction').mean:.1%}")
    )
    parts.append(
        "And how far exposed communication is above its floor:\n\n"
        + _by_nic(study, lambda c, p: whole(above_floor(points, c, p).mean))
    )
    return "\n\n".join(parts)


def _by_nic(study: Study, says: Callable[[Cell, str], str]) -> str:
    rows = [
        [f"{mix}: {name}", *(says(cell, policy) for cell in sweep(study, mix))]
        for mix in study.mixes
        for name, policy in SOME.items()
    ]
    return table(["NIC Gbit/s", *(listed([nic]) for nic in study.nics)], rows)


def oversubscription_section(points: Points, study: Study) -> str:
    """Dally's differences at other oversubscriptions, beside those of the sweep."""
    fabrics = {(nic, over) for nic, over in study.others} | {(nic, study.over) for nic, _ in study.others}
    rows = []
    for mix in study.mixes:
        for nic, over in sorted(fabrics):
            cell = Cell(mix, nic, over, scale=study.scale)
            if (cell, DALLY) in points:
                jct = differences(points, cell, DALLY, "jct_mean_s", CLAIMED_AGAINST)
                exposed = differences(points, cell, DALLY, "exposed_gpu_s", ["Tiresias, consolidated"])
                rows.append([f"{mix}, {nic:g} Gbit/s, {over:g}:1", *jct, *exposed])
    head = ["", *(f"JCT to {name}" for name in CLAIMED_AGAINST), "exposed, to Tiresias, consolidated"]
    return "## Over oversubscription\n\nDally's paired differences at load 1.\n\n" + table(head, rows)


def load_section(points: Points, study: Study) -> str:
    """Dally's differences over load."""
    parts = [
        f"## Over load\n\nDally's paired difference in mean JCT, at {study.over:g}:1; where all jobs come at once, in makespan."
    ]
    for mix in study.mixes:
        cells = [c for c in study.cells() if c.mix == mix and c.oversubscription == study.over]
        rows = []
        for cell in sorted(cells, key=lambda c: (c.nic_gbit, c.load)):
            if cell.nic_gbit in study.load_nics:
                batch = cell.load >= BATCH
                said = "all at once, makespan" if batch else f"{cell.load:g}"
                metric = "makespan_s" if batch else "jct_mean_s"
                found = differences(points, cell, DALLY, metric, CLAIMED_AGAINST)
                rows.append([listed([cell.nic_gbit]), said, *found])
        parts.append(table([f"{mix}, NIC Gbit/s", "load", *CLAIMED_AGAINST], rows))
    return "\n\n".join(parts)


# Sections: which timer, which reset rule, which law of contention.


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


# Section: the study of network sensitivity in a few lines, each computed.


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
