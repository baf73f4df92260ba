"""What Hemiola's transport reaches: throughput against iperf3 and bare sockets, urgent messages behind bulk.

    sudo python benchmarks/transport.py                                   # to the terminal
    sudo python benchmarks/transport.py --write docs/results/transport.md

1. Throughput on loopback, one process per side, beside a loop of `sendall` and `recv_into`.
2. Throughput on a link of 1 Gbit/s in a lab, beside iperf3 (left out where it is not installed).
3. Urgent messages of 64 KB behind a bulk transfer at 100 Mbit/s: how long from `send` until all has been received, on
   one clock, since both ends are on one machine; and what bulk loses by them.

Peers take turns; medians over the repeats, with the least and the most. Needs root for 2 and 3. About three minutes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from page import measured_with, spread, write_page

from hemiola.comm.transport import Endpoint, TransportOptions
from hemiola.lab import Lab

LOOPBACK_BYTES, LINK_BYTES = 2 << 30, 250_000_000
MBIT_100 = 12.5e6
URGENT_S = 65_536 / (MBIT_100 * 1448 / 1514)


@dataclass(frozen=True)
class Way:
    """How urgent and bulk messages are sent.

    Attributes:
        transport: options of the endpoint; None for two bare TCP connections.
        urgent: options of a second endpoint for the urgent ones; None where they share the first.
        kernel: whether the queue of the link knows priorities.
        congestion: control of the bare connections; "" for the system's.
    """

    name: str
    transport: dict[str, Any] | None
    urgent: dict[str, Any] | None = None
    kernel: bool = False
    congestion: str = ""


PACED = {"rate_bytes_per_s": 0.95 * MBIT_100}
WAYS = (
    Way("two plain TCP connections, CUBIC", None, congestion="cubic"),
    Way("two plain TCP connections, BBR", None, congestion="bbr"),
    Way("one endpoint, not paced", {}),
    Way("one endpoint, paced at 95 %", PACED),
    Way(
        "two endpoints, kernel's priorities", {"chunk_bytes": 65_536}, {"socket_priority": 6}, kernel=True,
    ),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", type=Path, metavar="FILE.md")
    asked = parser.parse_args()
    text = page(loopback(asked.repeats), gigabit(asked.repeats), urgent(asked.repeats))
    if asked.write is None:
        print(text)
    else:
        write_page(asked.write, text)


def loopback(repeats: int) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {"Hemiola": [], "bare sockets": []}
    for _ in range(repeats):
        found["Hemiola"].append(pair({"what": "stream", "bytes": LOOPBACK_BYTES, "options": {}}))
        found["bare sockets"].append(pair({"what": "bare", "bytes": LOOPBACK_BYTES}))
    return found


def pair(job: dict[str, Any], lab: Lab | None = None) -> dict[str, float]:
    """Run both sides of a job, in a lab or on loopback; what the receiver found."""
    with tempfile.TemporaryDirectory() as folder:
        sides = []
        for rank in (0, 1):
            home = lab.addresses[lab.hosts[rank]] if lab else "127.0.0.1"
            asked = {**job, "rank": rank, "folder": folder, "home": home}
            command = [sys.executable, __file__, "side", json.dumps(asked)]
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}
            sides.append(
                lab.start(lab.hosts[rank], command, **pipes) if lab else subprocess.Popen(command, **pipes)
            )
        said = [side.communicate(timeout=120)[0] for side in sides]
    if any(side.returncode for side in sides):
        raise RuntimeError(f"a side of {job} failed")
    found: dict[str, float] = json.loads(said[1])
    return found | {"sender_cores": json.loads(said[0])["cores"]}


def gigabit(repeats: int) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {"Hemiola": [], "Hemiola, paced at 99 %": []}
    with Lab(hosts=2, rate="1gbit") as lab:
        for _ in range(repeats):
            for name, options in (
                ("Hemiola", {}),
                ("Hemiola, paced at 99 %", {"rate_bytes_per_s": 0.99 * 125e6}),
            ):
                found[name].append(pair({"what": "stream", "bytes": LINK_BYTES, "options": options}, lab))
            if shutil.which("iperf3"):
                found.setdefault("iperf3", []).append({"bytes_per_s": iperf3(lab)})
    return found


def iperf3(lab: Lab) -> float:
    server = lab.start(lab.hosts[1], ["iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
    client = lab.start(
        lab.hosts[0],
        ["sh", "-c", f"sleep 0.3; exec iperf3 -J -n {LINK_BYTES} -c {lab.addresses[lab.hosts[1]]}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    told = json.loads(client.communicate(timeout=60)[0])
    server.wait(timeout=10)
    return float(told["end"]["sum_received"]["bits_per_second"]) / 8


def urgent(repeats: int) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {way.name: [] for way in WAYS}
    with Lab(hosts=2, rate="100mbit") as lab:
        for kernel in (False, True):
            if kernel:
                for host in lab.hosts:
                    knows_priorities(lab, host)
            for _ in range(repeats):
                for way in (w for w in WAYS if w.kernel == kernel):
                    job = {
                        "what": "urgent",
                        "options": way.transport,
                        "urgent": way.urgent,
                        "congestion": way.congestion,
                    }
                    alone = pair({**job, "messages": 0}, lab)
                    behind = pair({**job, "messages": 12}, lab)
                    found[way.name].append({
                        "latencies_s": behind["latencies_s"],
                        "cost": 1 - behind["bytes_per_s"] / alone["bytes_per_s"],
                        "bytes_per_s": alone["bytes_per_s"],
                    })  # fmt: skip
    return found


def knows_priorities(lab: Lab, host: str) -> None:
    """Put pfifo_fast under the host's shaper."""
    command = ["tc", "qdisc", "add", "dev", "eth0", "parent", "1:1", "pfifo_fast"]
    done = lab.start(host, command)
    if done.wait(timeout=10):
        raise RuntimeError(f"no pfifo_fast on {host}")


