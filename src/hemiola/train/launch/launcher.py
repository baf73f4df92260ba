"""Runs a job on its hosts to its end: starts the ranks, follows them, and ends all when one fails."""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from hemiola.core.errors import InputError
from hemiola.train.launch.hosts import HostConnection, connect
from hemiola.train.launch.output import Output
from hemiola.train.launch.places import (
    Failure,
    HostFacts,
    LaunchOutcome,
    LaunchSpec,
    World,
    defaults,
    divided,
    ending,
    rank_environments,
)

__all__ = ["GRACE_S", "launch"]

GRACE_S = 10.0
"""How long ranks have between being asked to end and being killed."""
_LOST_S = 5.0
"""So much later a host that still says nothing is given up."""
_LOOK_AGAIN_S = 1.0
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def launch(
    job: LaunchSpec,
    outputs: Callable[[World], Output],
    admit: Callable[[World], None],
    told: Callable[[Failure, int], None] = lambda failure, running: None,
) -> LaunchOutcome:
    """Run the job until all its ranks have ended; nothing of it is left running.

    Args:
        job: what to run.
        outputs: makes what takes the ranks' output.
        admit: raises if the world that was found will not do; nothing has been started then.
        told: learns of a failure with which the others go on, and how many still run.

    Raises:
        InputError: a host cannot be reached, or has not got what is to be run.
    """
    with _connected(job) as hosts:
        world = divided(job, _greeted(hosts))
        admit(world)
        output = outputs(world)
        watch = _Watch(hosts, world, output, job, told)
        try:
            watch.start()
            with _signals(watch):
                watch.follow()
        finally:
            output.close()
        return watch.outcome()


@contextmanager
def _connected(job: LaunchSpec) -> Iterator[list[HostConnection]]:
    hosts: list[HostConnection] = []
    try:
        for name in job.hosts or ("",):
            hosts.append(connect(name, job.remote_shell, job.python))
        yield hosts
    finally:
        for host in hosts:
            host.close()
        for host in hosts:
            host.status(GRACE_S + _LOST_S)


def _greeted(hosts: Sequence[HostConnection]) -> list[HostFacts]:
    """What each host says of itself, all asked at once."""
    found: dict[int, HostFacts] = {}
    with selectors.DefaultSelector() as selector:
        for i, host in enumerate(hosts):
            selector.register(host.output, selectors.EVENT_READ, i)
            selector.register(host.errors, selectors.EVENT_READ, i)
        while len(found) < len(hosts):
            for key, _ in selector.select():
                host = hosts[key.data]
                if key.fileobj is host.errors:
                    if not _listen(host):
                        selector.unregister(key.fileobj)
                    continue
                for verb, values in host.receive():
                    if verb == "hello":
                        found[key.data] = msgspec.convert(values[0], HostFacts)
                if not host.alive:
                    raise _unreachable(host)
    return [found[i] for i in range(len(hosts))]


def _listen(host: HostConnection) -> bool:
    """Keep what the remote shell says on its errors; whether more can come."""
    data = os.read(host.errors.fileno(), 1 << 16)
    host.said.extend(line for line in data.decode(errors="replace").splitlines() if line.strip())
    return bool(data)


def _unreachable(host: HostConnection) -> InputError:
    while _listen(host):
        pass
    status = host.status(_LOST_S)
    why = f": {host.said[-1]}" if host.said else ""
    where = f"on {host.name}" if host.name else "here"
    return InputError(
        f"Python cannot be started {where} (status {status}){why}",
        "see that its remote shell asks no question, and name Python there with --python"
        if host.name
        else "name a Python that runs with --python",
    )


