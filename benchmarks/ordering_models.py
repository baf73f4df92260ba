"""TicTac's ten models: what their table says, and our graphs of the same shapes. For `benchmarks/ordering.py`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

import hemiola
from hemiola.core.graph import Graph
from hemiola.core.hardware import Hardware
from hemiola.cost.operations import load_hardware

__all__ = ["DEVICE", "MODELS", "SLOWER", "Published", "captured", "certain", "hardware"]

DEVICE, SLOWER = "V100", "T4"
EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "models"


@dataclass(frozen=True)
class Published:
    """A row of TicTac's table 1.

    Attributes:
        function: of examples/models/slim.py.
        tensors, mib: how many parameters the authors counted, and their size in MiB.
        batch: images per worker.
    """

    function: str
    tensors: int
    mib: int
    batch: int


MODELS = {
    "AlexNet v2": Published("alexnet_v2", 16, 192, 512),
    "Inception v1": Published("inception1", 116, 25, 128),
    "Inception v2": Published("inception2", 141, 43, 128),
    "Inception v3": Published("inception3", 196, 104, 32),
    "ResNet-50 v1": Published("resnet50_v1", 108, 97, 32),
    "ResNet-101 v1": Published("resnet101_v1", 210, 170, 64),
    "ResNet-50 v2": Published("resnet50_v2", 125, 97, 64),
    "ResNet-101 v2": Published("resnet101_v2", 244, 170, 32),
    "VGG-16": Published("vgg16", 32, 528, 32),
    "VGG-19": Published("vgg19", 38, 548, 32),
}


@cache
def captured(name: str) -> Graph:
    """One iteration with the table's batch; nothing is computed."""
    import torch

    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    import slim

    model, inputs, loss = getattr(slim, MODELS[name].function)("meta", MODELS[name].batch)
    return hemiola.capture(model, inputs, loss, torch.optim.SGD(model.parameters(), lr=0.1), name=name)


@cache
def hardware(name: str = DEVICE) -> Hardware:
    """The GPU that all of it is computed for; a shipped one by name, or a file."""
    return certain(load_hardware(name))


def certain(given: Hardware) -> Hardware:
    """The same, of which nothing is uncertain: an iteration is executed once, not again for an interval's ends."""
    exact = {kind: msgspec.structs.replace(one, spread=0.0) for kind, one in given.efficiencies.items()}
    return msgspec.structs.replace(given, noise=0.0, efficiencies=exact)
