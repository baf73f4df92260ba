"""The models whose iterations `benchmarks/prediction.py` predicts and then runs, scaled to two cores.

Ten architectures, each with enough to compute and to send that neither is noise: 60 to 300 ms of one
core and 3 to 25 MB of gradients.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.modules.setdefault("accelerate", None)  # type: ignore[arg-type]  # accelerate.py here is not Hugging Face's

from examples.models import dlrm, hugging_face, inception, mlp, vgg  # noqa: E402

__all__ = ["CALIBRATED", "MODELS", "step"]

SMALL = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 5000}


def gpt2(device: str) -> Any:
    sizes = {"n_layer": 4, "n_embd": 256, "n_head": 4, "vocab_size": 5000}
    return hugging_face.gpt2(4, 64, device, use_cache=False, **sizes)


def bert(device: str) -> Any:
    return hugging_face.bert(4, 64, device, intermediate_size=1024, **SMALL)


def llama(device: str) -> Any:
    return hugging_face.llama(4, 64, device, intermediate_size=688, use_cache=False, **SMALL)


def t5(device: str) -> Any:
    sizes = {"d_model": 256, "d_ff": 1024, "num_layers": 2, "num_heads": 4, "vocab_size": 5000}
    return hugging_face.t5(4, 48, device, use_cache=False, **sizes)


def vit(device: str) -> Any:
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    return hugging_face.vit(8, device, image_size=64, patch_size=8, **sizes)


def resnet(device: str) -> Any:
    sizes = {"embedding_size": 32, "hidden_sizes": [32, 64, 128, 256], "depths": [2, 2, 2, 2]}
    return hugging_face.resnet(8, 96, device, layer_type="basic", **sizes)


MODELS: dict[str, Callable[[str], Any]] = {
    "MLP": lambda device: mlp.example((1024, 1536, 1536, 1536, 100), 128, device),
    "VGG-16": lambda device: vgg.example(8, 64, 100, 4, device),
    "Inception": lambda device: inception.example(8, 96, 100, 4, device),
    "DLRM": lambda device: dlrm.example(
        lambda: dlrm.DLRM([10_000] * 4, 64, (512, 256, 64), (512, 256)), 512, 4, 64, 10_000, device
    ),
    "ResNet": resnet,
    "GPT-2": gpt2,
    "BERT": bert,
    "Llama": llama,
    "T5": t5,
    "ViT": vit,
}
"""What each returns: a model, its inputs and, for some, a loss."""

CALIBRATED = ("MLP", "Inception", "BERT")
"""The models whose operations are measured one by one. The others are predicted from theirs."""


def step(example: Any) -> Callable[[Any], Any]:
    """A function of the (wrapped) model that runs one forward pass and returns the loss."""
    inputs, loss = example[1], example[2] if len(example) > 2 else None
    if isinstance(inputs, dict):
        return lambda model: model(**inputs).loss
    return lambda model: loss(model(*inputs))
