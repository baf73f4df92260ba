"""From which of its addresses a rank talks to the others, and what its host is called."""

from __future__ import annotations

import os
import socket

from hemiola.core.errors import InputError

__all__ = ["home_interface", "own_names"]


def home_interface() -> str:
    """As HEMIOLA_INTERFACE or GLOO_SOCKET_IFNAME say, else the address from which the job's master is reached.

    Raises:
        InputError: the master cannot be reached from here.
    """
    told = os.environ.get("HEMIOLA_INTERFACE") or os.environ.get("GLOO_SOCKET_IFNAME", "")
    return told or _own_address(os.environ.get("MASTER_ADDR", "127.0.0.1"))


def own_names() -> list[str]:
    """What this host may be called in a topology; in a lab, its name there first."""
    name = socket.gethostname()
    told = os.environ.get("HEMIOLA_LAB_HOST", "")
    return [*([told] if told else []), name, name.split(".")[0]]


def _own_address(other: str) -> str:
    """The address of this host from which that one is reached."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as sock:
            sock.connect(address)
            return str(sock.getsockname()[0])
    except OSError as problem:
        raise InputError(
            f"cannot tell how {other!r} is reached: {problem}", "set HEMIOLA_INTERFACE"
        ) from problem
