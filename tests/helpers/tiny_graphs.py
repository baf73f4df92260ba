"""Small graphs, hardware and clusters that a reader can work out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from hemiola.core.graph import KINDS, PHASES, Graph, Operations, Parameter, Signature
from hemiola.core.hardware import Hardware, KindEfficiency, PhaseCost
from hemiola.core.topology import Topology, equal_hosts


def layers(
    sizes: Sequence[int],
    forward: Sequence[float],
    backward: Sequence[float],
    optimizer: float = 0.0,
    blocks: bool = False,
) -> tuple[Graph, np.ndarray]:
    """A chain of layers with one parameter each: its graph, and the seconds of every operation.

    Operation i is the forward of layer i, then come the backwards from the last layer to the first, then
    the optimizer's one operation.
    """
    n = len(sizes)
    count = 2 * n + 1
    modules = ("", *(f"layer.{i}" for i in range(n)))
    order = [*range(n), *reversed(range(n)), -1]
    parameters = tuple(
        Parameter(
            name=f"layer.{i}.weight", module=f"layer.{i}", shape=(max(size // 4, 1),), dtype="float32",
            size_bytes=size, gradient_bytes=size, first_use=i, gradient_ready=2 * n - 1 - i, updated=2 * n,
        )
        for i, size in enumerate(sizes)
    )  # fmt: skip
    graph = Graph(
        name="layers",
        operations=Operations(
            name=("mm",) * count,
            kind=np.full(count, KINDS.index("matmul"), dtype=np.int8),
            phase=np.array([0] * n + [1] * n + [2], dtype=np.int8),
            micro_step=np.zeros(count, dtype=np.int16),
            flop=np.ones(count),
            read_bytes=np.ones(count),
            written_bytes=np.ones(count),
            module=np.array([i + 1 for i in order], dtype=np.int64),
            forward=np.array([-1] * n + list(reversed(range(n))) + [-1], dtype=np.int64),
            signature=np.array([0] * n + [1] * n + [2], dtype=np.int64),
            dep_start=np.arange(count + 1, dtype=np.int64).clip(1) - 1,
            dep=np.arange(count - 1, dtype=np.int64),
        ),
        modules=modules,
        blocks=modules[1:] if blocks else (),
        signatures=tuple(Signature("mm", (phase,)) for phase in PHASES),
        parameters=parameters,
        samples=8,
    ).check()
    return graph, np.array([*forward, *reversed(backward), optimizer])


def updated_apart(graph: Graph) -> Graph:
    """A graph of `layers` with an update for each layer, which waits for that layer's backward alone."""
    n, operations = len(graph.parameters), graph.operations
    rows = [*range(2 * n), *[2 * n] * n]
    deps = [*range(2 * n - 1), *range(n, 2 * n)]
    columns = (
        "kind", "phase", "micro_step", "flop", "read_bytes", "written_bytes", "module", "forward", "signature",
    )  # fmt: skip
    return replace(
        graph,
        operations=replace(
            operations,
            name=("mm",) * (3 * n),
            dep_start=np.arange(3 * n + 1, dtype=np.int64).clip(1) - 1,
            dep=np.array(deps, dtype=np.int64),
            **{column: getattr(operations, column)[rows] for column in columns},
        ),
        parameters=tuple(msgspec.structs.replace(p, updated=p.gradient_ready + n) for p in graph.parameters),
    ).check()


def device(kind: str = "gpu", memory_bytes_per_s: float = 1e30, **fields: object) -> Hardware:
    """Hardware on which nothing costs anything beside the operations, unless told otherwise."""
    cores = {"cores": 64, "threads_per_rank": 1} if kind == "cpu" else {}
    return Hardware(
        **{
            "name": "test", "kind": kind, "peak_flop_per_s": {"float32": 1e12}, "memory_bytes_per_s": memory_bytes_per_s,
            "memory_bytes": 1e12, "phases": {p: PhaseCost(operation_s=0.0, view_s=0.0) for p in PHASES},
            "efficiencies": {k: KindEfficiency(compute=1, memory=1) for k in KINDS if k != "view"},
            "fabric_bytes_per_s": 1e30 if kind == "gpu" else 0.0, **cores, **fields,
        }
    )  # fmt: skip


def flat(
    hosts: int, gpus: int = 1, rate: float = 1e6, latency_s: float = 0.0, fabric: float = 1e30
) -> Topology:
    """Equal hosts under one switch."""
    return Topology(
        "flat",
        equal_hosts(hosts, gpus, nic_bytes_per_s=rate, nic_latency_s=latency_s, fabric_bytes_per_s=fabric),
    )
