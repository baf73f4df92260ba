"""TicTac's and Caramel's settings again, in the iteration executor: their claims beside what is found here.

    python benchmarks/ordering.py                                   # to the terminal
    python benchmarks/ordering.py --write docs/results/ordering.md  # the page and its picture
    python benchmarks/ordering.py --only tictac --models VGG-16     # a part of it

Ten models in the shapes of TicTac's table are captured and timed on a shipped GPU's file; nothing is run or
measured, so every machine finds the same numbers. Needs PyTorch for the capture. One to two minutes.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from ordering_plans import (
    BACKWARD,
    BALANCED,
    DEVICE,
    HOSTS,
    MODELS,
    ONE_BY_ONE,
    ORDERS,
    PASSES,
    RATES,
    RHOS,
    SEEDS,
    SLOWER,
    Compared,
    Orders,
    captured,
    compared,
    hardware,
    orders,
)
from page import DotPanel, DotRow, draw_dots, measured_with, table, write_page

from hemiola.core.graph import PHASES
from hemiola.cost.operations import operation_seconds

# The tables of `benchmarks/ordering.py`'s page, model by model.

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


# The page of `benchmarks/ordering.py`: claims, settings, tables, what is reached and what is not.

PICTURE = "ordering.svg"

HEAD = """# What the order of transfers buys

TicTac (Hashemi, Abdu Jyothi, Campbell, MLSys 2019) and Caramel (Hashemi, Abdu Jyothi, Godfrey, Campbell, arXiv
2004.14020) measured their gains on clusters. Here their settings are computed again with Hemiola's
iteration executor, on the shapes of TicTac's ten models. **Nothing on this page was measured**: it says what an order can
gain in the model of an iteration that `hemiola predict` uses, and leaves out whatever a real system adds. Everything
is deterministic, the random orders are seeded, and every machine finds the same numbers."""

MODELS_TEXT = """## The models

`examples/models/slim.py`, captured on the meta device: the networks of TF-slim, because TicTac counted its tensors.
Numbers and sizes of tensors are those of the paper's table for all ten. That tells how the authors built them:
normalization has an offset but no scale, in the ResNets too (TF-slim's own have one); Inception v3 has its
auxiliary head, v2 a separable first layer, v1 3x3 for 5x5; the ResNets halve the image in a stage's last unit.
Padding is PyTorch's, the same on all sides. Computing is timed with the hardware file of
{device}; the authors are said to have had K80 GPUs (`--hardware` takes another)."""

TICTAC_TEXT = """## TicTac

**Setting.** One worker, one device, one channel that brings one parameter at a time; an operation starts when all that
it reads, and all operations before it, are there. The bandwidth is set so that all transfers take 0.5, 1, 2 or 3
times the forward pass. In inference an iteration is the forward pass. In training the backward pass follows it and
takes twice as long; gradients are sent back the other way meanwhile and cost nothing. Random is what TensorFlow
had: {seeds} seeded orders. Gains are of throughput over their mean. E is 1 for perfect overlap, 0 for none; S is
the most that overlap can gain over none. Random iterations are in multiples of the bound max(M, P): no order
beats the longer of transfers M and computation P."""

CARAMEL_TEXT = """## Caramel

**Setting.** Data parallelism by all-reduce on hosts with one GPU each under one switch. Each link's rate is either such
that sending takes as long as computing (forward, backward and optimizer), or 10 or 25 Gbit/s. The passes are applied
one after the other; what each does in detail is ours ([plans](../concepts/plans.md)), as is the way there:

| step | what changes |
|---|---|
| one by one | a collective for each tensor as its gradient becomes ready; computing waits for it. gloo's costs: 150 µs a step, 2 (n - 1) steps. A weight and its bias, which one operation gives, go side by side |
| overlapped | the same while backward goes on, two at a time; all before the optimizer |
| widened | pass 1: operations of backward that lead to a gradient soonest go first |
| batched | pass 2: neighbours go together, up to the best of six sizes, or none |
| extended | pass 3: across the end of the iteration, each parameter updated on arrival |
| by priority | the same transfers on Hemiola's transport: what is needed first goes first and pauses the others (200 µs a step) |
| split, primitives | passes 4 and 5: large ones in pieces of 4 or 16 MiB if that helps; the cheapest algorithm for each |

The abstract does not say what its 3.62x is a multiple of, and no text that does was found. *One by one* is the weakest
baseline that it may have been. DDP is PyTorch's on NCCL, with its own buckets or the best of eight sizes; fifo (every tensor
as it becomes ready, all before the optimizer), P3 (slices of 50,000 elements), ByteScheduler and the plan of
`hemiola plan` are on Hemiola's transport."""

