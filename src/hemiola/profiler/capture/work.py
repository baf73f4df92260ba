"""What an operation does: its FLOP, mostly as PyTorch's own counter counts them, and which arguments it writes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.utils.flop_counter import flop_registry

from hemiola.core.graph import KINDS

__all__ = ["VIEW", "OperationFacts", "facts_of", "gathered_bytes"]


# What an operation is (`core.graph.KINDS`), by its name as PyTorch calls it. Knows names only.

_NAMES = {
    "matmul": "mm addmm bmm baddbmm addbmm addmv mv dot vdot _scaled_mm _grouped_mm linear linear_backward "
    "_addmm_activation mkldnn_rnn_layer _cudnn_rnn",
    "convolution": "convolution _convolution convolution_overrideable cudnn_convolution mkldnn_convolution "
    "_slow_conv2d_forward",
    "normalization": "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit "
    "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training batch_norm_backward "
    "_batch_norm_with_update cudnn_batch_norm miopen_batch_norm _fused_rms_norm rms_norm "
    "batch_norm_stats batch_norm_elemt batch_norm_update_stats _weight_norm_interface",
    "softmax": "_softmax _log_softmax _safe_softmax _masked_softmax softmax log_softmax logsumexp",
    "activation": "relu relu6 threshold gelu silu sigmoid tanh hardtanh hardswish hardsigmoid leaky_relu elu celu "
    "selu prelu _prelu_kernel mish softplus log_sigmoid log_sigmoid_forward glu rrelu_with_noise softshrink "
    "hardshrink",
    "loss": "nll_loss_forward nll_loss nll_loss2d_forward nll_loss2d mse_loss l1_loss smooth_l1_loss huber_loss "
    "binary_cross_entropy binary_cross_entropy_with_logits kl_div _ctc_loss multi_margin_loss "
    "multilabel_margin_loss soft_margin_loss",
    "pooling": "max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d "
    "_adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d max_pool2d_with_indices fractional_max_pool2d "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_bicubic2d "
    "upsample_linear1d upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa "
    "grid_sampler_2d grid_sampler_3d",
    "embedding": "embedding embedding_dense embedding_renorm_ _embedding_bag _embedding_bag_forward_only "
    "_embedding_bag_dense _embedding_bag_per_sample_weights embedding_sparse",
    "copy": "clone copy_ copy _to_copy cat stack zeros zeros_like ones ones_like full full_like fill fill_ zero_ zero "
    "new_zeros new_ones new_full new_full_like scalar_tensor arange linspace eye tril_indices triu_indices slice "
    "select diagonal constant_pad_nd reflection_pad1d reflection_pad2d replication_pad2d index index_select index_put "
    "index_put_ _index_put_impl_ _unsafe_index _unsafe_index_put index_add index_add_ index_copy index_copy_ gather "
    "scatter scatter_ scatter_add scatter_add_ slice_scatter select_scatter masked_select masked_scatter_ take roll "
    "flip repeat repeat_interleave im2col col2im unfold pixel_shuffle pixel_unshuffle tril triu one_hot "
    "_foreach_copy_ _foreach_zero_ narrow_copy unfold_copy complex view_as_real_copy",
    "random": "native_dropout bernoulli bernoulli_ rand rand_like randn randn_like randint randint_like normal normal_ "
    "uniform_ random_ exponential_ randperm multinomial _fused_dropout",
    "elementwise": "native_dropout_backward masked_fill_ _thnn_fused_lstm_cell _thnn_fused_gru_cell",
    "reduction": "sum mean prod amax amin max min argmax argmin any all var std var_mean std_mean norm "
    "linalg_vector_norm cumsum cumprod logcumsumexp topk sort median kthvalue count_nonzero bincount "
    "_foreach_norm aminmax cummax cummin",
}  # fmt: skip

_KIND = {name: KINDS.index(kind) for kind, names in _NAMES.items() for name in names.split()}
VIEW = KINDS.index("view")

ALLOCATIONS = frozenset(
    [
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "empty_permuted",
        "resize_",
        "set_",
    ]
)
"""They take memory and leave it as it is: nothing moves."""

LIKES = frozenset(f"{value}_like" for value in ("zeros", "ones", "full", "rand", "randn", "randint")) | {
    "new_zeros",
    "new_ones",
    "new_full",
}
"""They look at a tensor's shape and not into it. They wait for it all the same: backward begins with one."""

OVERWRITES = frozenset(
    [
        "copy_",
        "zero_",
        "fill_",
        "normal_",
        "uniform_",
        "bernoulli_",
        "random_",
        "exponential_",
        "_foreach_copy_",
        "_foreach_zero_",
    ]
)
"""They write their first argument without reading it."""

GATHERS = frozenset(
    [
        "embedding",
        "index_select",
        "index",
        "_unsafe_index",
        "gather",
        "take",
        "_embedding_bag",
        "_embedding_bag_forward_only",
        "nll_loss_forward",
        "nll_loss2d_forward",
    ]
)
"""They read as much of their first argument as they give out, or as they have indices for, not all of it."""

SHAPED = frozenset(
    [
        "nll_loss_backward",
        "nll_loss2d_backward",
        "avg_pool2d_backward",
        "avg_pool3d_backward",
        "_adaptive_avg_pool2d_backward",
        "_adaptive_avg_pool3d_backward",
        "max_pool2d_with_indices_backward",
        "max_pool3d_with_indices_backward",
        "adaptive_max_pool2d_backward",
        "adaptive_max_pool3d_backward",
    ]
)
"""They look at the shape of their second argument, forward's input, and not into it."""

SCATTERS = frozenset(
    [
        "index_put_",
        "_index_put_impl_",
        "scatter_",
        "scatter_add_",
        "index_add_",
        "index_copy_",
        "embedding_renorm_",
    ]
)
"""They write as much of their first argument as their other tensors bring, not all of it."""


def kind_of(operation: Any) -> int:
    """The kind of an operation (a `torch._ops.OpOverload`) that is not a view, as an index into `KINDS`."""
    import torch

    name: str = operation._schema.name.partition("::")[2]
    if "attention" in name:
        return KINDS.index("attention")
    base = name.removesuffix("_backward_data").removesuffix("_backward")
    for candidate in (name, base, base.removesuffix("_")):
        if candidate in _KIND:
            return _KIND[candidate]
    if torch.Tag.view_copy in operation.tags:
        return KINDS.index("copy")
    if torch.Tag.nondeterministic_seeded in operation.tags:
        return KINDS.index("random")
    if torch.Tag.pointwise in operation.tags or name.startswith(("_foreach_", "_fused_")):
        return KINDS.index("elementwise")
    if torch.Tag.reduction in operation.tags:
        return KINDS.index("reduction")
    return KINDS.index("other")


@dataclass(frozen=True, eq=False)
class OperationFacts:
    """What is true of every call of an operation.

    Attributes:
        name: as PyTorch calls it ("aten.addmm.default").
        kind: index into `KINDS`, of a call that is not a view.
        flop: called with the arguments and `out_val`; None where there is no formula.
        writes: places of the positional arguments that it writes, and names of keyword arguments.
        composite: whether it is a composition of others, which are looked at in its stead.
        allocates, likes, overwrites, gathers, shaped, scatters: see above.
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
