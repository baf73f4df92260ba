"""The graph, from what was recorded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from hemiola.core.graph import Buffer, Graph, Operations, Parameter
from hemiola.profiler.capture.recorder import (
    ModulePaths,
    OperationColumns,
    OperationRecorder,
    dtype_name,
    repeated_blocks,
)
from hemiola.profiler.capture.storages import peak_bytes

__all__ = ["ModelState", "assemble", "inventory_of"]


# What state a model has: parameters and buffers, each once, with all their names.


@dataclass(frozen=True, eq=False)
class ModelState:
    """A model's state.

    Attributes:
        parameters: in the model's order, tied ones once.
        names: of each parameter all names, its first first.
        buffers: as the graph lists them.
    """

    parameters: tuple[torch.Tensor, ...]
    names: tuple[tuple[str, ...], ...]
    buffers: tuple[Buffer, ...]


def inventory_of(model: nn.Module) -> ModelState:
    """The parameters and buffers that a model really has (not their stand-ins)."""
    parameters: dict[int, torch.Tensor] = {}
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parameters[id(parameter)] = parameter
        names.setdefault(id(parameter), []).append(name)
    buffers = tuple(
        Buffer(
            name=name,
            module=name.rpartition(".")[0],
            shape=tuple(buffer.shape),
            dtype=dtype_name(buffer.dtype),
            size_bytes=size_bytes(buffer),
        )
        for name, buffer in model.named_buffers()
    )
    return ModelState(tuple(parameters.values()), tuple(tuple(names[key]) for key in parameters), buffers)


def size_bytes(tensor: torch.Tensor) -> int:
    """Of its elements."""
    return int(tensor.numel() * tensor.itemsize)


def assemble(
    recorder: OperationRecorder,
    inventory: ModelState,
    paths: ModulePaths,
    gradient_ready: dict[int, int],
    gradient_bytes: dict[int, int],
    *,
    model: nn.Module,
    name: str,
    samples: int,
    optimizer_bytes: int,
    source: str,
) -> Graph:
    """Put a checked graph together; `gradient_ready` and `gradient_bytes` are by place of the parameter."""
    parameters = tuple(
        Parameter(
            name=names[0],
            aliases=names[1:],
            module=names[0].rpartition(".")[0],
            shape=tuple(parameter.shape),
            dtype=dtype_name(parameter.dtype),
            size_bytes=size_bytes(parameter),
            gradient_bytes=gradient_bytes.get(i, 0),
            trainable=parameter.requires_grad,
            first_use=recorder.first_use.get(i, -1),
            gradient_ready=gradient_ready.get(i, -1),
            updated=recorder.updated.get(i, -1),
        )
        for i, (parameter, names) in enumerate(zip(inventory.parameters, inventory.names, strict=True))
    )
    return Graph(
        name=name,
        operations=_columns(recorder.rows),
        modules=tuple(paths.paths),
        blocks=repeated_blocks(model),
        signatures=tuple(recorder.signatures.all),
        parameters=parameters,
        buffers=inventory.buffers,
        samples=samples,
        saved_bytes=peak_bytes(recorder.storages.all, len(recorder.rows)),
        optimizer_bytes=float(optimizer_bytes),
        source=source,
    ).check()


def _columns(rows: OperationColumns) -> Operations:
    return Operations(
        name=tuple(rows.name),
        kind=np.array(rows.kind, dtype=np.int8),
        phase=np.array(rows.phase, dtype=np.int8),
        micro_step=np.array(rows.micro_step, dtype=np.int16),
        flop=np.array(rows.flop, dtype=np.float64),
        read_bytes=np.array(rows.read_bytes, dtype=np.float64),
        written_bytes=np.array(rows.written_bytes, dtype=np.float64),
        module=np.array(rows.module, dtype=np.int64),
        forward=np.array(rows.forward, dtype=np.int64),
        signature=np.array(rows.signature, dtype=np.int64),
        dep_start=np.array(rows.dep_start, dtype=np.int64),
        dep=np.array(rows.dep, dtype=np.int64),
    )
