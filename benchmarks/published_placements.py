"""Published step times against the timing model: fitted on one file, compared with another one that it never saw.

Pollux (Qiao et al., OSDI 2021) measured six models on g4dn.12xlarge (4 T4 per host, 50 Gbit/s) twice: "scalability"
on 6 to 16 hosts, "placements" on 1 to 4 hosts. `python benchmarks/published_placements.py DATA [--write]` fits the
model to the first and predicts the second; DATA (or $HEMIOLA_SHARED/data/profiles) holds pollux/MODEL/*.csv. With
--write the table goes to docs/results/published-placements.md.

The model, for K GPUs on N hosts, g = K / N, and a local batch b:

    T = C(b) + max(0, a + V/r * 2(K-1)/K + V/h * 2(K-1)/K * (g-1) - o C(b))        a = alpha * 2 (K-1)

C(b) is the median of (step - sync) of the first file, and a line through these beyond its batches. alpha (latency of a
step), V/r (bytes over the network's rate), V/h (over what the GPUs of one host share: its PCIe and memory; only
crossed between its own GPUs) and o (overlap) are fitted, none negative. Inside of one host V/r is left out.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

MODELS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
PAGE = Path(__file__).parents[1] / "docs" / "results" / "published-placements.md"
Floats = np.ndarray


@dataclass(frozen=True)
class Cases:
    """Measured steps, one entry each: GPUs, hosts, local batch, step and exposed time."""

    gpus: Floats
    hosts: Floats
    batch: Floats
    step_s: Floats
    sync_s: Floats


@dataclass(frozen=True)
class Model:
    """What was fitted for one published model."""

    batches: Floats
    compute_s: Floats
    line: Floats
    alpha_s: float
    network_s: float
    host_s: float
    overlap: float

    def compute(self, batch: Floats) -> Floats:
        """C of each batch."""
        inside = np.interp(batch, self.batches, self.compute_s)
        beyond = (batch < self.batches[0]) | (batch > self.batches[-1])
        return np.where(beyond, np.maximum(np.polyval(self.line, batch), self.compute_s[0]), inside)

    def steps_s(self, cases: Cases) -> Floats:
        """T of each case."""
        send = features(cases) @ np.array([self.alpha_s, self.network_s, self.host_s])
        compute = self.compute(cases.batch)
        return compute + np.maximum(0.0, send - self.overlap * compute)


def features(cases: Cases) -> Floats:
    """What alpha, V/r and V/h are multiplied with."""
    ring = 2 * (cases.gpus - 1) / cases.gpus
    inside = np.maximum(cases.gpus / cases.hosts - 1, 0)
    return np.stack([2 * (cases.gpus - 1), ring * (cases.hosts > 1), ring * inside], axis=1)


def fit(cases: Cases) -> Model:
    """The parameters with the least squared relative error; the overlap to a hundredth."""
    batches = np.unique(cases.batch)
    alone = cases.step_s - cases.sync_s
    compute_s = np.array([np.median(alone[cases.batch == b]) for b in batches])
    line = np.polyfit(batches, compute_s, 1) if len(batches) > 1 else np.array([0.0, compute_s[0]])
    found = []
    for overlap in np.arange(0, 1.0, 0.01):
        own = np.interp(cases.batch, batches, compute_s)
        wanted = cases.step_s - (1 - overlap) * own
        alpha_s, network_s, host_s = non_negative(features(cases), wanted, 1 / cases.step_s)
        model = Model(batches, compute_s, line, alpha_s, network_s, host_s, float(overlap))
        found.append((float(((model.steps_s(cases) / cases.step_s - 1) ** 2).sum()), model))
    return min(found, key=lambda entry: entry[0])[1]


def non_negative(columns: Floats, wanted: Floats, weight: Floats) -> Floats:
    """Least squares without negative coefficients: the best of all subsets of few columns."""
    best, least = np.zeros(columns.shape[1]), np.inf
    for size in range(1, columns.shape[1] + 1):
        for chosen in combinations(range(columns.shape[1]), size):
            own = columns[:, chosen] * weight[:, None]
            values = np.linalg.lstsq(own, wanted * weight, rcond=None)[0]
            error = float(((own @ values - wanted * weight) ** 2).sum())
            if (values >= 0).all() and error < least:
                least, best = error, np.zeros(columns.shape[1])
                best[list(chosen)] = values
    return best


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_scalability(path: Path) -> Cases:
    """Columns num_nodes, num_replicas, local_bsz, step_time, sync_time."""
    rows = _rows(path)
    names = ("num_replicas", "num_nodes", "local_bsz", "step_time", "sync_time")
    return Cases(*(np.array([float(row[name]) for row in rows]) for name in names))


def read_placements(path: Path) -> Cases:
    """A placement "124" is 1, 2 and 4 GPUs on three hosts."""
    rows = _rows(path)
    gpus = np.array([float(sum(map(int, row["placement"]))) for row in rows])
    hosts = np.array([float(len(row["placement"])) for row in rows])
    names = ("local_bsz", "step_time", "sync_time")
    return Cases(gpus, hosts, *(np.array([float(row[name]) for row in rows]) for name in names))


def errors(model: Model, cases: Cases) -> Floats:
    """Relative, of every step time."""
    return np.asarray(model.steps_s(cases) / cases.step_s - 1)


def table(data: Path, models: Sequence[str] = MODELS) -> list[str]:
    """A line per model: error where it was fitted, and on the placements."""
    lines = [
        "| model | fitted on | its error | predicted | **mean error** | bias | largest | one GPU | one host | several hosts | o | alike, apart |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    means = []
    for name in models:
        model = fit(first := read_scalability(data / name / "scalability.csv"))
        cases = read_placements(data / name / "placements.csv")
        off = errors(model, cases)
        own, size = np.abs(errors(model, first)), np.abs(off)
        means.append(size.mean())
        worst = int(size.argmax())
        groups = [cases.gpus == 1, (cases.hosts == 1) & (cases.gpus > 1), cases.hosts > 1]
        parts = " | ".join(f"{size[group].mean():.1%}" for group in groups)
        lines.append(
            f"| {name} | {len(own)} | {own.mean():.1%} | {len(off)} | **{size.mean():.1%}** | {off.mean():+.1%} | "
            f"{off[worst]:+.0%} ({cases.gpus[worst]:.0f} GPUs, {cases.hosts[worst]:.0f} hosts) | {parts} | "
            f"{model.overlap:.2f} | {repeatability(cases):.1%} |"
        )
    return [*lines, f"| mean | | | | **{np.mean(means):.1%}** | | | | | | | |"]


def repeatability(cases: Cases) -> float:
    """How far placements that differ in the order of hosts' GPUs only are from their mean: no model can tell them apart."""
    key = [tuple(row) for row in np.stack([cases.gpus, cases.hosts, cases.batch], axis=1)]
    groups: dict[tuple[float, ...], list[float]] = {}
    for k, step_s in zip(key, cases.step_s, strict=True):
        groups.setdefault(k, []).append(float(step_s))
    off = [abs(s / np.mean(group) - 1) for group in groups.values() if len(group) > 1 for s in group]
    return float(np.mean(off)) if off else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    shared = os.environ.get("HEMIOLA_SHARED")
    data = given.data or (Path(shared) / "data" / "profiles" if shared else None)
    if data is None:
        parser.error("give the folder with pollux/MODEL/*.csv, or set HEMIOLA_SHARED")
    lines = table(data / "pollux")
    print("\n".join(lines))
    if given.write:
        head, _, tail = PAGE.read_text(encoding="utf-8").partition("<!-- table -->")
        parts = (
            head,
            "<!-- table -->\n\n",
            "\n".join(lines),
            "\n\n<!-- end -->",
            tail.partition("<!-- end -->")[2],
        )
        PAGE.write_text("".join(parts), encoding="utf-8")
        print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
