"""Which network explains what was measured: rates of hosts, and groups of hosts behind a narrower uplink.

Several hosts send at once in every round. What leaves or reaches a host in all is bounded by its own link; a flow
that is slower than both of its ends crosses something narrower. Groups whose members never slow each other are
candidates; of all candidates, the one is taken by which fair sharing comes nearest to all rounds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import InputError
from hemiola.cost.collective.duration import Domain, least_time

__all__ = [
    "KEEP_RING",
    "FittedNetwork",
    "HostLinks",
    "Pairs",
    "ProbedFlow",
    "RateInterval",
    "UplinkGroup",
    "fair_rates",
    "fans",
    "fit_network",
    "fitted_loads",
    "matchings",
    "probe_rounds",
]


SHORT = 0.85
"""A flow below this share of what both of its ends can do crosses something narrower."""
BETTER = 0.7
"""A group is believed if it leaves at most this much of the error."""
NEAR = 0.15
"""Measurements that far apart may be of the same rate."""
MANY = 8
"""Rounds from which on the second highest of an uplink's rates counts."""
_NOISE = 0.05
_SWAPPED_MOST, _MOVED_MOST = 16, 64
"""Hosts up to which groups are improved by two that change places, and by one that changes over."""


@dataclass(frozen=True)
class ProbedFlow:
    """What one host sent to another during a round.

    Attributes:
        source, target: hosts, by number.
        bytes_per_s: received, while all flows of the round were under way.
    """

    source: int
    target: int
    bytes_per_s: float


@dataclass(frozen=True)
class RateInterval:
    """A rate, bytes/s.

    Attributes:
        bytes_per_s: the most likely one.
        low, high: of the measurements that tell it.
    """

    bytes_per_s: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Its width, relative to the rate."""
        return (self.high - self.low) / self.bytes_per_s if self.bytes_per_s else math.inf


@dataclass(frozen=True)
class UplinkGroup:
    """Hosts behind one uplink.

    Attributes:
        hosts: by number.
        uplink: what leaves or reaches it, whichever is less.
    """

    hosts: tuple[int, ...]
    uplink: RateInterval


@dataclass(frozen=True)
class FittedNetwork:
    """What was found.

    Attributes:
        out, into: of every host.
        groups: with an uplink that can be seen; no host is in two.
        error: median of the logarithm of predicted over measured rates, without its sign: 0.05 for 5 %.
    """

    out: tuple[RateInterval, ...]
    into: tuple[RateInterval, ...]
    groups: tuple[UplinkGroup, ...]
    error: float

    def rate(self, host: int) -> RateInterval:
        """Of a host in the slower direction."""
        return min(self.out[host], self.into[host], key=lambda one: one.bytes_per_s)


def fit_network(
    hosts: int,
    rounds: Sequence[Sequence[ProbedFlow]],
    known: Sequence[tuple[int, ...]] | None = None,
    few: bool = False,
) -> FittedNetwork:
    """The network behind these rounds.

    Args:
        known: groups of hosts that were found before: no others are looked for. None to look for them.
        few: there are so few rounds that the highest of a host's rates counts, luck or not; else the second highest.

    Raises:
        InputError: a host took part in no round, or a rate is not above 0.
    """
    for flow in (flow for flows in rounds for flow in flows):
        if not (0 < flow.bytes_per_s < math.inf and 0 <= flow.source < hosts and 0 <= flow.target < hosts):
            raise InputError(f"the measurement {flow}", "give hosts from 0 and rates above 0")
    out = _ends(hosts, rounds, "source", few)
    into = _ends(hosts, rounds, "target", few)
    sends = np.array([one.bytes_per_s for one in out])
    takes = np.array([one.bytes_per_s for one in into])
    rounds = [flows for flows in rounds if _is_matching(flows)] or rounds
    table = _Table(rounds, sends, takes)
    if known is not None:
        grouped = {host for own in known for host in own}
        partition = [*known, *((host,) for host in range(hosts) if host not in grouped)]
    else:
        partition = _best_partition(hosts, table)
    groups = table.groups(partition)
    alone = np.log(table.free / table.measured)
    found = _errors(rounds, sends, takes, groups) if groups else alone
    if (found**2).mean() >= (alone**2).mean() * BETTER**2:
        groups, found = (), alone
    return FittedNetwork(out, into, groups, float(np.median(np.abs(found))))


def _is_matching(flows: Sequence[ProbedFlow]) -> bool:
    """Whether nobody's own link is shared: how flows share a link is chance, and would hide what else they share."""
    return all(len({getattr(flow, end) for flow in flows}) == len(flows) for end in ("source", "target"))


