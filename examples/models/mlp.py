"""A perceptron with a few large layers: the smallest model that has something to send.

hemiola capture examples/models/mlp.py:full
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

Example = tuple[nn.Module, tuple[Tensor, ...], Callable[[Tensor], Tensor]]


def mlp(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers from each size to the next, with ReLU between them."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(sizes):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def example(sizes: Sequence[int], batch: int, device: str) -> Example:
    """Model, inputs and loss."""
    with torch.device(device):
        inputs, labels = torch.randn(batch, sizes[0]), torch.zeros(batch, dtype=torch.long)
        return mlp(sizes), (inputs,), lambda output: functional.cross_entropy(output, labels)


def tiny(device: str = "cpu") -> Example:
    """Runs in a millisecond."""
    return example((64, 128, 128, 10), 16, device)


def full(device: str = "meta") -> Example:
    """Forty million parameters."""
    return example((1024, 4096, 4096, 4096, 10), 64, device)
