"""The tables of `benchmarks/ordering.py`'s page, model by model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clocks import table
from ordering_caramel import BALANCED, HOSTS, ONE_BY_ONE, PASSES, RATES, Compared
from ordering_models import MODELS, captured, hardware
from ordering_tictac import BACKWARD, ORDERS, RHOS, Orders

from hemiola.core.graph import PHASES
from hemiola.cost.operations import operation_seconds

__all__ = ["CASE", "Pulled", "Reduced", "caramel_tables", "models_table", "tictac_tables"]

CASE = 8
"""Hosts of the case that is shown in full."""

Pulled = dict[str, dict[float, Orders]]
"""By model and ratio."""

Reduced = dict[str, dict[tuple[int, str], Compared]]
"""By model, and hosts and rate."""


def models_table(names: Sequence[str], device: str) -> str:
    """Theirs beside ours, and what computing takes."""
    rows = []
    for name in names:
        graph, told = captured(name), MODELS[name]
        seconds = operation_seconds(graph, hardware(device)).seconds
        times = [1e3 * float(seconds[graph.operations.phase == i].sum()) for i in range(len(PHASES))]
        size = graph.parameter_bytes / 2**20
        rows.append(
            [
                name, str(told.batch), f"{told.tensors}, {len(graph.parameters)}", f"{told.mib}, {size:.1f}",
                str(len(graph.operations)), *(f"{time:.1f}" for time in times),
            ]
        )  # fmt: skip
    head = ["model", "batch", "tensors: theirs, ours", "MiB: theirs, ours", "operations"]
    return table([*head, *(f"{phase} ms" for phase in PHASES)], rows)


def tictac_tables(pulled: Pulled) -> str:
    """Inference by ratio; training; stragglers."""
    parts = []
    for rho in RHOS[:3]:
        rows = [[name, *_inference(found[rho])] for name, found in pulled.items()]
        head = ["model", "random: iteration, 5 to 95 %", "E random", *(f"E {name}" for name in ORDERS)]
        head += ["S", "gain TIC", "gain TAC", "bound of the gain"]
        parts += [f"### Inference, transfers {rho:g} times the forward pass", table(head, rows)]
    rows = [
        [
            name,
            *(f"{percent(found[rho].gain('TAC', BACKWARD))}, {percent(_most(found[rho]))}" for rho in RHOS),
        ]
        for name, found in pulled.items()
    ]
    head = ["gain of TAC, and its bound", *(f"pull {rho:g} x forward" for rho in RHOS)]
    parts += ["### Training, the backward pass behind twice as long", table(head, rows)]
    rows = [
        [name, percent(found[1.0].straggling()), percent(found[1.0].straggling(BACKWARD))]
        for name, found in pulled.items()
    ]
    head = ["first of 4 workers waits for the last", "inference", "training"]
    parts += ["### Stragglers of random orders, transfers as long as the forward pass", table(head, rows)]
    return "\n\n".join(parts)


def _inference(found: Orders) -> list[str]:
    bound_s = found.random[0].least_s
    spans = [found.mean_s, found.percentile(5), found.percentile(95)]
    mean, low, high = (f"{seconds / bound_s:.2f}" for seconds in spans)
    return [
        f"{mean} ({low}–{high})", f"{found.efficiency:.2f}",
        *(f"{found.ordered[name].efficiency:.2f}" for name in ORDERS), f"{found.random[0].speedup:.2f}",
        percent(found.gain("TIC")), percent(found.gain("TAC")), percent(found.bound),
    ]  # fmt: skip


def _most(found: Orders) -> float:
    """What the bound would gain over the mean random order in training."""
    rest_s = BACKWARD * found.forward_s
    return (found.mean_s + rest_s) / (found.random[0].least_s + rest_s) - 1


def caramel_tables(reduced: Reduced) -> str:
    """The passes, the other systems, and the speed-ups in all cases."""
    case = (CASE, BALANCED)
    rows = [
        [
            name,
            f"{found[case].bytes_per_s * 8e-9:.1f}",
            *(f"{1e3 * found[case].passes[p]:.0f}" for p in PASSES),
            f"{1e3 * found[case].bound_s:.0f}",
            f"{found[case].sizes['batched']}, {found[case].sizes['split']}",
        ]
        for name, found in reduced.items()
    ]
    head = ["iteration in ms after", "Gbit/s", *PASSES, "bound", "batches to, pieces of"]
    parts = [f"### Pass after pass, {CASE} hosts, sending as long as computing", table(head, rows)]
    others = list(next(iter(reduced.values()))[case].others)
    rows = [
        [
            name,
            *(f"{1e3 * found[case].others[key]:.0f}" for key in others),
            f"{1e3 * found[case].bound_s:.0f}",
        ]
        for name, found in reduced.items()
    ]
    parts += ["### The same case by others", table(["iteration in ms", *others, "bound"], rows)]
    ratios: dict[str, Callable[[Compared], float]] = {
        "### Speed-up of Caramel's passes over one by one": lambda c: c.passes[ONE_BY_ONE] / c.passes["primitives"],
        "### Speed-up of the plan over DDP": lambda c: c.others["DDP"] / c.best_s,
        "### Speed-up of the plan over DDP with its best bucket size": lambda c: c.others["DDP, best buckets"] / c.best_s,
    }  # fmt: skip
    for title, ratio in ratios.items():
        parts += [title, _everywhere(reduced, ratio)]
    return "\n\n".join(parts)


def _everywhere(reduced: Reduced, ratio: Callable[[Compared], float]) -> str:
    cases = [(hosts, rate) for rate in RATES for hosts in HOSTS]
    head = ["model", *(f"{rate}, {hosts} hosts" for hosts, rate in cases)]
    return table(
        head, [[name, *(f"{ratio(found[case]):.2f}" for case in cases)] for name, found in reduced.items()]
    )


def percent(value: float) -> str:
    """Without decimals: "12 %"."""
    return f"{100 * value:.0f} %"
