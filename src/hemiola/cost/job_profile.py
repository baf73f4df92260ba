"""From a graph to the profile that the cluster's simulator takes: what an iteration computes and sends, by number of GPUs.

The simulator knows one law, T = C + max(0, V / r + a - o) (`cost.iteration`), with the job's compute time C,
the bytes V on each link, the rate r of the narrowest link, the latency a of a ring's steps (0 inside of a
host) and the hidden part o = overlap * C. For each number of GPUs V is what the prediction sends over its
busiest link; C for each, and one overlap for all, are fitted to the predictions on every tier of a topology
with all, half and a quarter of its links. How well the law repeats them is returned with the profile. The law
has no tail (the last bucket, which nothing hides however fast the network), so C takes some of it in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from hemiola.core.decisions import Placement
from hemiola.core.errors import InputError
from hemiola.core.graph import Graph
from hemiola.core.hardware import Hardware
from hemiola.core.job import Batch, Demand, Profile, same_type
from hemiola.core.topology import Topology
from hemiola.cost.iteration import IterationModel, Need
from hemiola.cost.parallelism import PLAIN_DDP, Parallelism, ParameterServer
from hemiola.cost.places import RankLink, RankPlaces, place_ranks
from hemiola.cost.prediction import USUAL, PredictionOptions, predict
from hemiola.cost.profiles import SCHEMA
from hemiola.cost.whatif import scaled_collectives
from hemiola.trace.reports import JobReport

__all__ = ["LEARNT", "Fit", "fit_profile", "learnt", "profile_file"]


UNLIMITED_BYTES_PER_S = 1e18
SHARES = (1.0, 0.5, 0.25)


class TierTime(msgspec.Struct, frozen=True):
    """One placement: what was predicted, and what the profile's law says.

    Attributes:
        gpus, hosts: of the placement.
        tier: the narrowest that holds it ("host", "rack", ...).
        share: of each link's bandwidth that the job has.
        predicted_s, law_s: iteration times.
    """

    gpus: int
    hosts: int
    tier: str
    share: float
    predicted_s: float
    law_s: float

    @property
    def error(self) -> float:
        """Of the law, relative."""
        return self.law_s / self.predicted_s - 1


@dataclass(frozen=True)
class Fit:
    """A profile, and how well the law repeats the predictions that it comes from."""

    profile: Profile
    times: tuple[TierTime, ...]

    @property
    def mean_error(self) -> float:
        """Mean of the errors' sizes."""
        return float(np.mean([abs(time.error) for time in self.times])) if self.times else 0.0

    @property
    def largest_error(self) -> float:
        """The largest error's size."""
        return max((abs(time.error) for time in self.times), default=0.0)


@dataclass(frozen=True)
class _Case:
    """One placement with one share of the links.

    Attributes:
        predicted_s: its iteration time.
        traffic_bytes: V.
        send_s: V / r + a of the law.
    """

    place: RankPlaces
    share: float
    predicted_s: float
    traffic_bytes: float
    send_s: float


def fit_profile(
    graph: Graph,
    hardware: Hardware,
    topology: Topology,
    parallelism: Parallelism = PLAIN_DDP,
    *,
    gpus: Sequence[int] | None = None,
    options: PredictionOptions = USUAL,
    name: str = "",
) -> Fit:
    """The profile of a graph on a cluster.

    Args:
        gpus: numbers of GPUs to predict; None for 1, 2, 4, ... up to all of the cluster's.
        name: of the profile; "predicted/" and the graph's unless given.

    Raises:
        InputError: no numbers, more GPUs than there are, a parameter server.
    """
    counts = sorted(set(gpus)) if gpus is not None else _powers(topology.gpus)
    if not counts:
        raise InputError("no numbers of GPUs to profile", "give at least one")
    if isinstance(parallelism, ParameterServer):
        raise InputError(
            "a parameter server's traffic depends on where the servers are, which no profile says",
            "make the profile of ddp or fsdp",
        )
    cases = [c for n in counts for c in _cases(graph, hardware, topology, n, parallelism, options)]
    bare, least = _unlimited(topology), dict[int, float]()
    for n in counts:
        links = (link for case in cases if case.place.ranks == n for link in case.place.links)
        least[n] = predict(graph, _freed(hardware, links), bare, n, parallelism, options=options).iteration_s
    overlap, compute_s = _fitted(least, cases)
    profile = Profile(
        name=name or f"predicted/{graph.name}",
        demands=tuple(
            Demand(n, compute_s[n], max(c.traffic_bytes for c in cases if c.place.ranks == n)) for n in counts
        ),
        overlap=overlap,
        all_reduced=_all_reduced(graph, hardware, parallelism, counts[-1]),
        gpu_type=same_type(hardware.name, topology.gpu_types) or hardware.name,
        source=f"predicted: {graph.name} with {parallelism.label} on {hardware.name} in {topology.name}",
    )
    return Fit(profile, tuple(_tier_time(profile, topology, case) for case in cases))


