"""How long training takes to reach a loss: parameter servers by each scheme, decoupled and coupled, against all-reduce.

Three small models on real data (synchronisation_models.py), trained for real in a lab with shaped links. Rounds
are interleaved: each round runs every way of training once, so that a disturbance meets all alike.

    python benchmarks/synchronisation.py --write docs/results/synchronisation.md        over an hour, root
    python benchmarks/synchronisation.py --short                                        to see that it works
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synchronisation_page import PICTURE, page, picture

from hemiola.lab import Lab

__all__ = ["Outcome", "Way", "reached_s", "ways"]

JOB = Path(__file__).with_name("synchronisation_job.py")
SMOOTH = 40
"""Losses of all ranks, in the order of time, over which a mean is taken."""
SHORT = ("all-reduce (DDP, 0.5 MiB)", "BSP", "BSP, coupled", "ASP", "ASP, coupled")
"""Ways of `--short`."""


@dataclass(frozen=True)
class Way:
    """One way of training.

    Attributes:
        name: of the scheme, for people.
        how: what `synchronisation_job.py` is told of it.
    """

    name: str
    how: dict[str, Any]

    @property
    def coupled(self) -> bool:
        """Whether it is the coupled process."""
        return bool(self.how.get("coupled"))

    @property
    def label(self) -> str:
        """Unique."""
        return f"{self.name}, coupled" if self.coupled else self.name


@dataclass(frozen=True)
class Outcome:
    """Of one run.

    Attributes:
        target_s: when the target was reached; None if it was not.
        iteration_s: median of rank 0.
        held_out: loss at the end on what was never trained on.
        cpu_s: of rank 0's computing process, per iteration.
    """

    target_s: float | None
    iteration_s: float
    held_out: float
    cpu_s: float


def ways() -> list[Way]:
    """All ways, baselines first."""
    found = [
        Way("all-reduce (DDP, 25 MiB)", {"scheme": "ddp", "bucket_mib": 25}),
        Way("all-reduce (DDP, 0.5 MiB)", {"scheme": "ddp", "bucket_mib": 0.5}),
    ]
    schemes: list[tuple[str, dict[str, Any]]] = [
        ("BSP", {"scheme": "bsp"}),
        ("SSP, bound 2", {"scheme": "ssp", "bound": 2}),
        ("ASP", {"scheme": "asp"}),
        ("local SGD, period 4", {"scheme": "local", "period": 4}),
    ]
    for name, how in schemes:
        found += [Way(name, {**how, "coupled": coupled}) for coupled in (False, True)]
    return [*found, Way("ASP, pipelined", {"scheme": "asp", "pipelined": True})]


def reached_s(
    ends_s: Sequence[Sequence[float]], losses: Sequence[Sequence[float]], target: float
) -> float | None:
    """When the mean of the last `SMOOTH` losses of all ranks, in the order of time, was at the target first."""
    order = sorted(
        (end, loss)
        for rank_ends, rank_losses in zip(ends_s, losses, strict=True)
        for end, loss in zip(rank_ends, rank_losses, strict=True)
    )
    for last in range(SMOOTH, len(order) + 1):
        if statistics.fmean(loss for _, loss in order[last - SMOOTH : last]) <= target:
            return order[last - 1][0]
    return None


def run(lab: Lab, way: Way, model: str, target: float, iterations: int, seed: int, sleep_s: float) -> Outcome:
    """Train once."""
    how = {**way.how, "model": model, "iterations": iterations, "seed": seed, "sleep_s": sleep_s}
    places = lab.rendezvous()
    ranks = [
        lab.start(
            host, [sys.executable, str(JOB), json.dumps(how)], env={**places[host], "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, text=True,
        )
        for host in lab.hosts
    ]  # fmt: skip
    output = [process.communicate(timeout=600)[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise SystemExit(f"{way.label} of {model} failed: look at what its ranks printed")
    found = [json.loads(text) for text in output]
    ends = found[0]["ends_s"]
    return Outcome(
        reached_s([one["ends_s"] for one in found], [one["losses"] for one in found], target),
        statistics.median(b - a for a, b in itertools.pairwise(ends)),
        found[0]["held_out"],
        found[0]["cpu_s"] / iterations,
    )


Found = dict[tuple[str, str], list[Outcome]]
"""By model and label of the way."""


def measure(
    chosen: Sequence[Way],
    models: Sequence[str],
    rate: str,
    rounds: int,
    iterations: int | None,
    sleep_s: float,
) -> Iterator[tuple[str, Way, Outcome]]:
    """Every way of every model, round after round.

    Args:
        iterations: of each run, whose target is then any loss; None for those of the model.
    """
    from synchronisation_models import TASKS

    with Lab(hosts=2, rate=rate) as lab:
        for seed in range(rounds):
            for model in models:
                task = TASKS[model]()
                target = math.inf if iterations else task.target
                for way in chosen:
                    count = iterations or task.iterations
                    yield model, way, run(lab, way, model, target, count, seed, sleep_s)


def gathered(
    chosen: Sequence[Way],
    models: Sequence[str],
    rate: str,
    rounds: int,
    iterations: int | None,
    sleep_s: float = 0.0,
) -> Found:
    """The same by model and way, with a line printed for each run."""
    found: Found = {}
    for model, way, outcome in measure(chosen, models, rate, rounds, iterations, sleep_s):
        found.setdefault((model, way.label), []).append(outcome)
        target = "not reached" if outcome.target_s is None else f"{outcome.target_s:.1f} s"
        print(
            f"{model:14s} {way.label:30s} target {target:11s} iteration {outcome.iteration_s * 1e3:6.1f} ms, "
            f"processor {outcome.cpu_s * 1e3:5.1f} ms, held out {outcome.held_out:.3f}",
            flush=True,
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    from synchronisation_models import TASKS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="200mbit", help="of each host's link")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--sleep-ms", type=float, default=60.0, help="per iteration of the slow rank")
    parser.add_argument("--short", action="store_true", help="a few iterations of one model, once")
    parser.add_argument("--write", type=Path, help="the page; its picture goes beside it")
    given = parser.parse_args(arguments)
    rounds, iterations = (1, 25) if given.short else (given.rounds, None)
    models = given.models[:1] if given.short else given.models
    chosen = [way for way in ways() if not given.short or way.label in SHORT]
    even = gathered(chosen, models, given.rate, rounds, iterations)
    slow_model = models[-1:]
    slow = gathered(chosen, slow_model, given.rate, rounds, iterations, given.sleep_ms / 1e3)
    command = f"python benchmarks/synchronisation.py {' '.join(arguments or sys.argv[1:])}".strip()
    settings = {"rate": given.rate, "rounds": rounds, "sleep_ms": given.sleep_ms}
    text = page(even, slow, chosen, settings, command)
    if given.write:
        given.write.write_text(text, encoding="utf-8")
        given.write.with_name(PICTURE).write_text(picture(even, slow, chosen), encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
