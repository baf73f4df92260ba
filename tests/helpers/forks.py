"""Has PyTorch already, and forks a process for each script it is told of: to load it costs more than most tests.

`python forks.py SOCKET`: a message there is a script's words, its environment and its directory, with
handles for what it prints, for its errors, and for its process number and, once it has ended, its exit status.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

NEEDED = (
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook", "torch.distributed.checkpoint", "torch.distributed.fsdp",
    "hemiola.train.accelerate", "hemiola.train.elastic", "hemiola.comm.process_group",
)  # fmt: skip
NUMBER = struct.Struct("=i")


def serve(server: socket.socket) -> str:
    """Until there is nobody to serve; in each process that is forked, returns the script that it is to run."""
    gc.freeze()  # a rank's garbage collector would write to what it shares with this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever waits for a rank is waited for by nobody
    while True:
        message, handles, _, _ = socket.recv_fds(server, 1 << 20, 3)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            server.close()
            return _forked(message, handles)
        for handle in handles:
            os.close(handle)


def _forked(message: bytes, handles: Sequence[int]) -> str:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *printed, status = handles
    process = os.fork()
    if process:
        for handle in printed:
            os.close(handle)
        os.write(status, NUMBER.pack(process))
        os.write(status, NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])))
        os._exit(0)
    os.close(status)
    for handle, number in zip(printed, (1, 2), strict=True):
        os.dup2(handle, number)
        os.close(handle)
    sys.argv, environment, directory = json.loads(message)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.path[0] = str(Path(sys.argv[0]).parent)
    return sys.argv[0]


if __name__ == "__main__":
    for name in NEEDED:
        import_module(name)
    runpy.run_path(serve(socket.socket(fileno=int(sys.argv[1]))), run_name="__main__")