def profile_file(fit: Fit) -> bytes:
    """The file that `cost.profiles.load_library` reads."""
    about = (
        f"the law repeats the predictions on {len(fit.times)} placements with a mean error of "
        f"{fit.mean_error:.1%}, at most {fit.largest_error:.1%}"
    )
    return msgspec.json.format(
        msgspec.json.encode({"schema": SCHEMA, "about": about, "profiles": [fit.profile]}), indent=2
    )


def _all_reduced(graph: Graph, hardware: Hardware, parallelism: Parallelism, ranks: int) -> float:
    """The share of what a rank sends in all-reduces: of an all-reduce, twice as much as of a gather or a scatter."""
    sent = [
        (
            transfer.collective == "all-reduce",
            transfer.size_bytes * (1 + (transfer.collective == "all-reduce")),
        )
        for transfer in parallelism.transfers(graph, ranks, hardware.kind)
    ]
    total = sum(size for _, size in sent)
    return sum(size for reduces, size in sent if reduces) / total if total else 1.0


def _powers(most: int) -> list[int]:
    return [2**i for i in range(most.bit_length()) if 2**i <= most]


def _cases(
    graph: Graph,
    hardware: Hardware,
    topology: Topology,
    count: int,
    parallelism: Parallelism,
    options: PredictionOptions,
) -> list[_Case]:
    """Every tier, with all, half and a quarter of the links between hosts."""
    found = []
    for placement in _placements(topology, count):
        place = place_ranks(topology, count, placement, hardware)
        for share in SHARES if len(place.counts) > 1 else (1.0,):
            answer = predict(
                graph,
                hardware,
                _scaled(topology, share),
                count,
                parallelism,
                placement=placement,
                options=options,
            )
            traffic = answer.traffic_bytes if count > 1 else 0.0
            found.append(_Case(place, share, answer.iteration_s, traffic, 0.0))
    most = max((case.traffic_bytes for case in found), default=0.0)
    return [replace(c, traffic_bytes=most, send_s=_send_s(topology, c, most)) for c in found]


def _send_s(topology: Topology, case: _Case, traffic_bytes: float) -> float:
    """V / r + a of the law on a placement: what it says of a job that computes nothing to speak of."""
    demand = Demand(case.place.ranks, 1e-12, traffic_bytes)
    bare = Profile(name="bare", demands=(demand,))
    return _tier_time(bare, topology, case).law_s