LEFT_OUT = """## What is left out, and which way it tilts

- **No order costs anything here.** Enforcing one does: TicTac is reported to lose up to 4.2 % on small models. These gains are
  what there is to gain, not what a system keeps.
- **TensorFlow's channel is not one queue.** It interleaves what was requested, several servers send at once, and workers share
  their links. The published gains are below ours at the ratio that the authors tuned to; how much of that is due to which
  cause cannot be told from here.
- **The backward pass has its own transfers.** Gradients' way back shares a server's link in reality.
- **Hemiola's transport costs what its constants say**, and these are assumptions where it was not measured. The processor's work
  for a message is taken as nothing on these GPUs, and priorities are exact to the byte: what ByteScheduler's credit delays is
  not counted. So many small transfers are free, and passes 2, 4 and 5 have nothing to add once transfers have
  priorities. Where a message costs processor time, batching adds something.
- **NCCL cannot pause a collective**, so this plan is not for it. It also gets the whole of a link here, and Hemiola's
  transport 1448 of 1514 bytes: why DDP is a little ahead of fifo."""


def page(
    names: Sequence[str], device: str, pulled: Pulled, reduced: Reduced, slower: Reduced, command: str
) -> str:
    """The Markdown."""
    parts = [HEAD, measured_with(command, did="Computed"), "## In short"]
    parts += [table(["claim", "published", "here", "where", "reached"], _claims(pulled, reduced, slower))]
    parts += [f"![Iterations as multiples of their bound]({PICTURE})"]
    parts += [MODELS_TEXT.format(device=device), models_table(names, device)]
    if pulled:
        parts += [TICTAC_TEXT.format(seeds=SEEDS), _tictac_found(pulled), tictac_tables(pulled)]
    if reduced:
        parts += [CARAMEL_TEXT, _caramel_found(reduced, slower), caramel_tables(reduced)]
    parts += ["\n".join([LEFT_OUT, *([_widened(reduced)] if reduced else [])])]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _claims(pulled: Pulled, reduced: Reduced, slower: Reduced) -> list[list[str]]:
    rows = []
    if pulled:
        rows += [
            _gains("TicTac, inference", "37.7 %", pulled, RHOS[:3], 0.0, 0.377),
            _gains("TicTac, training", "19.2 %", pulled, RHOS, BACKWARD, 0.192),
        ]
        apart = max(
            abs(f.ordered["TIC"].efficiency - f.ordered["TAC"].efficiency)
            for o in pulled.values()
            for f in o.values()
        )
        found = f"E differs by {apart:.4f} at most"
        rows.append(["TicTac, TIC as good as TAC", "all models", found, "all ratios", _reached(apart < 0.01)])
        waits = [found[1.0].straggling() for found in pulled.values()]
        found = f"{percent(min(waits))} to {percent(max(waits))} of an iteration, to nothing"
        rows.append(["TicTac, stragglers", "2.3x less", found, "inference, ratio 1", "not comparable"])
    if reduced:
        rows += [
            _speedup("Caramel, over one by one", "3.62x", reduced, lambda c: c.passes[ONE_BY_ONE] / c.passes["primitives"]),
            _speedup(f"... on {SLOWER}", "3.62x", slower, lambda c: c.passes[ONE_BY_ONE] / c.passes["primitives"]),
            _speedup("... our plan, over one by one", "3.62x", reduced, lambda c: c.passes[ONE_BY_ONE] / c.best_s),
            _speedup("... our plan, over DDP", "3.62x", reduced, lambda c: c.others["DDP"] / c.best_s),
            _speedup("... our plan, over DDP, best buckets", "3.62x", reduced, lambda c: c.others["DDP, best buckets"] / c.best_s),
        ]  # fmt: skip
    return rows


def _gains(
    claim: str, told: str, pulled: Pulled, rhos: Sequence[float], backward: float, limit: float
) -> list[str]:
    gains = {(name, rho): pulled[name][rho].gain("TAC", backward) for name in pulled for rho in rhos}
    name, rho = max(gains, key=lambda case: gains[case])
    over = sum(gain >= limit for gain in gains.values())
    where = f"{name}, ratio {rho:g}; {over} of {len(gains)} cases reach it"
    return [claim, f"up to {told}", f"up to {percent(gains[name, rho])}", where, _reached(over > 0)]


def _speedup(claim: str, told: str, reduced: Reduced, ratio: Callable[[Compared], float]) -> list[str]:
    found = {(name, *case): ratio(one) for name, cases in reduced.items() for case, one in cases.items()}
    name, hosts, rate = best = max(found, key=lambda case: found[case])
    return [
        claim,
        f"up to {told}",
        f"up to {found[best]:.2f}x",
        f"{name}, {hosts} hosts, {rate}",
        _reached(found[best] >= 3.62),
    ]


def _reached(yes: bool) -> str:
    return "yes" if yes else "no"


