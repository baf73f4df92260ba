"""The ten networks of TicTac's table, in the shapes of TF-slim, whose tensors it counts.

As Hashemi, Abdu Jyothi and Campbell ("TicTac", MLSys 2019, table 1) trained them: with the batch of their
table, and with normalization that learns an offset and no scale. Number and bytes of the tensors are the table's.

hemiola capture examples/models/slim.py:resnet50_v1
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from slim_inception import inception_v1, inception_v2, inception_v3
from slim_resnet import resnet_v1, resnet_v2
from torch import Tensor, nn
from torch.nn import functional

Example = tuple[nn.Module, tuple[Tensor, ...], Callable[[Tensor], Tensor]]


def conv(wide: int, narrow: int, kernel: int, stride: int = 1, padding: int = 0) -> list[nn.Module]:
    """Convolution with a bias, and ReLU."""
    return [nn.Conv2d(wide, narrow, kernel, stride, padding), nn.ReLU(inplace=True)]


def head(wide: int, kernel: int, classes: int = 1000) -> list[nn.Module]:
    """Three fully connected layers, which TF-slim writes as convolutions."""
    return [
        *conv(wide, 4096, kernel), nn.Dropout(), *conv(4096, 4096, 1), nn.Dropout(),
        nn.Conv2d(4096, classes, 1), nn.Flatten(),
    ]  # fmt: skip


def alexnet() -> nn.Module:
    """AlexNet v2 (Krizhevsky, "One weird trick", 2014), without local response normalization."""
    return nn.Sequential(
        *conv(3, 64, 11, 4), nn.MaxPool2d(3, 2), *conv(64, 192, 5, padding=2), nn.MaxPool2d(3, 2),
        *conv(192, 384, 3, padding=1), *conv(384, 384, 3, padding=1), *conv(384, 256, 3, padding=1),
        nn.MaxPool2d(3, 2), *head(256, 5),
    )  # fmt: skip


def vgg(*depths: int) -> nn.Module:
    """VGG (Simonyan and Zisserman, 2015) with so many convolutions in each of its five stages."""
    layers: list[nn.Module] = []
    channels = 3
    for width, depth in zip((64, 128, 256, 512, 512), depths, strict=True):
        for _ in range(depth):
            layers += conv(channels, width, 3, padding=1)
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, *head(512, 7))


def offset_only(model: nn.Module) -> nn.Module:
    """The same model; the scale of its normalizations is 1 and is not trained."""
    for norm in [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]:
        scale = norm.weight.detach()
        del norm.weight
        norm.register_buffer("weight", scale)
    return model


def example(make: Callable[[], nn.Module], batch: int, device: str, pixels: int = 224) -> Example:
    """Model, inputs and loss; a second, auxiliary output counts for two fifths."""

    def loss(output: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        if isinstance(output, tuple):
            return loss(output[0]) + 0.4 * loss(output[1])
        return functional.cross_entropy(output, labels)

    with torch.device(device):
        images, labels = torch.randn(batch, 3, pixels, pixels), torch.zeros(batch, dtype=torch.long)
        return offset_only(make()), (images,), loss


def alexnet_v2(device: str = "meta", batch: int = 512) -> Example:
    return example(alexnet, batch, device)


def inception1(device: str = "meta", batch: int = 128) -> Example:
    return example(inception_v1, batch, device)


def inception2(device: str = "meta", batch: int = 128) -> Example:
    return example(inception_v2, batch, device)


def inception3(device: str = "meta", batch: int = 32) -> Example:
    return example(inception_v3, batch, device, 299)


def resnet50_v1(device: str = "meta", batch: int = 32) -> Example:
    return example(lambda: resnet_v1(3, 4, 6, 3), batch, device)


def resnet101_v1(device: str = "meta", batch: int = 64) -> Example:
    return example(lambda: resnet_v1(3, 4, 23, 3), batch, device)


def resnet50_v2(device: str = "meta", batch: int = 64) -> Example:
    return example(lambda: resnet_v2(3, 4, 6, 3), batch, device)


def resnet101_v2(device: str = "meta", batch: int = 32) -> Example:
    return example(lambda: resnet_v2(3, 4, 23, 3), batch, device)


def vgg16(device: str = "meta", batch: int = 32) -> Example:
    return example(lambda: vgg(2, 2, 3, 3, 3), batch, device)


def vgg19(device: str = "meta", batch: int = 32) -> Example:
    return example(lambda: vgg(2, 2, 4, 4, 4), batch, device)
