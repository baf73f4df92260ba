"""What network-awareness buys, over fabric speed, load and kind of jobs: Dally against those who consolidate.

    python benchmarks/network_sensitivity.py --quick                      # a minute, to the terminal
    python benchmarks/network_sensitivity.py --cache FOLDER \\
        --write docs/results/network-sensitivity.md --out points.csv      # the study, some 15 minutes of CPU

HEMIOLA_SHARED names the folder with the real traces; without it Philly's jobs are generated. A run
that was stopped goes on where it was if it is given the same cache.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from xml.sax.saxutils import escape

from network_findings import (
    BATCH,
    CLAIMED_AGAINST,
    METRICS,
    RIVALS,
    SOME,
    Best,
    Points,
    claims,
    claims_section,
    fabric_section,
    laws_section,
    listed,
    load_section,
    nothing_section,
    oversubscription_section,
    regret,
    resets_section,
    short_section,
    sweep,
    timers_section,
)
from network_study import (
    DALLY,
    FULL,
    GPUS,
    HOSTS,
    HOSTS_PER_RACK,
    MIXES,
    POLICIES,
    QUICK,
    REFERENCE,
    TIMERS,
    Cell,
    Memory,
    Row,
    Study,
    fingerprint,
    run_all,
)
from page import machine, table

import hemiola
from hemiola.report.metrics import ConfidenceInterval

# Small line charts side by side as one SVG, with bands for intervals. Knows no benchmark.

WIDE, HIGH, LEFT, TOP, GAP_X, GAP_Y, HEAD_ROOM, FOOT = 270, 170, 58, 62, 62, 62, 24, 66
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b5569a", "#a67c00", "#7a7a7a")
STYLE = (
    ".back{fill:#fff}text{font:12px sans-serif;fill:#222}.bold{font-weight:bold}.grid{stroke:#888;opacity:.25}"
    ".zero{stroke:#555;stroke-width:1.5}@media(prefers-color-scheme:dark)"
    "{.back{fill:#1b1d23}text{fill:#e6e6e6}.zero{stroke:#bbb}.line{filter:brightness(1.35)}}"
)


@dataclass(frozen=True)
class Series:
    """One line: an interval by x, and a colour by number."""

    name: str
    points: dict[float, ConfidenceInterval]
    colour: int


@dataclass(frozen=True)
class SeriesPanel:
    """One chart.

    Attributes:
        low, high: of the y axis; lines are cut there.
    """

    title: str
    lines: Sequence[Series]
    low: float
    high: float


@dataclass(frozen=True)
class Frame:
    """Where a panel lies and how its axes run."""

    left: float
    top: float
    xs: tuple[float, ...]
    low: float
    high: float

    def x(self, value: float) -> float:
        """Positions are evenly spaced: every x is a step of the sweep."""
        return self.left + WIDE * self.xs.index(value) / max(len(self.xs) - 1, 1)

    def y(self, value: float) -> float:
        """Cut at the axis' ends."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.top + HIGH * (1 - share)


def draw_panels(title: str, rows: Sequence[Sequence[SeriesPanel]], x_name: str, percent: bool = True) -> str:
    """The picture: panels in rows, one legend at the bottom."""
    width = LEFT + max(map(len, rows)) * (WIDE + GAP_X) - 20
    height = TOP + len(rows) * (HIGH + GAP_Y) + FOOT - 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="back" width="{width}" height="{height}" rx="6"/>',
        f'<text class="bold" x="14" y="24">{escape(title)}</text>',
    ]
    for down, row in enumerate(rows):
        for along, panel in enumerate(row):
            parts.append(
                _panel(panel, LEFT + along * (WIDE + GAP_X), TOP + down * (HIGH + GAP_Y), percent, x_name)
            )
    parts.append(_legend(rows[0][0].lines, height - 16))
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: SeriesPanel, left: float, top: float, percent: bool, x_name: str) -> str:
    xs = tuple(sorted({x for line in panel.lines for x in line.points}))
    frame = Frame(left, top, xs, panel.low, panel.high)
    parts = [f'<text class="bold" x="{left}" y="{top - 9:.0f}">{escape(panel.title)}</text>']
    parts += [_grid(frame, value, percent) for value in _ticks(panel.low, panel.high)]
    parts += [
        f'<text x="{frame.x(x):.0f}" y="{top + HIGH + 16}" text-anchor="middle">{x:g}</text>' for x in xs
    ]
    parts.append(
        f'<text x="{left + WIDE / 2}" y="{top + HIGH + 32}" text-anchor="middle">{escape(x_name)}</text>'
    )
    return "\n".join([*parts, *(_line(line, frame) for line in panel.lines)])


