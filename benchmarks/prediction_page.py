"""The page of `benchmarks/prediction.py`: every case's error, bad ones included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from statistics import mean, median
from typing import TYPE_CHECKING

from clocks import machine
from prediction_models import CALIBRATED, MODELS

from hemiola.core.hardware import Hardware

if TYPE_CHECKING:
    from prediction import Result

__all__ = ["PICTURE", "page"]

PICTURE = "prediction.svg"

HEAD = """# How far predictions are from measurements

Real training jobs (PyTorch's DistributedDataParallel on gloo, one thread a rank) in a lab of network
namespaces, and what `hemiola.cost.prediction.predict` said of them from the captured graph, the
calibrated hardware and the link's rate. No iteration of a predicted case was measured beforehand.
"""

CAUSES = """### Where it is wrong, and why

Nearly all predictions are too short: what happens beside the operations and the bytes is longer than what
calibration sees of it.

- **Links without a limit** (DDP's MLP is the worst, 12 to 15 % short, then DLRM, Inception and ResNet). There is no
  network to wait for; half of an iteration is gloo's own processor time: copying, reducing, the kernel's TCP. That
  is calibrated with collectives alone, which have the caches and both cores to themselves, and then taken to share the
  cores evenly with the computation. Memory bandwidth is not the cause: two of these models side by side without
  communication take as long as one (MLP 37.3 and 37.7 ms, DLRM 12.3 and 12.3, ResNet 55.9 and 56.3).
- **100 Mbit/s** (ResNet, Inception, DLRM, GPT-2: 4 to 9 % short). Twenty megabytes all-reduced alone on two hosts take from
  1 to 17 % longer than the rate allows, changing from call to call, with no segment sent again, with BBR, CUBIC and Reno
  alike; at 500 Mbit/s and 1 Gbit/s it is 0 to 3 %. A larger burst of the shaper does not change it. A mean over calls is
  what could be predicted, and calibration measures without a limit.
- **ResNet and Inception** (up to 11 and 10 % short) consist of many small parameters. Their computation alone is
  predicted too long (67 against 56 ms and 58 against 51, measured an hour later), and yet under DDP they take longer
  than predicted: what DDP adds there beyond the calibrated cost of a parameter, a bucket and a byte was not found.
- The interval is to hold 90 % of the cases and holds fewer, because of this bias.
"""


def page(results: Sequence[Result], hardware: Hardware, command: str) -> str:
    """The Markdown."""
    parts = [
        HEAD,
        f"Measured on {date.today():%Y-%m-%d} with `{command}` on: {machine()}. Calibrated: {hardware.measured_on}.",
        "## In short",
        _summary(results),
        f"![Predicted against measured iterations]({PICTURE})",
        "## Real computation",
        "Median iteration, milliseconds: measured (least–most) and predicted, with the error. The ranks share "
        f"{hardware.cores} cores. Models marked * are among those whose operations were measured one by one.",
        _table([r for r in results if not r.case.emulated]),
        CAUSES,
        "## Sleeping computation",
        "The same models' parameters, in their order, behind layers that sleep: the error of the network's part alone.",
        _table([r for r in results if r.case.emulated]),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _summary(results: Sequence[Result]) -> str:
    groups: list[tuple[str, Callable[[Result], bool]]] = [
        ("real computation, all", lambda r: not r.case.emulated),
        ("... models that calibrated", lambda r: not r.case.emulated and r.case.model in CALIBRATED),
        ("... models that did not", lambda r: not r.case.emulated and r.case.model not in CALIBRATED),
        *(
            (f"... {ranks} ranks", lambda r, n=ranks: not r.case.emulated and r.case.ranks == n)
            for ranks in sorted({r.case.ranks for r in results})
        ),
        *(
            (f"... {rate}", lambda r, at=rate: not r.case.emulated and r.case.rate == at)
            for rate in dict.fromkeys(r.case.rate for r in results)
        ),
        ("sleeping computation", lambda r: r.case.emulated),
    ]
    lines = [
        "| cases | number | mean absolute error | median | worst | inside the interval |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, belongs in groups:
        members = [r for r in results if belongs(r)]
        if not members:
            continue
        errors = [abs(r.error) for r in members]
        inside = sum(r.low_s <= r.measured.iteration_s <= r.high_s for r in members)
        worst = max(members, key=lambda r: abs(r.error))
        lines.append(
            f"| {name} | {len(members)} | {mean(errors):.1%} | {median(errors):.1%} | {worst.error:+.1%} "
            f"({worst.case.model}, {worst.case.ranks} ranks, {worst.case.rate}) | {inside / len(members):.0%} |"
        )
    return "\n".join(lines)


def _table(results: Sequence[Result]) -> str:
    rates = list(dict.fromkeys(r.case.rate for r in results))
    found = {(r.case.model, r.case.ranks, r.case.rate): r for r in results}
    lines = [
        "| model | ranks | " + " | ".join(rates) + " |",
        "|---|---:|" + "---:|" * len(rates),
    ]
    for model in [name for name in MODELS if any(r.case.model == name for r in results)]:
        for ranks in sorted({r.case.ranks for r in results}):
            cells = [_cell(found.get((model, ranks, rate))) for rate in rates]
            lines.append(f"| {model}{'*' if model in CALIBRATED else ''} | {ranks} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    walls = result.measured.walls_s
    return (
        f"{1000 * result.measured.iteration_s:.0f} ({1000 * min(walls):.0f}–{1000 * max(walls):.0f}), "
        f"{1000 * result.predicted_s:.0f}: **{result.error:+.1%}**"
    )
