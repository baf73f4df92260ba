"""Small networks whose operations span the shapes that are met in practice: what is measured without any graph.

Nobody's model: layers of many widths, so that each common operation is timed from small to large, in
forward, backward and under an optimizer, among the operations that usually stand around it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hemiola.profiler.calibrate.clocks import OperationClock

__all__ = [
    "Probe",
    "cores",
    "device_name",
    "fabric_bytes_per_s",
    "memory_bytes",
    "memory_bytes_per_s",
    "peak_flop_per_s",
    "probes",
]


_ACTIVATIONS = (nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU, nn.Sigmoid)


@dataclass(frozen=True)
class Probe:
    """A network to capture, replay and really train.

    Attributes:
        name: what to call it.
        model: it.
        inputs: for forward, which gives the loss.
        optimizer: makes one from parameters.
    """

    name: str
    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    optimizer: Callable[[Any], torch.optim.Optimizer]


def probes(device: str, *, small: bool = False) -> Iterator[Probe]:
    """The networks, on a device, small ones first; only those with `small`."""
    adam = partial(torch.optim.Adam, lr=1e-4)
    adamw = partial(torch.optim.AdamW, lr=1e-4)
    momentum = partial(torch.optim.SGD, lr=1e-3, momentum=0.9)
    plain = partial(torch.optim.SGD, lr=1e-3)
    image = partial(torch.rand, device=device)
    words = partial(torch.randint, 0, device=device)

    def probe(name: str, model: nn.Module, inputs: tuple[torch.Tensor, ...], optimizer: Any) -> Probe:
        return Probe(name, model.to(device), inputs, optimizer)

    yield probe("perceptron-8", Perceptron(32, 128, 384, 96), (image(8, 32),), momentum)
    yield probe("convolutions-4", Convolutions(16, 32), (image(4, 3, 32, 32),), momentum)
    yield probe("transformer-64", Transformer(64, 2, 500, gated=False), (words(500, (4, 32)),), adamw)
    yield probe("tables-1k", Tables(1000, 16), (image(64, 13), words(1000, (64, 8))), adam)
    if small:
        return
    yield probe("perceptron-64", Perceptron(48, 192, 768, 1536, 256), (image(64, 48),), adam)
    yield probe("perceptron-384", Perceptron(64, 320, 1280, 640), (image(384, 64),), momentum)
    yield probe("wide-32", Perceptron(512, 3072, 1024, 2048), (image(32, 512),), plain)
    yield probe("convolutions-8", Convolutions(32, 64, residual=True), (image(8, 3, 64, 64),), momentum)
    yield probe("convolutions-2", Convolutions(64, 48, residual=True), (image(2, 3, 112, 112),), adam)
    yield probe("stacked-4", Convolutions(48, 96, normalized=False), (image(4, 3, 96, 96),), momentum)
    yield probe("transformer-192", Transformer(192, 6, 3000, gated=True), (words(3000, (8, 48)),), adamw)
    yield probe("transformer-320", Transformer(320, 5, 12000, gated=False), (words(12000, (2, 160)),), adamw)
    yield probe("transformer-512", Transformer(512, 8, 6000, gated=True), (words(6000, (4, 96)),), adamw)
    yield probe("wide-96", Perceptron(784, 1024, 1152, 896), (image(96, 784),), momentum)
    yield probe("wide-256", Perceptron(640, 768, 2304, 512), (image(256, 640),), adam)
    yield probe("stacked-8", Stacked(16, 4, batch_norm=True), (image(8, 3, 96, 96),), momentum)
    yield probe("stacked-16", Stacked(48, 3), (image(16, 3, 32, 32),), momentum)
    yield probe("stacked-12", Stacked(64, 3, batch_norm=True), (image(12, 3, 24, 24),), plain)
    yield probe("stacked-2", Stacked(128, 3), (image(2, 3, 40, 40),), momentum)
    yield probe("bottlenecks-8", Bottlenecks(32), (image(8, 3, 80, 80),), momentum)
    yield probe("bottlenecks-24", Bottlenecks(64), (image(24, 3, 24, 24),), momentum)
    yield probe("tables-10k", Tables(10_000, 32), (image(128, 13), words(10_000, (128, 8))), adam)
    yield probe("tables-60k", Tables(60_000, 48), (image(512, 13), words(60_000, (512, 8))), momentum)


class Perceptron(nn.Module):
    """Linear layers of the widths given, with every activation, normalization and dropout in turn."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, (before, after) in enumerate(pairwise(widths)):
            layers += [nn.Linear(before, after), _ACTIVATIONS[i % len(_ACTIVATIONS)]()]
            layers += [nn.LayerNorm(after)] if i % 2 else [nn.Dropout(0.1)]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        y = self.layers(x)
        return functional.cross_entropy(y, torch.zeros(len(y), dtype=torch.long, device=y.device))


