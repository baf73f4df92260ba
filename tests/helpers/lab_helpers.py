"""Transfers between hosts, and looks at what a lab has left on the machine."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

from hemiola.lab import Lab

RECEIVE = """
import socket, sys, time
server = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("ready", flush=True)
connection, _ = server.accept()
buffer, marks = bytearray(1 << 18), [(time.perf_counter(), 0)]
while count := connection.recv_into(buffer):
    marks.append((time.perf_counter(), marks[-1][1] + count))
begin = next(mark for mark in marks if mark[1] >= marks[-1][1] / 10)  # after TCP's slow start
print(begin[0], marks[-1][0], marks[-1][1] - begin[1])
"""

SEND = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(bytes(int(sys.argv[3])))
"""

PYTHON = (sys.executable, "-I", "-S", "-c")

PAYLOAD = 1448 / 1514
"""What of an Ethernet frame (as the kernel counts it) is TCP's payload, with MTU 1500 and timestamps."""


def mbit_per_s(lab: Lab, *pairs: tuple[str, str], size_bytes: int) -> float:
    """What transfers at the same time carry together after TCP's slow start, headers included."""
    receivers = [
        lab.start(to, [*PYTHON, RECEIVE, str(7000 + i)], stdout=subprocess.PIPE, text=True)
        for i, (_, to) in enumerate(pairs)
    ]
    for receiver in receivers:
        assert receiver.stdout is not None and receiver.stdout.readline() == "ready\n"
    for i, (from_, to) in enumerate(pairs):
        lab.start(from_, [*PYTHON, SEND, lab.addresses[to], str(7000 + i), str(size_bytes)])
    parts = [tuple(map(float, receiver.communicate()[0].split())) for receiver in receivers]
    duration_s = max(part[1] for part in parts) - min(part[0] for part in parts)
    return sum(part[2] for part in parts) * 8e-6 / PAYLOAD / duration_s


def median_mbit_per_s(lab: Lab, *pairs: tuple[str, str], size_bytes: int) -> float:
    """The median of three."""
    return statistics.median(mbit_per_s(lab, *pairs, size_bytes=size_bytes) for _ in range(3))


def left_of(name: str) -> list[str]:
    """Files and namespaces that carry a lab's name."""
    folders = (Path("/run/hemiola"), Path("/run/netns"))
    return [
        str(path) for folder in folders if folder.is_dir() for path in folder.iterdir() if name in path.name
    ]


def processes_with(sign: str) -> list[int]:
    """Processes that have a text in their command line, this one aside."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            try:
                if sign.encode() in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
            except OSError:
                continue
    return found


def hemiola(*words: str) -> list[str]:
    """The command line, as words for subprocess."""
    return [sys.executable, "-c", "from hemiola.cli import main; main()", *words]
