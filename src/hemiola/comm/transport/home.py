"""From which of its addresses a rank talks to the others, what its interfaces and its host are called, what a job is told."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from typing import Any

from hemiola.core.errors import InputError
from hemiola.core.hostlist import is_loopback

__all__ = [
    "home_address",
    "home_interface",
    "interface_of",
    "missing_variables",
    "own_names",
    "store_is_kept",
]

_RENDEZVOUS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun, and whoever starts ranks as it does, tells each of them."""
_SIOCGIFADDR = 0x8915
_FAR = "192.0.2.1"
"""Nobody's (RFC 5737): it is reached by the default route, if by any."""


def missing_variables() -> list[str]:
    """Those of the variables of a rank of a job that are not set."""
    return [name for name in _RENDEZVOUS if name not in os.environ]


def store_is_kept() -> bool:
    """Whether whoever started the ranks keeps the store at MASTER_ADDR: then none of them does."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


def home_interface(store: Any = None) -> str:
    """The first that HEMIOLA_INTERFACE or GLOO_SOCKET_IFNAME name; else the address from which MASTER_ADDR is reached, or who
    keeps the store; where nobody says either, this host's own. Of a host whose name is a loopback address to itself, as
    Debian has it in /etc/hosts, the one that has the default route, unless all ranks are known to be there.

    Args:
        store: of PyTorch, through which the ranks meet.

    Raises:
        InputError: the master cannot be reached from here.
    """
    told = os.environ.get("HEMIOLA_INTERFACE") or os.environ.get("GLOO_SOCKET_IFNAME", "")
    if told:
        return told.split(",")[0].strip()
    if master := os.environ.get("MASTER_ADDR") or _keeper(store):
        return _seen_by_others(_own_address(master), master)
    name = socket.gethostname()
    try:
        return _seen_by_others(_own_address(name, socket.AF_INET), name)
    except InputError:  # nobody knows it by this name: ranks on this host still meet
        return "127.0.0.1"


def home_address(interface: str) -> str:
    """The IPv4 address of an interface; an address as it is; "" for any.

    Raises:
        InputError: there is no such interface, or it has no address.
    """
    if not interface or interface.replace(".", "").isdecimal() or ":" in interface:
        return interface
    try:
        return _address_of(interface)
    except OSError as problem:
        there = ", ".join(name for _, name in socket.if_nameindex())
        raise InputError(
            f"the interface {interface!r} has no address: {problem}", f"there are {there}"
        ) from problem


def interface_of(address: str) -> str:
    """The interface of this host that has this IPv4 address; "" if none has."""
    for _, name in socket.if_nameindex():
        try:
            if _address_of(name) == address:
                return name
        except OSError:  # it has no address
            continue
    return ""


def own_names() -> list[str]:
    """What this host may be called in a topology; in a lab, its name there first."""
    name = socket.gethostname()
    told = os.environ.get("HEMIOLA_LAB_HOST", "")
    return [*([told] if told else []), name, name.split(".")[0]]


def _keeper(store: Any) -> str:
    """The host that keeps a store; "" for a store that no host does."""
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    return str(getattr(store, "host", ""))


def _seen_by_others(found: str, name: str) -> str:
    """The address that was found for a name, or another one where ranks of other hosts could not reach it."""
    is_meant = is_loopback(name) or "localhost" in name
    are_all_here = os.environ.get("LOCAL_WORLD_SIZE", "") == os.environ.get("WORLD_SIZE")
    if not is_loopback(found) or is_meant or are_all_here:
        return found
    try:
        return _own_address(_FAR)
    except InputError:  # there is no other way out
        return found


def _own_address(other: str, family: int = socket.AF_UNSPEC) -> str:
    """The address of this host from which that one is reached."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(other, 9, family, socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as sock:
            sock.connect(address)
            return str(sock.getsockname()[0])
    except OSError as problem:
        raise InputError(
            f"cannot tell how {other!r} is reached: {problem}", "set HEMIOLA_INTERFACE"
        ) from problem


def _address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        found = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack("256s", interface[:15].encode()))
    return socket.inet_ntoa(found[20:24])
