"""TicTac's and Caramel's settings again, in the iteration executor: their claims beside what is found here.

    python benchmarks/ordering.py                                   # to the terminal
    python benchmarks/ordering.py --write docs/results/ordering.md  # the page and its picture
    python benchmarks/ordering.py --only tictac --models VGG-16     # a part of it

Ten models in the shapes of TicTac's table are captured and timed on a shipped GPU's file; nothing is run or
measured, so every machine finds the same numbers. Needs PyTorch for the capture. One to two minutes.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from ordering_caramel import BALANCED, HOSTS, RATES, Compared, compared
from ordering_chart import DotPanel, DotRow, draw_dots
from ordering_models import DEVICE, MODELS, SLOWER
from ordering_page import PICTURE, page
from ordering_sections import CASE, Pulled, Reduced
from ordering_tictac import RHOS, Orders, orders

SETTINGS = ("tictac", "caramel")


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute, and print or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="only these settings"
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="only these")
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="write the page there")
    parser.add_argument(
        "--hardware", default=DEVICE, help=f"a shipped GPU, or a hardware file (default {DEVICE})"
    )
    asked = parser.parse_args(arguments)
    pulled: Pulled = {}
    reduced: Reduced = {}
    slower: Reduced = {}
    for name in asked.models:
        print(f"{name} ...", file=sys.stderr, flush=True)
        if "tictac" in asked.only:
            pulled[name] = {rho: orders(name, rho, asked.hardware) for rho in RHOS}
        if "caramel" in asked.only:
            slower[name] = {(HOSTS[-1], BALANCED): compared(name, HOSTS[-1], BALANCED, SLOWER)}
            reduced[name] = {
                (hosts, rate): compared(name, hosts, rate, asked.hardware)
                for hosts in HOSTS
                for rate in RATES
            }
    command = " ".join(["python benchmarks/ordering.py", *(sys.argv[1:] if arguments is None else arguments)])
    text = page(asked.models, asked.hardware, pulled, reduced, slower, command)
    if asked.write is None:
        print(text)
        return
    asked.write.write_text(text, encoding="utf-8")
    asked.write.with_name(PICTURE).write_text(picture(pulled, reduced), encoding="utf-8")


def picture(pulled: Pulled, reduced: Reduced) -> str:
    """Both settings where communication takes as long as computing, as multiples of the bound."""
    panels = []
    if pulled:
        rows = [_pulled(name, found[1.0]) for name, found in pulled.items()]
        panels.append(
            DotPanel("TicTac: inference, one worker", rows, (1, 1.25, 1.5, 1.75, 2), "random, 5 to 95 %")
        )
    if reduced:
        rows = [_reduced(name, found[CASE, BALANCED]) for name, found in reduced.items()]
        most = math.ceil(max(value for row in rows for value in row.dots.values()))
        panels.append(DotPanel(f"Caramel: training, {CASE} hosts", rows, range(1, most + 1)))
    return draw_dots(panels, "Communication as long as computing: iterations", "times the bound")


def _pulled(name: str, found: Orders) -> DotRow:
    bound_s = found.random[0].least_s
    dots = {"random, mean": found.mean_s, "reverse": found.ordered["reverse"].makespan_s}
    dots["TAC"] = found.ordered["TAC"].makespan_s
    span = (found.percentile(5) / bound_s, found.percentile(95) / bound_s)
    return DotRow(name, {key: seconds / bound_s for key, seconds in dots.items()}, span)


def _reduced(name: str, found: Compared) -> DotRow:
    dots = {
        "one by one, no overlap": found.passes["one by one"], "DDP": found.others["DDP"],
        "Caramel's passes": found.passes["primitives"], "Hemiola's plan": found.best_s,
    }  # fmt: skip
    return DotRow(name, {key: seconds / found.bound_s for key, seconds in dots.items()})


if __name__ == "__main__":
    main()
