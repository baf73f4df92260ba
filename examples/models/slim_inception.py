"""Inception v1, v2 and v3 as TF-slim has them: v1 with 3x3 for 5x5, v2 with a separable first layer, v3 with its auxiliary head."""

from __future__ import annotations

from inception import Branches, Widths
from inception import inception_v3 as plain_v3
from torch import Tensor, nn

W = Widths(1)
V1 = (
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (), (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128), (), (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
)  # fmt: skip
"""Widths of a block: 1x1; 1x1 and 3x3; 1x1 and 3x3; behind the pooling. () halves the image."""
V2 = (
    (64, 64, 96, 64, 96, 32), (64, 64, 96, 64, 96, 64), (128, 160, 64, 96), (224, 64, 96, 96, 128, 128),
    (192, 96, 128, 96, 128, 128), (160, 128, 160, 128, 160, 96), (96, 128, 192, 160, 192, 96), (128, 192, 192, 256),
    (352, 192, 320, 160, 224, 128), (352, 192, 320, 192, 224, 128),
)  # fmt: skip
"""The same; the third branch has a second 3x3. Four widths halve the image: 1x1, 3x3; 1x1, 3x3, 3x3."""


def inception_v1(classes: int = 1000) -> nn.Module:
    """GoogLeNet (Szegedy et al., 2015) with normalization, without auxiliary heads."""
    layers: list[nn.Module] = []
    wide = 192
    for widths in V1:
        if not widths:
            layers.append(nn.MaxPool2d(3, 2, 1))
            continue
        one, before3, three, before5, five, pooled = widths
        layers.append(
            Branches(
                W.conv(wide, one, 1),
                W.chain(wide, before3, three, kernels=(1, 3)),
                W.chain(wide, before5, five, kernels=(1, 3)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), W.conv(wide, pooled, 1)),
            )
        )
        wide = one + three + five + pooled
    return nn.Sequential(W.conv(3, 64, 7, 2), *_rest_of_stem(), *layers, *_head(wide, classes))


def inception_v2(classes: int = 1000) -> nn.Module:
    """Inception with normalization (Ioffe and Szegedy, 2015)."""
    layers: list[nn.Module] = []
    wide = 192
    for widths in V2:
        if len(widths) == 4:
            before3, three, before5, five = widths
            branches = [
                _halving(wide, before3, three),
                _halving(wide, before5, five, five),
                nn.MaxPool2d(3, 2, 1),
            ]
            wide += three + five
        else:
            one, before3, three, before5, five, pooled = widths
            branches = [
                W.conv(wide, one, 1),
                W.chain(wide, before3, three, kernels=(1, 3)),
                W.chain(wide, before5, five, five, kernels=(1, 3, 3)),
                W.pooled(wide, pooled),
            ]
            wide = one + three + five + pooled
        layers.append(Branches(*branches))
    first = nn.Sequential(
        nn.Conv2d(3, 24, 7, 2, 3, groups=3, bias=False), nn.Conv2d(24, 64, 1, bias=False),
        nn.BatchNorm2d(64, eps=0.001), nn.ReLU(inplace=True),
    )  # fmt: skip
    return nn.Sequential(first, *_rest_of_stem(), *layers, *_head(wide, classes))


def _halving(*widths: int) -> nn.Module:
    """1x1, then 3x3 of which the last halves the image."""
    last = len(widths) - 2
    return nn.Sequential(
        *(
            W.conv(widths[i], widths[i + 1], 3 if i else 1, 2 if i == last else 1)
            for i in range(len(widths) - 1)
        )
    )


def _rest_of_stem() -> list[nn.Module]:
    return [nn.MaxPool2d(3, 2, 1), W.conv(64, 64, 1), W.conv(64, 192, 3), nn.MaxPool2d(3, 2, 1)]


def _head(wide: int, classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(wide, classes)]


class WithAuxiliary(nn.Module):
    """Inception v3, and the head that is trained beside its own from the end of its 17x17 blocks."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        whole = plain_v3(classes)
        self.first, self.rest = whole[:15], whole[15:]
        self.auxiliary = nn.Sequential(
            nn.AvgPool2d(5, 3), W.conv(768, 128, 1), W.conv(128, 768, 5, same=False), nn.Flatten(),
            nn.Linear(768, classes),
        )  # fmt: skip

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Both heads' outputs."""
        features = self.first(images)
        auxiliary = self.auxiliary(features)
        return self.rest(features), auxiliary


def inception_v3(classes: int = 1000) -> nn.Module:
    """Inception-v3 (Szegedy et al., 2016) with its auxiliary head."""
    return WithAuxiliary(classes)
