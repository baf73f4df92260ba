"""What state a model has: parameters and buffers, each once, with all their names."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from hemiola.core.graph import Buffer
from hemiola.profiler.capture.signatures import dtype_name

__all__ = ["ModelState", "inventory_of", "size_bytes"]


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
