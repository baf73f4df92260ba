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
import math
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from emulated import TOKENS, Shape, shape_of
from page import DotPanel, DotRow, draw_dots, measured_with, table, write_page
from prediction import KEEPS_MEMORY
from prediction_job import MODELS

import hemiola
from hemiola.core.graph import Graph
from hemiola.core.units import format_bytes, format_rate
from hemiola.lab import Lab

# The jobs of `benchmarks/accelerate.py`: layers that sleep in the shape of four models, and real models.

SIZE_BYTES = 40e6
"""Of an emulated model's gradients: the real one's, scaled, so that a case takes a minute and not an hour."""
GBIT_BYTES_PER_S = 125e6
RATIOS = (0.5, 1.0, 2.0)
RANKS = (2, 4)
_RATES = (2.5e6, 1.25e9)
"""Of links in a lab: least and most."""
REAL = ("MLP", "VGG-16", "ResNet", "GPT-2", "DLRM")


@dataclass(frozen=True)
class Case:
    """One job in one network.

    Attributes:
        model: its name.
        emulated: whether it sleeps instead of computing.
        ranks: one per host.
        ratio: of communication to computation.
        rate_bytes_per_s: of every host's link; not what a case is known by, as a real model's is timed anew.
        reached: the ratio at that rate; another one where it would have to be beyond what a lab's link can do.
    """

    model: str
    emulated: bool
    ranks: int
    ratio: float
    rate_bytes_per_s: float = field(compare=False)
    reached: float = field(default=0.0, compare=False)

    @property
    def said_ratio(self) -> str:
        """As the page has it."""
        return f"{self.ratio:g}" if abs(self.reached / self.ratio - 1) < 0.02 else f"{self.reached:.2g}"

    @property
    def rate(self) -> str:
        """As the lab takes it."""
        return f"{self.rate_bytes_per_s * 8e-6:.0f}mbit"

    @property
    def about(self) -> str:
        """In words."""
        kind = "emulated" if self.emulated else "real"
        return f"{self.model} ({kind}), {self.ranks} ranks, ratio {self.said_ratio}, {format_rate(self.rate_bytes_per_s)}"


