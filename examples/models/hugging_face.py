"""Models that nobody here wrote: Hugging Face `transformers`, built from their configurations.

Weights are random and live on the meta device, so that nothing is downloaded and nothing takes memory.

hemiola capture examples/models/hugging_face.py:gpt2
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn

Example = tuple[nn.Module, dict[str, Tensor]]


def example(
    architecture: Any, configuration: Any, inputs: dict[str, tuple[int, ...]], device: str
) -> Example:
    """The model in training mode, and its inputs: pixels are numbers, everything else is indices."""
    with torch.device(device):
        model = architecture(configuration).train()
        tensors = {
            name: torch.randn(shape) if name == "pixel_values" else torch.zeros(shape, dtype=torch.long)
            for name, shape in inputs.items()
        }
    return model, tensors


def gpt2(batch: int = 8, length: int = 1024, device: str = "meta", **changes: Any) -> Example:
    """GPT-2 small (124 million parameters), unless `changes` to its configuration say otherwise."""
    shape = (batch, length)
    configuration = transformers.GPT2Config(**changes)
    model, inputs = example(
        transformers.GPT2LMHeadModel, configuration, {"input_ids": shape, "labels": shape}, device
    )
    model.loss_type = "ForCausalLM"  # what transformers falls back to, with a warning, for this class
    return model, inputs


def bert(batch: int = 16, length: int = 512, device: str = "meta", **changes: Any) -> Example:
    """BERT base (110 million)."""
    shape = (batch, length)
    configuration = transformers.BertConfig(**changes)
    return example(transformers.BertForMaskedLM, configuration, {"input_ids": shape, "labels": shape}, device)


def llama(batch: int = 1, length: int = 2048, device: str = "meta", **changes: Any) -> Example:
    """Llama 7B (6.7 billion)."""
    shape = (batch, length)
    configuration = transformers.LlamaConfig(**changes)
    return example(
        transformers.LlamaForCausalLM, configuration, {"input_ids": shape, "labels": shape}, device
    )


def t5(batch: int = 8, length: int = 512, device: str = "meta", **changes: Any) -> Example:
    """T5 small (60 million)."""
    shape = (batch, length)
    configuration = transformers.T5Config(decoder_start_token_id=0, **changes)
    return example(
        transformers.T5ForConditionalGeneration, configuration, {"input_ids": shape, "labels": shape}, device
    )


def vit(batch: int = 32, device: str = "meta", **changes: Any) -> Example:
    """ViT base, 16 by 16 patches (86 million)."""
    configuration = transformers.ViTConfig(num_labels=1000, **changes)
    side = configuration.image_size
    inputs = {"pixel_values": (batch, 3, side, side), "labels": (batch,)}
    return example(transformers.ViTForImageClassification, configuration, inputs, device)


def resnet(batch: int = 32, pixels: int = 224, device: str = "meta", **changes: Any) -> Example:
    """ResNet-50 (26 million)."""
    configuration = transformers.ResNetConfig(num_labels=1000, **changes)
    inputs = {"pixel_values": (batch, 3, pixels, pixels), "labels": (batch,)}
    return example(transformers.ResNetForImageClassification, configuration, inputs, device)
