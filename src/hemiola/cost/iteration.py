"""How long one iteration of a job takes on a placement: the timing model under everything.

    T = C + max(0, V / r + a - o)

with compute time C, bytes V that each link on its way carries, the rate r it gets on its slowest
link, latency a of the collective's steps, and the part o of the computation behind which
communication hides. Rates on links that several jobs share are the contention law's answer
(`contention`); everything else is here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from hemiola.core.decisions import Placement
from hemiola.core.errors import InputError
from hemiola.core.job import Batch, Profile
from hemiola.core.topology import Topology

if TYPE_CHECKING:
    from hemiola.cost.network_fit import HostLinks

__all__ = [
    "Alone",
    "Crossing",
    "IterationModel",
    "Need",
    "goes_by_schedules",
    "recorded_as",
    "roles_iteration_s",
    "speed_at",
]

STRAY_GPUS = 2
MOST_ISLANDS = 128  # of a host: more than it has GPUs


def goes_by_schedules(job: Batch) -> bool:
    """Whether its communication over several GPUs is known, and any of it all-reduces."""
    profile = job.profile
    return profile is not None and profile.pattern == "ring" and profile.all_reduced > 0


@dataclass(frozen=True, slots=True)
class Need:
    """One iteration of a job on given GPUs, before the network has its say.

    Attributes:
        compute_s: C.
        traffic_bytes: V, per link and direction.
        hidden_s: o, the communication that C can hide.
    """

    compute_s: float
    traffic_bytes: float
    hidden_s: float

    def iteration_s(self, rate_bytes_per_s: float, latency_s: float = 0.0) -> float:
        """T at this rate."""
        if not self.traffic_bytes:
            return self.compute_s
        return self.compute_s + max(0.0, self.traffic_bytes / rate_bytes_per_s + latency_s - self.hidden_s)


@dataclass(frozen=True, slots=True)
class Crossing:
    """What a job that spans hosts asks of the network.

    Attributes:
        need: of one iteration.
        links: indices of the links it crosses (see `IterationModel.link_names`).
        factors: per link, its bytes relative to `need.traffic_bytes`; None if all are 1.
        latency_s: of the collective's steps.
        local_s: iteration time that the slowest path inside its hosts allows.
    """

    need: Need
    links: tuple[int, ...]
    factors: tuple[float, ...] | None
    latency_s: float
    local_s: float


class Alone:
    """How fast jobs alike (one profile, number and type of GPUs) run where nobody disturbs them.

    Attributes:
        best_s: iteration time on the best placement here.
        recorded_s: iteration time where the trace was recorded, once it was asked for.
        on_host: (iteration time, compute time) by kind of host and NVLink islands touched.
    """

    __slots__ = ("best_s", "on_host", "recorded_s")

    def __init__(self, best_s: float) -> None:
        self.best_s = best_s
        self.recorded_s: float | None = None
        self.on_host: dict[int, tuple[float, float]] = {}


class IterationModel:
    """Iteration times on one topology.

    Links are numbered: first one per host (its NICs together), then one uplink per domain of each
    level, narrow to wide.

    Args:
        topology: where jobs run.
        recorded_on: the cluster that the workload's run times were measured on; `topology` itself
            unless given. Comparisons across fabrics need it: only then does a job do as many
            iterations on each of them.
        fitted: whether all-reduces go by schedules that fit the links of each placement, where these gain a tenth
            over the ring (`cost.network_fit`). Recorded run times are those of rings.
    """

    def __init__(
        self, topology: Topology, recorded_on: Topology | None = None, *, fitted: bool = False
    ) -> None:
        self.topology, self.fitted = topology, fitted
        there = topology if fitted and recorded_on is None else recorded_on
        self._recorded_on = None if there is None else IterationModel(there)
        self._loads: dict[tuple[HostLinks, int], tuple[float, ...] | None] = {}
        hosts = topology.hosts
        self._fabric = hosts.fabric_bytes_per_s.tolist()
        self._bus = hosts.bus_bytes_per_s.tolist()
        self._island = hosts.island_gpus.tolist()
        self._types = hosts.gpu_types
        self._domains = topology.domain_of
        self._gpus = hosts.gpus.tolist()
        self._first_link = [len(hosts)]
        for level in topology.levels:
            self._first_link.append(self._first_link[-1] + len(level.domains))
        self._capacities = self.capacities_bytes_per_s.tolist()
        self._with_gpus = hosts.gpus > 0  # no job is on the others
        self._hop_s = float(hosts.nic_latency_s.max(where=self._with_gpus, initial=0.0))
        self._needs: dict[tuple[int, int, str], Need] = {}
        self._profiles: dict[int, Profile] = {}  # keeps profiles alive while their ids are keys
        self._alone: dict[tuple[int, int, str, int], Alone] = {}
        self._one_island = (hosts.gpus <= hosts.island_gpus).tolist()
        looks = list(zip(self._types, self._fabric, self._bus, self._island, strict=True))
        kinds = {look: i for i, look in enumerate(dict.fromkeys(looks))}
        self._kind = [kinds[look] * MOST_ISLANDS for look in looks]
        self._alike: dict[tuple[int, str], list[list[int]]] = {}
        self._best: dict[tuple[int, int, int, str, int], float] = {}
        self._slowdowns: dict[tuple[int, int, int, int, str, int], float] = {}

    @property
    def recorded_elsewhere(self) -> bool:
        """Whether run times were measured on another cluster than this one."""
        return self._recorded_on is not None

    @property
    def capacities_bytes_per_s(self) -> NDArray[np.float64]:
        """Bandwidth of every link, each direction."""
        uplinks = [level.uplink_bytes_per_s for level in self.topology.levels]
        return np.concatenate([self.topology.hosts.nic_bytes_per_s, *uplinks])

    @property
    def link_names(self) -> list[str]:
        """A name for every link: the host, or "rack r3 uplink"."""
        names = [f"{host} nic" for host in self.topology.hosts.names]
        for level in self.topology.levels:
            names += [f"{level.name} {domain} uplink" for domain in level.domains]
        return names

    def need(self, profile: Profile, gpus: int, gpu_type: str) -> Need:
        """One iteration's needs on `gpus` GPUs of a type ("" for the one that was measured)."""
        key = (id(profile), gpus, gpu_type)
        need = self._needs.get(key)
        if need is None:
            self._profiles[id(profile)] = profile
            demand = profile.demand(gpus)
            compute_s = demand.compute_s / profile.speed(gpu_type)
            need = self._needs[key] = Need(compute_s, demand.traffic_bytes, profile.overlap * compute_s)
        return need

    def alone(self, job: Batch) -> Alone:
        """How fast this job, which has a profile, and those like it run undisturbed."""
        key = (id(job.profile), job.gpus, job.gpu_type, job.hosts)
        alone = self._alone.get(key)
        if alone is None:
            narrowest = self.topology.narrowest(job.gpus, job.gpu_type, job.hosts)
            assert narrowest is not None
            alone = self._alone[key] = Alone(self.best_s(job, narrowest))
        return alone

    def on_host(self, job: Batch, host: int, mask: int, alone: Alone | None = None) -> tuple[float, float]:
        """(iteration time, compute time) on GPUs of one host.

        Args:
            alone: that of such jobs, which remembers the answer.
        """
        kind: int = self._kind[host]
        kind += 1 if self._one_island[host] else self._islands(host, mask)
        found = None if alone is None else alone.on_host.get(kind)
        if found is None:
            assert job.profile is not None
            need = self.need(job.profile, job.gpus, self._types[host])
            found = need.iteration_s(self._inside(host, mask)), need.compute_s
            if alone is not None:
                alone.on_host[kind] = found
        return found

    def _islands(self, host: int, mask: int) -> int:
        """How many NVLink islands of a host these GPUs touch."""
        size = self._island[host]
        count = 0
        while mask:
            if mask & ((1 << size) - 1):
                count += 1
            mask >>= size
        return count

    def _inside(self, host: int, mask: int) -> float:
        """Rate between GPUs of one host: its fabric, or the bus if they touch several islands."""
        rate: float = self._fabric[host] if self._islands(host, mask) <= 1 else self._bus[host]
        return rate

    def crossing(self, job: Batch, placement: Placement, need: Need | None = None) -> Crossing:
        """What this job asks of the network on a placement over several hosts.

        Args:
            need: of one iteration; what its profile says unless given.
        """
        profile = job.profile
        assert profile is not None
        if need is None:
            need = self.need(profile, job.gpus, self._types[placement.hosts[0]])
        links, factors, levels = self._links(placement, profile.pattern == "all-to-all")
        if self.fitted and goes_by_schedules(job):
            factors = self._fitted(placement, levels, job.gpus, profile.all_reduced)
        latency_s = 2 * (job.gpus - 1) * self._latency(levels) if need.traffic_bytes else 0.0
        slowest = min(
            self._inside(host, mask) for host, mask in zip(placement.hosts, placement.masks, strict=True)
        )
        return Crossing(need, links, factors, latency_s, need.iteration_s(slowest, latency_s))

    def _links(
        self, placement: Placement, all_to_all: bool
    ) -> tuple[tuple[int, ...], tuple[float, ...] | None, int]:
        """The links between these hosts, what each carries, and how many levels are climbed."""
        gpus_of = [mask.bit_count() for mask in placement.masks]
        links = list(placement.hosts)
        shares = list(gpus_of)
        levels = 0
        for level, domains in enumerate(self._domains):
            inside: dict[int, int] = {}
            for host, count in zip(placement.hosts, gpus_of, strict=True):
                domain = domains[host]
                inside[domain] = inside.get(domain, 0) + count
            if len(inside) == 1:
                break
            levels = level + 1
            first = self._first_link[level]
            links += [first + domain for domain in inside]
            shares += inside.values()
        if not all_to_all:
            return tuple(links), None, levels
        total = sum(gpus_of)
        return tuple(links), tuple(k * (total - k) / max(total - 1, 1) for k in shares), levels

    def _fitted(
        self, placement: Placement, levels: int, gpus: int, all_reduced: float
    ) -> tuple[float, ...] | None:
        """What each link between these hosts carries relative to a ring; None where it is the ring's."""
        from hemiola.cost.network_fit import HostLinks, fitted_loads

        domains, uplinks = [], []
        for level in range(levels):
            its = [self._domains[level][host] for host in placement.hosts]
            number = {domain: i for i, domain in enumerate(dict.fromkeys(its))}
            domains.append(tuple(number[domain] for domain in its))
            uplinks.append(tuple(self._capacities[self._first_link[level] + domain] for domain in number))
        nics = tuple(self._capacities[host] for host in placement.hosts)
        key = HostLinks(nics, tuple(domains), tuple(uplinks)), gpus
        if key not in self._loads:
            self._loads[key] = fitted_loads(*key)
        loads = self._loads[key]
        if loads is None:
            return None
        ring = 2 * (gpus - 1) / gpus
        return tuple(1 - all_reduced + all_reduced * load / ring for load in loads)

    def _latency(self, levels: int) -> float:
        """Latency of one hop over so many levels of switches."""
        return self._hop_s + sum(level.latency_s for level in self.topology.levels[:levels])

    def best_s(self, job: Batch, narrowest: int) -> float:
        """Iteration time alone on the best placement in an empty cluster, on the measured GPU type.

        Args:
            narrowest: the narrowest tier that can hold the job.
        """
        profile = job.profile
        if profile is None:
            return 1.0
        key = (id(profile), job.gpus, narrowest, job.gpu_type, job.hosts)
        best = self._best.get(key)
        if best is None:
            best = self._best[key] = min(
                self.alone_s(job, place) for place in self._best_places(job, narrowest)
            )
        return best

    def recorded_s(self, job: Batch) -> float:
        """What an iteration took where the trace was recorded: run time / this = iterations.

        A trace's run time is read as that on the job's best placement there, alone.
        """
        alone = self.alone(job)
        if alone.recorded_s is None:
            there = self._recorded_on
            if there is None:
                alone.recorded_s = alone.best_s
            else:
                alone.recorded_s = there.best_s(*recorded_as(job, there.topology))
        return alone.recorded_s

    def alone_s(self, job: Batch, place: Placement, gpu_type: str = "", *, need: Need | None = None) -> float:
        """Iteration time of a job with a profile on a placement without any other traffic.

        Args:
            gpu_type: that it computes on; the measured one unless given.
            need: of one iteration; what its profile says unless given.
        """
        assert job.profile is not None
        if need is None:
            need = self.need(job.profile, job.gpus, gpu_type)
        if len(place.hosts) == 1:
            return need.iteration_s(self._inside(place.hosts[0], place.masks[0]))
        return self.undisturbed_s(self.crossing(job, place, need))

    def undisturbed_s(self, crossing: Crossing) -> float:
        """Iteration time of a job that spans hosts without any other traffic."""
        factors = crossing.factors or (1.0,) * len(crossing.links)
        rate = min(
            [self._capacities[link] / f for link, f in zip(crossing.links, factors, strict=True) if f > 0]
        )
        return max(crossing.need.iteration_s(rate, crossing.latency_s), crossing.local_s)

    def _best_places(self, job: Batch, narrowest: int) -> Iterator[Placement]:
        """Per domain of the narrowest tier that can hold the job: of all its hosts and of those with the fastest links,
        the largest filled in order.

        What an all-to-all sends over a host's link depends on how many ranks are there: it may do better spread evenly,
        over as few hosts or over all. Of a job that says on how many hosts it runs, the first ones that suffice.
        """
        assert job.profile is not None
        each = job.gpus // job.hosts if job.hosts else 0
        for hosts in self._domains_at(narrowest, job.gpu_type):
            able = [host for host in hosts if self._gpus[host] >= each]
            fastest = self._fastest(able, narrowest, job)
            for among in (able,) if fastest == able else (able, fastest):
                if each:
                    if len(among) >= job.hosts:
                        yield _on([(host, each) for host in among[: job.hosts]])
                    continue
                filled = self._filled(among, job.gpus)
                if filled is None or (narrowest > 0) != (len(filled) > 1):
                    continue
                yield _on(filled)
                if job.profile.pattern == "all-to-all" and len(filled) > 1:
                    yield _on(self._spread([host for host, _ in filled], job.gpus))
                    yield _on(self._spread(among, job.gpus))

    def _fastest(self, hosts: list[int], tier: int, job: Batch) -> list[int]:
        """Those whose links are at least as fast as they must be if the slowest is to be as fast as can be."""
        if tier == 0 or not hosts:
            return hosts
        rate = {host: self._way(host, tier) for host in hosts}
        gpus = 0
        slowest = 0.0
        for count, host in enumerate(sorted(hosts, key=rate.__getitem__, reverse=True), start=1):
            gpus += self._gpus[host]
            slowest = rate[host]
            if count >= job.hosts and gpus >= job.gpus:
                break
        return [host for host in hosts if rate[host] >= slowest]

    def _way(self, host: int, tier: int) -> float:
        """The slowest link from a host's GPUs to others at this tier."""
        inside = self._fabric[host] if self._one_island[host] else self._bus[host]
        uplinks = [
            self._capacities[first + domain_of[host]]
            for first, domain_of in zip(self._first_link, self._domains[: tier - 1], strict=False)
        ]
        rate: float = min([inside, self._capacities[host], *uplinks])
        return rate

    def _filled(self, hosts: list[int], gpus: int) -> list[tuple[int, int]] | None:
        """(host, GPUs) with the largest hosts filled in order; None if they do not suffice."""
        filled: list[tuple[int, int]] = []
        for host in sorted(hosts, key=self._gpus.__getitem__, reverse=True):
            count = min(gpus, self._gpus[host])
            if count:
                filled.append((host, count))
                gpus -= count
        return None if gpus else filled

    def _spread(self, hosts: list[int], gpus: int) -> list[tuple[int, int]]:
        """(host, GPUs) as evenly as the sizes of these hosts allow, which suffice."""
        spread: list[tuple[int, int]] = []
        left = len(hosts)
        for host in sorted(hosts, key=self._gpus.__getitem__):
            count = min(-(-gpus // left), self._gpus[host])
            if count:
                spread.append((host, count))
            gpus -= count
            left -= 1
        return spread

    def _domains_at(self, tier: int, gpu_type: str) -> list[list[int]]:
        """Hosts of each domain of a tier, of one GPU type each; alike domains only once."""
        key = tier, gpu_type
        if key not in self._alike:
            self._alike[key] = list(self._find_domains_at(tier, gpu_type))
        return self._alike[key]

    def _find_domains_at(self, tier: int, gpu_type: str) -> Iterator[list[int]]:
        seen = set()
        domains = self._domains[tier - 1] if 0 < tier <= len(self._domains) else [0] * len(self._gpus)
        groups: dict[tuple[int, str], list[int]] = {}
        for host, kind in enumerate(self._types):
            if self._gpus[host] and gpu_type in ("", kind):
                groups.setdefault((host if tier == 0 else domains[host], kind), []).append(host)
        for hosts in groups.values():
            inside = ((self._gpus[h], self._fabric[h], self._bus[h], self._island[h]) for h in hosts)
            look = *inside, *(self._capacities[h] for h in hosts)
            links = tuple(
                self._capacities[self._first_link[level] + d[h]]
                for level, d in enumerate(self._domains[: max(tier - 1, 0)])
                for h in hosts
            )
            if (look, links) not in seen:
                seen.add((look, links))
                yield hosts

    def slowdown(self, job: Batch, tier: int, narrowest: int) -> float:
        """s_j(tier): iteration time at a tier over that at the job's narrowest, at least 1.

        At a tier the job counts on its fair share of each link when every GPU below that link
        sends: what it may rely on under load. Specification section 1.3 of Dally's substitute.
        """
        if job.roles is not None:
            inside = roles_iteration_s(job, job.gpus, inside=True)[0]
            return roles_iteration_s(job, job.gpus, inside=tier == 0)[0] / inside
        if job.profile is None or tier <= narrowest or job.gpus == 1:
            return 1.0
        key = (id(job.profile), job.gpus, tier, narrowest, job.gpu_type, job.hosts)
        ratio = self._slowdowns.get(key)
        if ratio is None:
            need = self.need(job.profile, job.gpus, "")
            latency_s = 2 * (job.gpus - 1) * self._latency(tier - 1) if need.traffic_bytes else 0.0
            share = self._fair_share(job.gpus, tier) / self._load(job, tier)
            fabric = float(self.topology.hosts.fabric_bytes_per_s[self._with_gpus].max())
            there = need.iteration_s(min(share, fabric), latency_s)
            ratio = self._slowdowns[key] = max(1.0, there / self.best_s(job, narrowest))
        return ratio

    def _load(self, job: Batch, tier: int) -> float:
        """Bytes on a full host's NIC relative to one rank's."""
        if self.fitted and goes_by_schedules(job) and tier:
            return self._fitted_load(job)
        if job.profile is None or job.profile.pattern == "ring" or tier == 0:
            return 1.0
        inside = min(int(self.topology.hosts.gpus.max()), job.gpus - 1)
        return inside * (job.gpus - inside) / max(job.gpus - 1, 1)

    def _fitted_load(self, job: Batch) -> float:
        """The same of a job by schedules, on as few equal hosts as can be."""
        from hemiola.cost.network_fit import KEEP_RING

        assert job.profile is not None
        hosts = max(2, -(-job.gpus // int(self.topology.hosts.gpus.max())))
        relative = (hosts - 1) / hosts / ((job.gpus - 1) / job.gpus)
        if relative * (1 + KEEP_RING) >= 1:
            return 1.0
        return 1 - job.profile.all_reduced * (1 - relative)

    def _fair_share(self, gpus: int, tier: int) -> float:
        """Rate that a job at this tier may rely on when every GPU's job sends.

        What a job gets when it takes a wider place is scattered: the piece that decides is the
        smallest, on a host and in a domain full of others. `STRAY_GPUS` of its GPUs are there, and
        their fair share of that host's NIC and that domain's uplink is what it may rely on. Means are
        over hosts and domains that have GPUs.
        """
        hosts, own = self.topology.hosts, self._with_gpus
        per_host = float(hosts.gpus[own].mean())
        stray = min(gpus / 2, STRAY_GPUS)
        nic = float(hosts.nic_bytes_per_s[own].mean())
        rate = nic * min(1.0, stray / per_host)
        for level in self.topology.levels[: tier - 1]:
            domains = np.unique(level.domain_of_host[own])
            uplink = float(level.uplink_bytes_per_s[domains].mean())
            rate = min(rate, uplink * min(1.0, stray / (self.topology.gpus / len(domains))))
        return rate


def recorded_as(job: Batch, there: Topology) -> tuple[Batch, int]:
    """As a job was when it was recorded on this cluster, and the narrowest tier that could hold it.

    Raises:
        InputError: it cannot have been.
    """
    if job.gpu_type and job.gpu_type not in there.gpu_types:  # it ran on what was there
        job = msgspec.structs.replace(job, gpu_type="")
    tier = there.narrowest(job.gpus, job.gpu_type, job.hosts)
    if tier is None:
        raise InputError(
            f"job {job.id!r} wants {job.gpus} GPUs, more than {there.name} has",
            "give the cluster that the workload was recorded on",
        )
    return job, tier


def _on(counts: list[tuple[int, int]]) -> Placement:
    """The first GPUs of each host, so many."""
    hosts, gpus = zip(*counts, strict=True)
    return Placement(hosts, tuple((1 << count) - 1 for count in gpus))


def roles_iteration_s(job: Batch, gpus: int, *, inside: bool) -> tuple[float, float]:
    """(iteration time, compute in it) of a job of workers and parameter servers.

    The time is that of as much work as an iteration on the GPUs that it asked for does: its batch stays the same.
    """
    assert job.roles is not None
    return job.roles.iteration_s(gpus, inside=inside), job.roles.compute_s(gpus)


def speed_at(model: IterationModel, job: Batch, asked: int, gpus: int) -> float:
    """Work per second of a job on its best place here of so many GPUs, alone; 1 on the `asked` ones where it was recorded.

    Each GPU keeps its batch: an iteration on twice as many does twice the work.
    """
    if job.roles is not None:
        return roles_iteration_s(job, asked, inside=True)[0] / roles_iteration_s(job, gpus, inside=True)[0]
    if job.profile is None:
        return gpus / asked
    return gpus / asked * model.recorded_s(job.sized(asked)) / model.alone(job.sized(gpus)).best_s
