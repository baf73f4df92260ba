"""A model's training iteration as a `Graph`, without data, without a GPU and without running it.

PyTorch is imported when something is captured, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hemiola.core.errors import InputError

if TYPE_CHECKING:
    from hemiola.core.graph import Graph

__all__ = ["capture"]


def capture(
    model: Any,
    example_inputs: Any,
    loss: Any = None,
    optimizer: Any = None,
    *,
    accumulate: int = 1,
    autocast: str | None = None,
    device: str = "",
    name: str = "",
    samples: int | None = None,
) -> Graph:
    """Every operation of one training iteration: forward, backward and optimizer.

    Shapes are followed through the model; nothing is computed and no memory is taken, so that a
    model on the meta device will do. The model is as it was afterwards, also after an error. It is
    captured in the mode that it is in (`model.train()` or `model.eval()`).

    Args:
        model: a `torch.nn.Module`.
        example_inputs: what forward takes: a tensor, a tuple or list of positional arguments, or a
            dict of keyword arguments. Values do not matter, shapes and types do.
        loss: called with the model's output, gives a scalar tensor. Without one: the output's
            `loss`, or the output itself if it is a scalar, or else the sum of the output's
            floating-point tensors (`Graph.source` says which).
        optimizer: an instance over the model's parameters (it is not touched), or something that
            makes one from a list of parameters (`torch.optim.AdamW`). Plain SGD without one.
        accumulate: micro-steps (forward and backward) per iteration, all with these inputs.
        autocast: "bfloat16" or "float16": forward and loss under `torch.autocast`.
        device: "cpu" or "cuda": whose operations to capture (attention and optimizers differ). The model's own
            unless given; "cpu" for a model on the meta device.
        name: what to call the graph; the model's class unless given.
        samples: in these inputs. Unless given, the first dimension of their first tensor, or its second where a
            module without `batch_first` takes it so (`nn.LSTM`).

    Returns:
        A checked `Graph`.

    Raises:
        InputError: if an argument is impossible, or PyTorch is not installed.
        GraphError: if the model cannot be captured, naming the line that prevents it.
    """
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise InputError(
            "capturing a model needs PyTorch, which is not installed", "pip install 'hemiola[torch]'"
        ) from error
    from hemiola.profiler.capture.iteration import CaptureOptions, capture_iteration

    options = CaptureOptions(
        accumulate=accumulate, autocast=autocast, device=device, name=name, samples=samples
    )
    return capture_iteration(model, example_inputs, loss, optimizer, options)
