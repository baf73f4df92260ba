"""How long training takes to reach a loss: parameter servers by each scheme, decoupled and coupled, against all-reduce.

Three small models on real data (synchronisation_job.py), trained for real in a lab with shaped links. Rounds
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from page import DotPanel, DotRow, draw_dots, measured_with, table, write_page

from hemiola.lab import Lab

# The page of `benchmarks/synchronisation.py`: what was claimed, what was found, how it was measured.

PICTURE = "synchronisation.svg"


class _Outcome(Protocol):
    target_s: float | None
    iteration_s: float
    held_out: float
    cpu_s: float


class _Way(Protocol):
    name: str

    @property
    def coupled(self) -> bool: ...
    @property
    def label(self) -> str: ...


Findings = Mapping[tuple[str, str], Sequence[_Outcome]]

HEAD = """# Parameter servers, by scheme

SaSP (Xia, HKUST 2019) is said to be 25 to 50 % faster than a coupled process "over different parameter synchronization
schemes on various applications", by treating a job's computation and communication apart. Its text is not public.
Here Hemiola's [parameter servers](../guides/parameter-server.md) train three models for real, decoupled (communication in
a process of its own, the default) and coupled (the same exchange in the computing process, after backward), and
PyTorch's DDP on gloo does the same by all-reduce."""

HOW = """## How it was measured

Two hosts of the [lab](../guides/lab.md), {rate} each way, TCP, one rank and one parameter server each, one thread
per rank. Every run starts from the same parameters and draws its batches from the round's own seed; a round runs every way once,
{rounds} rounds. Starting processes is not counted. **Time to target** is when the mean of the last 40 losses of both
ranks, in the order of time, was first at the target: the loss on fresh training batches. *Held out* is the loss at the end, after
`optimizer.synchronise()`, on data that was never trained on. Learning rates were chosen for one process and are the same for all. *Gain* is
how much sooner the decoupled process is there than the coupled one, of the same round: (coupled - decoupled) / coupled.

Both hosts, their servers and communication processes share the machine's cores. What a communication process costs
is therefore taken from computing, which on hosts of their own it would not be.

## The models"""


def page(
    even: Findings, slow: Findings, ways: Sequence[_Way], settings: Mapping[str, Any], command: str
) -> str:
    """The Markdown."""
    parts = [HEAD, measured_with(command)]
    parts += [
        "## In short",
        _claims(even, slow, ways),
        f"![Time to target, relative to all-reduce]({PICTURE})",
    ]
    for model in _models(even):
        parts += [f"## {model.capitalize()}", _table(even, model, ways)]
    for model in _models(slow):
        parts += [
            f"## {model.capitalize()}, one rank slow",
            f"The second rank sleeps {settings['sleep_ms']:g} ms in each iteration.",
            _table(slow, model, ways),
        ]
    parts += [HOW.format(**settings), _abouts(_models(even))]
    return "\n\n".join(parts) + "\n"


def _models(found: Findings) -> list[str]:
    return list(dict.fromkeys(model for model, _ in found))


def _abouts(models: Sequence[str]) -> str:
    from synchronisation_job import TASKS

    rows = []
    for model in models:
        task = TASKS[model]()
        size = sum(p.numel() * p.element_size() for p in task.model.parameters())
        rows.append([
            model, task.about, f"{size / 1e6:.1f} MB", type(task.optimizer).__name__, f"{task.target:g}", f"{task.iterations}",
        ])  # fmt: skip
    return table(["model", "what", "parameters", "optimizer", "target", "iterations"], rows)


def _targets(outcomes: Sequence[_Outcome]) -> list[float]:
    return [math.inf if one.target_s is None else one.target_s for one in outcomes]


def _table(found: Findings, model: str, ways: Sequence[_Way]) -> str:
    rows = []
    for way in ways:
        outcomes = found[model, way.label]
        rows.append([
            way.label, _spread(_targets(outcomes), 1), _spread([1e3 * one.iteration_s for one in outcomes], 0),
            _spread([one.held_out for one in outcomes], 3), _gain(found, model, way),
        ])  # fmt: skip
    return table(["", "time to target, s", "iteration, ms", "held out", "gain of decoupling"], rows)


def _spread(values: Sequence[float], digits: int) -> str:
    if median(values) == math.inf:
        return "not reached"
    most = "not reached" if max(values) == math.inf else f"{max(values):.{digits}f}"
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}–{most})"


def _gains(found: Findings, model: str, way: _Way) -> list[float]:
    """Of each round in which both reached the target."""
    both = zip(
        _targets(found[model, way.label]),
        _targets(found.get((model, f"{way.label}, coupled"), ())),
        strict=False,
    )
    return [1 - apart / coupled for apart, coupled in both if max(apart, coupled) < math.inf]


def _gain(found: Findings, model: str, way: _Way) -> str:
    gains = [] if way.coupled else _gains(found, model, way)
    if not gains:
        return ""
    return f"{100 * median(gains):.0f} % ({100 * min(gains):.0f}–{100 * max(gains):.0f})"


def _claims(even: Findings, slow: Findings, ways: Sequence[_Way]) -> str:
    rows = []
    for title, found in (("", even), (", one rank slow", slow)):
        for model in _models(found):
            gains = {w.label: median(g) for w in ways if not w.coupled and (g := _gains(found, model, w))}
            if not gains:
                rows.append([model + title, "no way reached the target", "", ""])
                continue
            base = min(
                median(_targets(found[model, w.label])) for w in ways if w.label.startswith("all-reduce")
            )
            best = min(
                (w for w in ways if not w.label.startswith("all-reduce")),
                key=lambda w: median(_targets(found[model, w.label])),
            )
            best_s = median(_targets(found[model, best.label]))
            rows.append([
                model + title, f"{100 * min(gains.values()):.0f} to {100 * max(gains.values()):.0f} %",
                f"{sum(gain >= 0.25 for gain in gains.values())} of {len(gains)}",
                f"{best.label}: {best_s / base:.2f}",
            ])  # fmt: skip
    head = [
        "",
        "gain of decoupling, by scheme",
        "schemes with 25 % or more",
        "soonest; time relative to the best all-reduce",
    ]
    return table(head, rows)


def picture(even: Findings, slow: Findings, ways: Sequence[_Way]) -> str:
    """Time to target of every scheme relative to the best all-reduce; a panel per model."""
    panels = []
    for title, found in (("", even), (", one slow", slow)):
        for model in _models(found):
            base = min(
                median(_targets(found[model, w.label])) for w in ways if w.label.startswith("all-reduce")
            )
            rows = []
            for name in dict.fromkeys(w.name for w in ways if not w.label.startswith("all-reduce")):
                kinds = {"decoupled": name, "coupled": f"{name}, coupled"}
                seconds = {
                    kind: median(_targets(found[model, label]))
                    for kind, label in kinds.items()
                    if (model, label) in found
                }
                rows.append(
                    DotRow(name, {key: s / base for key, s in seconds.items() if s / base < math.inf})
                )
            most = max([1.0, *(value for row in rows for value in row.dots.values())])
            panels.append(DotPanel(model + title, rows, _ticks(most)))
    return draw_dots(
        panels, "Time to target, relative to the best all-reduce", "1 is all-reduce; less is sooner"
    )


def _ticks(most: float) -> list[float]:
    step = 0.5 if most <= 3 else 1.0
    return [step * n for n in range(math.ceil(most / step) + 1)]


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
    from synchronisation_job import TASKS

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
    from synchronisation_job import TASKS

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
        write_page(given.write, text, {PICTURE: picture(even, slow, chosen)})
    else:
        print(text)


if __name__ == "__main__":
    main()
