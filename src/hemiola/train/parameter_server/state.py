"""The state of an optimizer that runs on servers: divided as its parameters are, and put together as PyTorch has it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hemiola.train.parameter_server.layout import ParcelLayout, Stretch

__all__ = ["State", "beside", "joined", "part_of", "shape_of", "to_send"]

State = dict[str, Any]
"""Of one parameter, by name: tensors with an element for each of the parameter's, others, and numbers."""


def shape_of(stretch: Stretch, parameter: Tensor) -> tuple[int, ...]:
    """At its server: a whole parameter keeps its own, which some optimizers look at; a part of one is flat."""
    length = stretch.stop - stretch.start
    return tuple(parameter.shape) if length == parameter.numel() else (length,)


def part_of(state: Mapping[str, Any], parameter: Tensor, stretch: Stretch) -> State:
    """What belongs to some of its elements, in the shape that these have at their server."""

    def cut(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if not value.dim() or value.numel() != parameter.numel():
            return value.detach().cpu().clone()  # parts that shared it would each count a step in it
        part = value.detach().cpu().reshape(-1)[stretch.start : stretch.stop]
        return part.reshape(shape_of(stretch, parameter)).clone()

    return {name: cut(value) for name, value in state.items()}


def to_send(state: Mapping[str, Any]) -> tuple[State, set[str]]:
    """One in the host's memory, and the names of what was not there.

    A tensor that is sent from a GPU becomes one of the GPU of that number, on every rank, whichever its own is.
    """
    away = {name for name, value in state.items() if isinstance(value, Tensor) and value.device.type != "cpu"}
    return {name: value.cpu() if name in away else value for name, value in state.items()}, away


def beside(parameter: Tensor, state: Mapping[str, Any], names: Collection[str]) -> State:
    """One that another rank had, what has these names on this rank's device."""
    return {name: value.to(parameter.device) if name in names else value for name, value in state.items()}


def joined(
    layout: ParcelLayout, parts: Mapping[int, Mapping[int, State]], parameters: Sequence[Tensor]
) -> dict[int, State]:
    """Of each parameter that has any, by number.

    Args:
        parts: by parcel, of each of its stretches that has any.
        parameters: as `Stretch.tensor` counts them.
    """
    found: dict[int, State] = {}
    for number, parcel in enumerate(layout.parcels):
        for place, stretch in enumerate(parcel.stretches):
            if (part := parts.get(number, {}).get(place)) is None:
                continue
            parameter, length = parameters[stretch.tensor], stretch.stop - stretch.start
            state = found.setdefault(stretch.tensor, {})
            for name, value in part.items():
                if not isinstance(value, Tensor) or not value.dim() or value.numel() != length:
                    state.setdefault(name, value)
                    continue
                if name not in state:
                    state[name] = torch.zeros(parameter.shape, dtype=value.dtype, device="cpu")
                state[name].view(-1)[stretch.start : stretch.stop] = value.reshape(-1)
    return found
