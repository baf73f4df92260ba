"""How long a prediction takes, and that ranks by symmetry and ranks one by one agree.

`python benchmarks/prediction_speed.py [--ranks 64 1024] [--rounds 5]`

The graph is GPT-2 small's (12 layers, 8 sequences of 1,024), captured here where PyTorch and transformers are
installed, else a chain of as many operations and parameters, and the table says so. The executor is compiled
before; reading the graph is no part of the figures. CPU time of the process, median (least–most).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from clocks import timed
from page import machine, spread, table, verdict

from hemiola.core.graph import KINDS, PHASES, Graph, Operations, Parameter, Signature
from hemiola.core.hardware import Hardware, KindEfficiency, PhaseCost
from hemiola.core.topology import Topology
from hemiola.cost.parallelism import parse_parallelism
from hemiola.cost.prediction import PredictionOptions, predict
from hemiola.kernels.executor import warm_up
from hemiola.trace.topologies import read_topology

LIMITS_S = {64: 0.3, 1024: 2.0}
AGREE = 0.01
PARALLELISMS = ("ddp", "fsdp", "ps:servers=8")
CHAIN = (3259, 148, 497_759_232)  # GPT-2 small's operations, parameters and their bytes


def gpt2() -> tuple[Graph, str]:
    """The graph, and where it comes from."""
    try:
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        from hemiola.profiler.capture import capture
    except ImportError:
        return chain(*CHAIN), "a chain of as many operations and parameters as GPT-2 small's"
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config())
        tokens = torch.zeros(8, 1024, dtype=torch.long)
    graph = capture(model, {"input_ids": tokens, "labels": tokens}, optimizer=torch.optim.AdamW, device="cpu")
    return graph, f"GPT-2 small's, {len(graph.operations):,} operations"


def chain(operations: int, parameters: int, size_bytes: int) -> Graph:
    """A third forward, two thirds backward, one operation of the optimizer."""
    forward = operations // 3
    phase = np.array([0] * forward + [1] * (operations - forward - 1) + [2], dtype=np.int8)
    own = np.linspace(0, forward - 1, parameters).astype(int)
    ready = operations - 2 - (own * (operations - forward - 2) // forward)
    zeros = np.zeros(operations, dtype=np.int64)
    return Graph(
        "chain",
        Operations(
            name=("mm",) * operations, kind=zeros.astype(np.int8), phase=phase, micro_step=zeros.astype(np.int16),
            flop=np.full(operations, 2e9), read_bytes=np.full(operations, 6e7), written_bytes=zeros.astype(float),
            module=zeros, forward=zeros - 1, signature=phase.astype(np.int64),
            dep_start=np.zeros(operations + 1, dtype=np.int64), dep=np.empty(0, dtype=np.int64),
        ),
        signatures=tuple(Signature("mm", (p,)) for p in PHASES),
        parameters=tuple(
            Parameter(
                name=f"p{i}", module="", shape=(size_bytes // parameters // 4,), dtype="float32",
                size_bytes=size_bytes // parameters, gradient_bytes=size_bytes // parameters,
                first_use=int(own[i]), gradient_ready=int(ready[i]), updated=operations - 1,
            )
            for i in range(parameters)
        ),
    ).check()  # fmt: skip


def accelerator() -> Hardware:
    """Numbers of the order of an H100's; the time that a prediction takes does not depend on them."""
    return Hardware(
        name="gpu", kind="gpu", peak_flop_per_s={"float32": 5e13}, memory_bytes_per_s=3e12, memory_bytes=8e10,
        phases={phase: PhaseCost(operation_s=5e-6, view_s=1e-6) for phase in PHASES},
        efficiencies={kind: KindEfficiency(compute=0.6, memory=0.8) for kind in KINDS if kind != "view"}, noise=0.01,
    )  # fmt: skip


def cluster(ranks: int) -> Topology:
    return read_topology(
        f"leaf-spine:hosts={max(ranks // 8, 2)},gpus_per_host=8,hosts_per_rack=8,nic=400gbit,oversubscription=2"
    )


def measure(graph: Graph, ranks: Sequence[int], rounds: int) -> str:
    """Time per number of ranks and parallelism."""
    hardware, rows = accelerator(), []
    for count in ranks:
        for text in PARALLELISMS:
            runs = [timed(lambda c=count, t=text: predict(graph, hardware, cluster(c), c, parse_parallelism(t))) for _ in range(rounds)]  # fmt: skip
            cpu = [took.cpu_s for _, took in runs]
            limit = LIMITS_S.get(count)
            said = "" if limit is None else f"{limit:g} s: {verdict(float(np.median(cpu)), limit)}"
            walls = [1000 * took.wall_s for _, took in runs]
            rows.append([f"{count:,}", text, spread([1000 * s for s in cpu], 1), spread(walls, 1), said])
    return table(["ranks", "parallelism", "CPU ms", "wall ms", "target"], rows)


def agreement(graph: Graph, ranks: int = 32) -> str:
    """Iteration time by symmetry against every rank by itself."""
    hardware, rows = accelerator(), []
    for text in PARALLELISMS:
        parallelism, topology = parse_parallelism(text), cluster(ranks)
        short, alone = timed(lambda s=parallelism, t=topology: predict(graph, hardware, t, ranks, s))
        whole, every = timed(
            lambda s=parallelism, t=topology: predict(
                graph, hardware, t, ranks, s, options=PredictionOptions(symmetric=False)
            )
        )
        off = abs(short.iteration_s / whole.iteration_s - 1)
        rows.append([text, f"{off:.4%}", f"{every.cpu_s / alone.cpu_s:.0f}", verdict(off, AGREE)])
    return table(
        ["parallelism", f"difference at {ranks} ranks", "times slower", f"at most {AGREE:.0%}"], rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 64, 1024])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    warm_up()
    graph, whence = gpt2()
    print(f"The graph is {whence}. {machine()}\n")
    print(measure(graph, given.ranks, given.rounds), agreement(graph), sep="\n\n")


if __name__ == "__main__":
    main()
