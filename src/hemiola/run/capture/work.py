"""What an operation does: its FLOP as PyTorch's own counter counts them, and which arguments it writes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.utils.flop_counter import flop_registry

from hemiola.run.capture.kinds import ALLOCATIONS, GATHERS, LIKES, OVERWRITES, SCATTERS, kind_of

__all__ = ["Facts", "facts_of", "gathered_bytes"]


@dataclass(frozen=True, eq=False)
class Facts:
    """What is true of every call of an operation.

    Attributes:
        name: as PyTorch calls it ("aten.addmm.default").
        kind: index into `KINDS`, of a call that is not a view.
        flop: called with the arguments and `out_val`; None where PyTorch's counter counts nothing.
        writes: places of the positional arguments that it writes, and names of keyword arguments.
        composite: whether it is a composition of others, which are looked at in its stead.
        allocates, likes, overwrites, gathers, scatters: see `kinds`.
    """

    name: str
    kind: int
    flop: Any
    writes: frozenset[int | str]
    composite: bool
    allocates: bool
    likes: bool
    overwrites: bool
    gathers: bool
    scatters: bool


def facts_of(operation: Any) -> Facts:
    """The facts of a `torch._ops.OpOverload`."""
    import torch

    schema = operation._schema
    short = schema.name.partition("::")[2]
    written = {
        argument.name if argument.kwarg_only else place
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    formula = _formula(operation)
    has_kernel = partial(torch._C._dispatch_has_kernel_for_dispatch_key, operation.name())
    return Facts(
        name=str(operation),
        kind=kind_of(operation),
        flop=formula,
        writes=frozenset(written),
        composite=has_kernel("CompositeImplicitAutograd") and not has_kernel("CPU") and formula is None,
        allocates=short in ALLOCATIONS,
        likes=short in LIKES,
        overwrites=short in OVERWRITES,
        gathers=short in GATHERS,
        scatters=short in SCATTERS,
    )


def _formula(operation: Any) -> Any:
    """PyTorch's own formula, or one for the fused kernels that its counter passes over.

    Its counter knows attention on a GPU only; the kernel for CPUs does the same work.
    """
    import torch

    packet, aten = operation._overloadpacket, torch.ops.aten
    missed = {
        aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[
            aten._scaled_dot_product_flash_attention
        ],
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            flop_registry[aten._scaled_dot_product_flash_attention_backward]
        ),
        aten.mkldnn_rnn_layer: partial(_recurrent_flop, 1),
        aten.mkldnn_rnn_layer_backward: partial(_recurrent_flop, 2),
        aten._cudnn_rnn: partial(_recurrent_flop, 1),
        aten._cudnn_rnn_backward: partial(_recurrent_flop, 2),
    }
    return missed.get(packet) or flop_registry.get(packet)


def _recurrent_flop(products: int, inputs: Any, *arguments: Any, out_val: Any = None, **_: Any) -> int:
    """Every weight matrix times every step's vector, forward once and backward twice (inputs, weights)."""
    weights = arguments[0] if isinstance(arguments[0], (list, tuple)) else arguments[:4]
    matrices = sum(weight.numel() for weight in weights if weight.dim() == 2)
    return int(2 * products * math.prod(inputs.shape[:2]) * matrices)


def gathered_bytes(arguments: tuple[Any, ...], result: Any) -> int:
    """What a gathering operation reads of its first argument: the rows of an embedding bag, or what it gives out."""
    table, first = arguments[0], result[0] if isinstance(result, (list, tuple)) else result
    if isinstance(result, tuple):  # an embedding bag: one row per index, then summed
        return int(arguments[1].numel() * math.prod(table.shape[1:]) * table.itemsize)
    return int(first.numel() * first.itemsize)
