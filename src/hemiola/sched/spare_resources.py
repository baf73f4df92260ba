"""What hosts have left beside GPUs: processors, memory and bandwidth. An engine that says nothing of them has enough for anybody.

Knows no policy and no rule. Where a host has too little for a job, none of its GPUs, or fewer, seem free to that job:
see `placement.find`. So policies and rules need to know of GPUs alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

import msgspec

from hemiola.core.decisions import Placement
from hemiola.core.resources import ResourceRequest, Resources, Roles
from hemiola.core.units import format_rate
from hemiola.sched.job_state import JobState

__all__ = ["Spare"]

Amount = tuple[float, float, float]
"""(processors, bytes of memory, bytes per second of its link)"""
NOTHING: Amount = (0.0, 0.0, 0.0)
ENOUGH: Amount = (inf, inf, inf)
MIB = 2**20
ROUNDING: Amount = (1e-6, 1.0, 1.0)
MOST_SERVERS = 1 << 30


class Spare:
    """Of the hosts of one inventory.

    Args:
        names: of hosts.

    Attributes:
        known: hosts of which the engine says what they have.
        holders: jobs that have something there.
    """

    __slots__ = ("_held", "_names", "_ours", "_taken", "_total", "holders", "known")

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._ours: dict[int, Amount] = {}
        self._total: dict[int, Amount] = {}
        self._taken: dict[int, Amount] = {}
        self._held: dict[str, list[tuple[int, Amount]]] = {}
        self.known = self._ours.keys()
        self.holders = self._held.keys()

    def furnish(self, host: int, ours: Resources, total: Resources) -> bool:
        """A host has so much; whether it is more than before."""
        before, now = self._ours.get(host, ENOUGH), _amount(ours)
        self._ours[host], self._total[host] = now, _amount(total)
        return any(more > less for more, less in zip(now, before, strict=True))

    def take(self, key: str, claim: ResourceRequest | None, placement: Placement) -> None:
        """A job has its share of these hosts from now on."""
        if claim is None:
            return
        held = self._held[key] = []
        for host, share in self._shares(claim, placement, len(placement.everywhere)):
            held.append((host, share))
            self._taken[host] = _plus(self._taken.get(host, NOTHING), share)

    def give(self, key: str) -> None:
        """What it had is free again; nothing if it had nothing."""
        for host, share in self._held.pop(key, ()):
            self._taken[host] = _plus(self._taken[host], share, -1)

    def caps(self, job: JobState, counts: Sequence[int]) -> Iterator[dict[int, int]]:
        """By host, how many GPUs a job can use at most, where those are fewer than are free.

        First as if it had equal parts on all of its hosts, then with what each has to have at least: where the second
        finds a place, `lack` says whether that is enough in all.
        """
        claim, hosts = job.claim, job.job.hosts
        if claim is None or not self.known:
            yield {}
            return
        equal = self._caps(claim, job, counts, hosts or 1)
        yield equal
        if equal and hosts != 1 and (claim.cpus or claim.memory_bytes):
            yield self._caps(claim, job, counts, 0)

    def lack(self, job: JobState, placement: Placement) -> str:
        """What a job would lack there, in words; "" for nothing."""
        return self.lack_of(job.claim, placement)

    def lack_of(self, claim: ResourceRequest | None, placement: Placement) -> str:
        """What who takes so much would lack there, in words; "" for nothing."""
        if claim is None or not self.known:
            return ""
        left_in_all, only = NOTHING, int(len(placement.everywhere) == 1)
        for host, needs in self._shares(claim, placement, only):
            left = self._left(host)
            if why := _short(needs, left):
                return f"{self._names[host]} has {why}"
            left_in_all = _plus(left_in_all, left)
        why = _short((claim.cpus, claim.memory_bytes, 0.0), left_in_all)
        return f"these hosts have {why}" if why else ""

    def servers(self, roles: Roles, placement: Placement) -> Placement | None:
        """The same workers with as many parameter servers as they need, on their own hosts first; None if there is no room."""
        claim, wanted = ResourceRequest(roles=roles), roles.servers(placement.gpus)
        if len(placement.hosts) == 1:
            together = msgspec.structs.replace(placement, servers=((placement.hosts[0], wanted),))
            if not self.lack_of(claim, together):
                return together
        workers = {
            h: roles.workers(mask.bit_count())
            for h, mask in zip(placement.hosts, placement.masks, strict=True)
        }
        found: list[tuple[int, int]] = []
        for host in (*placement.hosts, *(h for h in range(len(self._names)) if h not in workers)):
            room = self._room_for_servers(roles, host, workers.get(host, 0))
            if count := min(room, wanted):
                found.append((host, count))
                wanted -= count
            if not wanted:
                return msgspec.structs.replace(placement, servers=tuple(found))
        return None

    def _room_for_servers(self, roles: Roles, host: int, workers: int) -> int:
        """How many servers a host has room for beside so many workers, of a job that spans hosts."""
        left = _plus(self._left(host), _members(roles, workers, 0, across=True), -1)
        each = _members(roles, 0, 1, across=True)
        rooms = [
            (have + slack) / one for have, slack, one in zip(left, ROUNDING, each, strict=True) if one > 0
        ]
        return max(0, int(min([*rooms, MOST_SERVERS])))

    def shortage(self, job: JobState, counts: Sequence[int]) -> str:
        """Why too few of the hosts whose free GPUs would do can have a job, in words; "" if enough can, or GPUs are short."""
        claim, hosts = job.claim, job.job.hosts or 1
        if claim is None:
            return ""
        each = job.gpus // hosts if job.job.hosts else 1
        able = [host for host, free in enumerate(counts) if free >= each]
        short = [h for h in able if h in self.known and not self._most(claim, h, each, each, hosts)]
        if len(able) < hosts or len(able) - len(short) >= hosts:
            return ""
        best = max(short, key=self._left)
        why = _short(self._share(claim, best, each, hosts), self._left(best))
        return (
            f"GPUs are free, but no more hosts have what it needs beside them: {self._names[best]} has {why}"
        )

    def _left(self, host: int) -> Amount:
        """At most what the host has: what is taken from others is not there for anybody."""
        ours, total = self._ours.get(host, ENOUGH), self._total.get(host, ENOUGH)
        left = _plus(ours, self._taken.get(host, NOTHING), -1)
        return tuple(max(0.0, min(one, other)) for one, other in zip(left, total, strict=True))  # type: ignore[return-value]

    def _caps(
        self, claim: ResourceRequest, job: JobState, counts: Sequence[int], hosts: int
    ) -> dict[int, int]:
        each = job.gpus // job.job.hosts if job.job.hosts else 0
        caps = {}
        for host in self.known:
            free = counts[host]
            if free and (cap := self._most(claim, host, each, free, hosts)) < free:
                caps[host] = cap
        return caps

    def _most(self, claim: ResourceRequest, host: int, each: int, free: int, hosts: int) -> int:
        """GPUs that a job can use there: `each` or none where it says how many, else as many as it can."""
        left = self._left(host)
        for gpus in (each,) if each else range(free, 0, -1):
            share = self._share(claim, host, gpus, hosts)
            if not _short(share, left):
                return free if each else gpus
        return 0

    def _shares(
        self, claim: ResourceRequest, placement: Placement, hosts: int
    ) -> Iterator[tuple[int, Amount]]:
        """What it takes of each host of a placement; `hosts` as in `_share`."""
        servers = dict(placement.servers)
        for host, mask in zip(placement.hosts, placement.masks, strict=True):
            share = self._share(claim, host, mask.bit_count(), hosts)
            if claim.roles is not None and (count := servers.pop(host, 0)):
                share = _plus(share, _members(claim.roles, 0, count, across=hosts != 1))
            yield host, share
        for host, count in servers.items():
            if claim.roles is not None:
                yield host, _members(claim.roles, 0, count, across=True)

    def _share(self, claim: ResourceRequest, host: int, gpus: int, hosts: int) -> Amount:
        """What it takes of one host of so many; 0 hosts: at the least."""
        total = self._total.get(host, NOTHING)
        cpus = max(claim.cpus_per_host, claim.cpus_per_gpu * gpus)
        memory = max(claim.memory_per_host_bytes, claim.memory_per_gpu_bytes * gpus)
        if hosts:
            cpus, memory = max(cpus, claim.cpus / hosts), max(memory, claim.memory_bytes / hosts)
        if claim.whole and total[0] < inf:
            cpus = max(cpus, total[0])
        if claim.all_memory and total[1] < inf:
            memory = max(memory, total[1])
        share = cpus, memory, claim.bandwidth_per_host_bytes_per_s if hosts != 1 else 0.0
        if claim.roles is None:
            return share
        return _plus(share, _members(claim.roles, claim.roles.workers(gpus), 0, across=hosts > 1))


def _amount(beside: Resources) -> Amount:
    return (
        inf if beside.cpus is None else beside.cpus,
        inf if beside.memory_bytes is None else beside.memory_bytes,
        inf if beside.bandwidth_bytes_per_s is None else beside.bandwidth_bytes_per_s,
    )


def _members(roles: Roles, workers: int, servers: int, *, across: bool) -> Amount:
    """What so many workers and servers take of a host; `across`: of its link, too."""
    return (
        workers * roles.worker_cpus + servers * roles.server_cpus,
        workers * roles.worker_memory_bytes + servers * roles.server_memory_bytes,
        (workers + servers) * roles.across_bytes_per_s if across else 0.0,
    )


def _plus(one: Amount, other: Amount, sign: int = 1) -> Amount:
    return one[0] + sign * other[0], one[1] + sign * other[1], one[2] + sign * other[2]


def _short(needs: Amount, left: Amount) -> str:
    """What there is too little of, in words; "" for nothing."""
    if needs[0] > left[0] + ROUNDING[0]:
        return f"{left[0]:g} CPU{'s' * (left[0] != 1)} left, and it needs {needs[0]:g}"
    if needs[1] > left[1] + ROUNDING[1]:
        return f"{left[1] / MIB:,.0f} MiB of memory left, and it needs {needs[1] / MIB:,.0f}"
    if needs[2] > left[2] + ROUNDING[2]:
        return f"{format_rate(left[2])} of its link left, and it needs {format_rate(needs[2])}"
    return ""
