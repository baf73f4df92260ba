"""Tensors as the bytes that are sent, and how two of them become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hemiola.core.errors import InputError

__all__ = ["contiguous", "reduction", "view"]


def view(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the processor, of any type."""
    flat = (
        tensor.detach().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
    )
    return memoryview(flat.numpy())


def contiguous(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy of one with gaps; results are to be copied back.

    Raises:
        InputError: it is not dense, or not on the processor.
    """
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        what = f"{tensor.layout} on {tensor.device}"
        raise InputError(f"the tensor is {what}", "the backend takes dense tensors on the processor")
    return tensor.detach().contiguous()


def reduction(op: Any) -> tuple[Callable[[Tensor, Tensor], object], bool]:
    """What joins a tensor with another one, into the first; and whether the result is divided by the ranks.

    Raises:
        InputError: an operation that this backend does not have.
    """
    kinds = torch.distributed.ReduceOp.RedOpType
    known: dict[Any, Callable[[Tensor, Tensor], object]] = {
        kinds.SUM: lambda a, b: a.add_(b) if a.dtype != torch.bool else a.logical_or_(b),
        kinds.AVG: lambda a, b: a.add_(b),
        kinds.PRODUCT: lambda a, b: a.mul_(b),
        kinds.MIN: lambda a, b: torch.minimum(a, b, out=a),
        kinds.MAX: lambda a, b: torch.maximum(a, b, out=a),
        kinds.BAND: lambda a, b: a.bitwise_and_(b),
        kinds.BOR: lambda a, b: a.bitwise_or_(b),
        kinds.BXOR: lambda a, b: a.bitwise_xor_(b),
    }
    kind = op.op if hasattr(op, "op") else op
    if kind not in known:
        raise InputError(f"the reduction {kind}", f"this backend has {', '.join(k.name for k in known)}")
    return known[kind], kind == kinds.AVG
