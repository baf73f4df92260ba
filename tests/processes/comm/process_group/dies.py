"""Ranks in a collective; the last is killed in it, and one of the others never talks to it:
`dies.py RANK RANKS FILE ELEMENTS [COLLECTIVE]`. The root of `broadcast_from_first` lives on, but does not call it again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import torch
import torch.distributed as dist


def call(name: str, ranks: int, elements: int) -> None:
    flat = torch.ones(elements)
    if name.startswith("broadcast"):
        dist.broadcast(flat, 0 if name == "broadcast_from_first" else ranks - 1)
    elif name == "reduce_scatter":
        dist.reduce_scatter_tensor(flat[: elements // ranks], flat.clone())
    else:
        dist.all_reduce(flat)


def main(rank: int, ranks: int, file: str, elements: int, name: str) -> None:
    dist.init_process_group("hemiola", init_method=f"file://{file}", rank=rank, world_size=ranks)
    call(name, ranks, elements)
    if rank == ranks - 1:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
        threading.Event().wait()
    idle = name == "broadcast_from_first" and rank == 0
    for _ in range(0 if idle else 2):  # what is called when the rank is lost already fails too
        try:
            call(name, ranks, elements)
        except Exception as problem:
            print(problem, flush=True)
    threading.Event().wait(5)  # the others must not learn of it by this one's end


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), *sys.argv[5:] or ["all_reduce"])