class Convolutions(nn.Module):
    """Convolutions of growing width on shrinking images: 7x7, 3x3, 1x1, strided and depthwise."""

    def __init__(self, width: int, head: int, *, residual: bool = False, normalized: bool = True) -> None:
        super().__init__()
        norm = nn.BatchNorm2d if normalized else nn.Identity
        plain = partial(nn.Conv2d, padding=1, bias=not normalized)
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=not normalized), norm(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.blocks = nn.ModuleList()
        for _ in range(3):
            middle = (
                nn.Conv2d(width, width, 3, padding=1, groups=width) if residual else plain(width, width, 3)
            )
            self.blocks.append(
                nn.Sequential(
                    nn.Conv2d(width, width, 1, bias=False), norm(width), nn.ReLU(inplace=not residual),
                    middle, norm(width), nn.ReLU(),
                    plain(width, 2 * width, 3, 2), norm(2 * width), nn.ReLU(),
                    plain(2 * width, 2 * width, 3), norm(2 * width),
                )
            )  # fmt: skip
            width *= 2
        self.residual = residual
        self.head = nn.Sequential(nn.Linear(width, head), nn.ReLU(), nn.Linear(head, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        y = self.stem(x)
        for block in self.blocks:
            z = functional.relu(block(y))
            if self.residual:
                z = z + functional.pad(
                    functional.avg_pool2d(y, 2, ceil_mode=True), (0, 0, 0, 0, 0, y.shape[1])
                )
            y = z
        y = self.head(functional.adaptive_avg_pool2d(y, 1).flatten(1))
        return functional.cross_entropy(y, torch.zeros(len(y), dtype=torch.long, device=y.device))


class Stacked(nn.Module):
    """Pairs of 3x3 convolutions with pooling between, as VGG has them."""

    def __init__(self, width: int, levels: int, *, batch_norm: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for level in range(levels):
            after = width * 2**level
            for start in (before, after):
                layers += [
                    nn.Conv2d(start, after, 3, padding=1),
                    nn.BatchNorm2d(after) if batch_norm else nn.Identity(),
                ]
                layers += [nn.ReLU(inplace=not batch_norm)]
            layers += [nn.MaxPool2d(2)]
            before = after
        self.layers = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Linear(before, 3 * before), nn.ReLU(), nn.Dropout(), nn.Linear(3 * before, 10)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        y = self.head(self.layers(x).mean((2, 3)))
        return functional.cross_entropy(y, torch.zeros(len(y), dtype=torch.long, device=y.device))


class Bottlenecks(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a strided shortcut, as ResNet has them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.paths, self.shortcuts = nn.ModuleList(), nn.ModuleList()
        for level in range(3):
            before, after = width * 2**level, width * 2 ** (level + 1)
            stride = 1 if level == 0 else 2
            self.paths.append(
                nn.Sequential(
                    nn.Conv2d(before, before // 2, 1, bias=False), nn.BatchNorm2d(before // 2), nn.ReLU(),
                    nn.Conv2d(before // 2, before // 2, 3, stride, 1, bias=False), nn.BatchNorm2d(before // 2), nn.ReLU(),
                    nn.Conv2d(before // 2, after, 1, bias=False), nn.BatchNorm2d(after),
                )
            )  # fmt: skip
            self.shortcuts.append(
                nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
            )
        self.head = nn.Linear(width * 8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        y = self.stem(x)
        for path, shortcut in zip(self.paths, self.shortcuts, strict=True):
            y = functional.relu(path(y) + shortcut(y))
        y = self.head(functional.adaptive_avg_pool2d(y, 1).flatten(1))
        return functional.cross_entropy(y, torch.zeros(len(y), dtype=torch.long, device=y.device))


class Transformer(nn.Module):
    """Blocks of attention, fused and written out, with the feed-forward of GPT or of Llama."""

    def __init__(self, width: int, heads: int, words: int, *, gated: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(512, width)
        self.blocks = nn.ModuleList(_Block(width, heads, gated=gated, fused=i == 0) for i in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        y = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            y = block(y)
        logits = self.head(self.norm(y))
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), x.reshape(-1))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, *, gated: bool, fused: bool) -> None:
        super().__init__()
        self.heads, self.gated, self.fused = heads, gated, fused
        self.norms = nn.ModuleList(_Rms(width) if gated else nn.LayerNorm(width) for _ in range(2))
        self.query_key_value = nn.Linear(width, 3 * width, bias=not gated)
        self.out = nn.Linear(width, width, bias=not gated)
        inner = (8 * width // 3 if gated else 4 * width) // 8 * 8
        self.up = nn.Linear(width, 2 * inner if gated else inner, bias=not gated)
        self.down = nn.Linear(inner, width, bias=not gated)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + functional.dropout(self._attention(self.norms[0](x)), 0.1, training=not self.gated)
        return x + self._feed_forward(self.norms[1](x))

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(x).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        if self.gated:
            q, k = _rotated(q), _rotated(k)
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
            y = scores.masked_fill(~mask, -1e9).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def _feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x)
        if self.gated:
            gate, value = y.chunk(2, dim=-1)
            return self.down(functional.silu(gate) * value)
        if self.fused:
            return self.down(functional.gelu(y))
        return self.down(0.5 * y * (1 + torch.tanh(0.8 * (y + 0.04 * y.pow(3)))))


class _Rms(nn.Module):
    """Root-mean-square normalization, written out as Llama has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def _rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions (RoFormer), as Llama has them."""
    length, width = x.shape[-2:]
    steps = torch.arange(length, device=x.device, dtype=x.dtype)[:, None] * torch.ones(width, device=x.device)
    first, second = x.chunk(2, dim=-1)
    return x * steps.cos() + torch.cat((-second, first), dim=-1) * steps.sin()


class Tables(nn.Module):
    """Embedding tables and the interaction of their rows, as recommendation models have them."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(4))
        self.dense = nn.Sequential(nn.Linear(13, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        self.top = nn.Sequential(nn.Linear(width + 25, 8 * width), nn.ReLU(), nn.Linear(8 * width, 1))

    def forward(self, numbers: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """The loss."""
        dense = self.dense(numbers)
        rows = [table(part) for table, part in zip(self.tables, indices.split(2, dim=1), strict=True)]
        stacked = torch.stack([dense, *rows], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
        chance = self.top(torch.cat([dense, products], dim=1))
        return functional.binary_cross_entropy_with_logits(chance, torch.ones_like(chance))


# What the processor and the memory of this machine give at best.

_BEST_OF = 7
_LIMIT_S = 1.0


def peak_flop_per_s(device: str, clock: OperationClock) -> dict[str, float]:
    """FLOP/s of a large square matrix product, by dtype."""
    cuda = device.startswith("cuda")
    size = 8192 if cuda else 1024  # large enough to fill the device
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    peaks = {str(dtype).removeprefix("torch."): _product(size, dtype, device, clock) for dtype in dtypes}
    if cuda:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        peaks["tf32"] = _product(size, torch.float32, device, clock)
        torch.backends.cuda.matmul.allow_tf32 = before
    return peaks


def _product(size: int, dtype: torch.dtype, device: str, clock: OperationClock) -> float:
    size = size // 2 if dtype == torch.float64 else size
    left, right = (torch.rand(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / _best(lambda: left @ right, clock)


def memory_bytes_per_s(device: str, clock: OperationClock) -> float:
    """Bytes/s of a = b + s * c on arrays far larger than the usual cache (McCalpin's triad)."""
    count = 2**28 if device.startswith("cuda") else 2**24
    first, second, into = (torch.rand(count, device=device) for _ in range(3))
    return 3 * 4 * count / _best(lambda: torch.add(first, second, alpha=0.5, out=into), clock)


def fabric_bytes_per_s(device: str, clock: OperationClock) -> float:
    """Bytes/s of a copy to the next GPU of this host that can be reached directly; 0 where there is none."""
    if not device.startswith("cuda"):
        return 0.0
    own = torch.device(device).index or 0
    others = [
        n for n in range(torch.cuda.device_count()) if n != own and torch.cuda.can_device_access_peer(own, n)
    ]
    if not others:
        return 0.0
    sent = torch.empty(2**28, dtype=torch.uint8, device=device)
    got = torch.empty_like(sent, device=f"cuda:{others[0]}")
    return float(sent.nbytes) / _best(lambda: got.copy_(sent, non_blocking=True), clock)


def _best(call: Callable[[], Any], clock: OperationClock) -> float:
    """The shortest of some runs after one that does not count; of fewer where one takes long."""
    end = time.monotonic() + _LIMIT_S
    with torch.no_grad(), clock.round():
        for run in range(_BEST_OF + 1):
            clock.time(run, call)
            if run and time.monotonic() > end:
                break
    return min(seconds for run, seconds in clock.taken() if run)


def memory_bytes(device: str) -> float:
    """Of the device; of the host for a CPU."""
    if device.startswith("cuda"):
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_name(device: str) -> str:
    """The device as its maker calls it."""
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "cpu"
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else "cpu"