def page(
    fast: dict[str, list[dict[str, float]]],
    link: dict[str, list[dict[str, float]]],
    late: dict[str, list[dict[str, Any]]],
) -> str:
    lines = [
        "# What the transport reaches",
        "",
        "Hemiola's transport (`hemiola.comm.transport`) between two processes of this machine. Peers take turns; median (least–most).",
        "",
        measured_with("python benchmarks/transport.py"),
        "",
        "## Throughput",
        "",
        "| where | who | Gbit/s | cores, sender | cores, receiver |",
        "|---|---|---:|---:|---:|",
    ]
    for where, runs in (("loopback", fast), ("lab, 1 Gbit/s", link)):
        for who, many in runs.items():
            rates = spread([8e-9 * one["bytes_per_s"] for one in many], 2)
            cores = [
                f"{median(one[key] for one in many):.2f}" if key in many[0] else ""
                for key in ("sender_cores", "cores")
            ]
            lines.append(f"| {where} | {who} | {rates} | {cores[0]} | {cores[1]} |")
    lines += [
        "",
        "Payload, headers not counted; one message after the other, of 16 MB.",
        "",
        "## Urgent messages behind bulk",
        "",
        "64 KB every 100 to 170 ms behind messages of 2 MB without end, at 100 Mbit/s; from `send` to the last byte in the "
        f"receiver's buffer. Its own transmission takes {1e3 * URGENT_S:.1f} ms. *Cost* is what the link carries less, urgent messages "
        "included, than bulk alone.",
        "",
        "| way | queue of the link | median ms | 90th percentile | most | cost | bulk alone, Mbit/s |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for way in WAYS:
        runs_of = late[way.name]
        times = sorted(1e3 * s for one in runs_of for s in one["latencies_s"])
        lines.append(
            f"| {way.name} | {'tbf and pfifo_fast' if way.kernel else 'tbf'} | {median(times):.1f} | {times[int(0.9 * len(times))]:.1f} | "
            f"{times[-1]:.1f} | {median(one['cost'] for one in runs_of):.1%} | {8e-6 * median(one['bytes_per_s'] for one in runs_of):.1f} |"
        )
    return "\n".join([*lines, ""])


# One side of a job of `benchmarks/transport.py`: rank 0 sends, rank 1 receives and tells what it found.

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

    def send(self, data: bytes, urgent_side: bool) -> Any:
        if self.bulk_end is None:
            (self.fast if urgent_side else self.bulk).sendall(data)
            return None
        end = self.fast_end if urgent_side else self.bulk_end
        return end.send(1, URGENT_TAG if urgent_side else BULK_TAG, data, priority=0 if urgent_side else 5)

    def receive(self, into: bytearray, urgent_side: bool) -> None:
        if self.bulk_end is None:
            fill(self.fast if urgent_side else self.bulk, memoryview(into))
        else:
            end = self.fast_end if urgent_side else self.bulk_end
            end.receive(0, URGENT_TAG if urgent_side else BULK_TAG, into).wait()


def urgent_side(job: Job) -> dict[str, Any]:
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


def side(job: Job) -> None:
    """One side, in a process of its own: rank 0 sends, rank 1 receives; print what it found."""
    print(json.dumps({"stream": stream, "bare": bare, "urgent": urgent_side}[job["what"]](job)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["side"]:
        side(json.loads(sys.argv[2]))
    else:
        main()
