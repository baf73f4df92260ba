"""Keeps the store of a job in a process of its own, so that any rank may be lost: `python -m hemiola.train.elastic.keeper PORT`.

Standard input may name ranks that have ended, a line each ("3 signal 9 (SIGKILL)"): nobody has to wait until they are
silent. A terminal is not read. It serves one run, and ends with a signal, or by itself if it cannot keep a store. While its
input lasts, SIGTERM ends it no earlier than that: a time limit tells all processes of a job, and ranks may want to save yet.
"""

from __future__ import annotations

import signal
import sys
import threading

from hemiola.train.elastic.board import MemberBoard

__all__ = ["main"]


def main(port: int) -> None:
    """Until a signal ends it."""
    import torch.distributed as dist

    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        store = dist.TCPStore("0.0.0.0", port, is_master=True, wait_for_workers=False)
    except RuntimeError as problem:
        sys.exit(f"port {port}: {str(problem).splitlines()[0]}")
    print(f"the store is kept at port {store.port}", flush=True)
    board = MemberBoard(store)
    for line in () if sys.stdin is None or sys.stdin.isatty() else sys.stdin:
        rank, _, how = line.strip().partition(" ")
        if rank.isdecimal():
            board.left(int(rank), f"its process ended with {how}")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not asked.is_set():
        threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]))
