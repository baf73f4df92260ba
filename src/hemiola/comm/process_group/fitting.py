"""How a group comes to its schedules: measured, from a topology, or given. The first rank decides for all."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import msgspec
from torch.distributed import DistNetworkError, DistStoreError, PrefixStore

from hemiola.comm.probe.measure import Homes, ProbeMeasurement, Prober, measured_topology
from hemiola.comm.process_group.balanced import Balanced
from hemiola.comm.process_group.fitted import LATE, Fitted, Refresh
from hemiola.comm.schedule_executor.flow import Meter
from hemiola.comm.schedule_executor.runner import Runner
from hemiola.comm.transport import Endpoint, Handle, TransportOptions
from hemiola.comm.transport.endpoint import Peer, forget, meet
from hemiola.core.collective.schedule import Collective, CollectiveSchedule
from hemiola.core.errors import HemiolaError, InputError, TransportError
from hemiola.cost.network_fit import FittedNetwork
from hemiola.plan.collective.balance import RANKS
from hemiola.plan.collective.planner import SchedulePlanner, size_class
from hemiola.trace.msccl import read_msccl
from hemiola.trace.struct_json import read_schedule
from hemiola.trace.topologies import read_topology

__all__ = ["fitting"]

_log = logging.getLogger("hemiola.strategy")
MEASURED = ("auto", "follow")
"""Measured when the group is opened and again later. While links change, shares of all-reduces follow what they take; with the
second they do from the beginning."""
AGAIN_S = 20e-3
"""A round of a measurement while a job runs."""
ONE_WAY = 1.3
"""A link that is so many times faster one way is not told by what comes over it."""
_THERE = (3 << 61) + 67
"""A tag, beside those of the probe."""
LOOK_S = 1.0
"""Who waits for the first rank's word looks this often whether that is still there."""
_Lost = Callable[[], Mapping[int, str]]
"""The ranks that are gone, and why."""
_Key = tuple[Collective, int, int]
"""What a schedule is for: the kind, the class of sizes, the root."""


class _Plan(Protocol):
    """At the first rank: what fits."""

    def __call__(
        self, collective: Collective, size_bytes: float, root: int, keep: CollectiveSchedule | None
    ) -> CollectiveSchedule | None:
        """None for the usual way; `keep` is what was used until now."""


class _Told(msgspec.Struct):
    """What the first rank tells the others: a schedule, none for the usual way, or what went wrong."""

    schedule: CollectiveSchedule | None = None
    problem: str = ""
    hint: str = ""


def fitting(
    wanted: str,
    late: str,
    store: Any,
    end: Endpoint,
    peers: Sequence[Peer],
    timeout_s: float,
    options: TransportOptions,
) -> Fitted:
    """As HEMIOLA_STRATEGY and HEMIOLA_STRAGGLERS say at the first rank.

    Args:
        store: of this group alone.
        options: of the endpoint.
        wanted: one of `MEASURED`, a file, or "" for the usual schedules.
        late: "relay", "carry-over", or "wait" or "" to wait for late ranks.
        peers: all ranks.

    Raises:
        InputError: they say something else, or the file is wrong; at every rank.
        TransportError: a rank is lost while it is measured.
    """
    if late not in LATE:
        raise InputError(f"HEMIOLA_STRAGGLERS={late}", f"use one of {', '.join(LATE[1:])}")
    if wanted in MEASURED:
        # Over connections of their own: bursts leave TCP with a low idea of what a link can take. At 400 Mbit/s,
        # all-reduces of 2 MiB took up to a third longer after them, and 20 of them to recover.
        probing, _ = meet(PrefixStore("probe", store), end.rank, end.ranks, options)
        try:
            measured = _Measured(store, probing, peers, timeout_s)
            meter = Meter(end)
            runner = Runner(end, moved=meter.look)
            balanced = Balanced(end, runner, meter, measured.rates) if late in LATE[:2] else None
            refresh = Refresh(end, timeout_s, measured.renew, balanced, wanted == "follow")
            refresh.measure()
            renewed = refresh if measured.hosts > 1 else None
            return Fitted(runner, measured, timeout_s, renewed, late, balanced, probing)
        except BaseException:
            probing.close(0.0)  # others may wait for what this rank has measured
            raise
    chosen = _Chosen(store, _told(wanted, store, end, peers), lambda: end.lost) if wanted else _Usual()
    return Fitted(Runner(end), chosen, timeout_s, None, late)


