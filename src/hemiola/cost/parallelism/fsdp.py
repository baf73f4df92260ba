"""PyTorch's FSDP2 (`fully_shard`): every rank keeps a slice of each unit and gathers it when it is needed.

Read from torch 2.13 (`torch/distributed/fsdp/_fully_shard`). A unit is a block, and the root with all
parameters that are in no block.

1. Forward gathers the root before it computes anything, then each block. On a GPU a block's gathering
   waits for the copy-out of the block before it (`all_gather_state`), so it runs beside that block's
   computation: one block ahead. On a CPU there are no streams: each gathering blocks the computation, just
   before the block.
2. After its forward a block is dropped; the root is kept (`reshard_after_forward=None`).
3. Backward gathers each block again, issued before the computation of the block that comes before it in
   backward (`_backward_prefetch`); on a CPU that blocks too.
4. After a unit's backward its gradients are reduce-scattered. Before the next unit's is packed, the one
   before has to be complete (`reduce_scatter_max_input_buffers`), and all before the optimizer.
5. Slices are along dimension 0, padded to equal rows: padding is sent too.
6. The optimizer updates slices: each rank does its share of it.

With gradient accumulation every micro-step gathers, for its predecessor's backward has dropped all units
(`reshard_after_backward`), and the last one reduces; until then gradients are kept whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import GraphError
from hemiola.core.graph import PHASES, Graph
from hemiola.cost.parallelism.parallelism import Device, Parallelism, Transfer, first_of_phase

__all__ = ["FSDP"]

FORWARD, BACKWARD = PHASES.index("forward"), PHASES.index("backward")


class _Pass(NamedTuple):
    """Where a unit's operations of one phase and micro-step begin and end."""

    unit: int
    first: int
    last: int


@dataclass(frozen=True)
class FSDP(Parallelism):
    """Fully sharded data parallelism.

    Attributes:
        units: paths of the modules that are wrapped; None for the graph's blocks. The rest is the root's.
        reshard_after_forward: whether blocks are dropped after forward and gathered again in backward.
        prefetch: how many blocks ahead forward gathers on a GPU.
    """

    units: tuple[str, ...] | None = None
    reshard_after_forward: bool = True
    prefetch: int = 1

    @property
    def label(self) -> str:
        """For instance "fsdp:reshard=no"."""
        parts = [] if self.reshard_after_forward else ["reshard=no"]
        parts += [f"prefetch={self.prefetch}"] if self.prefetch != 1 else []
        parts += [f"units={'+'.join(self.units)}"] if self.units is not None else []
        return ":".join(filter(None, ("fsdp", ",".join(parts))))

    def optimizer_share(self, ranks: int) -> float:
        """A rank updates its slices only."""
        return 1.0 / ranks

    def transfers(self, graph: Graph, ranks: int, device: Device = "gpu") -> tuple[Transfer, ...]:
        """All-gathers in forward and backward, reduce-scatters in backward, in the order of issue."""
        if ranks < 2:
            return ()
        shards = _Shards(graph, self._paths(graph), ranks)
        blocking = device == "cpu"
        found = shards.forward(0 if blocking else self.prefetch)
        if self.reshard_after_forward:
            found += shards.backward(blocking)
        found += shards.reductions(blocking)
        return tuple(sorted(found, key=lambda t: (t.after, t.collective == "all-gather", t.before)))

    def memory_bytes(self, graph: Graph, ranks: int) -> float:
        """A slice of everything, the root with its gradients, the gathered blocks of the moment, activations, and what is accumulated."""
        paths = self._paths(graph)
        unit = _unit_of_parameters(graph, paths)
        sizes = np.zeros(len(paths) + 1)
        np.add.at(sizes, unit, [p.size_bytes for p in graph.parameters])
        trained = sum(p.gradient_bytes for p in graph.parameters)
        slices = (graph.parameter_bytes + trained + graph.optimizer_bytes) / ranks
        blocks = np.sort(sizes[:-1])[::-1]
        gathered = blocks[: 1 + self.prefetch].sum() if self.reshard_after_forward else blocks.sum()
        reducing = blocks[:2].sum()
        own = sum(p.gradient_bytes for p, u in zip(graph.parameters, unit, strict=True) if u == len(paths))
        whole = trained if graph.operations.micro_step.any() else own  # the root is reduced last of all
        buffers = sum(buffer.size_bytes for buffer in graph.buffers)
        return float(slices + sizes[-1] + gathered + reducing + whole + buffers + graph.saved_bytes)

    def _paths(self, graph: Graph) -> tuple[str, ...]:
        paths = graph.blocks if self.units is None else self.units
        for path in paths:
            if path not in graph.modules:
                raise GraphError(
                    f"the graph {graph.name!r} has no module {path!r}",
                    f"its blocks are {', '.join(graph.blocks) or 'none'}",
                )
        return paths


