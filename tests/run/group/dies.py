"""Three ranks in a collective; the last is killed in it, and one of the others never talks to it:
`dies.py RANK RANKS FILE ELEMENTS`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import torch
import torch.distributed as dist

if __name__ == "__main__":
    rank, ranks, file, elements = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    dist.init_process_group("hemiola", init_method=f"file://{file}", rank=rank, world_size=ranks)
    dist.all_reduce(torch.ones(elements))
    if rank == ranks - 1:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
        threading.Event().wait()
    try:
        dist.all_reduce(torch.ones(elements))
    except Exception as problem:
        print(problem, flush=True)
        threading.Event().wait(5)  # the others must not learn of it by this one's end
