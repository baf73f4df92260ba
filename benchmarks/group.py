"""`init_process_group("hemiola")` beside gloo, by collective and size, on this machine's loopback.

    python benchmarks/group.py [--ranks 2] [--sizes 4 65536 ...] [--write docs/results/group.md]

Both backends live in the same processes and take turns, block by block; a collective's time is that of the slowest
rank, between two barriers of gloo. The figure is the median of the blocks' medians; the ratio that of neighbouring
blocks. About two minutes.
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
from statistics import median
from typing import Any

from page import measured_with, write_page

SIZES = (4, 1024, 65_536, 262_144, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "broadcast")
BACKENDS = ("gloo", "hemiola")
BLOCKS, SECONDS, MOST = 5, 0.15, 60

WHY = (
    "Small collectives take longer than gloo's, and why is known: every message is met by a Python thread that has to "
    "wake up and to get Python's lock, where gloo's threads are C++. All-gathers and reduce-scatters of any size, and "
    "all other collectives above 64 KB, pass through one more thread. From 1 MB on gloo's all-reduce and Hemiola's are near "
    "each other, because both then copy, add and send; gloo's reduce-scatter is a whole all-reduce (its bytes were counted), "
    "Hemiola's is half of one."
)


def worker(rank: int, ranks: int, sizes: list[int], file: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    found = []
    for size in sizes:
        whole = torch.ones(max(ranks, size // 4 // ranks * ranks))
        part = torch.ones(len(whole) // ranks)
        calls = {
            "all-reduce": lambda g, w=whole: dist.all_reduce(w, group=g),
            "all-gather": lambda g, w=whole, p=part: dist.all_gather_single(w, p, group=g),
            "reduce-scatter": lambda g, w=whole, p=part: dist.reduce_scatter_single(p, w, group=g),
            "broadcast": lambda g, w=whole: dist.broadcast(w, 0, group=g),
        }
        for name in COLLECTIVES:
            blocks: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
            count = torch.zeros(1, dtype=torch.long)
            for backend in BACKENDS:
                once = timed(calls[name], groups[backend], 2)[-1]
                count[0] = max(int(count), 3, min(MOST, int(SECONDS / once)))
            dist.broadcast(count, 0)
            for _ in range(BLOCKS):
                for backend in BACKENDS:
                    blocks[backend].append(median(timed(calls[name], groups[backend], int(count))))
            whole.fill_(1.0)
            found.append({"collective": name, "bytes": whole.nbytes, **blocks})
    if rank == 0:
        print(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def timed(call: Any, group: Any, count: int) -> list[float]:
    """Of the slowest rank, each."""
    import torch
    import torch.distributed as dist

    took = torch.zeros(count)
    for number in range(count):
        dist.barrier()
        start = time.perf_counter()
        call(group)
        took[number] = time.perf_counter() - start
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return [float(t) for t in took]


def page(found: list[dict[str, Any]], ranks: int) -> str:
    lines = [
        "# The process group beside gloo",
        "",
        f'`init_process_group("hemiola")` and gloo on the loopback of one machine, {ranks} ranks, by turns. A ratio above 1 means '
        "that gloo is faster.",
        "",
        measured_with(f"python benchmarks/group.py --ranks {ranks}"),
        "",
        "| collective | bytes | gloo | hemiola | hemiola / gloo (least–most) |",
        "|---|---:|---:|---:|---:|",
    ]
    for one in found:
        ratios = [ours / theirs for ours, theirs in zip(one["hemiola"], one["gloo"], strict=True)]
        lines.append(
            f"| {one['collective']} | {one['bytes']:,} | {words(median(one['gloo']))} | {words(median(one['hemiola']))} | "
            f"**{median(ratios):.2f}** ({min(ratios):.2f}–{max(ratios):.2f}) |"
        )
    return "\n".join([*lines, "", WHY, ""])


def words(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--write", type=Path, metavar="FILE.md")
    parser.add_argument("--rank", type=int, default=-1)
    parser.add_argument("--file", default="")
    asked = parser.parse_args()
    if asked.rank >= 0:
        worker(asked.rank, asked.ranks, asked.sizes, asked.file)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--ranks", str(asked.ranks), "--file", f"{folder}/meet"]
        command += ["--sizes", *map(str, asked.sizes)]
        ranks = [
            subprocess.Popen(
                [*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True,
                env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            )
            for rank in range(asked.ranks)
        ]  # fmt: skip
        said = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit("a rank failed")
    text = page(json.loads(said[0]), asked.ranks)
    if asked.write is None:
        print(text)
    else:
        write_page(asked.write, text)


if __name__ == "__main__":
    main()
