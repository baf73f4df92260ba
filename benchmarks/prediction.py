"""How far predicted iterations are from measured ones: real DDP jobs on gloo, in a lab's network.

    sudo python benchmarks/prediction.py                                       # to the terminal
    sudo python benchmarks/prediction.py --write docs/results/prediction.md    # the page

Ten models are captured; three of them calibrate the machine, beside the built-in networks, and so do
gloo's collectives between two and between four hosts of a lab without shaping. All ten are then predicted
and run with 2 and 4 ranks at several rates, once with their real computation on this machine's cores,
which the ranks share, and once with sleeps in its place. Needs root. About 40 minutes.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from prediction_chart import Point, draw_points
from prediction_emulated import emulated_graph, lateness_s, layers_of
from prediction_measure import Case, Measured, measured
from prediction_models import CALIBRATED, MODELS
from prediction_page import PICTURE, page

import hemiola
from hemiola.core.graph import Graph
from hemiola.core.hardware import Hardware
from hemiola.cost.collective.library import GLOO
from hemiola.cost.prediction import PredictionOptions, predict
from hemiola.lab import Lab
from hemiola.profiler.calibrate import calibrate, calibrate_links
from hemiola.trace.struct_json import read_hardware, write_hardware

RANKS = (2, 4)
RATES = ("unlimited", "1gbit", "500mbit", "100mbit")


@dataclass(frozen=True)
class Result:
    """One case: what was predicted, between which ends, and what was measured."""

    case: Case
    predicted_s: float
    low_s: float
    high_s: float
    measured: Measured

    @property
    def error(self) -> float:
        """Relative; above 0 if too long was predicted."""
        return self.predicted_s / self.measured.iteration_s - 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Calibrate, run, predict, and print or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hardware", type=Path, help="calibrate into this file, or use it if it is there")
    parser.add_argument("--measured", type=Path, help="measure into this file, or use it if it is there")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="only these")
    parser.add_argument("--ranks", type=int, nargs="+", default=list(RANKS), help="how many (default 2 4)")
    parser.add_argument("--rounds", type=int, default=2, help="how often each rate has its turn (default 2)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of iterations per turn (default 1.5)")
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="write the page there")
    asked = parser.parse_args(arguments)
    graphs = {name: captured(name) for name in asked.models}
    hardware = calibrated(asked.hardware, asked.ranks)
    cases = ran(graphs, asked.ranks, asked.rounds, asked.seconds, asked.measured)
    results = [compared(case, found, graphs[case.model], hardware) for case, found in cases.items()]
    text = page(results, hardware, " ".join(["python benchmarks/prediction.py", *sys.argv[1:]]))
    if asked.write is None:
        print(text)
    else:
        asked.write.write_text(text, encoding="utf-8")
        points = [
            Point(
                r.predicted_s, r.measured.iteration_s, int(r.case.emulated), r.case.ranks > 2,
                f"{r.case.model}, {r.case.ranks} ranks, {r.case.rate}: {r.error:+.1%}",
            )
            for r in results
        ]  # fmt: skip
        picture = draw_points(points, ["computing", "sleeping"], ("2 ranks", "more ranks"))
        asked.write.with_name(PICTURE).write_text(picture, encoding="utf-8")


def captured(name: str) -> Graph:
    """The graph of a model as the job trains it."""
    import torch

    example = MODELS[name]("meta")
    optimizer = torch.optim.SGD(example[0].parameters(), lr=1e-4)
    return (
        hemiola.capture(*example, optimizer=optimizer, name=name)
        if len(example) > 2
        else hemiola.capture(*example, None, optimizer, name=name)
    )


def calibrated(path: Path | None, between: Sequence[int] = RANKS) -> Hardware:
    """This machine and gloo between hosts of a lab, measured unless the file is there."""
    if path is not None and path.exists():
        return read_hardware(path)
    hardware = calibrate([captured(name) for name in CALIBRATED], threads=1, progress=_progress)
    links = []
    for ranks in between:
        _progress(f"gloo between {ranks} hosts", 0, 1)
        with Lab(hosts=ranks, rate="unlimited") as lab:
            links += calibrate_links(ranks, launch=lambda command, lab=lab: lab.run(command, out=sys.stderr))
    hardware = msgspec.structs.replace(hardware, collectives=tuple(links))
    if path is not None:
        write_hardware(hardware, path)
    return hardware


def _progress(what: str, done: int, steps: int) -> None:
    print(f"calibrating: {what} ({done} of {steps})", file=sys.stderr, flush=True)


def ran(
    graphs: dict[str, Graph], rank_counts: Sequence[int], rounds: int, seconds: float, path: Path | None
) -> dict[Case, Measured]:
    """Every case, measured; kept in the file after each model."""
    cases: dict[Case, Measured] = {}
    if path is not None and path.exists():
        cases = pickle.loads(path.read_bytes())
    for ranks in rank_counts:
        with measured(ranks, RATES, rounds, seconds) as (_, run):
            for name, graph in graphs.items():
                for layers in (None, layers_of(graph)):
                    if Case(name, layers is not None, ranks, RATES[-1]) in cases:
                        continue
                    print(f"running {name} on {ranks} hosts ...", file=sys.stderr, flush=True)
                    cases |= run(name, layers)
                    if path is not None:
                        path.write_bytes(pickle.dumps(cases))
    return {case: found for case, found in cases.items() if case.model in graphs}


def compared(case: Case, found: Measured, graph: Graph, hardware: Hardware) -> Result:
    """Predict one case. Its hosts share this machine's cores."""
    topology = Lab(hosts=case.ranks, rate=case.rate).topology()
    options, seconds = PredictionOptions(cores=float(hardware.cores)), None
    if case.emulated:
        graph, seconds = emulated_graph(
            case.model, layers_of(graph), hardware.memory_bytes_per_s, lateness_s()
        )
        hardware = msgspec.structs.replace(hardware, kind="gpu", noise=0.0, iteration_s=0.0)
        options = PredictionOptions(library=GLOO)  # who sleeps holds no core
    prediction = predict(graph, hardware, topology, case.ranks, options=options, seconds=seconds)
    return Result(case, prediction.iteration_s, prediction.low_s, prediction.high_s, found)


if __name__ == "__main__":
    main()
