"""What a live engine's driver offers beside the three methods of every driver."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from hemiola.core.decisions import Decision, Placement
from hemiola.core.events import Event
from hemiola.core.job import Batch
from hemiola.core.topology import Topology
from hemiola.live.journal import RunRecord
from hemiola.sched.loop import Driver
from hemiola.trace.reports import HostReport
from hemiola.trace.topologies.native import read_native

__all__ = [
    "DriverWrapper",
    "Identity",
    "LiveDriver",
    "Topologies",
    "Vanished",
    "fits",
    "is_same_place",
    "renumbered",
]


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine calls a job.

    Attributes:
        engine_id: may be used again for another job.
        submit_s: Unix time, as the engine says it.
        user, name: owner, and the owner's name for it.
        memory: what the driver wants back after a restart, to find the job again.
        note: why it cannot be placed; "" if it can.
        misread: what of its user's words was not understood.
        binds_failed: in a row.
        iteration_s: as the job reports it; None where it does not.
        runs: whether it has been seen running where it was put last.
    """

    engine_id: str
    submit_s: float
    user: str
    name: str = ""
    memory: str = ""
    note: str = ""
    misread: str = ""
    binds_failed: int = 0
    iteration_s: float | None = None
    runs: bool = False


class Vanished(NamedTuple):
    """A job that is no longer there, and was not in the view.

    Attributes:
        job_id: ours.
        outcome: how it ended, in words.
        ended_s: when, by the engine's word; None where it does not say.
        ran: whether it had begun, by the engine's word.
    """

    job_id: str
    outcome: str
    ended_s: float | None = None
    ran: bool = False


class LiveDriver(Driver):
    """Hands on a real engine. It never raises because the engine is away: it waits, and says so in `away`.

    Attributes:
        away: why the engine cannot be asked at present; "" if it can.
    """

    away: str

    @abstractmethod
    def identity(self, job_id: str) -> Identity | None:
        """Of a job by our id; also of one that ended within this run."""

    def counters(self) -> dict[str, HostReport]:
        """What hosts report of their network cards, by name."""
        return {}

    def refused(self) -> list[tuple[Batch, str]]:
        """Jobs that could never run here, and why; each once. They are not in the view."""
        return []

    def impossible(self) -> list[Batch]:
        """Those of them that are there."""
        return []

    @abstractmethod
    def vanished(self) -> list[Vanished]:
        """Jobs of the time before that ended while nobody looked, and refused ones that are gone; each once."""

    @abstractmethod
    def answers(self) -> list[tuple[str, bool, str]]:
        """What became of decisions since this was last asked: the job, whether it was carried out, the engine's words."""

    @abstractmethod
    def advise(self, decision: Decision) -> None:
        """Write down at the engine's job what would be decided about it; nothing else changes."""

    @abstractmethod
    def hand_back(self) -> None:
        """Give all jobs that wait to the engine's own scheduler, as they were."""

    @abstractmethod
    def add(self, events: Sequence[Event]) -> None:
        """Have `events` bring these, too, at once; on the thread that runs them, as from `Run.turned`."""

    @abstractmethod
    def stop(self) -> None:
        """End `events` after the present instant; any thread may ask."""


class DriverWrapper(LiveDriver):
    """A driver around another one: whatever it does not do itself, the inner one does."""

    def __init__(self, inner: LiveDriver) -> None:
        self._inner = inner
        self.supports = inner.supports

    @property
    def away(self) -> str:  # type: ignore[override]
        """Why the engine cannot be asked."""
        return self._inner.away

    def events(self) -> Iterator[list[Event]]:
        """The inner one's."""
        return self._inner.events()

    def execute(self, decision: Decision) -> None:
        """By the inner one."""
        self._inner.execute(decision)

    def render(self, decision: Decision) -> str:
        """What the engine would be asked."""
        return self._inner.render(decision)

    def identity(self, job_id: str) -> Identity | None:
        """Of the engine."""
        return self._inner.identity(job_id)

    def counters(self) -> dict[str, HostReport]:
        """Of the engine."""
        return self._inner.counters()

    def refused(self) -> list[tuple[Batch, str]]:
        """Of the engine."""
        return self._inner.refused()

    def impossible(self) -> list[Batch]:
        """Of the engine."""
        return self._inner.impossible()

    def vanished(self) -> list[Vanished]:
        """Of the engine."""
        return self._inner.vanished()

    def answers(self) -> list[tuple[str, bool, str]]:
        """Of the engine."""
        return self._inner.answers()

    def advise(self, decision: Decision) -> None:
        """At the engine."""
        self._inner.advise(decision)

    def hand_back(self) -> None:
        """Of the engine."""
        self._inner.hand_back()

    def add(self, events: Sequence[Event]) -> None:
        """To the inner one's."""
        self._inner.add(events)

    def stop(self) -> None:
        """End it."""
        self._inner.stop()


# What the hosts' numbers in a placement mean: each run has a topology of its own, and hosts come and go
# between two.


def fits(placement: Placement, topology: Topology) -> bool:
    """Whether all of these GPUs are there."""
    gpus = topology.hosts.gpus
    return all(
        host < len(gpus) and mask.bit_length() <= gpus[host]
        for host, mask in zip(placement.hosts, placement.masks, strict=True)
    )


def renumbered(placement: Placement | None, before: Topology, now: Topology) -> Placement | None:
    """The same GPUs of the same hosts by another topology's numbers; None where it does not have them all."""
    if placement is None or not fits(placement, before):
        return None
    numbers = {name: host for host, name in enumerate(now.hosts.names)}
    names = [before.hosts.names[host] for host in placement.hosts]
    if not numbers.keys() >= set(names):
        return None
    found = Placement(tuple(numbers[name] for name in names), placement.masks)
    return found if fits(found, now) else None


def is_same_place(one: Placement | None, other: Placement | None) -> bool:
    """Whether they have as many GPUs of the same hosts: engines tell neither which GPUs, nor the order of ranks."""
    return _counts(one) == _counts(other)


def _counts(placement: Placement | None) -> dict[int, int]:
    if placement is None:
        return {}
    counts = (mask.bit_count() for mask in placement.masks)
    return dict(zip(placement.hosts, counts, strict=True))


class Topologies:
    """Of a journal's runs, each read once.

    Args:
        where: what to call the journal in an error.
    """

    def __init__(self, runs: Sequence[RunRecord], where: str) -> None:
        self._runs, self._where = runs, where
        self._began_s = [run.began_s for run in runs]
        self._read: dict[str, Topology] = {}

    def at(self, ended_s: float | None = None) -> Topology | None:
        """What the placement of a job goes by that ended then, or has not ended; None where no run was."""
        index = len(self._runs) if ended_s is None else bisect_right(self._began_s, ended_s)
        if not index:
            return None
        text = self._runs[index - 1].opening.topology
        if text not in self._read:
            self._read[text] = read_native(text, self._where)
        return self._read[text]