def _told(wanted: str, store: Any, end: Endpoint, peers: Sequence[Peer]) -> _Plan | None:
    """What a file says; read by the first rank, which tells all if it is wrong."""
    plan: _Plan | None = None
    told: _Told | None = None
    if end.rank == 0:
        told = _Told()
        try:
            plan = _given(wanted, end.ranks, peers)
        except HemiolaError as problem:
            told = _Told(problem=problem.what, hint=problem.remedy)
    found = _agreed(store, "schedule/begin", told, lambda: end.lost)
    if found.problem:
        raise InputError(f"HEMIOLA_STRATEGY={wanted}: {found.problem}", found.hint)
    return plan


class _Usual:
    """All goes the usual way."""

    epoch = 0

    def choose(self, collective: Collective, size_bytes: int, root: int, epoch: int | None = None) -> None:
        """Nobody is asked."""


class _Chosen:
    """Asks the first rank once for every kind of collective, size and root, in every epoch: from one measurement to the next."""

    def __init__(self, store: Any, plan: _Plan | None, lost: _Lost = dict) -> None:
        self._store, self._plan, self._lost = store, plan, lost
        self._guard = threading.Lock()
        self._epoch = 0
        self._known: dict[int, dict[_Key, CollectiveSchedule | None]] = {}
        """By epoch; of the present one and the one before, and of those that others are in already."""
        self._before: dict[_Key, CollectiveSchedule | None] = {}
        self._told: dict[int, list[str]] = {}
        """At the first rank, what was left in the store, by epoch."""

    @property
    def epoch(self) -> int:
        """The present one; the same at every rank between the same two collectives."""
        return self._epoch

    def choose(
        self, collective: Collective, size_bytes: int, root: int, epoch: int | None = None
    ) -> CollectiveSchedule | None:
        """For a collective of so many bytes in all, with this root; None for the usual way.

        Args:
            epoch: of who began it; the present one unless given.

        Raises:
            TransportError: the first rank is lost, or says nothing as long as the store waits.
        """
        key = (collective, size_class(size_bytes), root)
        with self._guard:  # sums that go on without late ranks ask from a thread of their own
            epoch = self._epoch if epoch is None else epoch
            known = self._known.setdefault(epoch, {})
            where = f"schedule/{epoch}/{collective}/{key[1]}/{root}"
            if self._plan is not None and key not in known:
                known[key] = self._planned(key)
                self._told.setdefault(epoch, []).append(where)
                _agreed(self._store, where, _Told(known[key]), self._lost)
            if key in known:
                return known[key]
        found = _agreed(self._store, where, None, self._lost).schedule  # the first rank may not be there yet
        with self._guard:
            return known.setdefault(key, found)

    def begin_epoch(self, plan: _Plan | None) -> None:
        """Another plan from now on, at the first rank; called by all between the same two collectives."""
        with self._guard:
            self._before |= self._known.get(self._epoch, {})
            self._plan = plan
            self._epoch += 1
            self._known = {e: known for e, known in self._known.items() if e >= self._epoch - 1}

    def forget_before(self, epoch: int) -> None:
        """Nobody will ask for what was told in earlier ones."""
        with self._guard:
            gone = [self._told.pop(earlier) for earlier in list(self._told) if earlier < epoch]
        forget(self._store, itertools.chain(*gone))

    def _planned(self, key: _Key) -> CollectiveSchedule | None:
        """At the first rank; the usual way if planning fails, for the others wait for its word."""
        assert self._plan is not None
        try:
            return self._plan(*key, self._before.get(key))
        except Exception:
            _log.exception("no schedule for %s of %d bytes: it goes the usual way", key[0], key[1])
            return None


