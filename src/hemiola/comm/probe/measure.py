"""Rounds in which pairs of ranks send to each other for a while, timed where data arrives.

Everybody waits for everybody between rounds, so that none overruns another. A round has all its flows under way from
its begin to its end, however fast each is; what arrives after its first part counts, for queues and buffers take the
first data faster than the link does.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hemiola.comm.transport import Endpoint, Handle, TransportOptions
from hemiola.comm.transport.endpoint import Peer, meet
from hemiola.comm.transport.home import home_interface, interface_of, missing_variables, store_is_kept
from hemiola.core.errors import HemiolaError, InputError, TransportError
from hemiola.core.topology import Hosts, Level, MeasuredLink, Topology
from hemiola.cost.network_fit import (
    FittedNetwork,
    Pairs,
    ProbedFlow,
    RateInterval,
    fans,
    fit_network,
    matchings,
    probe_rounds,
)
from hemiola.trace.topologies.native import topology_text

__all__ = [
    "Affinity",
    "Arrivals",
    "Homes",
    "ProbeMeasurement",
    "Probed",
    "Prober",
    "exchange",
    "measured_topology",
    "own_affinity",
    "probe",
]

# One rank's part of a round: it sends to several others for a while, and notes what comes from several
# meanwhile.

AT_ONCE = 4
"""Messages of one stream that are handed to the transport at a time. Each is followed by another one, or is a last."""


class Arrivals:
    """What came from one sender.

    Attributes:
        at_s: of each message, on this host's monotonic clock.
    """

    def __init__(self, size_bytes: int) -> None:
        """Of messages of this size."""
        self._size_bytes = size_bytes
        self.at_s: list[float] = []

    def rate(self, begin_s: float, since_s: float, until_s: float) -> float:
        """Bytes/s between two moments, of a stream that began before them. Messages come evenly."""
        times = [begin_s, *self.at_s]
        came = np.interp([since_s, until_s], times, np.arange(len(times))) * self._size_bytes
        return float(came[1] - came[0]) / (until_s - since_s)


def exchange(
    end: Endpoint, tag: int, to: Mapping[int, int], since: Mapping[int, int], begin: Callable[[], float],
    seconds: float, timeout_s: float,
) -> tuple[float, dict[int, Arrivals]]:  # fmt: skip
    """Send for so long, and take what comes: when it began, and what came by the rank that sent it.

    Args:
        to: bytes of each message, by the rank that it is for.
        since: bytes of each message, by the rank that sends it.
        begin: waits until all ranks await what comes; the moment at which that is known here.

    Raises:
        TransportError: a rank is lost, or something does not end in time.
    """
    found = {peer: Arrivals(size) for peer, size in since.items()}
    over = [_take(end, peer, tag, size, found[peer]) for peer, size in since.items() for _ in range(AT_ONCE)]
    begun_s = begin()
    for peer, size in to.items():
        over += [_send(end, peer, tag, size, begun_s + seconds) for _ in range(AT_ONCE)]
    try:
        for one in over:
            one.result(timeout_s)
    except Late:
        raise TransportError(f"a measurement did not end within {timeout_s:g} s", "wait longer") from None
    return begun_s, found


def _send(end: Endpoint, peer: int, tag: int, size: int, until_s: float) -> Future[None]:
    """Message after message until then, and one that says that it is the last."""
    data, last = bytes(size), b"\1" + bytes(size - 1)
    is_last = False

    def another() -> Handle | None:
        nonlocal is_last
        if is_last:
            return None
        is_last = time.monotonic() >= until_s
        return end.send(peer, tag, last if is_last else data)

    return _one_after_another(another)


def _take(end: Endpoint, peer: int, tag: int, size: int, into: Arrivals) -> Future[None]:
    """Message after message, to a last one."""
    data = bytearray(size)
    begun = False

    def another() -> Handle | None:
        nonlocal begun
        if begun:
            into.at_s.append(time.monotonic())
        begun = True
        return None if data[0] else end.receive(peer, tag, data)

    return _one_after_another(another)


def _one_after_another(another: Callable[[], Handle | None]) -> Future[None]:
    """Each when the one before it has ended; done when there is no other, or one of them has failed."""
    over: Future[None] = Future()

    def go_on(before: Handle | None) -> None:
        try:
            if before is not None and before.problem is not None:
                raise before.problem
            handle = another()
        except HemiolaError as problem:
            over.set_exception(problem)
            return
        if handle is None:
            over.set_result(None)
        else:
            handle.add_callback(go_on)

    go_on(None)
    return over


_TAGS = 3 << 61
"""Above all others'."""
_DATA, _PING, _UP, _DOWN = range(4)
PIECES = 16
"""Messages that a flow would send in a round at the rate that is expected of it."""
WARM = 0.3
"""Of a round's time, so much passes before what arrives counts."""
ROUND_S = 60e-3
RAMP_S = 5e-3
"""Of the first rounds, which nothing is expected of yet."""
_LEAST_BYTES, _MOST_BYTES = 4 << 10, 1 << 20
PINGS = 20
FORGOTTEN = 0.9
"""Of what a rank was once seen to send or take, so much is believed after a round in which it was not."""
AGAIN_MOST = 7
"""Rounds of pairs when it is measured again."""
BEYOND = 1.5
"""So many times as fast as all others, a host is measured with several of them at once."""
_ENOUGH = 0.10
"""Intervals so narrow, relative to their rates, end the measurement."""

