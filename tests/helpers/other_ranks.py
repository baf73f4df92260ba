"""Ranks beside those of the test's own process: in a process of their own, or speaking for themselves on a bare socket."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import repository
from endpoints import SECRET, together

from hemiola.comm.transport import Endpoint, TransportOptions
from hemiola.comm.transport.wire import Greeting, introduce

HERE = "127.0.0.1"
SOURCE = str(repository.SOURCE)


def process(rank: int, ranks: int, *words: object, **options: object) -> subprocess.Popen[str]:
    """A rank that runs `peer.py`."""
    script = str(Path(__file__).with_name("peer.py"))
    return subprocess.Popen(
        [sys.executable, script, str(rank), str(ranks), json.dumps(options), *map(str, words)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": SOURCE},
    )  # fmt: skip


def tell(peer: subprocess.Popen[str], line: str) -> None:
    assert peer.stdin is not None
    peer.stdin.write(line + "\n")
    peer.stdin.flush()


def hear(peer: subprocess.Popen[str]) -> str:
    assert peer.stdout is not None
    return peer.stdout.readline().rstrip("\n")


@contextmanager
def with_process(ranks: int = 3, **options: object) -> Iterator[tuple[list[Endpoint], subprocess.Popen[str]]]:
    """Endpoints 0 .. ranks - 2 here, and the last one in a process of its own."""
    given = {"timeout_s": 3.0} | options
    ends = [
        Endpoint(rank, ranks, SECRET, TransportOptions(interface=HERE, **given)) for rank in range(ranks - 1)
    ]
    peer = process(ranks - 1, ranks, **given)
    try:
        ports = [end.address[1] for end in ends] + [int(hear(peer))]
        tell(peer, json.dumps(ports))
        assert together(lambda end: end.connect([(HERE, port) for port in ports]), ends) == [None] * len(ends)
        assert hear(peer) == "ready"
        yield ends, peer
    finally:
        peer.kill()
        peer.communicate()
        together(lambda end: end.close(), ends)


@contextmanager
def with_processes(*words: object, **options: object) -> Iterator[list[subprocess.Popen[str]]]:
    """Two ranks, each in a process of its own."""
    peers = [process(rank, 2, *words, **options) for rank in range(2)]
    try:
        ports = [int(hear(peer)) for peer in peers]
        for peer in peers:
            tell(peer, json.dumps(ports))
        assert [hear(peer) for peer in peers] == ["ready", "ready"]
        yield peers
    finally:
        for peer in peers:
            peer.kill()
            peer.communicate()


@contextmanager
def rogue(**options: object) -> Iterator[tuple[Endpoint, list[socket.socket]]]:
    """Rank 0 of 2, and the connections of a rank 1 that knows the secret, and then speaks for itself."""
    given = {"interface": HERE, "timeout_s": 5.0} | options
    end = Endpoint(0, 2, SECRET, TransportOptions(**given))
    lanes = [socket.create_connection(end.address) for _ in range(end._options.connections)]

    def call() -> None:
        for lane, sock in enumerate(lanes):
            introduce(sock, Greeting(1, 2, lane), 0, SECRET, 5.0)

    calling = threading.Thread(target=call)
    calling.start()
    try:
        with end:
            end.connect([end.address, (HERE, 1)])
            calling.join()
            yield end, lanes
            for sock in lanes:
                sock.close()
    finally:
        for sock in lanes:
            sock.close()