class _Measured(_Chosen):
    """By what the first ranks of all hosts measure."""

    def __init__(self, store: Any, end: Endpoint, peers: Sequence[Peer], timeout_s: float) -> None:
        super().__init__(store, None, lambda: end.lost)
        self._end, self._timeout_s = end, timeout_s
        self._homes = Homes.of(peers)
        self.hosts = len(self._homes.names)
        self._found: ProbeMeasurement | None = None
        self._rates: list[float] | None = None
        self._there: dict[int, list[Handle]] = {}
        """At the first rank, the others' words that they are in an epoch."""

    def renew(self, slower: float) -> None:
        """Measure, with all other ranks; more thoroughly the first time.

        Args:
            slower: how much slower links may have become since.
        """
        plan: _Plan | None = _usual if self._end.rank == 0 else None
        homes = self._homes
        if self.hosts > 1 and self._end.rank in homes.firsts:
            prober, before = Prober(self._end, homes.firsts, self._timeout_s), self._found
            if before is None:
                self._found = found = prober.measure(passes_most=1)
            else:
                self._found = found = prober.measure_again(before, AGAIN_S, slower)
            if self._end.rank == 0:
                self._rates = _rates_alone(found.fit(), homes) if self.hosts == self._end.ranks else None
                hosts = [homes.names[host] for host in homes.host_of]
                plan = SchedulePlanner(measured_topology(found, homes), hosts).schedule
        self.begin_epoch(plan)
        self._forget()

    def _forget(self) -> None:
        """What no rank needs any more. One that does not measure may be epochs behind."""
        if self._end.rank:
            self._end.send(0, _THERE, b"", priority=-1)
            return
        others = range(1, self._end.ranks)
        self._there[self._epoch] = [self._end.receive(peer, _THERE, bytearray(0)) for peer in others]
        reached = [epoch for epoch, words in self._there.items() if all(word.done for word in words)]
        self.forget_before(min(self._epoch - 1, max(reached, default=0)))
        for epoch in reached[:-1]:
            del self._there[epoch]

    def rates(self) -> list[float] | None:
        """At the first rank, bytes/s of each rank's link; None where it is not its alone, or that does not say all."""
        return self._rates


def _rates_alone(fitted: FittedNetwork, homes: Homes) -> list[float] | None:
    """Of each rank's host; None unless that is all there is to know of the network."""
    ratios = [out.bytes_per_s / into.bytes_per_s for out, into in zip(fitted.out, fitted.into, strict=True)]
    if fitted.groups or len(homes.names) not in RANKS or max(*ratios, *(1 / r for r in ratios)) > ONE_WAY:
        return None
    return [fitted.rate(host).bytes_per_s for host in homes.host_of]


def _usual(collective: Collective, size_bytes: float, root: int, keep: CollectiveSchedule | None) -> None:
    """The usual way."""


def _agreed(store: Any, key: str, told: _Told | None, lost: _Lost) -> _Told:
    """The first rank's word; at that rank, it is `told`."""
    if told is not None:
        store.set(key, msgspec.json.encode(told))
        return told
    patience_s = store.timeout.total_seconds()
    gone: DistNetworkError | None = None
    for _ in range(max(1, math.ceil(patience_s / LOOK_S))):
        try:
            store.wait([key], timedelta(seconds=min(LOOK_S, patience_s)))
            return msgspec.json.decode(bytes(store.get(key)), type=_Told)
        except DistNetworkError as problem:
            gone = problem
            time.sleep(LOOK_S)  # rank 0 may have kept it: until the transport knows, too
        except RuntimeError as problem:  # not yet, which a FileStore says by no kind of its own
            if not isinstance(problem, DistStoreError) and "timeout" not in str(problem):
                raise
        if 0 in lost():
            raise TransportError(f"rank 0, which chooses the schedules, is gone: {lost()[0]}") from gone
        if gone is not None:
            raise TransportError(
                f"the store where rank 0 says which schedules it chooses is gone: {gone}",
                "look at what rank 0, or whoever started the ranks, logged",
            ) from gone
    raise TransportError(
        f"rank 0 chose no schedule within {patience_s:g} s",
        "it may not have come to this collective: see what it waits for",
    )


def _given(path: str, ranks: int, peers: Sequence[Peer]) -> _Plan:
    """By a file, which only the first rank needs to have."""
    file = Path(path)
    kind = file.suffix.lower()
    if kind in (".json", ".xml"):
        schedule = (read_msccl(file) if kind == ".xml" else read_schedule(file)).verify()
        schedule.check_ranks(ranks)

        def plan(
            collective: Collective, size_bytes: float, root: int, keep: CollectiveSchedule | None
        ) -> CollectiveSchedule | None:
            fits = schedule.collective == collective and schedule.root == root
            return schedule if fits else None

        return plan
    topology = read_topology(path, keep_unusable=True)  # whatever their state, its ranks run on them
    known = set(topology.hosts.names)
    hosts = [
        next((name for name in (peer.address, *peer.names) if name in known), peer.address) for peer in peers
    ]
    return SchedulePlanner(topology, hosts).schedule
