"""Inception-v3 (Szegedy et al., 2016) without the auxiliary head: parallel branches, many small weights.

hemiola capture examples/models/inception.py:full
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Example = tuple[nn.Module, tuple[Tensor, ...], Callable[[Tensor], Tensor]]


class Branches(nn.Module):
    """Its branches' outputs, concatenated."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, images: Tensor) -> Tensor:
        """All branches see the same input."""
        return torch.cat([branch(images) for branch in self.branches], dim=1)


class Widths:
    """Makes the parts; `narrower` divides every width."""

    def __init__(self, narrower: int) -> None:
        self.narrower = narrower

    def conv(
        self, wide: int, narrow: int, kernel: int | tuple[int, int], stride: int = 1, same: bool = True
    ) -> nn.Module:
        """Convolution, normalization, ReLU; `same` keeps the image's size."""
        high, broad = (kernel, kernel) if isinstance(kernel, int) else kernel
        inputs, outputs = wide if wide == 3 else wide // self.narrower, narrow // self.narrower
        padding = (high // 2, broad // 2) if same else 0
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, (high, broad), stride, padding, bias=False),
            nn.BatchNorm2d(outputs, eps=0.001),
            nn.ReLU(inplace=True),
        )

    def chain(
        self, *widths: int, kernels: tuple[int | tuple[int, int], ...], shrink: bool = False
    ) -> nn.Module:
        """Convolutions one after the other; `shrink` halves the image in the last."""
        last = len(kernels) - 1
        return nn.Sequential(
            *(
                self.conv(
                    widths[i],
                    widths[i + 1],
                    kernel,
                    2 if shrink and i == last else 1,
                    not (shrink and i == last),
                )
                for i, kernel in enumerate(kernels)
            )
        )

    def pooled(self, wide: int, narrow: int) -> nn.Module:
        """Average of the neighbourhood, then a convolution."""
        return nn.Sequential(nn.AvgPool2d(3, 1, 1), self.conv(wide, narrow, 1))

    def small(self, wide: int, pooled: int) -> nn.Module:
        """Figure 5: 5x5 and two 3x3."""
        return Branches(
            self.conv(wide, 64, 1),
            self.chain(wide, 48, 64, kernels=(1, 5)),
            self.chain(wide, 64, 96, 96, kernels=(1, 3, 3)),
            self.pooled(wide, pooled),
        )

    def factored(self, wide: int, inner: int) -> nn.Module:
        """Figure 6: 7x7 as 1x7 and 7x1."""
        row, column = (1, 7), (7, 1)
        return Branches(
            self.conv(wide, 192, 1),
            self.chain(wide, inner, inner, 192, kernels=(1, row, column)),
            self.chain(wide, inner, inner, inner, inner, 192, kernels=(1, column, row, column, row)),
            self.pooled(wide, 192),
        )

    def split(self, wide: int) -> nn.Module:
        """Figure 7: branches that split again."""
        return Branches(
            self.conv(wide, 320, 1),
            nn.Sequential(self.conv(wide, 384, 1), self.fork()),
            nn.Sequential(self.chain(wide, 448, 384, kernels=(1, 3)), self.fork()),
            self.pooled(wide, 192),
        )

    def fork(self) -> nn.Module:
        """1x3 beside 3x1."""
        return Branches(self.conv(384, 384, (1, 3)), self.conv(384, 384, (3, 1)))


def inception_v3(classes: int = 1000, narrower: int = 1) -> nn.Sequential:
    """Inception-v3 for images of 299 by 299 pixels (any size from 75 up works)."""
    w = Widths(narrower)
    return nn.Sequential(
        w.conv(3, 32, 3, 2, same=False),
        w.conv(32, 32, 3, same=False),
        w.conv(32, 64, 3),
        nn.MaxPool2d(3, 2),
        w.conv(64, 80, 1),
        w.conv(80, 192, 3, same=False),
        nn.MaxPool2d(3, 2),
        w.small(192, 32),
        w.small(256, 64),
        w.small(288, 64),
        Branches(
            w.conv(288, 384, 3, 2, same=False),
            w.chain(288, 64, 96, 96, kernels=(1, 3, 3), shrink=True),
            nn.MaxPool2d(3, 2),
        ),
        *(w.factored(768, inner) for inner in (128, 160, 160, 192)),
        Branches(
            w.chain(768, 192, 320, kernels=(1, 3), shrink=True),
            w.chain(768, 192, 192, 192, 192, kernels=(1, (1, 7), (7, 1), 3), shrink=True),
            nn.MaxPool2d(3, 2),
        ),
        w.split(1280),
        w.split(2048),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(2048 // narrower, classes),
    )


def example(batch: int, pixels: int, classes: int, narrower: int, device: str) -> Example:
    """Model, inputs and loss."""
    with torch.device(device):
        images, labels = torch.randn(batch, 3, pixels, pixels), torch.zeros(batch, dtype=torch.long)
        model = inception_v3(classes, narrower)
        return model, (images,), lambda output: functional.cross_entropy(output, labels)


def tiny(device: str = "cpu") -> Example:
    """Eighth of the width, small images."""
    return example(2, 75, 10, 8, device)


def full(device: str = "meta") -> Example:
    """As published: 24 million parameters, 299 by 299 pixels."""
    return example(32, 299, 1000, 1, device)
