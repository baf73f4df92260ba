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
import os
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from clocks import machine
from network_claims import claims
from network_findings import Best, Points
from network_grid import FULL, QUICK, Study
from network_page import page
from network_pictures import pictures
from network_points import Row
from network_runs import Memory, fingerprint, run_all

import hemiola


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
