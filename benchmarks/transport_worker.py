"""One side of a job of `benchmarks/transport.py`: rank 0 sends, rank 1 receives and tells what it found."""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from hemiola.comm.transport import Endpoint, TransportOptions

MESSAGE, BULK, URGENT = 16 << 20, 2_000_000, 65_536
SECRET = b"for benchmarks only"
BULK_TAG, URGENT_TAG, COUNT_TAG, TIMES_TAG = 1, 2, 3, 4
SECONDS = 2.5
Job = dict[str, Any]


def meet(job: Job, name: str, address: Any) -> list[Any]:
    """Everybody's address, through a folder."""
    path = Path(job["folder"], f"{name}{job['rank']}")
    path.with_suffix(".new").write_text(json.dumps(address))
    path.with_suffix(".new").replace(path)
    there = [Path(job["folder"], f"{name}{rank}") for rank in (0, 1)]
    while not all(one.exists() for one in there):
        time.sleep(0.01)
    return [json.loads(one.read_text()) for one in there]


def connected(job: Job, options: dict[str, Any], name: str) -> Endpoint:
    end = Endpoint(job["rank"], 2, SECRET, TransportOptions(interface=job["home"], **options))
    end.connect([tuple(address) for address in meet(job, name, end.address)])
    return end


def stream(job: Job) -> dict[str, float]:
    buffer, count = bytearray(MESSAGE), max(1, job["bytes"] // MESSAGE)
    with connected(job, job["options"], "a") as end:
        for number in (2, count):  # two to warm up
            cpu, start = time.process_time(), time.perf_counter()
            go = end.send if job["rank"] == 0 else end.receive
            for handle in [go(1 - job["rank"], BULK_TAG, buffer) for _ in range(number)]:
                handle.wait()
            if job["rank"] == 0:  # until the last byte is there
                end.receive(1, COUNT_TAG, bytearray(1)).wait()
            else:
                end.send(0, COUNT_TAG, b"!").wait()
            wall = time.perf_counter() - start
        cores = (time.process_time() - cpu) / wall
    return {"bytes_per_s": count * MESSAGE / wall, "cores": cores}


def bare(job: Job) -> dict[str, float]:
    buffer, count = bytearray(MESSAGE), max(1, job["bytes"] // MESSAGE)
    first, second = plain(job, "b")
    cpu, start = time.process_time(), time.perf_counter()
    for _ in range(count):
        if job["rank"] == 0:
            first.sendall(buffer)
        else:
            fill(first, memoryview(buffer))
    wall = time.perf_counter() - start
    second.close()
    return {"bytes_per_s": count * MESSAGE / wall, "cores": (time.process_time() - cpu) / wall}


def plain(job: Job, name: str) -> tuple[socket.socket, socket.socket]:
    """Two TCP connections between the two."""
    server = socket.create_server((job["home"], 0))
    address = tuple(meet(job, name, server.getsockname()[:2])[0])
    if job["rank"] == 0:
        pair = [server.accept()[0] for _ in range(2)]
    else:
        pair = [socket.create_connection(address) for _ in range(2)]
    server.close()
    for sock in pair:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if job.get("congestion"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, job["congestion"].encode())
    return pair[0], pair[1]


def fill(sock: socket.socket, view: memoryview) -> None:
    while view.nbytes:
        view = view[sock.recv_into(view) :]


class Ways:
    """Bulk and urgent messages, over endpoints or over two bare connections."""

    def __init__(self, job: Job) -> None:
        self.rank, self.bulk_end = job["rank"], None
        if job["options"] is None:
            self.bulk, self.fast = plain(job, "u")
            return
        self.bulk_end = connected(job, job["options"], "u")
        self.fast_end = self.bulk_end if job["urgent"] is None else connected(job, job["urgent"], "v")

    def send(self, data: bytes, urgent: bool) -> Any:
        if self.bulk_end is None:
            (self.fast if urgent else self.bulk).sendall(data)
            return None
        end = self.fast_end if urgent else self.bulk_end
        return end.send(1, URGENT_TAG if urgent else BULK_TAG, data, priority=0 if urgent else 5)

    def receive(self, into: bytearray, urgent: bool) -> None:
        if self.bulk_end is None:
            fill(self.fast if urgent else self.bulk, memoryview(into))
        else:
            end = self.fast_end if urgent else self.bulk_end
            end.receive(0, URGENT_TAG if urgent else BULK_TAG, into).wait()


def urgent(job: Job) -> dict[str, Any]:
    ways = Ways(job)
    count = round(SECONDS * 12.5e6 / BULK)
    if job["rank"] == 0:
        other = threading.Thread(target=send_urgent, args=(ways, job))
        other.start()
        handles: list[Any] = []
        for _ in range(count):
            handles.append(ways.send(bytes(BULK), urgent=False))
            if len(handles) > 3 and handles[-4] is not None:
                handles[-4].wait()
        for handle in handles:
            if handle is not None:
                handle.wait()
        other.join()
        meet(job, "end", 0)
        return {"cores": 0.0}
    took: list[float] = []
    other = threading.Thread(target=receive_urgent, args=(ways, job, took))
    other.start()
    buffer = bytearray(BULK)
    ways.receive(buffer, urgent=False)
    start = time.monotonic()
    for _ in range(count - 1):
        ways.receive(buffer, urgent=False)
    wall = time.monotonic() - start
    other.join()
    meet(job, "end", 0)
    moved = (count - 1) * BULK + len(took) * URGENT
    return {"bytes_per_s": moved / wall, "latencies_s": took, "cores": 0.0}


def send_urgent(ways: Ways, job: Job) -> None:
    time.sleep(0.3)
    for number in range(job["messages"]):
        time.sleep(0.1 + 0.035 * (number % 3))
        ways.send(struct.pack("d", time.monotonic()) + bytes(URGENT - 8), urgent=True)


def receive_urgent(ways: Ways, job: Job, took: list[float]) -> None:
    buffer = bytearray(URGENT)
    for _ in range(job["messages"]):
        ways.receive(buffer, urgent=True)
        took.append(time.monotonic() - struct.unpack_from("d", buffer)[0])


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps({"stream": stream, "bare": bare, "urgent": urgent}[asked["what"]](asked)))
