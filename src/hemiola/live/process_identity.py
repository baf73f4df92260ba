"""Who holds a lease: a process, so that one on the same host can see that it is gone, and need not wait."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

__all__ = ["holder_name", "is_gone"]


def holder_name() -> str:
    """Host, space of process numbers, process, when it began (clock ticks since boot), and a number drawn once."""
    return f"{socket.gethostname()}/{_space()}/{os.getpid()}/{_began(os.getpid())}/{secrets.token_hex(4)}"


def is_gone(holder: str) -> bool:
    """Whether this was a process of this host that has ended. False where nobody can know."""
    words = holder.split("/")
    if len(words) != 5 or words[:2] != [socket.gethostname(), _space()] or not words[2].isdigit():
        return False
    return _began(int(words[2])) != words[3]


def _space() -> str:
    """Of process numbers, in this boot: containers may share a host's name."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot[:8]}-{Path('/proc/self/ns/pid').stat().st_ino}"


def _began(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if words[0] in "ZX" else words[19]
