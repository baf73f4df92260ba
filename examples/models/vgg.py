"""VGG-16 (Simonyan and Zisserman, 2015, configuration D): three large layers hold most of its weight.

hemiola capture examples/models/vgg.py:full
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Example = tuple[nn.Module, tuple[Tensor, ...], Callable[[Tensor], Tensor]]
STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def vgg16(pixels: int = 224, classes: int = 1000, narrower: int = 1) -> nn.Sequential:
    """VGG-16 for square images; `narrower` divides every width."""
    features: list[nn.Module] = []
    channels = 3
    for width, depth in STAGES:
        for _ in range(depth):
            features += [nn.Conv2d(channels, width // narrower, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width // narrower
        features.append(nn.MaxPool2d(2))
    hidden = 4096 // narrower
    return nn.Sequential(
        *features,
        nn.Flatten(),
        nn.Linear(channels * (pixels // 32) ** 2, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(hidden, classes),
    )


def example(batch: int, pixels: int, classes: int, narrower: int, device: str) -> Example:
    """Model, inputs and loss."""
    with torch.device(device):
        images, labels = torch.randn(batch, 3, pixels, pixels), torch.zeros(batch, dtype=torch.long)
        model = vgg16(pixels, classes, narrower)
        return model, (images,), lambda output: functional.cross_entropy(output, labels)


def tiny(device: str = "cpu") -> Example:
    """Sixteenth of the width, small images."""
    return example(2, 64, 10, 16, device)


def full(device: str = "meta") -> Example:
    """As published: 138 million parameters, 224 by 224 pixels."""
    return example(32, 224, 1000, 1, device)
