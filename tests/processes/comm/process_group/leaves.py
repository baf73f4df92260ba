"""A rank that leaves its group and prints what is left of it: `leaves.py RANK RANKS FILE`."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist


def sockets() -> int:
    """That this process has open."""
    return sum(
        str(each.readlink()).startswith("socket:")
        for each in Path("/proc/self/fd").iterdir()
        if each.is_symlink()
    )


def main(rank: int, ranks: int, file: str) -> None:
    before, threads = sockets(), set(threading.enumerate())
    dist.init_process_group("hemiola", init_method=f"file://{file}", rank=rank, world_size=ranks)
    dist.all_reduce(torch.ones(1 << 18))
    assert sockets() > before
    dist.barrier()  # who has left closes what it shares with others
    dist.destroy_process_group()
    for thread in set(threading.enumerate()) - threads:
        thread.join(1.0)
    left = [thread.name for thread in set(threading.enumerate()) - threads]
    print(f"{sockets() - before} sockets and {left or 'no threads'} left", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