def _placements(topology: Topology, count: int) -> list[tuple[int, ...]]:
    """Hosts filled in order, and spread over twice as many where they are there."""
    gpus = topology.hosts.gpus.tolist()
    found = []
    for limit in dict.fromkeys((max(gpus), max(1, max(gpus) // 2), 1)):
        left, counts = count, []
        for own in gpus:
            counts.append(min(left, own, limit))
            left -= counts[-1]
        if not left and tuple(counts) not in found:
            found.append(tuple(counts))
    return found


def _scaled(topology: Topology, share: float) -> Topology:
    """With a share of the bandwidth between hosts."""
    hosts = replace(topology.hosts, nic_bytes_per_s=topology.hosts.nic_bytes_per_s * share)
    levels = tuple(
        replace(level, uplink_bytes_per_s=level.uplink_bytes_per_s * share) for level in topology.levels
    )
    return replace(topology, hosts=hosts, levels=levels)


def _unlimited(topology: Topology) -> Topology:
    """The same hosts, and nothing that slows sending."""
    hosts = topology.hosts
    most = np.full(len(hosts), UNLIMITED_BYTES_PER_S)
    hosts = replace(
        hosts, nic_bytes_per_s=most, fabric_bytes_per_s=most, bus_bytes_per_s=most, nic_latency_s=0 * most
    )
    return replace(topology, hosts=hosts, levels=())


def _freed(hardware: Hardware, links: Iterable[RankLink]) -> Hardware:
    """The same devices, and nothing that slows sending but what the library needs by itself.

    Args:
        links: of the network; what its collectives were measured at, if it limited them, is not the library's.
    """
    lifted = scaled_collectives(hardware, links, UNLIMITED_BYTES_PER_S)
    return msgspec.structs.replace(lifted, fabric_bytes_per_s=UNLIMITED_BYTES_PER_S)


def _fitted(least: dict[int, float], cases: Sequence[_Case]) -> tuple[float, dict[int, float]]:
    """The overlap, to a hundredth, and per number of GPUs the C with the least squared relative errors.

    Args:
        least: by number of GPUs, what an iteration takes however fast the network: C is no less.
    """
    best: tuple[float, float, dict[int, float]] | None = None
    for overlap in (i / 100 for i in range(100)):
        total, compute_s = 0.0, {}
        for count, floor_s in least.items():
            own = [case for case in cases if case.place.ranks == count]
            predicted = np.array([case.predicted_s for case in own])
            send = np.array([case.send_s for case in own]) if count > 1 else np.zeros(len(own))
            error, compute_s[count] = _best_compute_s(predicted, send, overlap, floor_s)
            total += error
        if best is None or total < best[0] - 1e-12:
            best = total, overlap, compute_s
    assert best is not None
    return best[1], best[2]


def _best_compute_s(
    predicted: NDArray[np.float64], send: NDArray[np.float64], overlap: float, floor_s: float
) -> tuple[float, float]:
    """The least sum of squared relative errors, and its C: between the least and what fits a placement exactly."""
    exact = np.where(send > overlap * predicted, (predicted - send) / (1 - overlap), predicted)
    tried = np.linspace(floor_s, max(float(exact.max()), floor_s), 65)[:, None]
    error = ((tried + np.maximum(0.0, send - overlap * tried)) / predicted - 1) ** 2
    sums = error.sum(axis=1)
    return float(sums.min()), float(tried[int(sums.argmin()), 0])


def _tier_time(profile: Profile, topology: Topology, case: _Case) -> TierTime:
    """What the simulator would say of the same placement."""
    scaled = _scaled(topology, case.share)
    model = IterationModel(scaled)
    place = case.place
    job = Batch(id="job", submit_s=0.0, gpus=place.ranks, duration_s=1.0, profile=profile)
    placement = Placement(
        tuple(host for host, _ in place.counts), tuple((1 << count) - 1 for _, count in place.counts)
    )
    if len(place.counts) == 1:
        law_s = model.on_host(job, placement.hosts[0], placement.masks[0])[0]
    else:
        crossing = model.crossing(job, placement)
        capacities = model.capacities_bytes_per_s
        rate = min(float(capacities[link]) for link in crossing.links)
        law_s = max(crossing.need.iteration_s(rate, crossing.latency_s), crossing.local_s)
    tier = topology.tiers[topology.span(placement.hosts)]
    return TierTime(place.ranks, len(place.counts), tier, case.share, case.predicted_s, law_s)


# From what a running job reports to the profile that tells how it would run elsewhere.

LEARNT = "learnt/"
"""What names of such profiles begin with."""


def learnt(model: IterationModel, job: Batch, placement: Placement, report: JobReport, name: str) -> Profile:
    """The profile of a job by a report of its quickest iterations on a placement.

    Args:
        job: with what was learnt of it before, if anything: what its iterations hid elsewhere, they hide here.
        name: what its user calls it.
    """
    before = job.profile if job.profile is not None and job.profile.name.startswith(LEARNT) else None
    sent_bytes = report.traffic_bytes if report.gpus > 1 else 0.0
    ring = Profile(name="ring", demands=(Demand(1, 1.0, 0.0),), all_reduced=report.all_reduced)
    sending = Need(0.0, sent_bytes, 0.0)  # given, for a model keeps what it asks of a profile
    send_s = model.alone_s(
        msgspec.structs.replace(job, gpus=report.gpus, profile=ring), placement, need=sending
    )
    exposed_s = report.iteration_s - report.compute_s
    known_s = before.overlap * before.demand(report.gpus).compute_s if before else 0.0
    hidden_s = max(0.0, send_s - exposed_s, known_s)
    compute_s = max(report.compute_s, report.iteration_s - max(0.0, send_s - hidden_s))
    costs = job.profile
    return Profile(
        name=f"{LEARNT}{job.user}/{name}",
        demands=(Demand(report.gpus, compute_s, sent_bytes),),
        overlap=min(1.0, hidden_s / compute_s),
        all_reduced=report.all_reduced,
        checkpoint_s=costs.checkpoint_s if costs else 0.0,
        restore_s=costs.restore_s if costs else 0.0,
        gpu_type=model.topology.hosts.gpu_types[placement.hosts[0]],
        source=f"learnt from iterations of {report.iteration_s:.3g} s on {len(placement.hosts)} hosts",
    )
