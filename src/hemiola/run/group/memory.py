"""Tensors as the bytes that are sent, and how two of them become one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hemiola.core.errors import InputError

__all__ = ["REDUCTIONS", "Reduction", "contiguous", "reduction", "view", "writing"]

_AS_IT_IS = nullcontext()


def view(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the processor, of any type."""
    count = tensor.numel()
    if not count:
        return memoryview(torch.empty(0, dtype=torch.uint8).numpy())
    flat = tensor.detach().as_strided((count,), (1,))  # a single element may have any stride
    return memoryview(flat.view(torch.uint8).numpy())


def contiguous(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy of one with gaps; results are to be copied back.

    Raises:
        InputError: it is not dense, or not on the processor.
    """
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        what = f"{tensor.layout} on {tensor.device}"
        raise InputError(f"the tensor is {what}", "the backend takes dense tensors on the processor")
    return tensor.detach().contiguous()


def writing(tensor: Tensor) -> AbstractContextManager[object]:
    """For what is written into it on a thread that is in no mode: it may have been made in inference mode."""
    return torch.inference_mode() if tensor.is_inference() else _AS_IT_IS


@dataclass(frozen=True)
class Reduction:
    """How tensors become one.

    Attributes:
        name: as PyTorch calls it.
        join: joins a tensor with another one, into the first.
        average: whether the result is divided by the ranks.
    """

    name: str
    join: Callable[[Tensor, Tensor], object]
    average: bool = False


def _add(a: Tensor, b: Tensor) -> object:
    return a.add_(b) if a.dtype != torch.bool else a.logical_or_(b)


REDUCTIONS = (
    Reduction("SUM", _add),
    Reduction("AVG", lambda a, b: a.add_(b), average=True),
    Reduction("PRODUCT", lambda a, b: a.mul_(b)),
    Reduction("MIN", lambda a, b: torch.minimum(a, b, out=a)),
    Reduction("MAX", lambda a, b: torch.maximum(a, b, out=a)),
    Reduction("BAND", lambda a, b: a.bitwise_and_(b)),
    Reduction("BOR", lambda a, b: a.bitwise_or_(b)),
    Reduction("BXOR", lambda a, b: a.bitwise_xor_(b)),
)
_OF_BITS, _ORDERED = ("BAND", "BOR", "BXOR"), ("MIN", "MAX")
_BY_OPERATION = {getattr(dist.ReduceOp.RedOpType, known.name): known for known in REDUCTIONS}


def reduction(op: Any, tensors: Sequence[Tensor]) -> Reduction:
    """What PyTorch asks for, of such tensors.

    Raises:
        InputError: an operation that this backend does not have, or that there is not for the type: where it failed
            on the way, messages would be left that a later collective takes for its own.
    """
    which = op.op if hasattr(op, "op") else op
    known = _BY_OPERATION.get(which)
    if known is None:
        has = ", ".join(one.name for one in REDUCTIONS)
        raise InputError(f"the reduction {which.name}", f"this backend has {has}")
    for dtype in {tensor.dtype for tensor in tensors}:
        if dtype.is_complex if known.name in _ORDERED else known.name in _OF_BITS and not _has_bits(dtype):
            raise InputError(
                f"the reduction {known.name} of {dtype}", "there is none; reduce it otherwise, or convert it"
            )
    return known


def _has_bits(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex)
