"""One rank of a training job that `benchmarks/prediction.py` runs in a lab: DDP on gloo, one thread.

Rank 0 reads from standard input for how many seconds to run, a number per line, and answers each with a
line of JSON: the wall time of every iteration and the processor time of rank 0. Each time the ranks connect
anew, since a connection keeps the segment size that suited the link's rate when it was made.

    prediction_job.py real MODEL          one of MODELS
    prediction_job.py emulated FILE       layers that sleep, from a JSON file of [bytes, forward_s, backward_s]
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

WARM_UP, FEWEST, MOST = 3, 4, 20  # iterations
WAITS = timedelta(hours=1)  # for the next turn


class Sleeper(torch.autograd.Function):
    """A layer that computes nothing and takes its time, as a GPU would from its host's point of view."""

    @staticmethod
    def forward(ctx: Any, before: Tensor, weight: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.weight, ctx.backward_s = weight, backward_s
        time.sleep(forward_s)
        return before.clone()

    @staticmethod
    def backward(ctx: Any, after: Tensor) -> tuple[Tensor, Tensor, None, None]:
        time.sleep(ctx.backward_s)
        return after, torch.empty_like(ctx.weight), None, None


class Emulated(nn.Module):
    """Layers one after the other."""

    def __init__(self, layers: list[tuple[int, float, float]]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(max(1, size // 4)) for size, _, _ in layers)
        self.seconds = [(forward_s, backward_s) for _, forward_s, backward_s in layers]

    def forward(self, flow: Tensor) -> Tensor:
        for weight, (forward_s, backward_s) in zip(self.weights, self.seconds, strict=True):
            flow = Sleeper.apply(flow, weight, forward_s, backward_s)
        return flow.sum()


Job = tuple[nn.Module, Callable[[nn.Module], None]]
"""A model, and an iteration of it once it is wrapped."""


def emulated(path: str) -> Job:
    flow = torch.ones(1, requires_grad=True)

    def iteration(model: nn.Module) -> None:
        model.zero_grad(set_to_none=False)
        model(flow).backward()

    return Emulated([tuple(layer) for layer in json.loads(Path(path).read_text())]), iteration


def real(name: str) -> Job:

    torch.manual_seed(0)
    example = MODELS[name]("cpu")
    forward = step(example)
    optimizer = torch.optim.SGD(example[0].parameters(), lr=1e-4)

    def iteration(model: nn.Module) -> None:
        optimizer.zero_grad()
        forward(model).backward()
        optimizer.step()

    return example[0], iteration


def timed(iteration: Callable[[], None], count: int) -> list[float]:
    walls = []
    for _ in range(count):
        start = time.perf_counter()
        iteration()
        walls.append(time.perf_counter() - start)
    return walls


def turn(job: Job, seconds: float) -> dict[str, Any]:
    """Iterations for about so long, on a process group that stands."""
    model, iteration = DistributedDataParallel(job[0]), job[1]
    count = torch.zeros(1, dtype=torch.long)
    count[0] = round(seconds / median(timed(lambda: iteration(model), WARM_UP)))
    dist.broadcast(count, 0)
    cpu = time.process_time()
    walls = timed(lambda: iteration(model), min(max(FEWEST, int(count)), MOST))
    return {"walls_s": walls, "cpu_s": (time.process_time() - cpu) / len(walls)}


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kind, what = sys.argv[1:3]
    job = emulated(what) if kind == "emulated" else real(what)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), ranks, rank == 0, timeout=WAITS
    )
    for number in itertools.count():
        if rank == 0:
            store.set(f"turn {number}", sys.stdin.readline().strip() or "end")
        asked = store.get(f"turn {number}").decode()
        if asked == "end":
            break
        group = dist.PrefixStore(f"group {number}", store)
        dist.init_process_group("gloo", store=group, rank=rank, world_size=ranks)
        found = turn(job, float(asked))
        dist.barrier()
        dist.destroy_process_group()
        if rank == 0:
            print(json.dumps(found), flush=True)
    store.set(f"{rank} left", "")
    if rank == 0:  # whose process holds the store
        store.wait([f"{other} left" for other in range(ranks)])


# The models whose iterations `benchmarks/prediction.py` predicts and then runs, scaled to two cores.

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.modules.setdefault("accelerate", None)  # type: ignore[arg-type]  # accelerate.py here is not Hugging Face's

from examples.models import dlrm, hugging_face, inception, mlp, vgg  # noqa: E402

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


if __name__ == "__main__":
    main()