def _tictac_found(pulled: Pulled) -> str:
    """What the tables say; left out is what holds on the published page and not of these numbers."""

    def gains(rho: float, backward: float = 0.0) -> list[float]:
        return [found[rho].gain("TAC", backward) for found in pulled.values()]

    def span(rho: float, backward: float = 0.0) -> str:
        return f"{percent(min(gains(rho, backward)))} to {percent(max(gains(rho, backward)))}"

    low, middle, high = (gains(rho) for rho in RHOS[:3])
    by_pass, by_iteration = gains(1.0, BACKWARD), gains(3.0, BACKWARD)
    every = [found for cases in pulled.values() for found in cases.values()]
    planned = [[found.ordered[name].efficiency for name in ORDERS[:3]] for found in every]
    return _prose(
        (True, f"In inference TAC gains {span(0.5)} at ratio 0.5, {span(1.0)} at 1, {span(2.0)} at 2."),
        (min(low + high) <= 0.377 <= max(low + high), "The published 37.7 % lies among the gains at 0.5 and 2."),
        (min(middle) > max(low + high), f"The authors tuned batches for a ratio near 1, where the most is to be gained and where a single channel with random order loses {median(middle) / 0.377:.1f} times as much as they saw."),
        (True, f"In training TAC gains {span(1.0, BACKWARD)} where pulling takes as long as the forward pass, and {span(3.0, BACKWARD)} where it takes as long as the whole iteration computes (ratio 3), which would be a ratio of 1 if the authors count all of an iteration's operations."),
        (max(by_iteration) < 0.192 < min(by_pass), "The published 19.2 % is between."),
        (all(max(each) - min(each) < 0.01 for each in planned), "TIC, TAC and plain first use are the same to a hundredth of E everywhere: in these networks every block waits for all of the one before, and whoever knows the order of first use has all that is to be had."),
        (True, "A random order's workers differ from each other, and the first waits for the last; with one order for all nothing of that is left here, because in this setting workers differ in nothing else. The published 2.3x is of workers that do."),
    )  # fmt: skip


def _caramel_found(reduced: Reduced, slower: Reduced) -> str:
    """What the tables say; left out is what holds on the published page and not of these numbers."""
    every = {(name, *case): one for name, cases in reduced.items() for case, one in cases.items()}

    def most(ratio: Callable[[Compared], float]) -> float:
        return max(map(ratio, every.values()))

    def passes(one: Compared) -> float:
        return one.passes[ONE_BY_ONE] / one.passes["primitives"]

    def alone(one: Compared) -> float:
        return 100 * (one.passes["batched"] / one.passes["extended"] - 1)

    reached = most(passes) >= 3.62
    on_two = max(passes(one) for (_, hosts, _), one in every.items() if hosts == HOSTS[0])
    slow = max(passes(one) for cases in slower.values() for one in cases.values())
    fast = max(passes(cases[case]) for name, cases in reduced.items() for case in slower[name])
    above = 100 * most(lambda one: one.best_s / one.bound_s - 1)
    by_use = most(lambda one: max(abs(one.others[name] / one.best_s - 1) for name in ("P3", "ByteScheduler")))
    usual, most_alone = median(map(alone, every.values())), max(every, key=lambda case: alone(every[case]))
    ended = 100 * most(lambda one: one.passes["primitives"] / one.bound_s - 1)
    over_ddp = most(lambda one: one.others["DDP"] / one.bound_s)
    over_best = most(lambda one: one.others["DDP, best buckets"] / one.bound_s)
    return _prose(
        (reached and on_two < 3.62, "Caramel's 3.62x is reached, but only against *one by one* and not on two hosts."),
        (reached and on_two >= 3.62, "Caramel's 3.62x is reached against *one by one*, on two hosts too."),
        (not reached, f"Caramel's 3.62x is not reached: against *one by one* the passes are {most(passes):.2f} times as fast at most."),
        (True, f"One by one, a tensor costs 2 (n - 1) latencies while nothing is computed, so that batching alone makes it up to {most(lambda one: one.passes['widened'] / one.passes['batched']):.2f} times as fast."),
        (slow < fast, f"How many times depends on how long a GPU computes beside these latencies: on a slower one ({SLOWER}) it is {slow:.2f} at most."),
        (True, f"With NCCL's latencies (one by one, NCCL) it takes at most {most(lambda one: one.others['one by one, NCCL'] / one.best_s):.2f} times as long as our plan's iteration."),
        (over_ddp < 3.62, f"Against PyTorch's DDP it is not reached: the bound allows no more than {over_ddp:.2f}, with the best bucket size no more than {over_best:.2f}."),
        (above < 2, f"What is to be gained there is the communication that DDP leaves behind backward, and crossing the iteration's end by priority gains nearly all of it: the plan is within {above:.1f} % of the bound in every case."),
        (above >= 2, f"The plan is up to {above:.1f} % above the bound."),
        (by_use < 0.01, "P3 and ByteScheduler are as good, since they send by first use as well."),
        (usual < 1, f"Without priorities, crossing the iteration's end alone gains {usual:.1f} % in the median, since collectives in the order of issue bring last what forward needs first; at most it gains {alone(every[most_alone]):.1f} % ({most_alone[0]}, {most_alone[1]} hosts, {most_alone[2]}), where, of two at a time, small ones pass beside a large one."),
        (ended >= 1, f"The passes end up to {ended:.0f} % above the bound, because batches were chosen for those collectives, and a batch is there only when its last gradient is; the planner chooses again."),
    )  # fmt: skip


