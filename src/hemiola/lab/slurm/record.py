"""What is remembered of a Slurm lab between processes: one folder each, with all of its files.

BASE/lab.json         this record: written before anything starts, deleted when nothing is left
BASE/etc              slurm.conf, gres.conf, topology.conf, job_submit.lua, the munge key
BASE/log  run  state  spool  dev
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from hemiola.core.errors import LabError
from hemiola.lab import state
from hemiola.lab.slurm.spec import SlurmSpec
from hemiola.lab.state import Owner
from hemiola.trace.atomic import replacing

__all__ = [
    "Record",
    "base_of",
    "choose",
    "claim",
    "folder",
    "forget",
    "forget_claim",
    "load",
    "load_all",
    "read",
    "save",
]

SCHEMA = "hemiola.slurm-lab/1"
FILE = "lab.json"
PARTS = ("etc", "log", "run", "state", "spool", "dev")
PORTS = range(20_000, 32_000)
"""Below those that the kernel gives to outgoing connections: a daemon that starts anew finds its port free."""

PATH_MAX = 70
"""Of a socket's 107 letters, what spool/h249/h249_4294967295.4294967295 leaves."""

PORT_ON_A_NETWORK = 6818
CONTROLLER_HOST_NUMBER = 254


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A Slurm lab that was begun and not yet taken down.

    Attributes:
        id: random; part of the mark on every daemon that belongs to it.
        owner: the process with whose end the lab ends, or that still builds it; None: it stays.
        built: whether it was ready once.
        base: the folder with all of its files.
        port: the controller's; slurmrestd's is the next one, the nodes' those after it if they share its network.
        lab: whether a lab of namespaces below it was begun.
        subnet: the addresses of that lab's hosts.
    """

    schema: str = SCHEMA
    id: str
    spec: SlurmSpec
    owner: Owner | None
    built: bool = False
    base: str
    port: int
    lab: bool = False
    subnet: str | None = None

    @property
    def folder(self) -> Path:
        """The folder with all of its files."""
        return Path(self.base)

    @property
    def wake(self) -> Path:
        """What job_submit.lua writes when a job comes."""
        return self.folder / "run" / "wake"

    @property
    def conf(self) -> Path:
        """Its slurm.conf."""
        return self.folder / "etc/slurm.conf"

    @property
    def logs(self) -> Path:
        """The folder of the daemons' logs."""
        return self.folder / "log"

    @property
    def controller_address(self) -> str:
        """Where nodes and clients find the controller."""
        return self._at(CONTROLLER_HOST_NUMBER) if self.subnet else "127.0.0.1"

    @property
    def cable(self) -> str:
        """The device that leads from this machine's network to the lab's; 15 letters at most."""
        return f"hml{self.id[:10]}"

    @property
    def rest_port(self) -> int:
        """Where slurmrestd listens on this machine, if it runs."""
        return self.port + 1

    def node_address(self, node: str) -> tuple[str, int]:
        """Where the controller finds a node: address and port."""
        index = self.spec.nodes.index(node)
        return (
            (self._at(index + 1), PORT_ON_A_NETWORK) if self.subnet else ("127.0.0.1", self.port + 2 + index)
        )

    def _at(self, number: int) -> str:
        assert self.subnet is not None
        return f"{self.subnet.rpartition('.')[0]}.{number}"


def folder() -> Path:
    """Where this user's Slurm labs are remembered."""
    if os.geteuid() == 0:
        return state.FOLDER
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "hemiola" if runtime else Path(f"/tmp/hemiola-{os.geteuid()}")


def base_of(spec: SlurmSpec) -> Path:
    """The folder with all files of this user's lab of that name, whether it stands or not."""
    return folder() / f"slurm-{spec.name}"


def claim(spec: SlurmSpec, id_: str) -> Record:
    """Write down a lab that is going to be, so that whatever happens can be cleared up.

    Args:
        spec: what is wanted.
        id_: by which the lab is told from earlier ones of its name.

    Raises:
        LabError: the name is taken, or the folder cannot be written.
    """
    base = base_of(spec)
    if len(str(base)) > PATH_MAX:
        raise LabError(
            f"the path {base} is too long for the sockets below it", "set XDG_RUNTIME_DIR to a shorter one"
        )
    with _locked():
        others = load_all()
        if any(other.spec.name == spec.name for other in others):
            raise LabError(
                f"the Slurm {spec.name!r} stands already",
                f"hemiola lab slurm down --name {spec.name}, or another name",
            )
        _delete_claimed(base)
        for path in (base, *(base / part for part in PARTS)):
            path.mkdir()
            path.chmod(0o755)  # whatever the umask: clients of every user read the configuration
        (base / "state").chmod(0o700)
        port = _free_ports(2 if spec.rate else 2 + spec.node_count, others)
        record = Record(id=id_, spec=spec, owner=Owner.me(), base=str(base), port=port)
        save(record)
    return record


