"""ResNet v1 (He et al., 2016) and v2 ("Identity mappings", 2016) as TF-slim has them: a stage's last unit halves the image."""

from __future__ import annotations

from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512)


def conv(wide: int, narrow: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Convolution without bias that keeps the image's size but for its stride."""
    return nn.Conv2d(wide, narrow, kernel, stride, kernel // 2, bias=False)


def normed(wide: int, narrow: int, kernel: int, stride: int = 1, active: bool = True) -> list[nn.Module]:
    """Convolution and normalization, and ReLU."""
    found = [conv(wide, narrow, kernel, stride), nn.BatchNorm2d(narrow)]
    return [*found, nn.ReLU(inplace=True)] if active else found


def shrunk(stride: int) -> nn.Module:
    """Every so manieth pixel."""
    return nn.MaxPool2d(1, stride) if stride > 1 else nn.Identity()


class V1(nn.Module):
    """Bottleneck: normalization follows each convolution."""

    def __init__(self, wide: int, width: int, stride: int) -> None:
        super().__init__()
        same = wide == 4 * width
        self.beside = shrunk(stride) if same else nn.Sequential(*normed(wide, 4 * width, 1, stride, False))
        self.inner = nn.Sequential(
            *normed(wide, width, 1), *normed(width, width, 3, stride), *normed(width, 4 * width, 1, active=False)
        )  # fmt: skip
        self.active = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        """Sum, then ReLU."""
        beside = self.beside(images)
        return self.active(beside + self.inner(images))


class V2(nn.Module):
    """Bottleneck: normalization precedes the first convolution; the last one, and that beside it, have a bias."""

    def __init__(self, wide: int, width: int, stride: int) -> None:
        super().__init__()
        self.same = wide == 4 * width
        self.before = nn.Sequential(nn.BatchNorm2d(wide), nn.ReLU(inplace=True))
        self.beside = shrunk(stride) if self.same else nn.Conv2d(wide, 4 * width, 1, stride)
        self.inner = nn.Sequential(
            *normed(wide, width, 1), *normed(width, width, 3, stride), nn.Conv2d(width, 4 * width, 1)
        )

    def forward(self, images: Tensor) -> Tensor:
        """The sum alone."""
        active = self.before(images)
        return self.beside(images if self.same else active) + self.inner(active)


def units(kind: type[V1] | type[V2], depths: tuple[int, ...]) -> list[nn.Module]:
    """So many units in each stage; all but the last stage halve the image in their last one."""
    found: list[nn.Module] = []
    wide = 64
    for stage, (width, depth) in enumerate(zip(WIDTHS, depths, strict=True)):
        for unit in range(depth):
            halves = unit == depth - 1 and stage < len(depths) - 1
            found.append(kind(wide, width, 2 if halves else 1))
            wide = 4 * width
    return found


def resnet_v1(*depths: int, classes: int = 1000) -> nn.Module:
    """ResNet v1 with so many units in each of four stages."""
    stem = [*normed(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *units(V1, depths), *_head(classes))


def resnet_v2(*depths: int, classes: int = 1000) -> nn.Module:
    """ResNet v2 with so many units in each of four stages."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3), nn.MaxPool2d(3, 2, 1)]
    end = [nn.BatchNorm2d(2048), nn.ReLU(inplace=True)]
    return nn.Sequential(*stem, *units(V2, depths), *end, *_head(classes))


def _head(classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, classes)]
