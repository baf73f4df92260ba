"""Sections: figures over fabric speed, oversubscription and load."""

from __future__ import annotations

from collections.abc import Callable

from clocks import table
from network_findings import Points, above_floor
from network_grid import BASELINES, DALLY, NO_PREEMPTION, TIMERS, Study
from network_points import Cell
from network_words import BATCH, CLAIMED_AGAINST, differences, hours, listed, sweep, whole

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
