"""Starts the ranks that measure links, and collects what they found."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hemiola.core.errors import InputError
from hemiola.core.hardware import CollectiveCost
from hemiola.run.calibrate.links import read_links

__all__ = ["links_between"]

_LIMIT_S = 600


def links_between(
    ranks: int,
    backend: str,
    sizes_bytes: tuple[int, ...],
    seconds_per_size: float,
    launch: Callable[[list[str]], Any] | None,
) -> tuple[CollectiveCost, ...]:
    """See `hemiola.run.calibrate.calibrate_links`."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "links.json"
        command = [sys.executable, "-m", "hemiola.run.calibrate.links", "--output", str(output)]
        command += ["--backend", backend, "--seconds-per-size", str(seconds_per_size)]
        if sizes_bytes:
            command += ["--sizes", *map(str, sizes_bytes)]
        if launch is None:
            _run_here(command, ranks)
        else:
            launch(command)
        if not output.exists():
            raise InputError("rank 0 wrote no result", "look at what the ranks printed")
        return read_links(output)


def _run_here(command: list[str], ranks: int) -> None:
    """Every rank as a process of this machine; all are gone when this returns."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        **os.environ,
        **_loopback(),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    environments = [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    with _started(command, environments) as processes:
        failures = [said for rank, process in enumerate(processes) if (said := _failure(rank, process))]
    if failures:
        raise InputError("; ".join(failures), "run the same command by hand to see all of it")


def _failure(rank: int, process: subprocess.Popen[str]) -> str:
    """Wait for a rank; the last thing it said if it failed."""
    try:
        _, said = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"rank {rank} took longer than {_LIMIT_S} s"
    if not process.returncode:
        return ""
    lines = [line for line in said.splitlines() if line.strip()] or ["it said nothing"]
    return f"rank {rank} failed: {lines[-1]}"


def _loopback() -> dict[str, str]:
    """Gloo would look for the address of this host's name, which need not have one."""
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    return {"GLOO_SOCKET_IFNAME": names[0]} if names else {}


@contextmanager
def _started(command: list[str], environments: list[dict[str, str]]) -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    try:
        for environment in environments:
            processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stderr:
                process.stderr.close()
