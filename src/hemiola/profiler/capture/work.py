"""What an operation does: its FLOP, mostly as PyTorch's own counter counts them, and which arguments it writes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.utils.flop_counter import flop_registry

from hemiola.profiler.capture.kinds import ALLOCATIONS, GATHERS, LIKES, OVERWRITES, SCATTERS, SHAPED, kind_of

__all__ = ["OperationFacts", "facts_of", "gathered_bytes"]


@dataclass(frozen=True, eq=False)
class OperationFacts:
    """What is true of every call of an operation.

    Attributes:
        name: as PyTorch calls it ("aten.addmm.default").
        kind: index into `KINDS`, of a call that is not a view.
        flop: called with the arguments and `out_val`; None where there is no formula.
        writes: places of the positional arguments that it writes, and names of keyword arguments.
        composite: whether it is a composition of others, which are looked at in its stead.
        allocates, likes, overwrites, gathers, shaped, scatters: see `kinds`.
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
    shaped: bool
    scatters: bool


def facts_of(operation: Any) -> OperationFacts:
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
    return OperationFacts(
        name=str(operation),
        kind=kind_of(operation),
        flop=formula,
        writes=frozenset(written),
        composite=has_kernel("CompositeImplicitAutograd") and not has_kernel("CPU") and formula is None,
        allocates=short in ALLOCATIONS,
        likes=short in LIKES,
        overwrites=short in OVERWRITES,
        gathers=short in GATHERS,
        shaped=short in SHAPED,
        scatters=short in SCATTERS,
    )


def _formula(operation: Any) -> Any:
    """PyTorch's own formula, or one for what its counter passes over, or counts as more than is done.

    Its counter knows attention on a GPU only; the kernel for CPUs does the same work. Of causal attention it
    counts what kernels for GPUs skip (the one for CPUs skips whole blocks of 512 keys, and so mostly nothing), and
    of the gradient of a grouped convolution's weights every pair of channels.
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
        aten.convolution_backward: _convolution_backward_flop,
        aten._grouped_mm: _grouped_flop,
        aten.mkldnn_rnn_layer: partial(_recurrent_flop, 1),
        aten.mkldnn_rnn_layer_backward: partial(_recurrent_flop, 2),
        aten._cudnn_rnn: partial(_recurrent_flop, 1),
        aten._cudnn_rnn_backward: partial(_recurrent_flop, 2),
    }
    formula = missed.get(packet) or flop_registry.get(packet)
    places = {argument.name: place for place, argument in enumerate(operation._schema.arguments)}
    if packet in flop_registry and "scaled_dot_product" in operation.name() and "is_causal" in places:
        return partial(_attention_flop, formula, *(places[name] for name in ("query", "key", "is_causal")))
    return formula


def _attention_flop(
    formula: Any, query: int, key: int, causal: int, *arguments: Any, out_val: Any = None, **keywords: Any
) -> int:
    """By a formula for all pairs of positions; causal, of a sequence with itself, no position's with later ones."""
    flop = int(formula(*arguments, out_val=out_val, **keywords))
    length, others = (arguments[place].shape[-2] for place in (query, key))
    is_causal = arguments[causal] if len(arguments) > causal else keywords.get("is_causal", False)
    return flop * (length + 1) // (2 * length) if is_causal and 0 < length == others else flop


def _convolution_backward_flop(
    gradient: Any, inputs: Any, weight: Any, _sizes: Any, *arguments: Any, out_val: Any = None
) -> int:
    """The products of forward, once for the inputs' gradient and once for the weights', as far as they are asked for."""
    import torch

    forward = flop_registry[torch.ops.aten.convolution](
        inputs, weight, None, *arguments[:4], out_val=gradient
    )
    return int(forward * sum(arguments[-1][:2]))


def _grouped_flop(left: Any, *_arguments: Any, out_val: Any = None, **_: Any) -> int:
    """Each row of the result is multiplied with its own group's matrix alone.

    Of two matrices (weights' gradients), groups divide what is summed up: all their results together are one product.
    """
    pairs = math.prod(out_val.shape[-2:]) if left.dim() == 2 else out_val.numel()
    return int(2 * pairs * left.shape[-1])


def _recurrent_flop(products: int, inputs: Any, *arguments: Any, out_val: Any = None, **_: Any) -> int:
    """Every weight matrix times every step's vector, forward once and backward twice (inputs, weights)."""
    weights = arguments[0] if isinstance(arguments[0], (list, tuple)) else arguments[:4]
    matrices = sum(weight.numel() for weight in weights if weight.dim() == 2)
    return int(2 * products * math.prod(inputs.shape[:2]) * matrices)


def gathered_bytes(arguments: tuple[Any, ...], result: Any) -> int:
    """What a gathering operation reads of its first argument: for each index a row or an element, or what it gives out."""
    table, first = arguments[0], result[0] if isinstance(result, (list, tuple)) else result
    if isinstance(result, tuple):  # and sums it: an embedding bag (it gives out four tensors) or a loss (two)
        row = 1 if len(result) == 2 else math.prod(table.shape[1:])
        return int(arguments[1].numel() * row * table.itemsize)
    return int(first.numel() * first.itemsize)
