"""How long a collective takes: its algorithm's steps and bytes, and the links between the ranks of a placement.

The alpha-beta model (Thakur, Rabenseifner and Gropp, IJHPCA 2005): a collective of n ranks on S bytes
takes `steps(n)` latencies and sends `share(n) * S` bytes per rank. On a cluster every link between a
domain (a host, a rack) and the rest carries `crossing(inside, n) * S` bytes per direction, where `inside` are
the ranks of the domain. Ranks are numbered host by host, so a ring enters and leaves each domain once.

Which algorithm runs is the library's choice (`Library`): gloo's only one, or NCCL's fastest by NCCL's own
table. Who else uses the links is the executor's matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import HardwareError, InputError
from hemiola.core.hardware import CollectiveCost, Hardware
from hemiola.cost.places import RankPlaces

__all__ = [
    "ALGORITHMS",
    "CARRIED",
    "GLOO",
    "GROUP",
    "HEMIOLA",
    "LIBRARIES",
    "NCCL",
    "Algorithm",
    "Cost",
    "Library",
    "Variant",
    "collective_cost",
    "fit_collective",
    "library_of",
    "measurement",
    "measurements",
]


CARRIED = 0.8, 1.1
"""A collective that was measured at such a share of a link's rate says what the link carries, not what its library could."""


@dataclass(frozen=True)
class Algorithm:
    """One way to run a collective on S bytes (of the whole tensor).

    Attributes:
        name: "ring", "halving-doubling", "direct", "tree".
        steps: latencies on the way, by number of ranks.
        share: bytes that the busiest rank sends, relative to S, by number of ranks.
        crossing: bytes that leave a domain, relative to S, by the ranks inside of it and the number of all.
    """

    name: str
    steps: Callable[[int], float]
    share: Callable[[int], float]
    crossing: Callable[[frozenset[int], int], float]


@dataclass(frozen=True)
class Variant:
    """An algorithm as a library implements it (NCCL: with one of its protocols).

    Attributes:
        algorithm: which one.
        start_s: before the first byte, however many ranks.
        local_s, network_s: one step inside of a host, and between hosts.
        efficiency: share of a link's bandwidth that carries the tensor's bytes.
        framed: whether the rest of it are headers of frames.
    """

    algorithm: Algorithm
    start_s: float
    local_s: float
    network_s: float
    efficiency: float = 1.0
    framed: bool = False

    def data_share(self, place: RankPlaces) -> float:
        """`efficiency` on these links: rates that `hemiola probe` measured are of data, without headers."""
        return 1.0 if self.framed and place.topology.measured else self.efficiency


@dataclass(frozen=True)
class Library:
    """A collective library.

    Attributes:
        name: "gloo", "nccl" or "hemiola".
        at_once: collectives of one group that are in progress at once.
        variants: by collective; the fastest is used.
        source: where the constants come from.
        threads: of one rank that communicate.
        preemptive: whether a collective can pause another one.
        by_schedules: whether it carries out schedules (`core.collective.schedule`) that it is given.
        chooses: among its variants by itself, so that what was measured is of whichever it took.
    """

    name: str
    at_once: int
    variants: dict[str, tuple[Variant, ...]]
    source: str
    threads: int = 1
    preemptive: bool = False
    by_schedules: bool = False
    chooses: bool = False


@dataclass(frozen=True)
class Cost:
    """What one collective needs on one placement.

    Attributes:
        algorithm: the one that was chosen.
        latency_s: all its steps.
        loads: bytes by link (its number in `RankPlaces`), per direction, headers included.
        sent_bytes: by the busiest rank.
        rate_max_bytes_per_s: no rank sends faster, however free the links are.
        cpu_s: processor time of one rank, beside its computation.
        spread: relative, of the library's own time to send; 0 if not known.
        latency_spread: relative, of the latency; 0 if not known.
    """

    algorithm: str
    latency_s: float
    loads: tuple[tuple[int, float], ...]
    sent_bytes: float
    rate_max_bytes_per_s: float
    cpu_s: float = 0.0
    spread: float = 0.0
    latency_spread: float = 0.0

    def seconds(self, place: RankPlaces) -> float:
        """With the links to itself and the processor free."""
        rates = place.bytes_per_s
        slowest = max((size / float(rates[link]) for link, size in self.loads), default=0.0)
        return self.latency_s + max(slowest, self.sent_bytes / self.rate_max_bytes_per_s)

    @property
    def deviation_s(self) -> float:
        """How far off its time is: by a share of what the library needs; what a slower link adds is certain."""
        sent_s = self.sent_bytes / self.rate_max_bytes_per_s
        return self.latency_spread * self.latency_s + self.spread * sent_s


