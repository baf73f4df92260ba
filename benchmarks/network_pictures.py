"""The pictures of the study of network sensitivity."""

from __future__ import annotations

from network_chart import Series, SeriesPanel, draw_panels
from network_findings import METRICS, Points, regret
from network_grid import DALLY, TIMERS, Study
from network_points import Cell
from network_sweeps import SOME
from network_words import BATCH, CLAIMED_AGAINST, RIVALS, sweep


def pictures(points: Points, study: Study) -> dict[str, str]:
    """Each picture's SVG by its name."""
    return {
        "claims": by_fabric(points, study),
        "exposed": exposed(points, study),
        "load": by_load(points, study),
        "timers": by_timer(points, study),
    }


def _against(points: Points, cells: list[Cell], metric: str, x: str) -> list[Series]:
    return [
        Series(
            name,
            {getattr(cell, x): points.difference(cell, DALLY, RIVALS[name], metric) for cell in cells},
            colour,
        )
        for colour, name in enumerate(CLAIMED_AGAINST)
    ]


def by_fabric(points: Points, study: Study) -> str:
    """Dally's difference in each figure, by NIC."""
    rows = [
        [
            SeriesPanel(f"{mix}: {metric}", _against(points, sweep(study, mix), key, "nic_gbit"), -1.0, 0.4)
            for metric, key in METRICS.items()
        ]
        for mix in study.mixes
    ]
    title = f"Dally's difference to each baseline (load 1, {study.over:g}:1; below 0 Dally is better; bands: 95 %)"
    return draw_panels(title, rows, "NIC, Gbit/s")


def by_load(points: Points, study: Study) -> str:
    """The same by load, at one NIC."""
    nic = 25 if 25 in study.load_nics else study.load_nics[0]
    rows = []
    for mix in study.mixes:
        cells = [
            c for c in study.cells() if (c.mix, c.nic_gbit, c.oversubscription) == (mix, nic, study.over)
        ]
        cells = [c for c in cells if c.load < BATCH]
        rows.append(
            [
                SeriesPanel(f"{mix}: {metric}", _against(points, cells, key, "load"), -1.0, 0.4)
                for metric, key in METRICS.items()
            ]
        )
    title = f"Dally's difference to each baseline ({nic:g} Gbit/s, {study.over:g}:1; bands: 95 %)"
    return draw_panels(title, rows, "load")


def exposed(points: Points, study: Study) -> str:
    """The exposed share of busy GPU-time, by NIC."""
    row = [
        SeriesPanel(
            f"{mix}: exposed share of busy GPU-time",
            [
                Series(
                    name,
                    {c.nic_gbit: points.mean(c, policy, "exposed_fraction") for c in sweep(study, mix)},
                    i,
                )
                for i, (name, policy) in enumerate(SOME.items())
            ],
            0.0,
            1.0,
        )
        for mix in study.mixes
    ]
    return draw_panels(
        f"Exposed communication (load 1, {study.over:g}:1; bands: 95 % over seeds)", [row], "NIC, Gbit/s"
    )


def by_timer(points: Points, study: Study) -> str:
    """Regret in mean JCT of each timer, by NIC."""
    row = []
    for mix in study.mixes:
        found = {c.nic_gbit: regret(points, c, TIMERS, "jct_mean_s") for c in sweep(study, mix)}
        lines = [
            Series(name, {nic: one[name] for nic, one in found.items()}, colour)
            for colour, name in enumerate(TIMERS)
        ]
        row.append(SeriesPanel(f"{mix}: regret in mean JCT", lines, -0.05, 0.25))
    title = f"Each timer against the best one of the cell (load 1, {study.over:g}:1; bands: 95 %)"
    return draw_panels(title, [row], "NIC, Gbit/s")
