"""The jobs of `benchmarks/accelerate.py`: layers that sleep in the shape of four models, and real models."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from accelerate_emulated import Shape, shape_of
from prediction_models import MODELS

import hemiola
from hemiola.core.graph import Graph
from hemiola.core.units import format_rate

__all__ = ["RATIOS", "REAL", "SHAPES", "SIZE_BYTES", "Case", "cases", "emulation"]

SIZE_BYTES = 40e6
"""Of an emulated model's gradients: the real one's, scaled, so that a case takes a minute and not an hour."""
GBIT_BYTES_PER_S = 125e6
RATIOS = (0.5, 1.0, 2.0)
RANKS = (2, 4)
_RATES = (2.5e6, 1.25e9)
"""Of links in a lab: least and most."""
REAL = ("MLP", "VGG-16", "ResNet", "GPT-2", "DLRM")


@dataclass(frozen=True)
class Case:
    """One job in one network.

    Attributes:
        model: its name.
        emulated: whether it sleeps instead of computing.
        ranks: one per host.
        ratio: of communication to computation.
        rate_bytes_per_s: of every host's link; not what a case is known by, as a real model's is timed anew.
        reached: the ratio at that rate; another one where it would have to be beyond what a lab's link can do.
    """

    model: str
    emulated: bool
    ranks: int
    ratio: float
    rate_bytes_per_s: float = field(compare=False)
    reached: float = field(default=0.0, compare=False)

    @property
    def said_ratio(self) -> str:
        """As the page has it."""
        return f"{self.ratio:g}" if abs(self.reached / self.ratio - 1) < 0.02 else f"{self.reached:.2g}"

    @property
    def rate(self) -> str:
        """As the lab takes it."""
        return f"{self.rate_bytes_per_s * 8e-6:.0f}mbit"

    @property
    def about(self) -> str:
        """In words."""
        kind = "emulated" if self.emulated else "real"
        return f"{self.model} ({kind}), {self.ranks} ranks, ratio {self.said_ratio}, {format_rate(self.rate_bytes_per_s)}"


def _share(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def emulation(case: Case) -> Shape:
    """An emulated case's layers: so long that communication takes `ratio` times as long as computation."""
    compute_s = _share(case.ranks) * SIZE_BYTES / case.rate_bytes_per_s / case.ratio
    return shape_of(_graph(case.model), compute_s / 3, SIZE_BYTES)


def cases(emulated: bool, seconds_of: dict[str, float]) -> list[Case]:
    """All of one kind.

    Args:
        seconds_of: the real models wanted, and what an iteration takes alone, on as many ranks as cores: it decides
            the rate.
    """
    if emulated:
        return [Case(m, True, n, r, GBIT_BYTES_PER_S, r) for m in SHAPES for n in RANKS for r in RATIOS]
    found = []
    for model in seconds_of:
        size_bytes = sum(p.gradient_bytes for p in _real(model).parameters)
        for ratio in RATIOS:
            at_one = _share(2) * size_bytes / seconds_of[model]
            rate = min(max(round(at_one / ratio, -5), _RATES[0]), _RATES[1])
            found.append(Case(model, False, 2, ratio, rate, at_one / rate))
    return found


@cache
def _real(name: str) -> Graph:
    return _captured(MODELS[name]("meta"), name)


def _captured(example: tuple, name: str) -> Graph:
    import torch

    optimizer = torch.optim.SGD(example[0].parameters(), lr=1e-4)
    if len(example) > 2:
        return hemiola.capture(*example, optimizer=optimizer, name=name)
    return hemiola.capture(*example, None, optimizer, name=name)


@cache
def _graph(shape: str) -> Graph:
    return _captured(SHAPES[shape](), shape)


def _vgg() -> tuple:
    from examples.models import vgg

    return vgg.example(8, 224, 1000, 1, "meta")


def _resnet() -> tuple:
    from examples.models import hugging_face

    return hugging_face.resnet(8, 224, "meta")


def _gpt() -> tuple:
    from examples.models import hugging_face

    return hugging_face.gpt2(4, 256, "meta", use_cache=False)


def _gpt_xl() -> tuple:
    from examples.models import hugging_face

    return hugging_face.gpt2(1, 256, "meta", use_cache=False, n_layer=48, n_embd=1600, n_head=25)


def _dlrm() -> tuple:
    """The perceptrons of MLPerf's DLRM: its tables are split over the ranks in practice, not trained by all."""
    import torch
    from examples.models.dlrm import Perceptron
    from torch import nn

    widths = (13, 512, 256, 128, 1024, 1024, 512, 256, 1)
    with torch.device("meta"):
        model = nn.Sequential(Perceptron(*widths[:4]), nn.Linear(128, 479), Perceptron(479, *widths[4:]))
        return model, (torch.randn(2048, 13),), lambda output: output.sum()


SHAPES = {"VGG-16": _vgg, "ResNet-50": _resnet, "GPT-2": _gpt, "GPT-2 XL": _gpt_xl, "DLRM": _dlrm}
"""Published sizes: 138, 26, 124, 1,558 and 2 million parameters, before scaling."""
