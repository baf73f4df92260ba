"""Small tables of published facts that some formats need, shipped in `data/` with their sources."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

__all__ = ["gavel_steps_per_s", "pollux_durations_s"]


def _rows(name: str) -> list[dict[str, str]]:
    text = (files("hemiola.trace.workloads") / "data" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


@cache
def gavel_steps_per_s() -> dict[tuple[str, int], float]:
    """Steps per second on consolidated V100s, by Gavel's job type and number of GPUs."""
    return {(row["job_type"], int(row["gpus"])): float(row["steps_per_s"]) for row in _rows("gavel_v100.csv")}


@cache
def pollux_durations_s() -> dict[tuple[str, int, int], float]:
    """Run time in seconds on consolidated T4s, by application, number of GPUs and batch size."""
    return {
        (row["application"], int(row["num_replicas"]), int(row["batch_size"])): float(row["duration_s"])
        for row in _rows("pollux_durations.csv")
    }
