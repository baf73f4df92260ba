"""What stands beside every result: the queues, offloads and TCP settings as the kernel reports them."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from hemiola.core.errors import LabError
from hemiola.core.units import format_bytes, format_rate
from hemiola.lab.network import DEVICE, ByteQueue, entered, queues
from hemiola.lab.state import LabState

__all__ = ["CableSettings", "LabSettings", "read_settings"]

ECN = {
    "0": "off",
    "1": "asks for ECN and accepts it",
    "2": "accepts ECN, does not ask for it",
}
"""net.ipv4.tcp_ecn, as the kernel's ip-sysctl documentation has it; others are shown as numbers."""

OFFLOADS = {
    "tso": "tcp-segmentation-offload",
    "gso": "generic-segmentation-offload",
    "gro": "generic-receive-offload",
}


class CableSettings(msgspec.Struct, frozen=True):
    """One cable of the lab, as its two ends are set.

    Attributes:
        name: the host, or the rack whose uplink it is.
        outward: the queue where the host (or rack) sends.
        inward: the queue where the switch (or core) sends to it.
        gso_max_bytes: the largest packet that the kernel hands on unsegmented.
    """

    name: str
    outward: ByteQueue
    inward: ByteQueue
    mtu_bytes: int
    gso_max_bytes: int
    tso: bool
    gso: bool
    gro: bool


class LabSettings(msgspec.Struct, frozen=True):
    """How a lab is set, read from the system when asked.

    Attributes:
        congestion_control: net.ipv4.tcp_congestion_control in the hosts' namespaces.
        ecn: net.ipv4.tcp_ecn there: a number, with 1 and 2 as above.
    """

    lab: str
    kernel: str
    congestion_control: str
    ecn: str
    links: tuple[CableSettings, ...]

    def __str__(self) -> str:
        """A few lines for people; links that are set alike share one."""
        ecn = f"tcp_ecn {self.ecn}" + (f" ({ECN[self.ecn]})" if self.ecn in ECN else "")
        head = f"lab {self.lab}: Linux {self.kernel}, TCP {self.congestion_control}, {ecn}"
        groups: dict[str, list[str]] = {}
        for link in self.links:
            groups.setdefault(_link_text(link), []).append(link.name)
        width = max((len(_names(names)) for names in groups.values()), default=0)
        return "\n".join([head, *(f"  {_names(names):{width}}  {text}" for text, names in groups.items())])


def read_settings(state: LabState) -> LabSettings:
    """Ask the kernel for all of it.

    Raises:
        LabError: a namespace or a device of the lab is gone.
    """
    try:
        return _read(state)
    except KeyError as error:  # a cable, gone with a host
        raise LabError(
            f"the lab {state.spec.name!r} has no device {error} any more: it was taken down, or is being",
            "make the lab anew",
        ) from error


def _read(state: LabState) -> LabSettings:
    spec = state.spec
    ports = entered(state.switch, _devices)
    hosts = {host: entered(state.namespace(host), _devices)[DEVICE] for host in spec.hosts}
    links = [_joined(host, hosts[host], ports[host]) for host in spec.hosts]
    links += [_joined(rack, ports[f"up{i}"], ports[f"down{i}"]) for i, rack in enumerate(spec.racks)]
    first = state.namespace(spec.hosts[0])
    congestion, ecn = entered(first, lambda _: (_sysctl("tcp_congestion_control"), _sysctl("tcp_ecn")))
    return LabSettings(spec.name, os.uname().release, congestion, ecn, tuple(links))


def _devices(ip: Any) -> dict[str, CableSettings]:
    """The devices of the namespace that this thread is in, each as a cable whose far end is not known."""
    from pyroute2.ethtool.ioctl import IoctlEthtool, NoSuchDevice

    queued = queues(ip)
    found = {}
    with closing(IoctlEthtool()) as tool:
        for device in ip.get_links():
            name = device.get("ifname")
            tool.change_ifname(name)
            try:
                flags = tool.get_offload_flags()
            except NoSuchDevice:  # gone since it was listed
                continue
            own = queued.get(device["index"], ByteQueue("noqueue"))
            tso, gso, gro = (flags[OFFLOADS[short]] for short in ("tso", "gso", "gro"))
            found[name] = CableSettings(
                name, own, own, device.get("mtu"), device.get("gso_max_size"), tso, gso, gro
            )
    return found


def _joined(name: str, near: CableSettings, far: CableSettings) -> CableSettings:
    return msgspec.structs.replace(near, name=name, inward=far.outward)


def _sysctl(name: str) -> str:
    return Path(f"/proc/sys/net/ipv4/{name}").read_text().strip()


def _link_text(link: CableSettings) -> str:
    both = _queue_text(link.outward)
    if link.inward != link.outward:
        both = f"out {both}, in {_queue_text(link.inward)}"
    offloads = ", ".join(f"{name} {'on' if getattr(link, name) else 'off'}" for name in OFFLOADS)
    return f"{both}; mtu {link.mtu_bytes}, {offloads}, gso_max_size {link.gso_max_bytes}"


def _queue_text(queue: ByteQueue) -> str:
    if not queue.rate_bytes_per_s:
        return f"not shaped ({queue.kind})"
    burst, limit = format_bytes(queue.burst_bytes), format_bytes(queue.limit_bytes)
    return f"{format_rate(queue.rate_bytes_per_s)} each way ({queue.kind}, burst {burst}, limit {limit})"


def _names(names: list[str]) -> str:
    """h0 h1 h2 h5 as "h0-h2 h5"."""
    parts: list[list[str]] = []
    for name in names:
        stem, number = name.rstrip("0123456789"), int(name[len(name.rstrip("0123456789")) :])
        if parts and parts[-1][-1] == f"{stem}{number - 1}":
            parts[-1].append(name)
        else:
            parts.append([name])
    return " ".join(part[0] if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