Floats = NDArray[np.float64]


@dataclass
class ProbeMeasurement:
    """What was measured, at the first of the ranks; others have nothing.

    Attributes:
        ranks: that took part.
        rounds: flows between them, by their place among `ranks`.
        known: groups behind uplinks that were found before; None to look for them.
        latency_s: of a small message between two of them, the least of several; shape (ranks, ranks), 0 within
            and between those that did not meet.
        few: whether there are so few rounds that the fastest tells a rate, where else the second fastest does.
        seconds: that it took.
        sent_bytes: by all together.
    """

    ranks: tuple[int, ...]
    rounds: list[list[ProbedFlow]] = field(default_factory=list)
    known: tuple[tuple[int, ...], ...] | None = None
    latency_s: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    few: bool = False
    seconds: float = 0.0
    sent_bytes: int = 0

    def fit(self) -> FittedNetwork:
        """The network that explains it."""
        return fit_network(len(self.ranks), self.rounds, self.known, self.few)

    def is_narrow(self) -> bool:
        """Whether the intervals of all hosts' rates are."""
        fitted = fit_network(len(self.ranks), self.rounds, ())  # uplinks change nothing about them
        return all(fitted.rate(host).spread < _ENOUGH for host in range(len(self.ranks)))


class Prober:
    """One rank's side; all ranks that take part do the same at the same time, and nothing else meanwhile."""

    def __init__(self, end: Endpoint, ranks: Sequence[int], timeout_s: float) -> None:
        """Over a connected endpoint, among these ranks: one of each host."""
        self._end, self._ranks, self._timeout_s = end, tuple(ranks), timeout_s
        self._place = self._ranks.index(end.rank)
        self._count = len(self._ranks)
        self._able = np.zeros(self._count)
        """What each can send or take, as far as is known."""
        self._found = ProbeMeasurement(self._ranks)

    def measure(
        self, seconds_most: float = 8.0, passes_most: int = 3, round_s: float = ROUND_S
    ) -> ProbeMeasurement:
        """Measure all links.

        Args:
            seconds_most: no further pass begins that would probably end after so long.
            passes_most: of all rounds; fewer, where the intervals are narrow.
            round_s: that a round is to take.

        Raises:
            TransportError: a rank is lost, or does not take part in time.
        """
        start = time.monotonic()
        if self._count < 2:
            return self._found
        all_pairs = list(matchings(self._count))
        latency_s = np.zeros((self._count, self._count))
        for pairs in all_pairs:
            self._ping(pairs, latency_s)
        tables = self._gathered(latency_s)
        self._found.latency_s = latency_s if self._place else tables.sum(0)
        for seconds in (RAMP_S, round_s / 3):
            for pairs in all_pairs:
                self._round(pairs, seconds, keep=False)
        for number in itertools.count(1):
            begun = time.monotonic()
            for pairs in probe_rounds(self._count, number):
                self._round(pairs, round_s)
            now = time.monotonic()
            enough = number >= passes_most or now + (now - begun) - start > seconds_most
            enough = enough or (not self._place and self._found.is_narrow())
            if self._told(np.array([float(enough)]))[0]:
                break
        self._found.seconds = time.monotonic() - start
        return self._found

    def measure_again(
        self, before: ProbeMeasurement, round_s: float, slower: float = 1.0
    ) -> ProbeMeasurement:
        """Measure rates alone, in a few rounds: latencies and who shares an uplink are taken from before.

        Args:
            slower: how much slower links may have become, as far as the first rank knows.

        Raises:
            TransportError: as `measure`.
        """
        start = time.monotonic()
        self._found.latency_s, self._found.few = before.latency_s, True
        believed = np.zeros(self._count)
        if not self._place:
            fitted = before.fit()
            self._found.known = before.known
            if before.known is None:
                self._found.known = tuple(group.hosts for group in fitted.groups)
            believed = np.array([fitted.rate(host).bytes_per_s for host in range(self._count)])
            self._able = believed / slower
        for pairs in matchings(self._count, most=AGAIN_MOST):
            self._round(pairs, round_s)
        for host in np.flatnonzero(self._told(self._beyond(believed))):
            for pairs in fans(self._count, int(host)):
                self._round(pairs, round_s)
        self._found.seconds = time.monotonic() - start
        return self._found

    def _beyond(self, believed: Floats) -> Floats:
        """Not 0 for the host, if there is one, that was so fast that no other can have shown what it does now."""
        found = np.zeros(self._count)
        fastest = int(believed.argmax())
        others = np.delete(self._able, fastest)
        if self._count > 2 and not self._place and believed[fastest] > BEYOND * others.max():
            found[fastest] = 1.0
        return found

    def _ping(self, pairs: Pairs, latency_s: Floats) -> None:
        """Small messages there and back again, in pairs."""
        data, into = bytearray(64), bytearray(64)
        for a, b in pairs[::2]:
            if self._place not in (a, b):
                continue
            peer = self._ranks[b if self._place == a else a]
            took = []
            for _ in range(PINGS):
                start = time.perf_counter()
                coming = self._end.receive(peer, _TAGS + _PING, into)
                if self._place == a:
                    self._end.send(peer, _TAGS + _PING, data)
                coming.wait(self._timeout_s)
                if self._place == b:
                    self._end.send(peer, _TAGS + _PING, data)
                took.append(time.perf_counter() - start)
            if self._place == a:
                latency_s[a, b] = latency_s[b, a] = min(took) / 2
        self._all_here()

    def _round(self, pairs: Pairs, seconds: float, keep: bool = True) -> None:
        """One round; what is found is added where the first rank is."""
        self._able = self._told(self._able)
        sizes = {pair: self._size(pair, pairs, seconds) for pair in pairs}
        place = self._place
        to = {self._ranks[b]: size for (a, b), size in sizes.items() if a == place}
        since = {self._ranks[a]: size for (a, b), size in sizes.items() if b == place}
        begun_s, came = exchange(
            self._end, _TAGS + _DATA, to, since, self._all_here, seconds, self._timeout_s
        )
        rates = np.zeros(self._count)
        for rank, arrivals in came.items():
            window = begun_s + WARM * seconds, begun_s + seconds
            rates[self._ranks.index(rank)] = arrivals.rate(begun_s, *window)
        table = self._gathered(rates)  # by receiver and sender
        if place:
            return
        for total in (table.sum(0), table.sum(1)):
            self._able = np.maximum(self._able * FORGOTTEN, total)
        if keep:
            self._found.rounds.append([ProbedFlow(a, b, max(float(table[b, a]), 1.0)) for a, b in pairs])
        self._found.sent_bytes += int(table.sum() * seconds)

    def _size(self, pair: tuple[int, int], pairs: Pairs, seconds: float) -> int:
        """Bytes of each of its messages, so that there are enough of them in a round of so long."""
        a, b = pair
        share = min(
            self._able[a] / sum(one == a for one, _ in pairs),
            self._able[b] / sum(other == b for _, other in pairs),
        )
        return int(min(max(share * seconds / PIECES, _LEAST_BYTES), _MOST_BYTES))

    # --- everybody with the first one

    def _all_here(self) -> float:
        """Once everybody is here: the moment at which this rank learns it."""
        self._gathered(np.zeros(1))
        self._told(np.zeros(1))
        return time.monotonic()

    def _gathered(self, own: Floats) -> Floats:
        """Everybody's numbers at the first rank, once all are here; elsewhere nothing of use."""
        if self._place:
            self._end.send(self._ranks[0], _TAGS + _UP, own.tobytes()).wait(self._timeout_s)
            return own
        rows = np.zeros((self._count, *own.shape))
        rows[0] = own
        for handle in [self._asked(rank, _UP, rows[k]) for k, rank in enumerate(self._ranks) if k]:
            handle.wait(self._timeout_s)
        return rows

    def _told(self, numbers: Floats) -> Floats:
        """The first rank's numbers."""
        if self._place:
            found = np.zeros(numbers.shape)
            self._asked(self._ranks[0], _DOWN, found).wait(self._timeout_s)
            return found
        data = numbers.tobytes()
        for handle in [self._end.send(rank, _TAGS + _DOWN, data) for rank in self._ranks[1:]]:
            handle.wait(self._timeout_s)
        return numbers

    def _asked(self, rank: int, what: int, into: Floats) -> Handle:
        return self._end.receive(rank, _TAGS + what, into.reshape(-1).view(np.uint8).data)


