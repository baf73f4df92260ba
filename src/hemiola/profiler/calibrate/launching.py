"""Starts the ranks that measure links, and collects what they found."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from hemiola.core.errors import InputError
from hemiola.core.hardware import CollectiveCost
from hemiola.profiler.calibrate.links import read_links

__all__ = ["links_between"]

_LIMIT_S = 600
_POLL_S = 0.02


def links_between(
    ranks: int,
    backend: str,
    sizes_bytes: tuple[int, ...],
    seconds_per_size: float,
    launch: Callable[[list[str]], Any] | None,
) -> tuple[CollectiveCost, ...]:
    """See `hemiola.profiler.calibrate.calibrate_links`."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "links.json"
        command = [sys.executable, "-P", "-m", "hemiola.profiler.calibrate.links", "--output", str(output)]
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
    with _started(command, environments) as (processes, said):
        failed = _first_failed(processes)
        if failed is not None:
            raise InputError(
                f"rank {failed} failed: {_last(said[failed])}",
                "run the same command by hand to see all of it",
            )


def _first_failed(processes: list[subprocess.Popen[bytes]]) -> int | None:
    """Wait until one rank has failed, for which the others would wait, or all have ended well.

    Raises:
        InputError: they take too long.
    """
    limit = time.monotonic() + _LIMIT_S
    while True:
        statuses = [process.poll() for process in processes]
        for rank, status in enumerate(statuses):
            if status:
                return rank
        if None not in statuses:
            return None
        if time.monotonic() > limit:
            raise InputError(
                f"rank {statuses.index(None)} took longer than {_LIMIT_S} s",
                "give fewer or smaller sizes, or less time for each",
            )
        time.sleep(_POLL_S)


def _last(said: IO[bytes]) -> str:
    """What was wrong, of all that a rank said."""
    said.seek(0)
    lines = [line for line in said.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or ["it said nothing"])[-1]


def _loopback() -> dict[str, str]:
    """Gloo would look for the address of this host's name, which need not have one."""
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    return {"GLOO_SOCKET_IFNAME": names[0]} if names else {}


@contextmanager
def _started(
    command: list[str], environments: list[dict[str, str]]
) -> Iterator[tuple[list[subprocess.Popen[bytes]], list[IO[bytes]]]]:
    """Processes, and what they say: in files, for a full pipe would stop a rank, and all others with it."""
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as files:
        said: list[IO[bytes]] = [files.enter_context(tempfile.TemporaryFile()) for _ in environments]
        try:
            for environment, errors in zip(environments, said, strict=True):
                processes.append(subprocess.Popen(command, env=environment, stderr=errors))
            yield processes, said
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
