"""A Ray cluster on this machine for tests: real processes, ports and a folder of its own, nothing left behind.

Each node hangs on a process of this file, as all of a machine's processes hang on its first one: it ends when it is
told to, or when the test's process dies, and takes along whatever Ray has started.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from patience import patience, slowly

WAIT_S = 120.0
TRIES = 3
STARTED = "Ray runtime started."
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def quick() -> dict[str, str]:
    """A node that was killed is known to be dead after three seconds, not fifteen; more where the machine is slow."""
    looks = math.ceil(slowly(6.0))
    return {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": str(looks)}


def need_ray() -> None:
    import pytest

    pytest.importorskip("ray", reason="needs hemiola[ray]")


@dataclass(frozen=True)
class RayNode:
    """What a node has: also its name, which Ray reports as `NodeName`, and variables of its own."""

    name: str
    num_cpus: int = 1
    num_gpus: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    resources: dict[str, float] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)


class RayCluster:
    """A head and nodes.

    Attributes:
        address: of the head, for `ray.init`.
        client_address: of its client server ("ray://...").
        dashboard_url: of its dashboard, which is also where jobs are handed in; "" without one.
        folder: for sessions and logs.
    """

    def __init__(self, *, dashboard: bool = False, environ: dict[str, str] | None = None) -> None:
        self.folder = Path(
            tempfile.mkdtemp(prefix="hemiola-ray-", dir="/tmp")
        )  # its sockets' paths are short
        self.address = self.client_address = self.dashboard_url = ""
        self._dashboard = dashboard
        self._environ = {
            **os.environ,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            **quick(),
            **(environ or {}),
        }
        self._machines: dict[str, subprocess.Popen[bytes]] = {}

    def add(self, *nodes: RayNode) -> None:
        """Start nodes, one after the other: at once, Ray gives several of one machine the same socket."""
        if not self.address:
            head, *nodes = nodes  # type: ignore[assignment]
            self._add_head(head)
        for node in nodes:
            self._start(node, [f"--address={self.address}"])
            self._joined(node)

    def _add_head(self, head: RayNode) -> None:
        """On ports that are free: somebody else may take one before Ray does."""
        for left in reversed(range(TRIES)):
            port, client, shown = _free_ports(3)
            self.client_address = f"ray://127.0.0.1:{client}"
            self.dashboard_url = f"http://127.0.0.1:{shown}" if self._dashboard else ""
            self._start(head, self._head_options(port))
            try:
                self._joined(head)
                _wait_for(client)
            except AssertionError:
                self.kill(head.name)
                if not left:
                    raise
            else:
                self.address = f"127.0.0.1:{port}"
                return

    def pids(self, name: str) -> list[int]:
        """All of Ray's processes on a node, its workers included."""
        return _descendants(self._machines[name].pid)

    def said(self, pattern: str) -> str:
        """The end of Ray's own logs with such names, for a failure's report."""
        logs = sorted(self.folder.glob(f"session_2*/logs/{pattern}"))
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-2000:]}" for log in logs)

    def kill(self, name: str) -> None:
        """As if the machine lost its power."""
        machine = self._machines.pop(name)
        machine.terminate()
        machine.wait(WAIT_S)

    def drain(self, name: str) -> None:
        """As an autoscaler says that a node is to go; it ends by itself once nothing runs there."""
        from ray._raylet import GcsClient
        from ray.core.generated.autoscaler_pb2 import DrainNodeReason
        from ray.core.generated.gcs_pb2 import GcsNodeInfo

        client = GcsClient(address=self.address)
        found = client.get_all_node_info().values()
        (node,) = (one for one in found if one.node_name == name and one.state == GcsNodeInfo.ALIVE)
        reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        accepted, why = client.drain_node(node.node_id.hex(), reason, "a test", 0)
        assert accepted, why

    def close(self) -> None:
        """End every node, and wait until all of its processes have ended."""
        for name in list(self._machines):
            self.kill(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _head_options(self, port: int) -> list[str]:
        shown = [f"--dashboard-port={self.dashboard_url.rpartition(':')[2]}"] if self.dashboard_url else []
        return [
            "--head",
            f"--port={port}",
            f"--ray-client-server-port={self.client_address.rpartition(':')[2]}",
            f"--include-dashboard={bool(shown)}",
            "--dashboard-host=127.0.0.1",
            *shown,
        ]

    def _start(self, node: RayNode, options: list[str]) -> None:
        words = [
            sys.executable, __file__, sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--node-ip-address=127.0.0.1",
            f"--temp-dir={self.folder}", f"--node-name={node.name}", f"--num-cpus={node.num_cpus}",
            f"--num-gpus={node.num_gpus}", f"--resources={json.dumps(node.resources)}",
            f"--labels={','.join(f'{key}={value}' for key, value in node.labels.items())}",
            "--object-store-memory=80000000", "--min-worker-port=0", "--max-worker-port=0",
            "--dashboard-agent-listen-port=0", *options,
        ]  # fmt: skip
        with self._log(node.name).open("wb") as log:
            self._machines[node.name] = subprocess.Popen(
                words, env={**self._environ, **node.environ}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def _joined(self, node: RayNode) -> None:
        end_s = time.monotonic() + patience(WAIT_S)
        while STARTED not in (told := self._log(node.name).read_text(errors="replace")):
            ended = self._machines[node.name].poll()
            assert ended is None, f"ray start ended with {ended}:\n{told}"
            assert time.monotonic() < end_s, f"{node.name} never joined:\n{told}"
            time.sleep(0.05)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


@contextmanager
def ray_cluster(
    *nodes: RayNode, dashboard: bool = False, environ: dict[str, str] | None = None
) -> Iterator[RayCluster]:
    """A cluster of these nodes, the first of which is the head."""
    cluster = RayCluster(dashboard=dashboard, environ=environ)
    try:
        cluster.add(*nodes)
        yield cluster
    finally:
        cluster.close()


def _free_ports(count: int) -> list[int]:
    """Ports that nothing has now, outside the ranges from which Ray's workers, its servers for clients (23000 to 23999)
    and the kernel choose."""
    found = []
    for port in range(24000 + os.getpid() * 7 % 7000, 32000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))  # on every address: Ray takes the machine's own
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports")


def _wait_for(port: int) -> None:
    """Ray's server for clients comes up after the head says that it has started."""
    end_s = time.monotonic() + patience(WAIT_S)
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        assert time.monotonic() < end_s, f"nothing listens on port {port}"
        time.sleep(0.05)


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found[1:]


def _machine(words: list[str]) -> None:
    """Run this and adopt all that it leaves behind, until there is nothing more or until told to end."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    subprocess.Popen(words)
    try:
        _reap()
    finally:
        while found := _descendants(os.getpid()):
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            _reap()


def _reap() -> None:
    with suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    _machine(sys.argv[1:])
