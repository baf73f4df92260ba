"""The page of `benchmarks/synchronisation.py`: what was claimed, what was found, how it was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date
from statistics import median
from typing import Any, Protocol

from clocks import machine, table
from ordering_chart import DotPanel, DotRow, draw_dots

__all__ = ["PICTURE", "page", "picture"]

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


Found = Mapping[tuple[str, str], Sequence[_Outcome]]

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


def page(even: Found, slow: Found, ways: Sequence[_Way], settings: Mapping[str, Any], command: str) -> str:
    """The Markdown."""
    parts = [HEAD, f"Measured on {date.today():%Y-%m-%d} with `{command}` on: {machine()}."]
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


def _models(found: Found) -> list[str]:
    return list(dict.fromkeys(model for model, _ in found))


def _abouts(models: Sequence[str]) -> str:
    from synchronisation_models import TASKS

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


def _table(found: Found, model: str, ways: Sequence[_Way]) -> str:
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


def _gains(found: Found, model: str, way: _Way) -> list[float]:
    """Of each round in which both reached the target."""
    both = zip(
        _targets(found[model, way.label]),
        _targets(found.get((model, f"{way.label}, coupled"), ())),
        strict=False,
    )
    return [1 - apart / coupled for apart, coupled in both if max(apart, coupled) < math.inf]


def _gain(found: Found, model: str, way: _Way) -> str:
    gains = [] if way.coupled else _gains(found, model, way)
    if not gains:
        return ""
    return f"{100 * median(gains):.0f} % ({100 * min(gains):.0f}–{100 * max(gains):.0f})"


def _claims(even: Found, slow: Found, ways: Sequence[_Way]) -> str:
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


def picture(even: Found, slow: Found, ways: Sequence[_Way]) -> str:
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
                rows.append(DotRow(name, {key: s / base for key, s in seconds.items() if s / base < math.inf}))
            most = max([1.0, *(value for row in rows for value in row.dots.values())])
            panels.append(DotPanel(model + title, rows, _ticks(most)))
    return draw_dots(panels, "Time to target, relative to the best all-reduce", "1 is all-reduce; less is sooner")


def _ticks(most: float) -> list[float]:
    step = 0.5 if most <= 3 else 1.0
    return [step * n for n in range(math.ceil(most / step) + 1)]