def save(record: Record) -> None:
    """Write a lab down, whole or not at all."""
    with replacing(record.folder / FILE) as stream:
        stream.write(msgspec.json.encode(record))


def load(name: str) -> Record:
    """The Slurm lab of this name.

    Raises:
        LabError: there is none, or its record cannot be read.
    """
    record = read(folder() / f"slurm-{name}")
    if record is None:
        stand = ", ".join(r.spec.name for r in load_all()) or "none; make one: hemiola lab slurm up"
        raise LabError(f"there is no Slurm {name!r}", f"those that stand: {stand}")
    return record


def load_all() -> tuple[Record, ...]:
    """Every Slurm lab of this user that was begun and not taken down, by name."""
    found = (read(path.parent) for path in sorted(folder().glob(f"slurm-*/{FILE}")))
    return tuple(record for record in found if record is not None)


def choose(name: str) -> Record:
    """The Slurm lab that is meant: the one named, or else the only one that no living program calls its own.

    Raises:
        LabError: none stands, or it is not clear which is meant.
    """
    if name:
        return load(name)
    free = [record for record in load_all() if record.owner is None or not record.owner.lives]
    if len(free) == 1:
        return free[0]
    if not free:
        raise LabError("no Slurm stands", "make one: hemiola lab slurm up --nodes 8")
    raise LabError(
        f"{len(free)} Slurms stand: {', '.join(r.spec.name for r in free)}", "say which: --name NAME"
    )


def forget(record: Record) -> None:
    """Delete all files of a lab, its record last; nothing happens where they are another's by now."""
    if not record.folder.exists():
        return
    with _locked():  # nobody is about to claim the name
        present = read(record.folder)
        if present is None or present.id != record.id:
            return
        for path in record.folder.iterdir():
            if path.name != FILE:
                shutil.rmtree(path, ignore_errors=True)
        (record.folder / FILE).unlink(missing_ok=True)
        shutil.rmtree(record.folder, ignore_errors=True)


def forget_claim(base: Path) -> None:
    """Delete a lab's folder that has no record: the process that claimed it was killed before it wrote one."""
    with _locked():  # nobody is about to write one
        if read(base) is None:
            _delete_claimed(base)


def read(base: Path) -> Record | None:
    """The record in a lab's folder; None where there is none, or none any more."""
    path = base / FILE
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Record)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LabError(
            f"{path} is damaged: {error}", f"end what `pgrep -af {base}` shows, and delete {base}"
        ) from None
    if record.schema != SCHEMA:
        raise LabError(
            f"{path} is of the kind {record.schema!r}, not {SCHEMA!r}", "take it down as it was made"
        )
    return record


def _delete_claimed(base: Path) -> None:
    """What a claim left that was killed before it wrote its record."""
    if base.is_symlink() or base.exists():
        shutil.rmtree(base)


@contextmanager
def _locked() -> Iterator[None]:
    """One process at a time claims a lab, its name and its ports, or gives them back."""
    place = folder()
    try:
        place.mkdir(mode=0o755, exist_ok=True)
        found = place.lstat()
        if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
            raise LabError(f"{place} belongs to someone else", "set XDG_RUNTIME_DIR to a folder of yours")
        handle = os.open(place, os.O_RDONLY)
    except OSError as error:
        raise LabError(
            f"cannot keep records in {place}: {error.strerror}", f"make {place.parent} writable"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _free_ports(count: int, others: tuple[Record, ...]) -> int:
    """The first of so many free ports in a row that no other Slurm lab of this user counts on."""
    taken = {other.port + i for other in others for i in range(2 + other.spec.node_count)}
    for first in random.sample(PORTS, len(PORTS)):
        wanted = range(first, first + count)
        if taken.isdisjoint(wanted) and all(map(_is_free, wanted)):
            return first
    raise LabError(f"no {count} free ports in a row from {PORTS.start}", "take down other Slurms")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Slurm's daemons do
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