class _Table:
    """All flows of all rounds, and what each would do if nothing were between its ends."""

    def __init__(
        self, rounds: Sequence[Sequence[ProbedFlow]], sends: NDArray[np.float64], takes: NDArray[np.float64]
    ) -> None:
        flows = [(number, flow) for number, found in enumerate(rounds) for flow in found]
        self.round = np.array([number for number, _ in flows])
        self.ends = np.array([(flow.source, flow.target) for _, flow in flows]).T
        self.measured = np.array([flow.bytes_per_s for _, flow in flows])
        self.free = np.concatenate([fair_rates(found, sends, takes, ()) for found in rounds])
        self.rounds, self.hosts = len(rounds), len(sends)

    def _uplinks(
        self, home: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64], list[RateInterval | None]]]:
        """Of each direction: where flows cross (round by group, -1 for nowhere), what would, and each group's limit."""
        count = int(home.max()) + 1
        sizes = np.bincount(home)  # a host alone has its own rate, and no uplink
        crosses = home[self.ends[0]] != home[self.ends[1]]
        for end in self.ends:
            where = np.where(crosses, self.round * count + home[end], self.rounds * count)
            would = np.bincount(where, self.free, self.rounds * count + 1).astype(np.float64)
            did = np.bincount(where, self.measured, self.rounds * count + 1)
            held = (did < SHORT * would)[:-1].reshape(-1, count)
            totals = did[:-1].reshape(-1, count)
            limits = [
                _uplink(totals[held[:, g], g].tolist()) if sizes[g] > 1 and held[:, g].any() else None
                for g in range(count)
            ]
            yield where, would, limits

    def groups(self, partition: Sequence[tuple[int, ...]]) -> tuple[UplinkGroup, ...]:
        """With the uplinks that can be seen; the slower direction of each."""
        if len(partition) < 2:
            return ()
        ways = [limits for _, _, limits in self._uplinks(self._home(partition))]
        found = []
        for own, both in zip(partition, zip(*ways, strict=True), strict=True):
            seen = [limit for limit in both if limit is not None]
            if seen:
                found.append(UplinkGroup(own, min(seen, key=lambda one: one.bytes_per_s)))
        return tuple(found)

    def _home(self, partition: Sequence[tuple[int, ...]]) -> NDArray[np.int64]:
        home = np.zeros(self.hosts, dtype=np.int64)
        for number, own in enumerate(partition):
            home[list(own)] = number
        return home

    def error(self, partition: Sequence[tuple[int, ...]]) -> float:
        """Quickly: flows over a full uplink are held back alike."""
        rate = self.free.copy()
        for where, would, limits in self._uplinks(self._home(partition)):
            most = np.array(
                [math.inf if one is None else one.bytes_per_s for one in limits] * self.rounds + [math.inf]
            )
            with np.errstate(divide="ignore", invalid="ignore"):
                share = np.where(would > 0, most / would, np.inf)
            rate = np.minimum(rate, self.free * share[where])
        return float(np.sqrt((np.log(rate / self.measured) ** 2).mean()))


