"""One rank of a training job that `benchmarks/synchronisation.py` runs in a lab: `synchronisation_job.py JSON`.

Trains for a number of iterations with real gradients on one thread and prints, as JSON, when each iteration ended
and with what loss, seconds since all ranks began; in the end the loss on data that was never trained on.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from hemiola.train.parameter_server import synchronise

# Three models on real data that comes with the repository: its documentation as text, its source as
# windows of bytes.

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("core", "simulator", "trace", "cost", "plan", "sched", "comm", "live", "lab", "report", "cli")
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


class Reduced:
    """DDP's side of what `synchronise` returns: the comparison's baseline."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.step, self.zero_grad = optimizer.step, optimizer.zero_grad

    def synchronise(self) -> None:
        """Nothing to do: ranks never differ."""

    def close(self) -> None:
        """Nothing either."""


def begin(task: Task, how: dict[str, Any]) -> tuple[torch.nn.Module, Any]:
    """The model and the optimizer, ready for this way of training."""
    if how["scheme"] == "ddp":
        wrapped = DistributedDataParallel(task.model, bucket_cap_mb=how["bucket_mib"])
        return wrapped, Reduced(task.optimizer)
    chosen = {key: how[key] for key in ("bound", "period", "coupled", "pipelined") if key in how}
    return synchronise(task.model, task.optimizer, how["scheme"], **chosen)


def main(how: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    task = TASKS[how["model"]]()
    model, optimizer = begin(task, how)
    made = torch.Generator().manual_seed(1000 * how["seed"] + rank)
    sleep_s = how["sleep_s"] if rank == dist.get_world_size() - 1 else 0.0
    dist.barrier()
    start, cpu = time.monotonic(), time.process_time()
    ends, losses = [], []
    for _ in range(how["iterations"]):
        optimizer.zero_grad()
        loss = task.loss(task.draw(made), model)
        loss.backward()
        time.sleep(sleep_s)
        optimizer.step()
        losses.append(float(loss.detach()))
        ends.append(time.monotonic() - start)
    cpu = time.process_time() - cpu
    optimizer.synchronise()
    whole_s = time.monotonic() - start
    with torch.no_grad():
        held_out = float(task.loss(task.held_out, task.model))
    found = {"ends_s": ends, "losses": losses, "whole_s": whole_s, "held_out": held_out, "cpu_s": cpu}
    print(json.dumps(found), flush=True)
    optimizer.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