# What a probe found, as a topology.

LEVEL = "rack"
_UNLIMITED = math.inf


@dataclass(frozen=True)
class Homes:
    """Which ranks share a host.

    Attributes:
        names: of the hosts, in the order of their first ranks.
        host_of: of every rank, its host's place among them.
    """

    names: tuple[str, ...]
    host_of: tuple[int, ...]

    @classmethod
    def of(cls, peers: Sequence[Peer]) -> Homes:
        """By their addresses; called by them where two have the same name."""
        addresses = list(dict.fromkeys(peer.address for peer in peers))
        names = [next(one.names[0] for one in peers if one.address == address) for address in addresses]
        return cls(
            tuple(names if len(set(names)) == len(names) else addresses),
            tuple(addresses.index(peer.address) for peer in peers),
        )

    @property
    def firsts(self) -> tuple[int, ...]:
        """The first rank of each."""
        return tuple(self.host_of.index(host) for host in range(len(self.names)))

    @property
    def counts(self) -> tuple[int, ...]:
        """The ranks of each."""
        return tuple(self.host_of.count(host) for host in range(len(self.names)))


def measured_topology(
    found: ProbeMeasurement, homes: Homes, name: str = "measured", gpus: Sequence[int] = ()
) -> Topology:
    """The topology of the hosts that were measured.

    Rates are of data: what headers take is not in them. A host's is that of its slower direction.

    Args:
        homes: of the ranks, the first of each of which measured.
        gpus: of each host; as many as it has ranks where that is more, or unless given.
    """
    names = homes.names
    each = np.maximum(homes.counts, gpus or homes.counts)
    fitted = found.fit()
    rates = [fitted.rate(host) for host in range(len(names))]
    latency_s = np.where(
        found.latency_s > 0, found.latency_s, np.inf
    )  # where there are many, not all pairs meet
    count = len(names)
    hosts = Hosts(
        names=tuple(names),
        gpus=each,
        gpu_types=("",) * count,
        nic_bytes_per_s=np.array([_tidy(rate.bytes_per_s) for rate in rates]),
        nic_latency_s=latency_s.min(1).round(7),
        fabric_bytes_per_s=np.full(count, _UNLIMITED),
        island_gpus=each,
        bus_bytes_per_s=np.full(count, _UNLIMITED),
    )
    links = [
        _link(f"{host} {way}", one)
        for way, ends in (("out", fitted.out), ("in", fitted.into))
        for host, one in zip(names, ends, strict=True)
    ]
    levels: tuple[Level, ...] = ()
    if fitted.groups:
        home = np.full(count, -1, dtype=np.int64)
        uplinks = []
        for number, group in enumerate(fitted.groups):
            home[list(group.hosts)] = number
            uplinks.append(_tidy(group.uplink.bytes_per_s))
            links.append(_link(f"{LEVEL} {number} uplink", group.uplink))
        for host in np.flatnonzero(home < 0).tolist():
            home[host] = len(uplinks)
            uplinks.append(_UNLIMITED)
        domains = tuple(str(number) for number in range(len(uplinks)))
        levels = (Level(LEVEL, domains, home, np.array(uplinks)),)
    source = (
        f"measured by sending {found.sent_bytes / 1e6:.0f} MB in {found.seconds:.1f} s; "
        f"fair sharing of these links explains half of all rates to {fitted.error:.1%}"
    )
    return Topology(name, hosts, levels, source, tuple(links)).check()


