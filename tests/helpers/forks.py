"""Has PyTorch already, and forks a process for each script it is told of: to load it costs more than most tests.

`python forks.py SOCKET`: listens there, for all workers of a test run, and ends with the last of them. A message is a
script's words, its environment and its directory, with handles for what it prints, for its errors, and for its process
number and, once it has ended, its exit status.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
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


def serve(listener: socket.socket) -> str:
    """Until there is nobody left to serve; in each process that is forked, returns the script that it is to run."""
    gc.freeze()  # a rank's garbage collector would write to what it shares with this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever waits for a rank is waited for by nobody
    served = [listener.accept()[0]]
    while served:
        for ready in select.select([listener, *served], [], [])[0]:
            if ready is listener:
                served.append(listener.accept()[0])
                continue
            message, handles, _, _ = socket.recv_fds(ready, 1 << 20, 3)
            if not message:
                served.remove(ready)
                ready.close()
                continue
            if os.fork() == 0:
                for connection in (listener, *served):
                    connection.close()
                return _forked(message, handles)
            for handle in handles:
                os.close(handle)
    os._exit(0)


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
    sys.path.append(sys.path[0])  # what all tests share
    sys.path[0] = str(Path(sys.argv[0]).parent)
    return sys.argv[0]


if __name__ == "__main__":
    asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asked.bind(sys.argv[1])
    asked.listen()
    for name in NEEDED:
        import_module(name)
    runpy.run_path(serve(asked), run_name="__main__")
