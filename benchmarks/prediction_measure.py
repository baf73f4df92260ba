"""Runs training jobs in a lab and times their iterations: the measured half of `benchmarks/prediction.py`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

from prediction_emulated import Layer

from hemiola.lab import Lab

__all__ = ["Case", "Measured", "measured"]

KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "2147483647", "MALLOC_MMAP_THRESHOLD_": "33554432"}
"""For glibc: as operations were calibrated, and as jobs are advised to run. Else page faults come on top."""

JOB = Path(__file__).with_name("prediction_job.py")


@dataclass(frozen=True)
class Case:
    """One job in one network.

    Attributes:
        model: its name.
        emulated: whether it sleeps instead of computing.
        ranks: one per host.
        rate: of every host's link.
    """

    model: str
    emulated: bool
    ranks: int
    rate: str


@dataclass(frozen=True)
class Measured:
    """What iterations took.

    Attributes:
        walls_s: of each, on rank 0.
        cpu_s: rank 0's processor time of one.
    """

    walls_s: tuple[float, ...]
    cpu_s: float

    @property
    def iteration_s(self) -> float:
        return median(self.walls_s)


@contextmanager
def measured(ranks: int, rates: Sequence[str], rounds: int, budget_s: float) -> Iterator[Any]:
    """A lab in which `run(model, layers)` measures one model at every rate, the rates by turns.

    Args:
        rounds: how often each rate has its turn.
        budget_s: about how long the iterations of one rate in one turn take together.
    """
    with Lab(hosts=ranks, rate="unlimited") as lab:

        def run(model: str, layers: list[Layer] | None) -> dict[Case, Measured]:
            walls: dict[str, list[float]] = {rate: [] for rate in rates}
            cpu: dict[str, list[float]] = {rate: [] for rate in rates}
            with _job(lab, model, layers) as ask:
                for _ in range(rounds):
                    for rate in rates:
                        for host in lab.hosts:
                            lab.set_rate(host, rate)
                        answer = ask(budget_s)
                        walls[rate] += answer["walls_s"]
                        cpu[rate].append(answer["cpu_s"])
            return {
                Case(model, layers is not None, ranks, rate): Measured(tuple(walls[rate]), median(cpu[rate]))
                for rate in rates
            }

        yield lab, run


@contextmanager
def _job(lab: Lab, model: str, layers: list[Layer] | None) -> Iterator[Any]:
    """A job that waits to be told for how long to run."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        what = ["real", model]
        if layers is not None:
            json.dump([list(asdict(layer).values()) for layer in layers], file)
            file.flush()
            what = ["emulated", file.name]
        places = lab.rendezvous()
        processes = [
            lab.start(
                host,
                [sys.executable, str(JOB), *what],
                env={**KEEPS_MEMORY, **places[host]},
                stdin=subprocess.DEVNULL if rank else subprocess.PIPE,
                stdout=subprocess.DEVNULL if rank else subprocess.PIPE,
                text=True,
            )
            for rank, host in enumerate(lab.hosts)
        ]
        first = processes[0]
        assert first.stdin is not None and first.stdout is not None
        try:
            yield lambda seconds: _ask(first.stdin, first.stdout, seconds)
        except BaseException:
            for process in processes:
                process.kill()
            raise
        first.stdin.close()
        ended = [process.wait(timeout=60) for process in processes]
        if any(ended):
            raise RuntimeError(f"a rank of {model} failed at its end: look at what it printed")


def _ask(asks: IO[str], answers: IO[str], seconds: float) -> dict[str, Any]:
    print(seconds, file=asks, flush=True)
    line = answers.readline()
    if not line:
        raise RuntimeError("the job ended before it answered: look at what its ranks printed")
    found: dict[str, Any] = json.loads(line)
    return found
