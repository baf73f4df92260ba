"""DLRM (Naumov et al., 2019): large embedding tables, small perceptrons, pairwise products between.

hemiola capture examples/models/dlrm.py:full
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

Example = tuple[nn.Module, tuple[Tensor, ...], Callable[[Tensor], Tensor]]


class Perceptron(nn.Sequential):
    """Linear layers from each size to the next, each with ReLU."""

    def __init__(self, *sizes: int) -> None:
        layers = ((nn.Linear(wide, narrow), nn.ReLU()) for wide, narrow in pairwise(sizes))
        super().__init__(*(part for layer in layers for part in layer))


class DLRM(nn.Module):
    """Click-through rate from dense features and categories.

    Args:
        rows: of each embedding table.
        dense: number of dense features.
        bottom: widths of the lower perceptron; the last is the embeddings' width.
        top: widths of the upper perceptron, without its single output.
    """

    def __init__(self, rows: Sequence[int], dense: int, bottom: Sequence[int], top: Sequence[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(count, bottom[-1], mode="sum") for count in rows)
        self.bottom = Perceptron(dense, *bottom)
        pairs = len(rows) * (len(rows) + 1) // 2
        self.top = Perceptron(bottom[-1] + pairs, *top)
        self.click = nn.Linear(top[-1], 1)
        first, second = torch.tril_indices(len(rows) + 1, len(rows) + 1, offset=-1)
        self.register_buffer("first", first)
        self.register_buffer("second", second)

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        """Logits (batch,) of dense features (batch, dense) and categories (batch, tables, per bag)."""
        low = self.bottom(dense)
        bags = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        vectors = torch.stack([low, *bags], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        features = torch.cat([low, products[:, self.first, self.second]], dim=1)
        logits: Tensor = self.click(self.top(features))
        return logits.squeeze(1)


def example(
    model: Callable[[], nn.Module], batch: int, tables: int, dense: int, rows: int, device: str
) -> Example:
    """Model, inputs and loss."""
    with torch.device(device):
        inputs = torch.randn(batch, dense), torch.randint(rows, (batch, tables, 1))
        clicks = torch.zeros(batch)
        return model(), inputs, lambda output: functional.binary_cross_entropy_with_logits(output, clicks)


def tiny(device: str = "cpu") -> Example:
    """Four tables of a hundred rows."""
    return example(lambda: DLRM([100] * 4, 13, (32, 16), (32, 16)), 8, 4, 13, 100, device)


def full(device: str = "meta") -> Example:
    """The widths of MLPerf's model, with 26 tables of 100,000 rows: 335 million parameters."""
    return example(
        lambda: DLRM([100_000] * 26, 13, (512, 256, 128), (1024, 1024, 512, 256)),
        2048,
        26,
        13,
        100_000,
        device,
    )
