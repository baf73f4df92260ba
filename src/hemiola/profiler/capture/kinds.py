"""What an operation is (`core.graph.KINDS`), by its name as PyTorch calls it. Knows names only.

A name that no table lists is classed by the tag that PyTorch itself gives it (pointwise,
reduction, random); one without a tag is "other". Backward operations are of their forward's kind.
"""

from __future__ import annotations

from typing import Any

from hemiola.core.graph import KINDS

__all__ = ["ALLOCATIONS", "GATHERS", "LIKES", "OVERWRITES", "SCATTERS", "SHAPED", "VIEW", "kind_of"]

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
