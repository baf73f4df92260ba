"""What is remembered of a lab between processes: a small file per lab under /run/hemiola."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Network
from pathlib import Path

import msgspec

from hemiola.core.errors import InputError, LabError
from hemiola.lab import namespaces
from hemiola.lab import spec as addresses
from hemiola.lab.spec import LabSpec
from hemiola.trace.atomic import replacing

__all__ = [
    "LabState",
    "Owner",
    "check_rights",
    "choose",
    "claim",
    "forget",
    "load",
    "load_all",
    "locked",
    "save",
]


FOLDER = Path("/run/hemiola")
SCHEMA = "hemiola.lab/1"


class Owner(msgspec.Struct, frozen=True):
    """A process, told from later ones of the same number by when it began (clock ticks since boot)."""

    pid: int
    began_ticks: int

    @classmethod
    def me(cls) -> Owner:
        """This process."""
        return cls(os.getpid(), _began_ticks(os.getpid()) or 0)

    @property
    def lives(self) -> bool:
        """Whether the process still runs."""
        return _began_ticks(self.pid) == self.began_ticks


class LabState(msgspec.Struct, frozen=True, kw_only=True):
    """A lab that was begun and not yet taken down.

    Attributes:
        id: random; part of the mark on everything that belongs to the lab.
        owner: the process with whose end the lab ends, or that still builds it; None: it stays.
        built: whether everything was made.
        subnet: the hosts' addresses, such as 10.213.0.0/24.
    """

    schema: str = SCHEMA
    id: str
    spec: LabSpec
    owner: Owner | None
    built: bool
    subnet: str

    @property
    def mark(self) -> str:
        """The text by which a namespace is known as this lab's."""
        return f"hemiola-lab:{self.id}"

    @property
    def switch(self) -> str:
        """The namespace of the bridges."""
        return f"hemiola-{self.spec.name}-switch"

    @property
    def namespaces(self) -> tuple[str, ...]:
        """All of the lab's namespaces, the switch first."""
        return (self.switch, *(self.namespace(host) for host in self.spec.hosts))

    def namespace(self, host: str) -> str:
        """The namespace of a host."""
        return f"hemiola-{self.spec.name}-{host}"

    def address(self, host: str) -> str:
        """The address of a host: h0 is the first of the subnet."""
        network = self.subnet.rpartition(".")[0]
        return f"{network}.{self.spec.hosts.index(host) + 1}"

    @property
    def hosts_file(self) -> Path:
        """What the hosts see as /etc/hosts."""
        return FOLDER / f"{self.spec.name}.hosts"


@contextmanager
def locked() -> Iterator[None]:
    """One process at a time looks at the labs and writes one down."""
    try:
        FOLDER.mkdir(mode=0o755, exist_ok=True)
        handle = os.open(FOLDER, os.O_RDONLY)
    except OSError as error:
        raise LabError(f"cannot keep records in {FOLDER}: {error.strerror}", "make /run writable") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def save(state: LabState) -> None:
    """Write a lab down, whole or not at all."""
    with replacing(_path(state.spec.name)) as stream:
        stream.write(msgspec.json.encode(state))


def load(name: str) -> LabState:
    """The lab of this name.

    Raises:
        LabError: there is none, or its file cannot be read.
    """
    state = _read(name)
    if state is None:
        stand = ", ".join(_names()) or "none; make one: hemiola lab up"
        raise LabError(f"there is no lab {name!r}", f"labs that stand: {stand}")
    return state


def load_all() -> tuple[LabState, ...]:
    """Every lab that was begun and not taken down, by name."""
    return tuple(state for name in _names() if (state := _read(name)) is not None)


def _names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def _read(name: str) -> LabState | None:
    """The lab of this name; None where there is none, or none any more."""
    path = _path(name)
    try:
        state = msgspec.json.decode(path.read_bytes(), type=LabState)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LabError(
            f"{path} is damaged: {error}",
            f"delete it, and the namespaces that `ip netns list` shows as hemiola-{name}-*",
        ) from None
    if state.schema != SCHEMA:
        raise LabError(
            f"{path} is of the kind {state.schema!r}, not {SCHEMA!r}", "take it down as it was made"
        )
    return state


def choose(name: str, known: tuple[str, ...]) -> str:
    """The lab that is meant: the one named, or else the only one.

    Raises:
        LabError: none stands, or it is not clear which is meant.
    """
    if name:
        return name
    if len(known) == 1:
        return known[0]
    if not known:
        raise LabError("no lab stands", "make one: hemiola lab up --hosts 4 --rate 1gbit")
    raise LabError(f"{len(known)} labs stand: {', '.join(known)}", "say which: --name NAME")


def forget(state: LabState) -> None:
    """Delete what was written of a lab, the record last; nothing happens where its name is another's by now."""
    with locked():
        present = _read(state.spec.name)
        if present is None or present.id == state.id:
            state.hosts_file.unlink(missing_ok=True)
            _path(state.spec.name).unlink(missing_ok=True)


def _path(name: str) -> Path:
    return FOLDER / f"{name}.json"


def _began_ticks(pid: int) -> int | None:
    """When a process began; None where it is gone, or only its exit status is left."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if words[0] in "ZX" else int(words[19])


# What comes before a lab is built: whether that can be, and a record of what is going to be.


def check_rights() -> None:
    """Refuse at once what could only fail later.

    Raises:
        LabError: not Linux, or not root.
        InputError: pyroute2 is not installed.
    """
    if not sys.platform.startswith("linux"):
        raise LabError(
            f"a lab on {sys.platform}", "labs need Linux: run this in a virtual machine with Linux"
        )
    if os.geteuid() != 0:
        raise LabError(
            f"a lab needs root, and this is user {os.geteuid()}",
            "run it with sudo, or as root in a container",
        )
    try:
        import pyroute2  # noqa: F401
    except ImportError as error:
        raise InputError(
            "labs need pyroute2, which is not installed", "pip install 'hemiola[lab]'"
        ) from error


def claim(spec: LabSpec, id_: str) -> LabState:
    """Write down a lab that is going to be, so that whatever happens can be cleared up.

    Args:
        spec: what is wanted.
        id_: by which the lab is told from earlier ones of its name.

    Raises:
        LabError: the name is taken, or there is a namespace of that name which no lab made.
    """
    with locked():
        others = load_all()
        for other in others:
            if other.spec.name == spec.name:
                raise LabError(
                    f"the lab {spec.name!r} stands already",
                    f"hemiola lab down --name {spec.name}, or another name",
                )
        subnet = addresses.free_subnet(
            [*namespaces.apart(addresses.in_use), *(IPv4Network(o.subnet) for o in others)]
        )
        wanted = LabState(id=id_, spec=spec, owner=Owner.me(), built=False, subnet=str(subnet))
        for name in wanted.namespaces:
            if namespaces.path_of(name).exists():
                raise LabError(
                    f"there is a namespace {name!r} that no lab made", "choose another name for the lab"
                )
        save(wanted)
        return wanted