@dataclass
class _Watch:
    """A job's hosts while it runs."""

    hosts: Sequence[HostConnection]
    world: World
    output: Output
    job: LaunchSpec
    told: Callable[[Failure, int], None]
    statuses: dict[int, int] = field(default_factory=dict)
    failure: Failure | None = None
    lost: list[Failure] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    asked: set[HostConnection] = field(default_factory=set)
    by_hand: bool = False
    interrupted: bool = False
    report: str = ""
    begun_s: float = 0.0
    wall_s: float = 0.0
    give_up_at_s: float | None = None

    def start(self) -> None:
        job, run = self.job, secrets.token_hex(8)
        keeper = [job.python, "-P", "-m", "hemiola.train.elastic.keeper", str(self.world.port)]
        for host, place in zip(self.hosts, self.world.places, strict=True):
            host.send("start", {
                "command": job.command, "needs": job.needs, "cwd": str(Path.cwd()), "keyboard": host.keyboard,
                "environment": job.environment, "defaults": defaults(place),
                "keeper": keeper if self.world.keeper and place.number == 0 else None,
                "ranks": rank_environments(self.world, place, run),
            })  # fmt: skip
        self.begun_s = time.monotonic()

    def follow(self) -> None:
        """Until every host has ended its ranks; the first failure ends the others."""
        with selectors.DefaultSelector() as selector:
            for host in self.hosts:
                selector.register(host.output, selectors.EVENT_READ, host)
                selector.register(host.errors, selectors.EVENT_READ, host)
            while any(host.alive for host in self.hosts):
                for key, _ in selector.select(self._patience_s()):
                    if key.fileobj is key.data.errors:
                        open_ = _listen(key.data)
                    else:
                        self._hear(key.data)
                        open_ = key.data.alive
                    if not open_:
                        selector.unregister(key.fileobj)
                self._give_up()
        self.wall_s = time.monotonic() - self.begun_s

    def pass_on(self, number: int) -> None:
        """A signal to the launcher is one to all ranks; the second interrupt kills."""
        again = self.by_hand and number == signal.SIGINT
        self.by_hand |= number in (signal.SIGINT, signal.SIGTERM)
        self.interrupted |= self.by_hand
        if again:
            self._end(0.0)
        else:
            for host in self.hosts:
                host.send("signal", number)

    def outcome(self) -> LaunchOutcome:
        status = self.failure.status if self.failure else 0
        return LaunchOutcome(
            128 - status if status < 0 else status, self.failure, self.interrupted, self.world.ranks,
            self.world.hosts, self.wall_s, self.report, tuple(self.lost),
        )  # fmt: skip

    def _hear(self, host: HostConnection) -> None:
        for verb, values in host.receive():
            if verb in ("out", "err"):
                self.output.take(values[0], verb, values[1].encode("latin-1"))
            elif verb == "ended":
                self._ended(host, *values)
            elif verb == "signalled":
                self._signalled(host, values[0])
            elif verb == "report":
                self.report = values[0]
            elif verb == "unkept":
                self.output.warn(
                    f"the ranks' store is lost: its process ended with {ending(values[0])}; a Membership ends now"
                )
            elif verb == "refused":
                where = f"on {host.name}: " if host.name else ""
                raise InputError(f"{where}{values[0]}", values[1])
        if not host.alive:
            self._lost(host)

    def _signalled(self, host: HostConnection, number: int) -> None:
        """A host was asked to end, and so is the job, unless it goes on with the others."""
        self.asked.add(host)
        others = [other for other in self.hosts if other.alive and other not in self.asked]
        if self.interrupted or (self.job.goes_on and others):
            return
        self.interrupted = True
        for other in others:
            other.send("signal", number)

    def _ended(self, host: HostConnection, rank: int, status: int) -> None:
        self.statuses[rank] = status
        self.output.end(rank)
        if self.world.keeper:
            self.hosts[0].send("lost", f"{rank} {ending(status)}")
        if status and self.failure is None:
            self._take(Failure(rank, host.name, status, self.output.last_words(rank)))
        self._release()

    def _lost(self, host: HostConnection) -> None:
        """Its output has ended: as it should, or before its ranks did."""
        place = self.world.places[self.hosts.index(host)]
        gone = set(range(place.first, place.first + place.ranks)) - self.statuses.keys()
        if not gone:
            return
        self.gone |= gone
        if self.failure is None:
            failure = Failure(None, host.name, host.status(_LOST_S) or 1, tuple(host.said))
            self._take(failure, is_vital=place.number == 0)
        self._release()

    def _running(self) -> int:
        """Ranks that have not ended, nor been lost with their host."""
        return sum(place.ranks for place in self.world.places) - len(self.statuses.keys() | self.gone)

    def _release(self) -> None:
        """The first host keeps the store for all, and may end once no rank is left anywhere."""
        if self.world.keeper and not self._running():
            self.hosts[0].send("end", GRACE_S)

    def _take(self, failure: Failure, is_vital: bool = False) -> None:
        """The others go on, or end. After an interrupt they end by themselves, and have as long as they want to save."""
        if self.interrupted:
            self.failure = failure
            return
        running = self._running()
        left = running + list(self.statuses.values()).count(0)  # who has ended well is not missing
        enough = left >= (self.job.ranks_min if self.job.nodes is None else 1)
        if not self.job.goes_on or is_vital or not enough:
            self._fail(failure)
            return
        self.lost.append(failure)
        self.told(failure, running)

    def _fail(self, failure: Failure) -> None:
        self.failure = failure
        self._end(GRACE_S)

    def _end(self, grace_s: float) -> None:
        self.give_up_at_s = time.monotonic() + grace_s + _LOST_S
        for host in self.hosts:
            host.send("end", grace_s)

    def _patience_s(self) -> float:
        """A signal's handler may set the time while `select` waits, hence never for long."""
        return _LOOK_AGAIN_S if self.give_up_at_s is None else max(0.0, self.give_up_at_s - time.monotonic())

    def _give_up(self) -> None:
        """A host that has not ended its ranks in time cannot be heard any more."""
        if self.give_up_at_s is not None and time.monotonic() >= self.give_up_at_s:
            for host in self.hosts:
                if host.alive:
                    host.process.kill()
                    host.alive = False
                    self._lost(host)


@contextmanager
def _signals(watch: _Watch) -> Iterator[None]:
    def pass_on(number: int, frame: FrameType | None) -> Any:
        watch.pass_on(number)

    heeded = [
        number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN
    ]  # a shell's "&"
    before = {number: signal.signal(number, pass_on) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
