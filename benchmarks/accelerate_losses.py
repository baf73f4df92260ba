"""Loss curves of `examples/train.py` with and without acceleration, in a lab, as a picture.

sudo python benchmarks/accelerate_losses.py --write docs/images/accelerate-losses.svg
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from page import COLOURS, STYLE, write_page
from prediction import KEEPS_MEMORY

from hemiola.lab import Lab

SCRIPT = Path(__file__).parents[1] / "examples" / "train.py"
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 360, 60, 46, 20, 50
Curve = list[tuple[float, float]]
"""Seconds since the beginning, and loss, after every step."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train both ways; say whether the losses are the same, and draw them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", default="500mbit", help="of each host's link")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--write", type=Path, metavar="FILE.svg")
    asked = parser.parse_args(arguments)
    curves = {
        "DistributedDataParallel": trained(asked, ()),
        "hemiola.accelerate": trained(asked, ("--accelerate",)),
    }
    one, other = ([loss for _, loss in curve] for curve in curves.values())
    print(
        "the losses are the same"
        if one == other
        else f"the losses differ by {max(map(_apart, one, other)):.2e}"
    )
    print(", ".join(f"{name} {curve[-1][0]:.1f} s" for name, curve in curves.items()))
    if asked.write is not None:
        write_page(asked.write, draw(curves))


def _apart(one: float, other: float) -> float:
    return abs(one - other)


def trained(asked: argparse.Namespace, more: tuple[str, ...]) -> Curve:
    """One training."""
    with Lab(hosts=asked.ranks, rate=asked.rate) as lab, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "losses.csv"
        places = lab.rendezvous()
        command = [sys.executable, str(SCRIPT), "--steps", str(asked.steps), "--losses", str(file), *more]
        processes = [
            lab.start(
                host, command, stdout=subprocess.DEVNULL,
                env={**KEEPS_MEMORY, "OMP_NUM_THREADS": "1", **places[host]},
            )
            for host in lab.hosts
        ]  # fmt: skip
        if any([process.wait() for process in processes]):  # noqa: C419  wait for all of them
            raise RuntimeError("the training failed: look at what its ranks printed")
        with file.open() as lines:
            return [(float(row["seconds"]), float(row["loss"])) for row in csv.DictReader(lines)]


def draw(curves: dict[str, Curve]) -> str:
    """Loss against seconds."""
    last_s = max(curve[-1][0] for curve in curves.values())
    most = max(loss for curve in curves.values() for _, loss in curve)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(seconds: float) -> float:
        return LEFT + seconds / last_s * (right - LEFT)

    def y(loss: float) -> float:
        return bottom - loss / most * (bottom - TOP)

    title = "Training loss against time"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{title}</title><style>{STYLE}</style>",
        f'<text x="{LEFT}" y="22" font-weight="bold">{title}</text>',
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 10}" text-anchor="middle">seconds</text>',
    ]
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100) if last_s / s <= 10)
    for tick in range(0, int(last_s) + 1, step):
        parts.append(
            f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP}" y2="{bottom}"/>'
            f'<text x="{x(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{tick}</text>'
        )
    for number in range(6):
        loss = most * number / 5
        parts.append(f'<text x="{LEFT - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.1f}</text>')
    for number, (name, curve) in enumerate(curves.items()):
        points = " ".join(f"{x(seconds):.1f},{y(loss):.1f}" for seconds, loss in curve)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[number]}" stroke-width="2"/>')
        place = LEFT + 250 + 220 * number
        parts.append(
            f'<line x1="{place}" x2="{place + 24}" y1="18" y2="18" stroke="{COLOURS[number]}" stroke-width="3"/>'
            f'<text x="{place + 30}" y="22">{name}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    main()