def _best_partition(hosts: int, table: _Table) -> list[tuple[int, ...]]:
    """The groups that explain the rounds best: of those found by joining, and of some at random, all improved."""
    best, partition = math.inf, [tuple(range(hosts))]
    candidates = list(_partitions(hosts, table))
    made = random.Random(0)
    if hosts <= _SWAPPED_MOST:
        candidates = candidates[:3]
        for count in range(2, hosts // 2 + 1):
            order = made.sample(range(hosts), hosts)
            candidates.append(sorted(tuple(sorted(order[k::count])) for k in range(count)))
        candidates = [_improved(one, table, swaps=True) for one in candidates]
    for candidate in candidates:
        error = table.error(candidate)
        if error < best * (1 - _NOISE):
            best, partition = error, candidate
    return _improved(partition, table, swaps=False) if _SWAPPED_MOST < hosts <= _MOVED_MOST else partition


def _improved(partition: list[tuple[int, ...]], table: _Table, swaps: bool) -> list[tuple[int, ...]]:
    """With hosts changed over while it helps."""
    best = table.error(partition)
    while len(partition) > 1:
        error, changed = min((table.error(changed), changed) for changed in _changed(partition, swaps))
        if error >= best * (1 - _NOISE):
            break
        best, partition = error, changed
    return partition


def _changed(partition: Sequence[tuple[int, ...]], swaps: bool) -> Iterator[list[tuple[int, ...]]]:
    """One host in another group, or two of different groups in each other's place."""
    for i, one in enumerate(partition):
        for j, other in enumerate(partition):
            if i == j:
                continue
            rest = [group for k, group in enumerate(partition) if k not in (i, j)]
            for host in one:
                less = tuple(h for h in one if h != host)
                yield sorted([*rest, *([less] if less else []), tuple(sorted((*other, host)))])
                if swaps and i < j:
                    for there in other:
                        swapped = tuple(h for h in other if h != there)
                        yield sorted([*rest, tuple(sorted((*less, there))), tuple(sorted((*swapped, host)))])


def _ends(
    hosts: int, rounds: Sequence[Sequence[ProbedFlow]], end: str, few: bool
) -> tuple[RateInterval, ...]:
    """What every host can do in one direction, all its flows of a round together."""
    totals: list[list[float]] = [[] for _ in range(hosts)]
    for flows in rounds:
        here: dict[int, float] = {}
        for flow in flows:
            which = getattr(flow, end)
            here[which] = here.get(which, 0.0) + flow.bytes_per_s
        for host, total in here.items():
            totals[host].append(total)
    silent = [host for host in range(hosts) if not totals[host]]
    if silent:
        raise InputError(
            f"host {silent[0]} took part in no measurement", "measure with every host, both ways"
        )
    return tuple(_best(found, 1 if few else 2) for found in totals)


def _uplink(found: Sequence[float]) -> RateInterval:
    """Flows that meet in an uplink leave some of it unused more often than they have luck."""
    return _best(found, 1 if len(found) < MANY else 2)


def _best(found: Sequence[float], place: int = 2) -> RateInterval:
    """Of rates that others may have held back: the second highest, for the highest may have been luck."""
    rate = sorted(found)[-place:][0]
    near = [one for one in found if abs(one - rate) < NEAR * rate]
    return RateInterval(rate, min(near), max(near))


def _partitions(hosts: int, table: _Table) -> Iterator[list[tuple[int, ...]]]:
    """Groups of hosts, the coarsest first: joined two at a time, those first between which flows were fastest.

    A pair counts by the worst of its flows, relative to what its ends can do: nothing holds hosts of one group back.
    """
    worst = np.full((hosts, hosts), np.inf)
    np.minimum.at(worst, (table.ends[0], table.ends[1]), table.measured / table.free)
    near = np.minimum(worst, worst.T)
    met = np.isfinite(near)
    near = np.where(met, np.minimum(near, 1.0), near[met].mean())
    groups: list[tuple[int, ...]] = [(host,) for host in range(hosts)]
    found = []
    while len(groups) > 2:
        pairs = [
            (float(near[np.ix_(one, other)].mean()), -len(one) - len(other), i, j)
            for i, one in enumerate(groups)
            for j, other in enumerate(groups[:i])
        ]
        _, _, i, j = max(pairs)
        joined = tuple(sorted(groups[i] + groups[j]))
        groups = [group for k, group in enumerate(groups) if k not in (i, j)] + [joined]
        found.append(sorted(groups))
    yield from reversed(found)


def fair_rates(
    flows: Sequence[ProbedFlow],
    sends: NDArray[np.float64],
    takes: NDArray[np.float64],
    groups: Sequence[UplinkGroup],
) -> NDArray[np.float64]:
    """What max-min fair sharing gives each flow, bytes/s.

    Args:
        sends, takes: of every host.
        groups: with uplinks, which carry as much each way.
    """
    hosts = len(sends)
    home = np.full(hosts, -1)
    for number, group in enumerate(groups):
        home[list(group.hosts)] = number
    uplinks = [group.uplink.bytes_per_s for group in groups]
    left = np.concatenate([sends, takes, uplinks, uplinks])
    shape = (len(left), len(flows))
    crosses = np.zeros(shape, dtype=bool)
    for k, flow in enumerate(flows):
        crosses[[flow.source, hosts + flow.target], k] = True
        a, b = home[flow.source], home[flow.target]
        if a != b and a >= 0:
            crosses[2 * hosts + a, k] = True
        if a != b and b >= 0:
            crosses[2 * hosts + len(groups) + b, k] = True
    rates = np.zeros(len(flows))
    open_flows = np.ones(len(flows), dtype=bool)
    while open_flows.any():
        users = (crosses & open_flows).sum(1)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(users > 0, left / users, np.inf)
        tightest = int(shares.argmin())
        fixed = crosses[tightest] & open_flows
        rates[fixed] = shares[tightest]
        left = np.maximum(left - shares[tightest] * (crosses & fixed).sum(1), 0.0)
        open_flows &= ~fixed
    return rates


def _errors(
    rounds: Sequence[Sequence[ProbedFlow]], sends: NDArray[np.float64], takes: NDArray[np.float64], groups: Sequence[UplinkGroup]
) -> NDArray[np.float64]:  # fmt: skip
    """How far fair sharing is off, as logarithms."""
    found = []
    for flows in rounds:
        measured = np.array([flow.bytes_per_s for flow in flows])
        found.append(np.log(fair_rates(flows, sends, takes, groups) / measured))
    return np.concatenate(found)


# What fitted trees put on the links between some hosts, without building them: a water level, and how it
# is shared out.

KEEP_RING = 0.10
"""What others have to gain over the ring to be taken instead, wherever schedules are chosen."""


@dataclass(frozen=True)
class HostLinks:
    """The links between a job's hosts. As a value: placements that look alike have equal ones.

    Attributes:
        nics: bytes/s of each host.
        domains: of every level that the job spans, narrow to wide, each host's domain, numbered by first appearance.
        uplinks: of every such level, bytes/s of its domains.
    """

    nics: tuple[float, ...]
    domains: tuple[tuple[int, ...], ...] = ()
    uplinks: tuple[tuple[float, ...], ...] = ()

    @property
    def narrowest(self) -> float:
        """Bytes/s of the slowest of all."""
        return min(*self.nics, *(rate for level in self.uplinks for rate in level))


def fitted_loads(links: HostLinks, gpus: int) -> tuple[float, ...] | None:
    """What an all-reduce of one byte among so many GPUs on these hosts, two or more, puts on each link.

    Returns:
        Bytes per direction: of every host's NIC, then of the uplinks of each level. None where the ring, which puts
        2 (gpus - 1) / gpus on each, is kept.
    """
    ring_s = 2 * (gpus - 1) / gpus / links.narrowest
    most = ring_s / (1 + KEEP_RING)
    hosts = len(links.nics)
    if max(1 / links.narrowest, 2 * (hosts - 1) / sum(links.nics)) >= most:
        return None
    ordered, whole = _domains(links)
    time = least_time(whole)
    if time >= most:
        return None
    spare: dict[Domain, float] = {}
    _share_out(whole, -2.0, time, spare)
    return tuple(1 + abs(spare[domain] + 1) for domain in ordered)


def _domains(links: HostLinks) -> tuple[list[Domain], Domain]:
    """Of every link what is below it, in the links' order, and the whole."""
    below = [Domain((host,), rate) for host, rate in enumerate(links.nics)]
    ordered = list(below)
    of_host = below
    for numbers, rates in zip(links.domains, links.uplinks, strict=True):
        found = []
        for number, rate in enumerate(rates):
            inside = [host for host, its in enumerate(numbers) if its == number]
            found.append(Domain(tuple(inside), rate, tuple(dict.fromkeys(of_host[host] for host in inside))))
        of_host = [found[number] for number in numbers]
        ordered += found
    return ordered, Domain(tuple(range(len(below))), math.inf, tuple(dict.fromkeys(of_host)))


def _share_out(domain: Domain, own: float, time: float, spare: dict[Domain, float]) -> None:
    """Give every part its mean spare ends: each as far as the others from -1, with which it is crossed once, to its end."""
    spare[domain] = own
    if not domain.parts:
        return
    ranges = domain.parts_spare(time, own)
    centre = [min(max(-1.0, low), high) for low, high in ranges]
    ends = [high if own >= sum(centre) else low for low, high in ranges]
    room = sum(ends) - sum(centre)
    share = min(1.0, (own - sum(centre)) / room) if room else 0.0
    for part, near, far in zip(domain.parts, centre, ends, strict=True):
        _share_out(part, near + share * (far - near), time, spare)


# Who sends to whom in each round of a probe: rounds that together tell hosts and what they share apart.

MATCHINGS_MOST = 21
"""Rounds of pairs in one pass: each pair of 22 hosts meets once, of more hosts not every pair."""
MIXES = 2
"""So often everything is done, with pairs in other company: it tells who shares an uplink."""
FANS_MOST = 16
OTHERS_MOST = 7
"""Hosts that one sends to at once."""

Pairs = tuple[tuple[int, int], ...]


def probe_rounds(hosts: int, seed: int = 0, mixes: int = MIXES) -> Iterator[Pairs]:
    """Rounds of (sender, receiver): pairs apart, both ways; one host to others, and others to it.

    Args:
        seed: of who meets in which company.
        mixes: so often everything is done; once is enough where it is known who shares an uplink.
    """
    made = random.Random(seed)
    for _ in range(mixes):
        yield from _matchings(hosts, made, MATCHINGS_MOST)
        if hosts > 2:
            for host in range(min(hosts, FANS_MOST)):
                yield from fans(hosts, host, made.randrange(1 << 30))


def matchings(hosts: int, seed: int = 0, most: int = MATCHINGS_MOST) -> Iterator[Pairs]:
    """Rounds of pairs apart, both ways."""
    return _matchings(hosts, random.Random(seed), most)


def fans(hosts: int, host: int, seed: int = 0) -> tuple[Pairs, Pairs]:
    """One host to all others, or to some of them, and these to it.

    Not both at once: acknowledgements would wait behind data, and flows would begin too slowly to fill their links.
    """
    others = [other for other in range(hosts) if other != host]
    chosen = sorted(random.Random(seed).sample(others, min(len(others), OTHERS_MOST)))
    return tuple((host, other) for other in chosen), tuple((other, host) for other in chosen)


def _matchings(hosts: int, made: random.Random, most: int) -> Iterator[Pairs]:
    """Rounds of a tournament: hosts sit in a circle, one stays and the others move on; with an odd number one rests."""
    seats: list[int | None] = [*made.sample(range(hosts), hosts), *([None] * (hosts % 2))]
    count = len(seats)
    for turn in range(min(count - 1, most)):
        here = [seats[0], *(seats[1 + (place + turn) % (count - 1)] for place in range(count - 1))]
        pairs = [(here[place], here[count - 1 - place]) for place in range(count // 2)]
        yield tuple(pair for a, b in pairs if a is not None and b is not None for pair in ((a, b), (b, a)))