def _link(name: str, rate: RateInterval) -> MeasuredLink:
    return MeasuredLink(name, _tidy(rate.bytes_per_s), _tidy(rate.low), _tidy(rate.high))


def _tidy(rate_bytes_per_s: float) -> float:
    """To a thousandth: more digits say nothing."""
    digits = 3 - math.floor(math.log10(rate_bytes_per_s / 125e3))
    return round(rate_bytes_per_s / 125e3, digits) * 125e3


# What the system says of the network interface that is used: its speed, and the processors near it.

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


# One rank of a probe: meets the others as a training job does, measures, and tells what was found.


class Probed(msgspec.Struct, frozen=True):
    """What the first rank found.

    Attributes:
        topology: as its file is written.
        affinities: of the hosts, by name.
    """

    topology: str
    affinities: dict[str, Affinity]


def probe(seconds_most: float, interface: str = "", timeout_s: float = 60.0) -> Probed | None:
    """Measure with all ranks of the job that the environment describes; what was found, at the first of them.

    Args:
        seconds_most: no further pass begins after so long.
        interface: to use; else as `home_interface` chooses.

    Raises:
        InputError: the environment describes no job.
        TransportError: a rank does not come, or is lost.
    """
    if missing := missing_variables():
        raise InputError(
            f"{', '.join(missing)} not set",
            "name the hosts: hemiola probe --hosts 'n[0-3]', or start it with torchrun",
        )
    try:
        from torch.distributed import PrefixStore, TCPStore
    except ImportError as problem:
        raise InputError("PyTorch is not installed", "pip install 'hemiola[torch]'") from problem
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if ranks < 2:
        raise InputError("a probe of one rank", "name two hosts or more")
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    options = TransportOptions(interface=interface or home_interface(), timeout_s=timeout_s)
    with _together(*where, timeout_s):
        # torchrun keeps one already, from one start of the ranks to the next
        keeps = rank == 0 and not store_is_kept()
        begun = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"probe/{begun}", TCPStore(*where, ranks, keeps, timedelta(seconds=timeout_s)))
        end, peers = meet(store, rank, ranks, options, _word)
    with end, _together(*where, timeout_s):
        homes = Homes.of(peers)
        if len(homes.names) < 2:
            raise InputError(
                f"all {ranks} ranks are on {peers[0].address}", "start ranks on two hosts or more"
            )
        prober = Prober(end, homes.firsts, timeout_s) if rank in homes.firsts else None
        found = prober.measure(seconds_most) if prober else None
        store.set(f"done {rank}", b"")
        store.wait([f"done {peer}" for peer in range(ranks)])
    if found is None or rank:
        return None
    gpus, words = zip(*(peers[first].word for first in homes.firsts), strict=True)
    affinities = {
        name: msgspec.convert(word, Affinity) for name, word in zip(homes.names, words, strict=True)
    }
    return Probed(topology_text(measured_topology(found, homes, gpus=gpus)), affinities)


def _word(address: str) -> list[Any]:
    """What a rank says of its host: how many GPUs it sees there, and of the interface with its address."""
    from torch.cuda import device_count

    return [device_count(), msgspec.to_builtins(own_affinity(address))]


@contextmanager
def _together(address: str, port: int, timeout_s: float) -> Iterator[None]:
    """What the store says of ranks that do not come, in our words."""
    try:
        yield
    except RuntimeError as problem:
        raise TransportError(
            f"the ranks did not meet at {address}:{port} within {timeout_s:g} s: {str(problem).splitlines()[0]}",
            "are all of them running, and is the port free on the first one's host?",
        ) from None
