"""Three models on real data that comes with the repository: its documentation as text, its source as windows of bytes.

Each is a function of no arguments that returns a `Task`; batches are drawn with the caller's generator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["TASKS", "Task"]

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("core", "simulator", "trace", "cost", "plan", "sched", "train", "live", "lab", "report", "cli")
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """What is trained.

    Attributes:
        about: in words.
        model: freshly made.
        optimizer: of its parameters.
        draw: a batch of training data.
        held_out: data that training never sees, for the check at the end.
        target: loss (nats) to be reached, of the mean over the last iterations of all ranks.
        iterations: that each rank makes.
    """

    about: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    draw: Callable[[torch.Generator], Batch]
    held_out: Batch
    target: float
    iterations: int

    def loss(self, batch: Batch, model: nn.Module | None = None) -> Tensor:
        """Cross-entropy in nats, by this model or what is wrapped around it."""
        found = (model or self.model)(batch[0])
        return functional.cross_entropy(found.flatten(0, -2), batch[1].flatten())


def _text() -> Tensor:
    """The documentation's characters as numbers from 0 to 95; what is no ASCII is 95."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    text = "".join(page.read_text(encoding="utf-8") for page in pages if page.parent.name != "results")
    codes = torch.tensor([ord(c) for c in text])
    return torch.where((codes >= 32) & (codes < 127), codes - 32, torch.where(codes == 10, 0, 95))


def _windows(text: Tensor, starts: Tensor, size: int) -> Tensor:
    return text[starts[:, None] + torch.arange(size)]


def ngram() -> Task:
    """Predict a character from the 32 before it, as Bengio et al. (JMLR 2003)."""
    text, size = _text(), 33
    held = len(text) * 9 // 10
    model = nn.Sequential(
        nn.Embedding(96, 16), nn.Flatten(-2), nn.Linear(512, 768), nn.Tanh(), nn.Linear(768, 256), nn.Tanh(),
        nn.Linear(256, 96),
    )  # fmt: skip

    def cut(starts: Tensor) -> Batch:
        windows = _windows(text, starts, size)
        return windows[:, :-1], windows[:, -1]

    return Task(
        "a network that predicts a character from the 32 before it (Bengio et al. 2003)",
        model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        lambda made: cut(torch.randint(held - size, (1024,), generator=made)),
        cut(torch.arange(held, len(text) - size, 17)), target=2.75, iterations=160,
    )  # fmt: skip


def convolutional() -> Task:
    """Tell from 192 bytes of this project's source which of its packages they are from, as Zhang et al. (2015)."""
    sources, labels = [], []
    for label, package in enumerate(PACKAGES):
        files = sorted((ROOT / "src/hemiola" / package).rglob("*.py"))
        data = b"".join(file.read_bytes() for file in files)[:60_000]
        rows = torch.tensor(list(data[: len(data) // 192 * 192])).clamp(max=127).view(-1, 192)
        sources.append(rows)
        labels.append(torch.full((len(rows),), label))
    rows, labelled = torch.cat(sources), torch.cat(labels)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    held = order[: len(order) // 10]
    train = order[len(order) // 10 :]
    model = nn.Sequential(
        nn.Embedding(128, 32), _Swap(), nn.Conv1d(32, 128, 5), nn.ReLU(), nn.MaxPool1d(4),
        nn.Conv1d(128, 192, 5), nn.ReLU(), nn.AdaptiveMaxPool1d(4), nn.Flatten(), nn.Linear(768, 512), nn.ReLU(),
        nn.Linear(512, len(PACKAGES)),
    )  # fmt: skip

    def draw(made: torch.Generator) -> Batch:
        chosen = train[torch.randint(len(train), (64,), generator=made)]
        return rows[chosen], labelled[chosen]

    return Task(
        "a convolutional network that tells the package from 192 bytes of source (after Zhang et al. 2015)",
        model, torch.optim.AdamW(model.parameters(), lr=1e-3), draw,
        (rows[held], labelled[held]), target=2.1, iterations=160,
    )  # fmt: skip


class _Swap(nn.Module):
    def forward(self, flow: Tensor) -> Tensor:
        return flow.transpose(1, 2)


class _Transformer(nn.Module):
    def __init__(self, width: int = 128, layers: int = 4, length: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(96, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 96))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: Tensor) -> Tensor:
        flow = self.words(tokens) + self.places.weight
        for layer in self.layers:
            flow = layer(flow, self.mask, is_causal=True)
        return self.head(flow)


def transformer() -> Task:
    """A small character GPT."""
    text, size = _text(), 65
    held = len(text) * 9 // 10
    model = _Transformer()

    def cut(starts: Tensor) -> Batch:
        windows = _windows(text, starts, size)
        return windows[:, :-1], windows[:, 1:]

    return Task(
        "a character transformer of 4 layers", model, torch.optim.AdamW(model.parameters(), lr=2e-3),
        lambda made: cut(torch.randint(held - size, (12,), generator=made)),
        cut(torch.arange(held, len(text) - size, 211)), target=2.65, iterations=180,
    )  # fmt: skip


TASKS: dict[str, Callable[[], Task]] = {
    "n-gram": ngram,
    "convolutional": convolutional,
    "transformer": transformer,
}