def _grid(frame: Frame, value: float, percent: bool) -> str:
    y = frame.y(value)
    label = (
        f"{value:+.0%}"
        if percent and value and frame.low < 0
        else f"{value:.0%}"
        if percent
        else f"{value:g}"
    )
    kind = "zero" if value == 0 else "grid"
    return (
        f'<line class="{kind}" x1="{frame.left}" x2="{frame.left + WIDE}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{frame.left - 6}" y="{y + 4:.0f}" text-anchor="end">{label.replace("-", "−")}</text>'
    )


def _line(line: Series, frame: Frame) -> str:
    """The mean with a dot per point, and the interval behind it."""
    colour = COLOURS[line.colour % len(COLOURS)]
    points = sorted(line.points.items())
    upper = [(x, one.mean if one.high is None else one.high) for x, one in points]
    lower = [(x, one.mean if one.low is None else one.low) for x, one in points]
    band = _path(upper + lower[::-1], frame)
    means = [(x, one.mean) for x, one in points]
    dots = "".join(
        f'<circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="2.5" fill="{colour}"/>' for x, y in means
    )
    return (
        f'<g class="line"><polygon points="{band}" fill="{colour}" opacity=".15"/>'
        f'<polyline points="{_path(means, frame)}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}</g>'
    )


def _path(points: Sequence[tuple[float, float]], frame: Frame) -> str:
    return " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in points)


def _legend(lines: Sequence[Series], y: float) -> str:
    parts, x = [], float(LEFT)
    for line in lines:
        colour = COLOURS[line.colour % len(COLOURS)]
        parts.append(
            f'<line class="line" x1="{x:.0f}" x2="{x + 22:.0f}" y1="{y - 4:.0f}" y2="{y - 4:.0f}" stroke="{colour}" '
            f'stroke-width="3"/><text x="{x + 28:.0f}" y="{y:.0f}">{escape(line.name)}</text>'
        )
        x += 52 + 6.6 * len(line.name)
    return "".join(parts)


