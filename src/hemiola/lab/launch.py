"""Starts commands on a lab's hosts, with what they need to find each other."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hemiola.core.errors import LabError
from hemiola.lab import namespaces
from hemiola.lab.network import DEVICE, entered, gone
from hemiola.lab.processes import RUN_VARIABLE
from hemiola.lab.state import LabState

__all__ = ["rendezvous", "start"]

ENTER = Path(__file__).with_name("enter.py")


def rendezvous(state: LabState, hosts: Sequence[str]) -> dict[str, dict[str, str]]:
    """The variables with which one process on each of these hosts finds the others.

    Those of torchrun (MASTER_ADDR, MASTER_PORT, RANK, ...), the interface for gloo and NCCL, and
    HEMIOLA_LAB_HOST. The port is free on the first host at this moment.

    Raises:
        LabError: an unknown host, or one named twice.
    """
    for host in hosts:
        if host not in state.spec.hosts:
            raise LabError(
                f"the lab {state.spec.name!r} has no host {host!r}",
                f"its hosts: {', '.join(state.spec.hosts)}",
            )
    if len(set(hosts)) != len(hosts) or not hosts:
        raise LabError(f"the hosts {', '.join(hosts) or '(none)'}", "name at least one host, and each once")
    port = str(entered(state.namespace(hosts[0]), _free_port))
    return {
        host: {
            "MASTER_ADDR": state.address(hosts[0]),
            "MASTER_PORT": port,
            "RANK": str(rank),
            "WORLD_SIZE": str(len(hosts)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GLOO_SOCKET_IFNAME": DEVICE,
            "NCCL_SOCKET_IFNAME": DEVICE,
            "HEMIOLA_LAB_HOST": host,
        }
        for rank, host in enumerate(hosts)
    }


def start(
    state: LabState, host: str, command: Sequence[str], *, run: str, env: Mapping[str, str], **popen: Any
) -> subprocess.Popen[Any]:
    """Start a command on a host, in a session of its own.

    Args:
        run: the sign by which all that comes of it is found and ended.
        env: variables over those of this process.
        popen: as `subprocess.Popen` takes it.

    Raises:
        LabError: no command, or the host is gone.
    """
    if not command:
        raise LabError("no command to run", "write it behind two dashes: hemiola lab run -- python train.py")
    path = namespaces.path_of(state.namespace(host))
    if not path.exists():
        raise gone(path.name)
    place = [str(path), host, str(state.hosts_file)]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(ENTER), *place, *command],
        env={"PYTHONUNBUFFERED": "1", **os.environ, **env, RUN_VARIABLE: run},
        start_new_session=True,
        **{"stdin": subprocess.DEVNULL, **popen},
    )


def _free_port(_: Any) -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