def _share(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def emulation(case: Case) -> Shape:
    """An emulated case's layers: so long that communication takes `ratio` times as long as computation."""
    compute_s = _share(case.ranks) * SIZE_BYTES / case.rate_bytes_per_s / case.ratio
    return shape_of(_graph(case.model), compute_s / 3, SIZE_BYTES)


def cases(emulated: bool, seconds_of: dict[str, float]) -> list[Case]:
    """All of one kind.

    Args:
        seconds_of: the real models wanted, and what an iteration takes alone, on as many ranks as cores: it decides
            the rate.
    """
    if emulated:
        return [Case(m, True, n, r, GBIT_BYTES_PER_S, r) for m in SHAPES for n in RANKS for r in RATIOS]
    found = []
    for model in seconds_of:
        size_bytes = sum(p.gradient_bytes for p in _real(model).parameters)
        for ratio in RATIOS:
            at_one = _share(2) * size_bytes / seconds_of[model]
            rate = min(max(round(at_one / ratio, -5), _RATES[0]), _RATES[1])
            found.append(Case(model, False, 2, ratio, rate, at_one / rate))
    return found


@cache
def _real(name: str) -> Graph:
    return _captured(MODELS[name]("meta"), name)


def _captured(example: tuple, name: str) -> Graph:
    import torch

    optimizer = torch.optim.SGD(example[0].parameters(), lr=1e-4)
    if len(example) > 2:
        return hemiola.capture(*example, optimizer=optimizer, name=name)
    return hemiola.capture(*example, None, optimizer, name=name)


@cache
def _graph(shape: str) -> Graph:
    return _captured(SHAPES[shape](), shape)


def _vgg() -> tuple:
    from examples.models import vgg

    return vgg.example(8, 224, 1000, 1, "meta")


def _resnet() -> tuple:
    from examples.models import hugging_face

    return hugging_face.resnet(8, 224, "meta")


def _gpt() -> tuple:
    from examples.models import hugging_face

    return hugging_face.gpt2(4, 256, "meta", use_cache=False)


def _gpt_xl() -> tuple:
    from examples.models import hugging_face

    return hugging_face.gpt2(1, 256, "meta", use_cache=False, n_layer=48, n_embd=1600, n_head=25)


def _dlrm() -> tuple:
    """The perceptrons of MLPerf's DLRM: its tables are split over the ranks in practice, not trained by all."""
    import torch
    from examples.models.dlrm import Perceptron
    from torch import nn

    widths = (13, 512, 256, 128, 1024, 1024, 512, 256, 1)
    with torch.device("meta"):
        model = nn.Sequential(Perceptron(*widths[:4]), nn.Linear(128, 479), Perceptron(479, *widths[4:]))
        return model, (torch.randn(2048, 13),), lambda output: output.sum()


SHAPES = {"VGG-16": _vgg, "ResNet-50": _resnet, "GPT-2": _gpt, "GPT-2 XL": _gpt_xl, "DLRM": _dlrm}
"""Published sizes: 138, 26, 124, 1,558 and 2 million parameters, before scaling."""


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
        write_page(asked.write, text, pictures(results))


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


# The page of `benchmarks/accelerate.py`: targets, the full grid, what loses and why.

KINDS = {"accelerate.svg": (True, "Emulated computation"), "accelerate-real.svg": (False, "Real computation")}
"""By the name of its picture: whether computation is emulated, and the title."""
WAYS = {"ddp": "DDP, 25 MB buckets", "best": "DDP, best bucket", "accelerated": "hemiola.accelerate"}

HEAD = """# How much faster `hemiola.accelerate` is

Training jobs in a lab of network namespaces, each with a link of its own: PyTorch's DistributedDataParallel on
gloo, with the 25 MB buckets it has by itself and with the bucket size (1, 2, 4, 8 or 25 MB) that was fastest in
this very case (tried before; the faster of the two where the turns say otherwise), against one line of Hemiola, which measures, plans, goes over and judges by itself. All
three train by turns within the same processes, in both orders. What counts is an iteration in the middle of training, from
its begin to the begin of the next one: it waits for what the one before left under way, and leaves as much itself.
"""

READING = """Ratio: of communication (all gradients at the link's rate) to computation. Gains are of medians, with the
least and the most of the turns behind. *Predicted* is what acceleration said before it went over; *bound*: no order
of the same computation and bytes takes less; its share is bound over measured. State *off*: it stayed with DDP,
for the gain predicted was below 3 %; *reverted*: it went back to DDP after measuring that it was no faster. In both
DDP has the buckets that were predicted to be fastest then."""


def page(results: Sequence[Found], command: str) -> str:
    """The Markdown."""
    parts = [
        HEAD,
        measured_with(command),
        "## In short",
        table(["", "wanted", "found", ""], _targets(results)),
        READING,
    ]
    for name, (emulated, title) in KINDS.items():
        own = [found for found in results if found.case.emulated == emulated]
        if own:
            picture = f"![{title}: iterations as multiples of their bound]({name})"
            parts += [f"## {title}", _about(emulated), picture, table(_HEADS, [_row(found) for found in own])]
            parts += _first_and_last(own) if emulated else []
    losses = [found for found in results if found.gain("best") < 1]
    parts += ["## Where it loses", _losses(losses)]
    return "\n\n".join(parts) + "\n"


def _about(emulated: bool) -> str:
    if emulated:
        return (
            f"Layers that sleep, which frees the processor as a GPU does, with the parameters of the real models scaled "
            f"to {format_bytes(SIZE_BYTES)} together, in their order, and times by their share of FLOP. 1 Gbit/s. "
            f"Embeddings that are the output layer's weight too are looked up in for real: {TOKENS:,} words of each rank in "
            "each iteration, by Zipf's law, so that two ranks together touch a tenth of GPT-2's rows. Freed memory is kept, as a "
            "GPU's is (glibc's `MALLOC_MMAP_MAX_=0`). Four ranks share two processors: of GPT-2 XL's 580 parameters, hooks and "
            "transport take 0.2 s of each rank's processor time an iteration (DDP's take 0.1 s), which predictions and bounds do "
            "not know."
        )
    return (
        "Real models on two cores, a rank bound to each, at the rate that gives the ratio (10 Gbit/s at most). Gloo's threads and Hemiola's "
        "transport take their time from the same two cores, which they would not on a GPU's host: predictions and bounds "
        "know what computing loses to a transfer and how much slower that is beside it, both measured before a plan is made, "
        "and that ranks wait for the slowest. What computing takes without is measured in iterations of DDP whose transfers "
        "come after backward; what the plan's own code costs for each parameter is not known to them. Words are drawn by "
        "Zipf's law (256 an iteration of 5,000), categories evenly (512 of 10,000 in each table)."
    )


def _first_and_last(results: Sequence[Found]) -> list[str]:
    """What of a shape's bytes no order hides, where that is much."""
    found = []
    for case in {f.case.model: f.case for f in results if f.case.ranks == 2 and f.case.ratio == 1}.values():
        shape = emulation(case)
        share = shape.layers[0].size_bytes / shape.size_bytes
        if shape.tied is not None:
            found.append(
                f"{case.model} looks up first in the table that is its output layer's weight too, "
                f"{100 * shape.tied.size_bytes / shape.size_bytes:.0f} % of its bytes. DDP has that gradient last; in backward "
                "the output layer's part of it comes first, and goes then."
            )
        elif share > 0.05:
            found.append(
                f"{case.model} uses its first layer first and has that gradient last: {100 * share:.0f} % of its bytes, "
                f"which no order can hide. At ratio 1 an iteration takes at least {1 + share:.2f} times as long as computing."
            )
    return found


_HEADS = [
    "model", "ranks", "ratio", "DDP 25 MB, ms", "best bucket, ms", "accelerated, ms", "over best bucket", "over 25 MB",
    "predicted, ms", "off by", "of the bound", "state",
]  # fmt: skip


def _row(found: Found) -> list[str]:
    case, said = found.case, found.said
    own_s, predicted_s, bound_s = found.seconds("accelerated"), said["predicted_s"], said["bound_s"]
    on = said["state"] == "on"
    return [
        case.model, str(case.ranks), case.said_ratio, f"{1e3 * found.seconds('ddp'):.0f}",
        f"{1e3 * found.seconds('best'):.0f} ({found.bucket_mb:g} MB)", f"{1e3 * own_s:.0f}",
        _gain(found, "best"), _gain(found, "ddp"),
        f"{1e3 * predicted_s:.0f}" if on else "-", f"{own_s / predicted_s - 1:+.0%}" if on else "-",
        f"{bound_s / own_s:.0%}" if on else "-", said["state"],
    ]  # fmt: skip


def _gain(found: Found, way: str) -> str:
    least, most = found.spread(way)
    return f"{found.gain(way):.2f} ({least:.2f}–{most:.2f})"


def _targets(results: Sequence[Found]) -> list[list[str]]:
    def at_one(*models: str) -> list[Found]:
        chosen = [f for f in results if f.case.emulated and f.case.ranks == 2 and f.case.ratio == 1]
        return [f for f in chosen if not models or f.case.model in models]

    def least(found: Sequence[Found], value: Callable[[Found], float], wanted: float) -> tuple[str, str]:
        if not found:
            return "not measured", ""
        worst = min(found, key=value)
        met = "met" if value(worst) >= wanted else "missed"
        return f"{value(worst):.2f} ({worst.case.about})", met

    rows: list[tuple[str, str, tuple[str, str]]] = []
    for model, wanted in (("VGG-16", 1.3), ("ResNet-50", 1.3), ("GPT-2", 1.15), ("GPT-2 XL", 1.15)):
        found = least(at_one(model), lambda f: f.gain("best"), wanted)
        rows.append(
            (f"{model} shape over DDP's best bucket, ratio 1, 2 ranks, 1 Gbit/s", f"{wanted:.2f}x", found)
        )
    rows.append(
        ("every shape over DDP's 25 MB, the same", "1.35x", least(at_one(), lambda f: f.gain("ddp"), 1.35))
    )
    rows.append(("anywhere, over DDP's best bucket", "0.98x", least(results, lambda f: f.gain("best"), 0.98)))
    on = [f for f in results if f.said["state"] == "on"]
    rows.append(
        (
            "bound over measured, where on",
            "0.92",
            least(on, lambda f: f.said["bound_s"] / f.seconds("accelerated"), 0.92),
        )
    )
    off = [abs(f.seconds("accelerated") / f.said["predicted_s"] - 1) for f in on]
    within = sum(error <= 0.1 for error in off)
    rows.append(
        (
            "within 10 % of the prediction, where on",
            "all",
            (f"{within} of {len(on)}", "met" if within == len(on) else "missed"),
        )
    )
    return [[what, wanted, *found] for what, wanted, found in rows]


def _losses(losses: Sequence[Found]) -> str:
    if not losses:
        return "Nowhere: in no case was DDP with its best bucket faster."
    lines = [
        f"- {f.case.about}: {_gain(f, 'best')} over {f.bucket_mb:g} MB, {f.said['words']}" for f in losses
    ]
    return "\n".join(
        ["Cases in which DDP with its best bucket, which nobody knows beforehand, was faster:", "", *lines]
    )


def pictures(results: Sequence[Found]) -> dict[str, str]:
    """Iterations as multiples of their bound, by the name of the picture."""
    found = {}
    for name, (emulated, _) in KINDS.items():
        own = sorted(
            (f for f in results if f.case.emulated == emulated), key=lambda f: (f.case.model, f.case.ratio)
        )
        if own:
            found[name] = _picture(own)
    return found


def _picture(results: Sequence[Found]) -> str:
    groups: dict[str, list[DotRow]] = {}
    for found in results:
        bound_s = found.said["bound_s"] or min(found.seconds(way) for way in WAYS)
        dots = {name: found.seconds(way) / bound_s for way, name in WAYS.items()}
        row = DotRow(f"{found.case.model} {found.case.said_ratio}", dots)
        groups.setdefault(f"{found.case.ranks} ranks", []).append(row)
    values = [value for rows in groups.values() for row in rows for value in row.dots.values()]
    ticks = [1 + 0.25 * n for n in range(max(3, int((max(values) - 1) / 0.25) + 2))]
    if min(values) < 1:  # the bound is predicted from measured times, which are off by some percent
        ticks = [math.floor(10 * min(values)) / 10, *ticks]
    panels = [DotPanel(title, rows, ticks) for title, rows in groups.items()]
    return draw_dots(
        panels, "Iterations, by model and ratio of communication to computation", "multiples of the bound"
    )


if __name__ == "__main__":
    main()