def _ticks(low: float, high: float) -> list[float]:
    """Four to eight round values."""
    rough = (high - low) / 6
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(step * size for step in (1, 2, 2.5, 5, 10) if step * size >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(step * k, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]


# The pictures of the study of network sensitivity.


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


# The page of the study of network sensitivity, in Markdown: every sentence with a figure is computed.

HEAD = """# What network-awareness buys

Dally (delay scheduling by network tier, network-sensitive pre-emption, self-tuning timers) against schedulers that
consolidate at any price, as best effort, or by migration: over fabric speed, oversubscription, load and kind of jobs. Every figure on this page
is computed by one command from replays that it makes itself."""

NOT_SHOWN = f"""## What this does not show

- **Not the paper's Dally.** Its formulas, traces and baselines are not public to us; ours is
  [in its style](../reference/policies.md). A figure that is not reached here does not refute it, nor does one that is
  reached confirm it.
- **A simulation.** Contention is a mean-field law, collectives are rings, no host fails, loading data is free.
  Nothing on this page was run on GPUs.
- **Profiles.** Muri's models were measured at an assumed 100 Gbit/s and are extrapolated to other speeds by one
  bandwidth term: overhead that is not bandwidth shrinks with it too. The GPTs are ideal rings
  ([profiles](../reference/profiles.md)). At 10 Gbit/s many of these jobs run several times slower across hosts than inside one; few
  people would run them so, without compressing, accumulating gradients or splitting the model otherwise. The largest gains come from such cells.
- **The reference fabric.** Had the run times been recorded on a slower fabric, jobs would have fewer iterations and
  slow fabrics would be less overloaded.
- **Makespan** of jobs that arrive over time is mostly the longest job's, and on raw Philly it says next to nothing.
- **Mean JCT** is mostly that of the many jobs that fit one host, which least attained service favours with or without a network.
- **{GPUS} GPUs, one kind of host, mostly powers of two.** Odd sizes fragment more, larger clusters less.
- **Gandiva** does not put several jobs on one GPU here, and each half-hour slice costs a save and a load.
- **The grid is a choice.** It has more slow and busy cells than there are such clusters: counts of cells are not odds."""


def page(points: Points, study: Study, found: Sequence[Best], about: str, pictures: dict[str, str]) -> str:
    """The whole page.

    Args:
        about: command, machine, time and versions.
        pictures: file names by the section that they belong to.
    """
    sections = [
        HEAD,
        about,
        short_section(points, study, found),
        claims_section(points, study, found)
        + _picture(pictures, "claims", "Dally's difference over fabric speed"),
        nothing_section(points, study),
        setup_section(points, study),
        fabric_section(points, study)
        + _picture(pictures, "exposed", "Exposed communication over fabric speed"),
        oversubscription_section(points, study),
        load_section(points, study) + _picture(pictures, "load", "Dally's difference over load"),
        timers_section(points, study)
        + _picture(pictures, "timers", "Regret of each timer over fabric speed"),
        resets_section(points, study),
        laws_section(points, study),
        NOT_SHOWN,
    ]
    return "\n\n".join(sections) + "\n"


def _picture(pictures: dict[str, str], name: str, says: str) -> str:
    return f"\n\n![{says}]({pictures[name]})" if name in pictures else ""


def setup_section(points: Points, study: Study) -> str:
    """What was replayed, and what the words mean."""
    mixes = "\n".join(
        f"- **{mix}**, {round(MIXES[mix].jobs * study.scale):,} jobs: {MIXES[mix].says}."
        for mix in study.mixes
    )
    return f"""## What was replayed

{GPUS} GPUs: {HOSTS} hosts of 8 in racks of {HOSTS_PER_RACK}, one NIC per host. NICs of {study.nics[0]:g} to {study.nics[-1]:g} Gbit/s behind uplinks
{study.over:g} times oversubscribed at load 1; some of these fabrics at other oversubscriptions
({listed(sorted({over for _, over in study.others}))}) and loads ({listed(study.loads)}{", and all jobs at once" if study.batch_nics else ""}).
{study.seeds} seeds per cell; all policies see the same jobs of a seed.

{mixes}

**Iterations are held fixed.** What a workload calls a job's run time is taken as its run time alone on its best
placement on a fabric of {REFERENCE[0]:g} Gbit/s with full bisection. On a slower fabric the same iterations take longer;
otherwise completion times could not be compared across fabrics. So "load 1" is load 1 *there*. If every job had its best
place to itself, the same jobs would offer each fabric of the sweep

{_offered(points, study)}

of what it can do while they arrive. Where that is above 1, what is compared is how a backlog is worked off.

**Exposed communication** is GPU-seconds spent waiting for communication that nothing hid, inside hosts too. Part of it no
scheduler can avoid: jobs of more than 8 GPUs must cross hosts, jobs of more than {8 * HOSTS_PER_RACK} racks. *The floor* is what the same jobs
would expose each alone on its best placement on that fabric.

**Differences** are means over seeds of the paired relative difference with a 95 % t interval; less is better, so negative is
good. *Better* and *worse* mean that the whole interval is on that side of zero and the mean beyond 1 %; of cells in which nothing differs,
one in twenty will seem to. **Consolidated** waits, for ever, for the narrowest tier that can hold a job; Tiresias, Gandiva and Dally choose the
narrowest tier that has room. {_ended(points, study)}"""


def _offered(points: Points, study: Study) -> str:
    rows = [
        [mix, *(f"{points.mean(cell, DALLY, 'offered').mean:.2f}" for cell in sweep(study, mix))]
        for mix in study.mixes
    ]
    return table(["NIC Gbit/s", *(listed([nic]) for nic in study.nics)], rows)


def _ended(points: Points, study: Study) -> str:
    unfinished = sum(
        row["unfinished"]
        for cell in study.cells()
        for policy in POLICIES
        for row in points.seeds(cell, policy).values()
    )
    return f"{unfinished} jobs did not finish." if unfinished else "Every job finished in every replay."


def study_rows(study: Study, memory: Memory, workers: int) -> tuple[list[Row], list[Best]]:
    """All rows: the search, then its best cells again on fresh seeds."""
    rows = run_all(study.points(), memory, workers)
    found = claims(Points(rows), study)
    again = [point for one in found for point in study.confirmation(one.cell, one.baseline)]
    return rows + run_all(list(dict.fromkeys(again)), memory, workers), found


def about(rows: Sequence[Row], command: str) -> str:
    """How this page came about."""
    philly = ""
    if any(row["mix"] == "philly" for row in rows):
        real = bool(os.environ.get("HEMIOLA_SHARED"))
        philly = "real jobs of Philly, " if real else "Philly's jobs generated (HEMIOLA_SHARED is not set), "
    return (
        f"Made on {date.today():%Y-%m-%d} by `{command}` with Hemiola {hemiola.__version__} (code {fingerprint()}): "
        f"{len(rows):,} replays, {sum(row['cpu_s'] for row in rows) / 60:.1f} minutes of CPU, {philly}"
        f"on {machine()}. Replays are deterministic: the same command gives the same figures."
    )


def write_rows(rows: Sequence[Row], file: Path) -> None:
    """Every point, as CSV, or as JSON if the file's name says so."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".json":
        file.write_text(json.dumps(list(rows), indent=0), encoding="utf-8")
        return
    with file.open("w", encoding="utf-8", newline="") as text:
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def make_page(
    rows: Sequence[Row], study: Study, found: Sequence[Best], command: str, file: Path | None
) -> str:
    """The page; with a file, written there with its pictures in `img` beside it."""
    points = Points(rows)
    links: dict[str, str] = {}
    if file is not None:
        folder = file.parent / "img"
        folder.mkdir(parents=True, exist_ok=True)
        for name, svg in pictures(points, study).items():
            picture = folder / f"network-{name}.svg"
            picture.write_text(svg, encoding="utf-8")
            links[name] = f"img/{picture.name}"
    text = page(points, study, found, about(rows, command), links)
    if file is not None:
        file.write_text(text, encoding="utf-8")
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study, print or write its page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few cells, few and small workloads")
    parser.add_argument(
        "--workers", type=int, default=min(2, os.cpu_count() or 1), help="processes (default 2)"
    )
    parser.add_argument(
        "--cache", type=Path, metavar="FOLDER", help="remember points there, and take up what is known"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="every point, as .csv or .json")
    parser.add_argument(
        "--write", type=Path, metavar="FILE.md", help="the page, with its pictures in img/ beside it"
    )
    asked = parser.parse_args(arguments)
    study = QUICK if asked.quick else FULL
    rows, found = study_rows(study, Memory(asked.cache), asked.workers)
    if asked.out is not None:
        write_rows(rows, asked.out)
    command = "python benchmarks/network_sensitivity.py" + (" --quick" if asked.quick else "")
    text = make_page(rows, study, found, command, asked.write)
    if asked.write is None:
        print(text)


if __name__ == "__main__":
    main()
