"""Tensors as the bytes that are sent, and how two of them become one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hemiola.core.errors import InputError

__all__ = ["REDUCTIONS", "Reduction", "contiguous", "reduction", "view", "writing"]

_AS_IT_IS = nullcontext()


class _Memory(ctypes.Array[ctypes.c_uint8]):
    """From some address on: of one type, for to make one for each length takes long. Keeps whose memory it is.

    NumPy's arrays would do, but a tensor that has been one can never be resized again, as FSDP1 does with its parameters.
    """

    __slots__ = ("keeps",)
    keeps: Tensor
    _type_ = ctypes.c_uint8
    _length_ = 1 << 62


def view(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the processor, of any type; who resizes it meanwhile takes it away.

    Raises:
        InputError: what lies there is the tensor's conjugate or its negative; it is not on the processor.
    """
    if not tensor.numel():
        return memoryview(bytearray())
    if not tensor.is_cpu:  # its address is none of this process
        raise InputError(f"the tensor is on {tensor.device}", "give tensor.cpu()")
    if tensor.is_conj() or tensor.is_neg():
        raise InputError("the tensor's memory has other numbers", "give tensor.resolve_conj().resolve_neg()")
    memory = _Memory.from_address(tensor.data_ptr())
    memory.keeps = tensor
    return memoryview(memory).cast("B")[: tensor.nbytes]


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
_BY_OPERATION = {getattr(dist.ReduceOp.RedOpType, known.name): known for known in REDUCTIONS}


def reduction(op: Any, tensors: Sequence[Tensor]) -> Reduction:
    """What PyTorch asks for, of such tensors.

    Raises:
        InputError: an operation that this backend does not have, or that PyTorch does not have for the type: where it
            failed on the way, messages would be left that a later collective takes for its own.
    """
    which = op.op if hasattr(op, "op") else op
    known = _BY_OPERATION.get(which)
    if known is None:
        has = ", ".join(one.name for one in REDUCTIONS)
        raise InputError(f"the reduction {which.name}", f"this backend has {has}")
    for dtype in {tensor.dtype for tensor in tensors}:
        if not _is_there(known.join, dtype):
            raise InputError(
                f"the reduction {known.name} of {dtype}", "there is none; reduce it otherwise, or convert it"
            )
    return known


@cache
def _is_there(join: Callable[[Tensor, Tensor], object], dtype: torch.dtype) -> bool:
    """Whether two of this type can be joined so; PyTorch is asked once."""
    try:
        one, other = (torch.empty(1, dtype=dtype, device="cpu") for _ in range(2))
        join(one, other)
    except (RuntimeError, TypeError):
        return False
    return True