class _Shards:
    """The units of one graph, cut into slices for so many ranks."""

    def __init__(self, graph: Graph, paths: tuple[str, ...], ranks: int) -> None:
        self.graph, self.ranks = graph, ranks
        self.names = (*paths, "root")
        self.root = len(paths)
        self.unit_of = _unit_of_parameters(graph, paths)
        self.optimizer = first_of_phase(graph, "optimizer")
        unit = _unit_of_operations(graph, paths)
        steps = range(int(graph.operations.micro_step.max(initial=0)) + 1)
        self.forwards = [_passes(graph, unit, FORWARD, step, self.root) for step in steps]
        self.backwards = [_passes(graph, unit, BACKWARD, step, self.root) for step in steps]

    def forward(self, prefetch: int) -> list[Transfer]:
        """Root first, then each block so many blocks ahead of its computation; again in each micro-step."""
        found = []
        for step, blocks in enumerate(self.forwards):
            begin = self._begin(step)
            if self._sizes(self.root)[0]:
                found.append(self._gather(self.root, begin - 1, begin, "forward"))
            for i, block in enumerate(blocks):
                ahead = i - prefetch
                issued = blocks[ahead].first - 1 if ahead >= 0 else begin - 1
                found.append(self._gather(block.unit, issued, block.first, "forward"))
        return found

    def backward(self, blocking: bool) -> list[Transfer]:
        """Each block before the one that comes before it in backward computes."""
        found = []
        for step, blocks in enumerate(self.backwards):
            issued = self._begin(step, BACKWARD) - 1
            for block in blocks:
                before = issued + 1 if blocking else block.first
                found.append(self._gather(block.unit, issued, before, "backward"))
                issued = block.first - 1
        return found

    def reductions(self, blocking: bool) -> list[Transfer]:
        """After each unit's backward; complete before the next is packed, all before the optimizer."""
        ends = [(block.last, block.unit) for block in self.backwards[-1]] if self.backwards else []
        known = {unit for _, unit in ends}
        rest = [u for u in range(len(self.names)) if u not in known]
        ready = [p.gradient_ready for p in self.graph.parameters]
        for unit in rest:
            own = [ready[i] for i in np.flatnonzero(self.unit_of == unit)]
            ends.append((max(own, default=-1), unit))
        ends = sorted((last, unit) for last, unit in ends if last >= 0 and self._sizes(unit)[1])
        found = []
        for i, (last, unit) in enumerate(ends):
            waited = ends[i + 1][0] + 1 if i + 1 < len(ends) else self.optimizer
            before = last + 1 if blocking else max(min(waited, self.optimizer), last + 1)
            size = self._sizes(unit)[1]
            found.append(
                Transfer(
                    f"{self.names[unit]} gradients",
                    "reduce-scatter",
                    size,
                    self._members(unit),
                    last,
                    before,
                    pack_bytes=size,
                )
            )
        return found

    def _gather(self, unit: int, after: int, before: int, when: str) -> Transfer:
        size = self._sizes(unit)[0]
        return Transfer(
            f"{self.names[unit]} {when}", "all-gather", size, self._members(unit), after, max(before, after + 1),
            pack_bytes=size / self.ranks, unpack_bytes=size,
        )  # fmt: skip

    def _members(self, unit: int) -> tuple[int, ...]:
        return tuple(int(i) for i in np.flatnonzero(self.unit_of == unit))

    def _sizes(self, unit: int) -> tuple[float, float]:
        """Bytes of a unit's parameters, and of its gradients, padded to equal slices."""
        gathered = reduced = 0.0
        for i in self._members(unit):
            parameter = self.graph.parameters[i]
            rows = parameter.shape[0] if parameter.shape else 1
            padding = math.ceil(rows / self.ranks) * self.ranks / max(rows, 1)
            gathered += parameter.size_bytes * padding
            reduced += parameter.gradient_bytes * padding
        return gathered, reduced

    def _begin(self, step: int, phase: int = FORWARD) -> int:
        operations = self.graph.operations
        found = np.flatnonzero((operations.phase == phase) & (operations.micro_step == step))
        return int(found[0]) if found.size else 0


def _passes(graph: Graph, unit: NDArray[np.int64], phase: int, step: int, units: int) -> list[_Pass]:
    """The blocks in the order in which they compute in one phase of one micro-step."""
    operations = graph.operations
    chosen = np.flatnonzero((operations.phase == phase) & (operations.micro_step == step) & (unit < units))
    if not chosen.size:
        return []
    owner = unit[chosen]
    found, first = np.unique(owner, return_index=True)
    last = len(owner) - 1 - np.unique(owner[::-1], return_index=True)[1]
    passes = [
        _Pass(int(u), int(chosen[a]), int(chosen[b])) for u, a, b in zip(found, first, last, strict=True)
    ]
    return sorted(passes, key=lambda p: p.first)


def _unit_of_operations(graph: Graph, paths: tuple[str, ...]) -> NDArray[np.int64]:
    """Each operation's unit; a backward operation without a module of its own has its forward's."""
    operations = graph.operations
    by_module = np.array(list(_units(graph.modules, paths)), dtype=np.int64)
    own = by_module[operations.module] if len(operations) else np.empty(0, dtype=np.int64)
    through = np.where(operations.forward >= 0, operations.forward, 0)
    bare = (own == len(paths)) & (operations.forward >= 0)
    return np.where(bare, own[through], own) if len(operations) else own


def _unit_of_parameters(graph: Graph, paths: tuple[str, ...]) -> NDArray[np.int64]:
    return np.array(list(_units((p.module for p in graph.parameters), paths)), dtype=np.int64)


def _units(modules: Iterable[str], paths: tuple[str, ...]) -> Iterable[int]:
    """For each module the innermost path that contains it; the number of paths for the root."""
    number = {path: i for i, path in enumerate(paths)}
    for module in modules:
        words = module.split(".")
        prefixes = (".".join(words[:n]) for n in range(len(words), 0, -1))
        yield next((number[p] for p in prefixes if p in number), len(paths))
