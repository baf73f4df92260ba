"""The scalar that backward starts from: the user's loss of the output, or what the output offers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from hemiola.core.errors import GraphError

__all__ = ["scalar_loss"]


def scalar_loss(output: Any, loss: Any) -> tuple[torch.Tensor, str]:
    """The loss, and in words where it came from."""
    if loss is not None:
        return _scalar(loss(output), "the given loss"), "the given loss"
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if own is not None:
        return _scalar(own, "the output's loss"), "the output's own"
    if isinstance(output, torch.Tensor) and output.numel() == 1:
        return _scalar(output, "the output"), "the output itself"
    parts = [tensor for tensor in _tensors(output) if tensor.is_floating_point() and tensor.requires_grad]
    if not parts:
        raise GraphError(
            f"the model's output ({_kind(output)}) has no tensor that depends on a trainable parameter",
            "give a loss, or check which parameters require gradients",
        )
    total = parts[0].sum()
    for part in parts[1:]:
        total = total + part.sum()
    return total, "the sum of the output, for want of a loss"


def _kind(output: Any) -> str:
    return "a tensor" if isinstance(output, torch.Tensor) else type(output).__name__


def _scalar(value: Any, what: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        shape = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        raise GraphError(f"{what} is {shape}, not a scalar tensor", "return a scalar, such as loss.mean()")
    if not value.requires_grad:
        raise GraphError(
            f"{what} depends on no trainable parameter", "check requires_grad, and that nothing is detached"
        )
    return value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for entry in fields(value):
            yield from _tensors(getattr(value, entry.name))