def _widened(reduced: Reduced) -> str:
    """What the first pass does by itself."""
    gains = {
        (name, *case): one.passes["overlapped"] / one.passes["widened"] - 1
        for name, cases in reduced.items()
        for case, one in cases.items()
    }
    most, least = max(gains, key=lambda case: gains[case]), min(gains, key=lambda case: gains[case])
    loses = (
        f"\n  and loses {-100 * gains[least]:.1f} % at most ({least[0]}, {least[1]} hosts, {least[2]})"
        if gains[least] < 0
        else ""
    )
    return (
        f"- **PyTorch's eager autograd does not follow `widened`.** By itself the pass gains {max(0.0, 100 * gains[most]):.1f} % at most "
        f"({most[0]}, {most[1]} hosts, {most[2]}){loses}; "
        "nothing in a chain,\n  where one operation computes the gradients of weights and input together."
    )


def _prose(*sentences: tuple[bool, str]) -> str:
    """Those that are so."""
    return " ".join(["**Found.**", *(words for is_so, words in sentences if is_so)])


SETTINGS = ("tictac", "caramel")


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute, and print or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="only these settings"
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="only these")
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="write the page there")
    parser.add_argument(
        "--hardware", default=DEVICE, help=f"a shipped GPU, or a hardware file (default {DEVICE})"
    )
    asked = parser.parse_args(arguments)
    pulled: Pulled = {}
    reduced: Reduced = {}
    slower: Reduced = {}
    for name in asked.models:
        print(f"{name} ...", file=sys.stderr, flush=True)
        if "tictac" in asked.only:
            pulled[name] = {rho: orders(name, rho, asked.hardware) for rho in RHOS}
        if "caramel" in asked.only:
            slower[name] = {(HOSTS[-1], BALANCED): compared(name, HOSTS[-1], BALANCED, SLOWER)}
            reduced[name] = {
                (hosts, rate): compared(name, hosts, rate, asked.hardware)
                for hosts in HOSTS
                for rate in RATES
            }
    command = " ".join(["python benchmarks/ordering.py", *(sys.argv[1:] if arguments is None else arguments)])
    text = page(asked.models, asked.hardware, pulled, reduced, slower, command)
    if asked.write is None:
        print(text)
        return
    write_page(asked.write, text, {PICTURE: picture(pulled, reduced)})


def picture(pulled: Pulled, reduced: Reduced) -> str:
    """Both settings where communication takes as long as computing, as multiples of the bound."""
    panels = []
    if pulled:
        rows = [_pulled(name, found[1.0]) for name, found in pulled.items()]
        panels.append(
            DotPanel("TicTac: inference, one worker", rows, (1, 1.25, 1.5, 1.75, 2), "random, 5 to 95 %")
        )
    if reduced:
        rows = [_reduced(name, found[CASE, BALANCED]) for name, found in reduced.items()]
        most = math.ceil(max(value for row in rows for value in row.dots.values()))
        panels.append(DotPanel(f"Caramel: training, {CASE} hosts", rows, range(1, most + 1)))
    return draw_dots(panels, "Communication as long as computing: iterations", "times the bound")


def _pulled(name: str, found: Orders) -> DotRow:
    bound_s = found.random[0].least_s
    dots = {"random, mean": found.mean_s, "reverse": found.ordered["reverse"].makespan_s}
    dots["TAC"] = found.ordered["TAC"].makespan_s
    span = (found.percentile(5) / bound_s, found.percentile(95) / bound_s)
    return DotRow(name, {key: seconds / bound_s for key, seconds in dots.items()}, span)


def _reduced(name: str, found: Compared) -> DotRow:
    dots = {
        "one by one, no overlap": found.passes["one by one"], "DDP": found.others["DDP"],
        "Caramel's passes": found.passes["primitives"], "Hemiola's plan": found.best_s,
    }  # fmt: skip
    return DotRow(name, {key: seconds / found.bound_s for key, seconds in dots.items()})


if __name__ == "__main__":
    main()
