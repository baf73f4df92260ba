"""What the system says of the network interface that is used: its speed, and the processors near it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hemiola.comm.transport.home import interface_of

__all__ = ["Affinity", "own_affinity"]

_NET = Path("/sys/class/net")
_NODES = Path("/sys/devices/system/node")


class Affinity(msgspec.Struct, frozen=True):
    """Of one host.

    Attributes:
        interface: its name; "" if none has the address.
        speed_bytes_per_s: by its own account; 0 where it gives none, as virtual ones do.
        numa_node: that it hangs on; -1 where there is one node only, or none is known.
        processors: of that node, as the system lists them: "0-15"; "" where none is known.
    """

    interface: str = ""
    speed_bytes_per_s: float = 0.0
    numa_node: int = -1
    processors: str = ""

    def __str__(self) -> str:
        from hemiola.core.units import format_rate

        words = [self.interface or "no interface of that address"]
        if self.speed_bytes_per_s:
            words.append(f"{format_rate(self.speed_bytes_per_s)} by its own account")
        if self.numa_node >= 0:
            words.append(f"NUMA node {self.numa_node}, processors {self.processors}")
        return ", ".join(words)


def own_affinity(address: str, net: Path = _NET, nodes: Path = _NODES) -> Affinity:
    """Of the interface of this host that has this IPv4 address."""
    name = interface_of(address)
    if not name:
        return Affinity()
    megabits = _number(net / name / "speed")
    node = _number(net / name / "device" / "numa_node", -1)
    processors = ""
    if node >= 0:
        processors = _text(nodes / f"node{node}" / "cpulist")
    return Affinity(name, max(megabits, 0) * 125e3, node, processors)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:  # virtual devices have no such file, or refuse to be read
        return ""


def _number(path: Path, otherwise: int = 0) -> int:
    text = _text(path)
    return int(text) if text.lstrip("-").isdecimal() else otherwise
