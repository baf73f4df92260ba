"""The page of `benchmarks/accelerate.py`: targets, the full grid, what loses and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date
from typing import TYPE_CHECKING

from accelerate_cases import SIZE_BYTES, emulation
from accelerate_emulated import TOKENS
from clocks import machine, table
from ordering_chart import DotPanel, DotRow, draw_dots

from hemiola.core.units import format_bytes

if TYPE_CHECKING:
    from accelerate import Found

__all__ = ["page", "pictures"]

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
        f"Measured on {date.today():%Y-%m-%d} with `{command}` on: {machine()}.",
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
