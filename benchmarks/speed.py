"""How fast Hemiola is, in multiples of a bare event loop measured in the same run.

    python benchmarks/speed.py                                  # all sections, to the terminal
    python benchmarks/speed.py --only floor curve               # some of them
    python benchmarks/speed.py --write docs/results/speed.md    # with the picture beside it

HEMIOLA_SHARED names the folder with the real traces; without it the jobs are generated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

import against_floor
import at_scale
import curve
import peers
import startup
from clocks import machine

HEAD = """# Speed

Every figure here is measured by one command, and most are multiples of a bare event loop
(`benchmarks/floor.py`: a heap, hosts bucketed by free GPUs, strict FIFO, best fit; no validation, no
accounting, no network), measured in the same run. CPU time is the figure, because the machine is shared; wall time stands beside it.
"Everything on" means: every decision validated, every GPU-second accounted for, models drawn for all
jobs, and contention on the links of a leaf–spine.
"""
PICTURE = "speed-curve.svg"
TITLES = {
    "floor": "10,000 jobs on 512 GPUs",
    "startup": "From keystroke to table",
    "philly": "All of Philly",
    "huge": "100,000 GPUs",
    "curve": "Cost per event against the size of the cluster",
    "peers": "Other simulators",
}


def sections(picture: Path | None, rounds: int) -> dict[str, Callable[[], str]]:
    """Each section of the report, by name."""
    return {
        "floor": lambda: against_floor.measure(rounds=rounds),
        "startup": lambda: startup.measure(rounds=rounds),
        "philly": lambda: at_scale.philly(rounds=max(1, rounds // 2 + 1)),
        "huge": at_scale.huge,
        "curve": lambda: curve.measure(picture),
        "peers": peers.measure,
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure what was asked for; print it, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=TITLES, default=list(TITLES), help="which sections")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is repeated (default 5)")
    parser.add_argument(
        "--write", type=Path, metavar="FILE.md", help="write the page there, its picture beside it"
    )
    asked = parser.parse_args(arguments)
    picture = None if asked.write is None else asked.write.with_name(PICTURE)
    known = sections(picture, asked.rounds)
    command = "python benchmarks/speed.py " + " ".join(sys.argv[1:] if arguments is None else arguments)
    page = [HEAD, f"Measured on {date.today():%Y-%m-%d} with `{command.strip()}` on: {machine()}."]
    for name in asked.only:
        print(f"measuring: {TITLES[name]} ...", file=sys.stderr, flush=True)
        text = known[name]()
        if name == "curve" and picture is not None:
            text += f"\n\n![CPU time per event against the size of the cluster]({PICTURE})"
        page.append(f"## {TITLES[name]}\n\n{text}")
        print(page[-1], end="\n\n", flush=True)
    if asked.write is not None:
        asked.write.write_text("\n\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
