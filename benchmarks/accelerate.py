"""How much faster `hemiola.accelerate` makes training than DistributedDataParallel, in a lab's network.

    sudo python benchmarks/accelerate.py                                       # to the terminal
    sudo python benchmarks/accelerate.py --write docs/results/accelerate.md    # the page

Every case is one job whose ranks train the same model three ways, by turns: DDP on gloo with its usual 25 MB
buckets, DDP with the bucket size that is fastest there, and accelerated, which measures, plans and decides by
itself. Layers that sleep have the shapes of four models at 1 Gbit/s; real models compute on this machine's
two cores, at rates that make communication as long as asked. Needs root. About 40 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from accelerate_cases import RATIOS, REAL, Case, cases, emulation
from accelerate_page import page, pictures
from prediction_measure import KEEPS_MEMORY

from hemiola.lab import Lab

__all__ = ["Found"]

JOB = Path(__file__).with_name("accelerate_job.py")
KEEPS_LARGEST = {**KEEPS_MEMORY, "MALLOC_MMAP_MAX_": "0"}
"""For layers that sleep: as a GPU's memory, none goes back to the system. glibc has gradients above 32 MiB in new pages every
time else, and to fill those of VGG-16's largest takes 18 ms of each iteration."""


@dataclass(frozen=True)
class Found:
    """What one case took.

    Attributes:
        walls_s: of iterations, by way ("ddp", "best", "accelerated") and turn.
        bucket_mb: which was best.
        said: what acceleration said of itself at the end (`core.plan.Acceleration`, as JSON).
    """

    case: Case
    walls_s: dict[str, list[list[float]]]
    bucket_mb: float
    said: dict[str, Any]

    def seconds(self, way: str) -> float:
        """The median iteration."""
        return median(wall for turn in self.walls_s[way] for wall in turn)

    def gain(self, way: str) -> float:
        """How many times as fast acceleration is as this way."""
        return self.seconds(way) / self.seconds("accelerated")

    def spread(self, way: str) -> tuple[float, float]:
        """The gain turn by turn: least and most."""
        pairs = zip(self.walls_s[way], self.walls_s["accelerated"], strict=True)
        gains = [median(other) / median(own) for other, own in pairs]
        return min(gains), max(gains)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all cases, and print or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("emulated", "real"), help="only these")
    parser.add_argument("--models", nargs="+", help="only these")
    parser.add_argument("--ranks", type=int, nargs="+", help="only so many")
    parser.add_argument("--ratios", type=float, nargs="+", help="only these")
    parser.add_argument("--turns", type=int, default=5, help="of each way in each case (default 5)")
    parser.add_argument(
        "--measured", type=Path, help="measure into this file, and do not again what is there"
    )
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="write the page there")
    asked = parser.parse_args(arguments)
    found: dict[Case, Found] = {}
    if asked.measured is not None and asked.measured.exists():
        found = pickle.loads(asked.measured.read_bytes())
    every = wanted(asked, found)
    for case in every:
        if case not in found:
            print(f"running {case.about} ...", file=sys.stderr, flush=True)
            found[case] = ran(case, asked.turns)
            print(f"  {summary(found[case])}", file=sys.stderr, flush=True)
            if asked.measured is not None:
                asked.measured.write_bytes(pickle.dumps(found))
    results = [found[case] for case in every]
    text = page(results, " ".join(["python benchmarks/accelerate.py", *sys.argv[1:]]))
    if asked.write is None:
        print(text)
    else:
        asked.write.write_text(text, encoding="utf-8")
        for name, drawing in pictures(results).items():
            asked.write.with_name(name).write_text(drawing, encoding="utf-8")


def wanted(asked: argparse.Namespace, found: Collection[Case]) -> list[Case]:
    """The cases that were asked for; of real models only those are timed alone that have not been measured."""
    every: list[Case] = []
    if asked.only != "real":
        every += cases(True, {})
    if asked.only != "emulated":
        for model in (model for model in REAL if not asked.models or model in asked.models):
            there = [case for case in found if case.model == model and not case.emulated]
            every += there if len(there) == len(RATIOS) else cases(False, {model: alone_s(model)})
    return [
        case
        for case in every
        if (not asked.models or case.model in asked.models)
        and (not asked.ranks or case.ranks in asked.ranks)
        and (not asked.ratios or case.ratio in asked.ratios)
    ]


def alone_s(model: str) -> float:
    """An iteration of a real model without a network to wait for, one rank on each core."""
    print(f"timing {model} alone ...", file=sys.stderr, flush=True)
    jobs = [
        subprocess.Popen(
            [*on_core(rank), sys.executable, str(JOB), "alone", model, "0"],
            stdout=subprocess.PIPE, text=True, env={**os.environ, **KEEPS_MEMORY},
        )
        for rank in range(2)
    ]  # fmt: skip
    return max(float(job.communicate()[0].split()[-1]) for job in jobs)


def on_core(rank: int) -> list[str]:
    """For what really computes: a core of its own, as CPU jobs are advised to have. Else the system moves ranks about."""
    return ["taskset", "--cpu-list", str(rank)]


def ran(case: Case, turns: int) -> Found:
    """One case, in a lab of its own."""
    with (
        Lab(hosts=case.ranks, rate=case.rate) as lab,
        tempfile.NamedTemporaryFile("w", suffix=".json") as file,
    ):
        what = ["real", case.model]
        if case.emulated:
            emulation(case).write(Path(file.name))
            what = ["emulated", file.name]
        places = lab.rendezvous()
        processes = [
            lab.start(
                host, [*([] if case.emulated else on_core(rank)), sys.executable, str(JOB), *what, str(turns)],
                env={**(KEEPS_LARGEST if case.emulated else KEEPS_MEMORY), **places[host]},
                stdout=subprocess.DEVNULL if rank else subprocess.PIPE, text=True,
            )
            for rank, host in enumerate(lab.hosts)
        ]  # fmt: skip
        output, _ = processes[0].communicate()
        ended = [process.wait() for process in processes]
        if any(ended):
            raise RuntimeError(f"{case.about} failed: look at what its ranks printed")
    answer = json.loads(output.splitlines()[-1])
    found = Found(case, answer["walls_s"], answer["bucket_mb"], answer["said"])
    if found.seconds("ddp") < found.seconds("best"):  # that was judged by fewer iterations than these
        return replace(found, walls_s=found.walls_s | {"best": found.walls_s["ddp"]}, bucket_mb=25)
    return found


def summary(found: Found) -> str:
    """One case on one line."""
    times = ", ".join(f"{way} {1e3 * found.seconds(way):.0f} ms" for way in found.walls_s)
    return f"{times}: {found.gain('best'):.2f}x over the best bucket, {found.gain('ddp'):.2f}x over 25 MB ({found.said['state']})"


if __name__ == "__main__":
    main()
