"""What recording costs a training job: the same iterations with and without, interleaved, in one job of two ranks.

    python benchmarks/recording.py [--blocks 8] [--iterations 20] [--jobs "fsdp computing"] [--json FILE]

Each kind of job runs blocks of iterations in turn: plain, light, full, plain, light, full, ... Plain blocks run in a
PyTorch with no hook installed. The cost is the median over rounds of (recorded block's median
iteration / neighbouring plain block's) - 1; its spread is the quartiles of the same. "Sleeping" compute
frees the processor as a GPU would; "computing" keeps it busy, so there the recording's own thread competes
for the cores. On a shared machine the wall clock's noise hides a cost of a per cent; so the
processor time that recording adds to a rank is told too, as a share of the plain iteration's wall time: the slow-down
if no core were free for it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

KINDS = ("ddp sleeping", "ddp computing", "fsdp sleeping", "fsdp computing")
MODES = ("plain", "light", "full")


def worker(kinds: list[str], blocks: int, iterations: int, out: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = {kind: measure(kind, blocks, iterations, Path(out)) for kind in kinds}
    if dist.get_rank() == 0:
        Path(out, "results.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def measure(kind: str, blocks: int, iterations: int, folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Median iteration and processor time per iteration of each block, by mode."""
    import torch.distributed as dist

    import hemiola.profiler.trace as recording

    step = job(kind)
    warm_up = warm_up_iterations(step)
    times: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    for block in range(blocks):
        for mode in MODES:
            dist.barrier()
            if mode == "plain":
                times[mode].append(run(step, warm_up, iterations))
            else:
                path = folder / f"{kind.replace(' ', '-')}-{block}-{mode}.json"
                with recording.record(path, mode=mode, answer_signal=False):
                    times[mode].append(run(step, warm_up, iterations))
    return times


def warm_up_iterations(step: Any) -> int:
    """So many iterations as take a second and a half, the same on all ranks: recording has found its peers by then."""
    import torch
    import torch.distributed as dist

    step()
    start = time.perf_counter()
    for _ in range(3):
        step()
    number = torch.tensor([max(6, round(1.5 * 3 / (time.perf_counter() - start)))])
    dist.broadcast(number, 0)
    return int(number)


def run(step: Any, warm_up: int, counted: int) -> tuple[float, float]:
    """The median of `counted` iterations after `warm_up` others, and their mean processor time."""
    for _ in range(warm_up):
        step()
    taken = []
    processor = time.process_time()
    for _ in range(counted):
        start = time.perf_counter()
        step()
        taken.append(time.perf_counter() - start)
    return median(taken), (time.process_time() - processor) / counted


def job(kind: str) -> Any:
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            time.sleep(0.005)
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            time.sleep(0.010)
            return gradient

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(384, 384)

        def forward(self, value: Any) -> Any:
            value = torch.relu(self.layer(value))
            return Sleep.apply(value) if kind.endswith("sleeping") else value

    torch.manual_seed(0)
    model: Any = nn.Sequential(*[Block() for _ in range(8)])
    if kind.startswith("fsdp"):
        for block in model:
            fully_shard(block)
        fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(32 if kind.endswith("sleeping") else 512, 384)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def report(results: dict[str, dict[str, list[tuple[float, float]]]]) -> list[dict[str, Any]]:
    rows = []
    for kind, blocks in results.items():
        plain_s = median(wall for wall, _ in blocks["plain"])
        for mode in MODES[1:]:
            pairs = list(zip(blocks[mode], blocks["plain"], strict=True))
            low, middle, high = quantiles([ours[0] / plain[0] - 1 for ours, plain in pairs], n=4)
            added = median(ours[1] - plain[1] for ours, plain in pairs)
            rows.append({
                "job": kind, "mode": mode, "plain_ms": plain_s * 1e3, "cost": middle, "quartiles": [low, high],
                "processor_ms": added * 1e3, "processor_share": added / plain_s,
            })  # fmt: skip
            print(
                f"{kind:15} {mode:5}  plain {plain_s * 1e3:7.2f} ms   cost {middle:+7.2%} ({low:+7.2%} to {high:+7.2%})"
                f"   processor {added * 1e3:+6.2f} ms = {added / plain_s:+6.2%}"
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--jobs", nargs="+", choices=KINDS, default=list(KINDS), help="only these")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", default="")
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments.jobs, arguments.blocks, arguments.iterations, arguments.worker)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__,
            "--blocks", str(arguments.blocks), "--iterations", str(arguments.iterations), "--worker", folder,
            "--jobs", *arguments.jobs,
        ]  # fmt: skip
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        rows = report(json.loads(Path(folder, "results.json").read_text()))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