def _log(ranks: int) -> int:
    return math.ceil(math.log2(ranks)) if ranks > 1 else 0


def _folded(ranks: int) -> float:
    """Halving and doubling on the largest power of two; the ranks beyond it hand their tensor over and get it back."""
    power = 1 << int(math.log2(ranks))
    return 2 * (power - 1) / power + (2 if power < ranks else 0)


def _apart(inside: frozenset[int], ranks: int) -> float:
    """Direct exchange: each of these sends a slice to every rank outside."""
    return len(inside) * (ranks - len(inside)) / ranks


@lru_cache(maxsize=1 << 12)
def _halved(inside: frozenset[int], ranks: int, sent: float) -> float:
    """Halving: each of these sends a half to the rank 1 away, then a quarter to the one 2 away, and so on.

    Args:
        sent: by a rank; all of it counts as crossing where the number of ranks is no power of two.
    """
    if ranks & (ranks - 1):
        return min(len(inside), ranks - len(inside)) * sent
    steps = [1 << step for step in range(_log(ranks))]
    return sum(sum(rank ^ away not in inside for rank in inside) / (2 * away) for away in steps)


def _twice_ring(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def _ring(ranks: int) -> float:
    return (ranks - 1) / ranks


_ALL_REDUCE = (
    Algorithm("ring", lambda n: 2 * (n - 1), _twice_ring, lambda inside, n: _twice_ring(n)),
    Algorithm(
        "halving-doubling",
        lambda n: 2 * int(math.log2(n)) + (2 if n & (n - 1) else 0),
        _folded,
        lambda inside, n: 2 * _halved(inside, n, _folded(n) / 2),
    ),
    Algorithm("direct", lambda n: 2, _twice_ring, lambda inside, n: 2 * _apart(inside, n)),
    Algorithm("tree", lambda n: 2 * _log(n), lambda n: 2.0, lambda inside, n: 2.0),
)
_HALF = (
    Algorithm("ring", lambda n: n - 1, _ring, lambda inside, n: _ring(n)),
    Algorithm(
        "halving-doubling",
        _log,
        _ring,
        lambda inside, n: _halved(inside, n, _ring(n)),
    ),
    Algorithm("direct", lambda n: 1, _ring, _apart),
)

ALGORITHMS: dict[str, tuple[Algorithm, ...]] = {
    "all-reduce": _ALL_REDUCE,
    "all-gather": _HALF,
    "reduce-scatter": _HALF,
    "all-to-all": (Algorithm("direct", lambda n: n - 1, _ring, _apart),),
    "broadcast": (
        Algorithm("tree", _log, _log, lambda inside, n: _log(math.ceil(n / len(inside)))),
        Algorithm("ring", lambda n: _log(n) + n - 1, _twice_ring, lambda inside, n: _twice_ring(n)),
    ),
    "send": (Algorithm("direct", lambda n: 1, lambda n: 1.0, lambda inside, n: 1.0),),
}
"""By collective. "tree" all-reduce is the pipelined double binary tree, "tree" broadcast the binomial one,
"ring" broadcast scatters and gathers. All-gather's and reduce-scatter's S is the whole tensor, all-to-all's
one rank's. Halving-doubling meets near ranks first, with the largest parts; where the number of ranks is no
power of two, its crossing is an upper bound."""


def algorithm(collective: str, name: str) -> Algorithm:
    """One algorithm by its name.

    Raises:
        InputError: there is none.
    """
    for known in ALGORITHMS.get(collective, ()):
        if known.name == name:
            return known
    offered = ", ".join(f"{c}/{a.name}" for c, those in ALGORITHMS.items() for a in those)
    raise InputError(f"there is no {name!r} {collective!r}", f"known: {offered}")


_TCP_PAYLOAD = 1448 / 1514
_GLOO_STEP_S = 150e-6


def _framed(algorithm: Algorithm, step_s: float) -> Variant:
    """Over TCP."""
    return Variant(algorithm, 0.0, step_s, step_s, _TCP_PAYLOAD, framed=True)


def _gloo(collective: str, name: str) -> tuple[Variant, ...]:
    return (_framed(algorithm(collective, name), _GLOO_STEP_S),)


GLOO = Library(
    name="gloo",
    at_once=2,
    threads=2,
    variants={
        "all-reduce": _gloo("all-reduce", "ring"),
        "reduce-scatter": _gloo("all-reduce", "ring"),
        "all-gather": _gloo("all-gather", "ring"),
        "broadcast": _gloo("broadcast", "tree"),
        "send": _gloo("send", "direct"),
    },
    source="gloo: one ring; reduce-scatter is an all-reduce (its bytes on the wire, counted); two threads per "
    "group; 1448 of 1514 bytes of a frame carry data; a step takes 150 µs where none was measured",
)


def _nccl(collective: str) -> tuple[Variant, ...]:
    """Ring and tree with the protocols LL, LL128, Simple: (start, NVLink, network in µs, share of bandwidth)."""
    ring = algorithm(collective, "ring")
    rows = [(ring, 6.6, 0.6, 2.7, 0.5), (ring, 14.0, 1.9, 4.0, 0.9375), (ring, 8.4, 3.4, 14.0, 1.0)]
    if collective == "all-reduce":
        tree = algorithm(collective, "tree")
        rows += [(tree, 6.8, 0.6, 5.0, 0.5), (tree, 14.0, 1.25, 8.5, 0.9375), (tree, 8.4, 4.0, 14.0, 1.0)]
    return tuple(Variant(a, s * 1e-6, x * 1e-6, n * 1e-6, e) for a, s, x, n, e in rows)


NCCL = Library(
    name="nccl",
    at_once=1,
    chooses=True,
    variants={
        **{c: _nccl(c) for c in ("all-reduce", "all-gather", "reduce-scatter", "broadcast")},
        "send": (Variant(algorithm("send", "direct"), 8.4e-6, 3.4e-6, 14e-6),),
    },
    source="NCCL: latencies of its own tuning table (src/graph/tuning.cc), the fastest of ring and tree with LL "
    "(half of the bandwidth), LL128 (15/16) and Simple; the whole of the links' bandwidth",
)


_HEMIOLA_STEP_S = 200e-6


def _hemiola(collective: str) -> tuple[Variant, ...]:
    return tuple(_framed(one, _HEMIOLA_STEP_S) for one in ALGORITHMS[collective] if one.name != "tree")


HEMIOLA = Library(
    name="hemiola",
    at_once=1 << 30,
    preemptive=True,
    variants={
        **{c: _hemiola(c) for c in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send")},
        "broadcast": (_framed(algorithm("broadcast", "tree"), _HEMIOLA_STEP_S),),
    },
    source="Hemiola's transport: messages between pairs of ranks, as many at once as there are; 1448 of 1514 bytes "
    "of a frame carry data; a step takes 200 µs where none was measured",
)

GROUP = Library(
    name="hemiola",
    at_once=1,
    by_schedules=True,
    variants={
        "all-reduce": (_framed(algorithm("all-reduce", "ring"), _HEMIOLA_STEP_S),),
        "reduce-scatter": (_framed(algorithm("reduce-scatter", "ring"), _HEMIOLA_STEP_S),),
        "all-gather": (_framed(algorithm("all-gather", "direct"), _HEMIOLA_STEP_S),),
        **{name: HEMIOLA.variants[name] for name in ("broadcast", "all-to-all", "send")},
    },
    source="Hemiola's process group: rings, and direct exchange for what is gathered, one after the other; 1448 of "
    "1514 bytes of a frame carry data; a step takes 200 µs where none was measured",
)
"""PyTorch's process group "hemiola": the transport's collectives as DDP and FSDP call them."""

LIBRARIES = {library.name: library for library in (GLOO, NCCL, HEMIOLA)}
"""By name."""


def library_of(hardware: Hardware) -> Library:
    """What PyTorch uses on it: gloo on processors, NCCL on GPUs."""
    return GLOO if hardware.kind == "cpu" else NCCL


def collective_cost(
    collective: str,
    size_bytes: float,
    place: RankPlaces,
    library: Library,
    hardware: Hardware | None = None,
    algorithm: str = "",
) -> Cost:
    """What a collective of all ranks of a placement needs, with its library's fastest algorithm.

    Args:
        size_bytes: of the whole tensor.
        hardware: whose measurements go before the library's constants.
        algorithm: the one to use; "" for the fastest.

    Raises:
        InputError: the library has no such collective, or none by this algorithm.
    """
    if collective not in library.variants:
        raise InputError(f"{library.name} has no {collective!r}", f"it has {', '.join(library.variants)}")
    variants = [v for v in library.variants[collective] if algorithm in ("", v.algorithm.name)]
    if not variants:
        offered = ", ".join(dict.fromkeys(v.algorithm.name for v in library.variants[collective]))
        raise InputError(f"{library.name} has no {collective} by {algorithm!r}", f"it has {offered}")
    measured = measurement(hardware, library, variants[0], collective, place)
    if measured and library.chooses:
        fitted = library.variants[collective][0].algorithm
        whole = max(v.efficiency for v in variants)  # what protocols cost is in the rate that was measured
        costs = [
            variant_cost(v, size_bytes, place, _as_by(v.algorithm, fitted, measured))
            for v in variants
            if v.efficiency == whole
        ]
    else:
        costs = [variant_cost(variant, size_bytes, place, measured) for variant in variants]
    return min(costs, key=lambda cost: cost.seconds(place))


def _as_by(algorithm: Algorithm, fitted: Algorithm, measured: CollectiveCost) -> CollectiveCost:
    """The same latency in this algorithm's steps: it was divided by those of the fitted one, whichever ran."""
    times = fitted.steps(measured.ranks) / algorithm.steps(measured.ranks)
    return msgspec.structs.replace(
        measured, alpha_s=measured.alpha_s * times, cpu_s_per_step=measured.cpu_s_per_step * times
    )


def variant_cost(
    variant: Variant, size_bytes: float, place: RankPlaces, measured: CollectiveCost | None = None
) -> Cost:
    """What one algorithm needs on a placement; nothing on one rank."""
    ranks, hosts = place.ranks, len(place.counts)
    if ranks < 2:
        return Cost(variant.algorithm.name, 0.0, (), 0.0, math.inf)
    steps = variant.algorithm.steps(ranks)
    far = variant.algorithm.steps(hosts) if hosts > 1 else 0
    local_s = measured.alpha_s if measured else variant.local_s
    network_s = local_s + place.latency_s if measured else max(variant.network_s, place.latency_s)
    start_s = 0.0 if measured else variant.start_s  # it is in what was measured
    sent = variant.algorithm.share(ranks) * size_bytes
    crossing, data_share = variant.algorithm.crossing, variant.data_share(place)
    loads = [
        (i, (sent if link.inner else crossing(below, ranks) * size_bytes) / data_share)
        for i, (link, below) in enumerate(zip(place.links, place.ranks_below, strict=True))
    ]
    return Cost(
        algorithm=variant.algorithm.name,
        latency_s=start_s + (steps - far) * local_s + far * network_s,
        loads=tuple(load for load in loads if load[1] > 0),
        sent_bytes=sent,
        rate_max_bytes_per_s=measured.bytes_per_s if measured else math.inf,
        cpu_s=measured.cpu_s_per_byte * sent + measured.cpu_s_per_step * steps if measured else 0.0,
        spread=measured.spread if measured else 0.0,
        latency_spread=measured.alpha_spread if measured else 0.0,
    )


def measurement(
    hardware: Hardware | None, library: Library, variant: Variant, collective: str, place: RankPlaces
) -> CollectiveCost | None:
    """The measurement that fits best: between hosts or within one as these ranks are, of this collective, or of the one
    it runs as, near this number of ranks."""
    if hardware is None:
        return None
    runs_as = [c for c, those in ALGORITHMS.items() if variant.algorithm in those]
    names, crossing = (collective, *runs_as, "all-reduce"), len(place.counts) > 1
    return min(
        (c for c in measurements(hardware, library, place) if c.collective in names),
        key=lambda c: (
            c.between_hosts != crossing,
            names.index(c.collective),
            abs(math.log2(c.ranks / place.ranks)),
        ),
        default=None,
    )


def measurements(hardware: Hardware, library: Library, place: RankPlaces) -> list[CollectiveCost]:
    """Those of the library that can stand for these ranks: what was measured between hosts says nothing of ranks of one."""
    own = [c for c in hardware.collectives if c.backend == library.name]
    return own if len(place.counts) > 1 else [c for c in own if not c.between_hosts]


# A collective's latency and bandwidth from what was measured at several sizes.

_SMALL_BYTES, _LARGE_BYTES = 16_384, 1_000_000  # up to, from: where latency, and where bandwidth, decides
_ROUNDS = 10
_LEAST_ALPHA_S = 1e-7

Floats = NDArray[np.float64]


def fit_collective(
    backend: str,
    collective: str,
    hosts: Sequence[str],
    points: Sequence[tuple[float, float, float]],
    *,
    spreads: Sequence[float] = (),
    runs: int = 0,
) -> CollectiveCost:
    """Fit seconds = steps * alpha + share * size / bandwidth.

    Alpha is the median over the small sizes, bandwidth that over the large ones, so that one disturbed
    size changes little, nor do the sizes between: a shaper's bucket lets them pass at once. Steps and
    share are those of the library's algorithm (`cost.collective.library`).

    Args:
        backend: "gloo", "nccl" or "hemiola".
        collective: as `cost.collective.library` names it.
        hosts: of the ranks, in order of rank.
        points: (size_bytes, seconds, cpu_s): of one call, and the processor time of one rank.
        spreads: relative, of single calls, one for each point; the fit's own misfit is added.
        runs: timed calls per size.

    Raises:
        HardwareError: if there are fewer than two ranks or sizes, or time does not grow with size.
    """
    algorithm = LIBRARIES[backend].variants[collective][0].algorithm
    ranks = len(hosts)
    if ranks < 2:
        raise HardwareError(f"{ranks} ranks have no links between them", "measure between at least two")
    sizes, seconds, cpu_s = np.array(points, dtype=float).reshape(-1, 3).T
    if len(set(sizes.tolist())) < 2:
        raise HardwareError(f"{collective} was measured at {len(sizes)} sizes", "measure at least two sizes")
    steps, sent = algorithm.steps(ranks), algorithm.share(ranks) * sizes
    alpha_s, per_byte_s = _line(sizes, steps, sent, seconds)
    if per_byte_s <= 0:
        raise HardwareError(
            f"{collective} of {ranks} ranks takes no longer for {sizes.max():g} bytes than for {sizes.min():g}",
            "measure larger sizes, on a quieter machine",
        )
    cpu_step_s, cpu_byte_s = _line(sizes, steps, sent, cpu_s)
    deviations = np.hypot(
        np.abs((steps * alpha_s + sent * per_byte_s) / seconds - 1),
        np.array(spreads) if len(spreads) else 0.0,
    )
    small, large = _ends(sizes)
    return CollectiveCost(
        backend=backend,
        collective=collective,
        ranks=ranks,
        hosts=tuple(hosts),
        alpha_s=max(alpha_s, _LEAST_ALPHA_S),
        bytes_per_s=1 / per_byte_s,
        cpu_s_per_byte=max(cpu_byte_s, 0.0),
        cpu_s_per_step=max(cpu_step_s, 0.0),
        spread=float(np.median(deviations[large])),
        alpha_spread=float(np.median(deviations[small])),
        points=tuple((float(a), float(b), float(c)) for a, b, c in zip(sizes, seconds, cpu_s, strict=True)),
        runs=runs,
    )


def _line(sizes: Floats, steps: float, sent: Floats, seconds: Floats) -> tuple[float, float]:
    """Seconds per step and per byte sent, each the median over the sizes where it decides."""
    small, large = _ends(sizes)
    step_s, byte_s = 0.0, 0.0
    for _ in range(_ROUNDS):
        byte_s = float(np.median((seconds[large] - steps * step_s) / sent[large]))
        step_s = max(float(np.median((seconds[small] - sent[small] * byte_s) / steps)), 0.0)
    return step_s, byte_s


def _ends(sizes: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which sizes tell latency, and which bandwidth."""
    return (
        (sizes <= _SMALL_BYTES) | (sizes == sizes.min()),
        (sizes >= _LARGE_BYTES) | (sizes == sizes.max()),
    )
