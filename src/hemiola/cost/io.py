"""How long reads from a store take: one request, many at once, what a shared link leaves, and when training waits.

In the style of Diot (Hashemi, "Timed execution in distributed machine learning", UIUC 2020: only the abstract is
public). One request of s bytes takes `t = L + s / b`: L until the first byte, b the rate of one stream. With c
requests in flight over a link or store that gives C in all,

    goodput(s, c) = min(C, c s / (L + s / b))          knee(s) = ceil(C (L + s / b) / s)        (Little's law)

Beyond the knee only the wait grows. The closed queueing form between the two bounds is exact mean value analysis
(Reiser and Lavenberg, 1980). This module knows no files, sockets or clocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
import numpy as np

from hemiola.core.errors import InputError

__all__ = [
    "BatchWait",
    "InputForecast",
    "MeasuredRange",
    "QueueState",
    "RequestFit",
    "StoreModel",
    "StoreProbe",
    "SurfacePoint",
    "batch_wait",
    "buffer_batches",
    "connection_paces",
    "connection_shares",
    "fit_requests",
    "forecast_input",
    "jain_index",
    "mean_value_analysis",
    "robust_requests",
    "synchronous_iteration_s",
]

PHI = 4.0
"""A read of PHI L b bytes spends 1 / (1 + PHI) of its time waiting for its first byte."""
READ_LEAST_BYTES, READ_MOST_BYTES = 2**16, 2**23
ALMOST = 1e-9
"""What rounding may add to a whole number before it counts as the next one."""


@dataclass(frozen=True)
class StoreModel:
    """A store as one reader sees it.

    Attributes:
        latency_s: L, from a request to its first byte.
        stream_bytes_per_s: b, what one request gets.
        share_bytes_per_s: C, what all requests get together; infinite where only streams limit.
    """

    latency_s: float
    stream_bytes_per_s: float
    share_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.latency_s < math.inf:
            raise InputError(f"a store's latency of {self.latency_s!r} s", "give seconds from 0 on")
        for name in ("stream_bytes_per_s", "share_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"a store with {name} {getattr(self, name)!r}", "give a rate above 0")

    def request_s(self, size_bytes: float) -> float:
        """Seconds of one request with nothing beside it."""
        return self.latency_s + size_bytes / self.stream_bytes_per_s

    def goodput(self, size_bytes: float, in_flight: float) -> float:
        """Bytes per second that arrive with so many requests of this size in flight."""
        alone_s = self.request_s(size_bytes)
        wanted = in_flight * size_bytes / alone_s if alone_s > 0 else math.inf
        return min(self.share_bytes_per_s, wanted)

    def knee(self, size_bytes: float) -> int:
        """The fewest requests of this size that reach C.

        Raises:
            InputError: no number of them does, where C is infinite.
        """
        if math.isinf(self.share_bytes_per_s):
            raise InputError("a knee of a store without a limit", "measure share_bytes_per_s, or give it")
        wanted = self.share_bytes_per_s * self.request_s(size_bytes) / size_bytes
        return max(1, math.ceil(wanted - ALMOST))

    def loaded_s(self, size_bytes: float, in_flight: float) -> float:
        """Seconds of one request among so many: beyond the knee c s / C."""
        return in_flight * size_bytes / self.goodput(size_bytes, in_flight)

    def read_bytes(
        self,
        phi: float = PHI,
        least_bytes: int = READ_LEAST_BYTES,
        most_bytes: int = READ_MOST_BYTES,
    ) -> int:
        """A read size that spends at most 1 / (1 + phi) of a request waiting, where it may be so large: a power of two."""
        target = max(1.0, phi * self.latency_s * self.stream_bytes_per_s)
        return int(min(max(2 ** math.ceil(math.log2(target)), least_bytes), most_bytes))

    def with_share(self, share_bytes_per_s: float) -> StoreModel:
        """The same store where all requests together get another rate."""
        return replace(self, share_bytes_per_s=share_bytes_per_s)


class RequestFit(NamedTuple):
    """What measured requests say of one stream.

    Attributes:
        latency_s, stream_bytes_per_s: L and b.
        latency_error_s: standard error of L.
        inverse_error_s: of 1/b, seconds per byte.
        points: requests that it rests on.
    """

    latency_s: float
    stream_bytes_per_s: float
    latency_error_s: float
    inverse_error_s: float
    points: int


def fit_requests(points: Sequence[tuple[float, float]]) -> RequestFit:
    """Fit t = L + s / b by least squares.

    Args:
        points: (bytes, seconds) of single requests, of two sizes at least.

    Raises:
        InputError: all of one size, or larger ones took no longer.
    """
    sizes, seconds = _columns(points)
    centred = sizes - sizes.mean()
    spread = float(centred @ centred)
    inverse = float(centred @ (seconds - seconds.mean())) / spread
    if inverse <= 0:
        raise InputError("larger requests took no longer than small ones", "measure larger sizes, and more")
    latency = float(seconds.mean()) - inverse * float(sizes.mean())
    residuals = seconds - latency - inverse * sizes
    freedom = len(sizes) - 2
    variance = float(residuals @ residuals) / freedom if freedom > 0 else 0.0
    latency_error = math.sqrt(variance * (1 / len(sizes) + float(sizes.mean()) ** 2 / spread))
    return RequestFit(latency, 1 / inverse, latency_error, math.sqrt(variance / spread), len(sizes))


def robust_requests(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """L and b by Theil and Sen: medians, so that a few hiccups move neither.

    Args:
        points: (bytes, seconds) of single requests or of their bodies.

    Returns:
        Seconds at no bytes (not below 0) and bytes per second; an infinite rate where size made no difference.
    """
    sizes, seconds = _columns(points)
    rows, columns = np.triu_indices(len(sizes), 1)
    apart = sizes[columns] != sizes[rows]
    rows, columns = rows[apart], columns[apart]
    slope = float(np.median((seconds[columns] - seconds[rows]) / (sizes[columns] - sizes[rows])))
    latency = float(np.median(seconds - slope * sizes))
    return max(0.0, latency), 1 / slope if slope > 0 else math.inf


def _columns(points: Sequence[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    if len(np.unique(table[:, 0])) < 2:
        raise InputError(f"{len(table)} requests of one size", "measure requests of two sizes or more")
    return table[:, 0], table[:, 1]


# ---- what a probe finds ------------------------------------------------------------------


class MeasuredRange(msgspec.Struct, frozen=True):
    """A value and where it lies with 90 %."""

    value: float
    low: float
    high: float


class SurfacePoint(msgspec.Struct, frozen=True):
    """What was measured with so many requests of this size at once."""

    read_bytes: int
    in_flight: int
    goodput_bytes_per_s: float


class StoreProbe(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe found.

    Attributes:
        url: of the object that was read.
        size_bytes: its size.
        latency_s, stream_bytes_per_s, share_bytes_per_s: L, b and C.
        connect_s: what the first request of a connection took longer (TCP, TLS, authorisation).
        cold_s, warm_s: a range of 1 MiB (or the whole object) for the first and for the second time, the quicker of three.
        surface: goodput by size and requests.
        saturated: whether C was reached; else it is the best that was seen.
        read_bytes_total, seconds: what the probe used.
    """

    schema: str = "hemiola.io-probe/1"
    url: str
    size_bytes: int
    latency_s: MeasuredRange
    stream_bytes_per_s: MeasuredRange
    share_bytes_per_s: MeasuredRange
    connect_s: float
    cold_s: float
    warm_s: float
    surface: tuple[SurfacePoint, ...]
    saturated: bool
    read_bytes_total: int
    seconds: float

    def model(self) -> StoreModel:
        """As the cost model takes it."""
        share = self.share_bytes_per_s.value
        return StoreModel(self.latency_s.value, min(self.stream_bytes_per_s.value, share), share)

    @property
    def cached(self) -> bool:
        """Whether a second read was so much quicker that a cache answered it."""
        return self.warm_s < 0.5 * self.cold_s


# ---- who waits for data ----------------------------------------------------------------------


class BatchWait(NamedTuple):
    """An iteration that reads its batch beside computing.

    Attributes:
        iteration_s: max(compute, bytes / goodput).
        stall_s: of it, waiting for data.
    """

    iteration_s: float
    stall_s: float

    @property
    def input_bound(self) -> bool:
        """Whether reading takes longer than computing."""
        return self.stall_s > 0


def batch_wait(compute_s: float, batch_bytes: float, goodput_bytes_per_s: float) -> BatchWait:
    """A steady iteration whose next batch is read while this one is computed."""
    iteration_s = max(compute_s, batch_bytes / goodput_bytes_per_s)
    return BatchWait(iteration_s, iteration_s - compute_s)


def synchronous_iteration_s(
    compute_s: float, batch_bytes: float, goodputs_bytes_per_s: Sequence[float], *, equalised: bool = False
) -> float:
    """An iteration of ranks that wait for each other: that of the slowest delivery.

    Args:
        batch_bytes: of each rank.
        goodputs_bytes_per_s: by rank.
        equalised: the same sum in equal parts.
    """
    rates = list(goodputs_bytes_per_s)
    slowest = sum(rates) / len(rates) if equalised else min(rates)
    return batch_wait(compute_s, batch_bytes, slowest).iteration_s


class InputForecast(NamedTuple):
    """An iteration with its input.

    Attributes:
        iteration_s: its batch is read while the one before is computed.
        stall_s: of it, waiting for data.
        share_bytes_per_s: what one rank gets of the store.
        read_bytes, in_flight: with which reads it gets that.
    """

    iteration_s: float
    stall_s: float
    share_bytes_per_s: float
    read_bytes: int
    in_flight: int

    @property
    def sentence(self) -> str:
        """Whether input limits, in words."""
        if self.stall_s <= 0:
            return f"not input-bound: {self.in_flight} reads of {_kib(self.read_bytes)} at once keep up with computing"
        return (
            f"input-bound: {100 * self.stall_s / self.iteration_s:.0f} % of the iteration waits, even with "
            f"{self.in_flight} reads of {_kib(self.read_bytes)} at once"
        )


def forecast_input(
    iteration_s: float, batch_bytes: float, store: StoreModel, ranks: int = 1
) -> InputForecast:
    """What an iteration takes when each rank reads its batch from a store that all share.

    Args:
        iteration_s: without input.
        batch_bytes: that each rank reads in an iteration.
        store: as one reader alone sees it; its share is divided among the ranks.
        ranks: that read at once.
    """
    if not batch_bytes >= 0 or ranks < 1:
        raise InputError(f"{batch_bytes} bytes for each of {ranks} ranks", "give bytes from 0 on, and a rank")
    own = store.with_share(store.share_bytes_per_s / ranks)
    read = own.read_bytes()
    flights = own.knee(read)
    wait = batch_wait(iteration_s, batch_bytes, own.goodput(read, flights))
    return InputForecast(wait.iteration_s, wait.stall_s, own.goodput(read, flights), read, flights)


def _kib(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:g} MiB" if size_bytes >= 2**20 else f"{size_bytes / 1024:.0f} KiB"


def buffer_batches(mean_s: float, deviation_s: float, z: float = 2.33) -> int:
    """Batches to keep ready so that variation seldom stalls: (z σ / µ)², a first guess; z = 2.33 is one in a hundred."""
    return max(1, math.ceil((z * deviation_s / mean_s) ** 2 - ALMOST))


# ---- a shared link ---------------------------------------------------------------------------


def connection_shares(connections: Sequence[int], link_bytes_per_s: float) -> tuple[float, ...]:
    """What each reader gets of a link that divides itself by connections."""
    whole = sum(connections)
    return tuple(link_bytes_per_s * count / whole for count in connections)


def jain_index(amounts: Sequence[float]) -> float:
    """(Σx)² / (n Σx²), from 1 / n to 1: 1 where all have the same (Jain, Chiu, Hawe, 1984); 1 where nobody has any."""
    squares = sum(x * x for x in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares > 0 else 1.0


def connection_paces(
    weights: Sequence[float], connections: Sequence[int], link_bytes_per_s: float
) -> tuple[float, ...]:
    """Bytes per second for each of a reader's connections, so that readers get the link by weight."""
    whole = sum(weights)
    return tuple(w * link_bytes_per_s / (whole * n) for w, n in zip(weights, connections, strict=True))


# ---- between the two bounds ------------------------------------------------------------------


class QueueState(NamedTuple):
    """A closed queue with so many requests.

    Attributes:
        in_flight: N.
        requests_per_s: X.
        response_s: R, at the bottleneck.
    """

    in_flight: int
    requests_per_s: float
    response_s: float


def mean_value_analysis(demand_s: float, delay_s: float, in_flight: int) -> tuple[QueueState, ...]:
    """One processor-sharing bottleneck and a delay, for 1 to N requests: exact (Reiser and Lavenberg, 1980).

    Args:
        demand_s: D, s / C: what a request asks of the bottleneck.
        delay_s: Z, what it waits elsewhere.
        in_flight: N.
    """
    states, queue = [], 0.0
    for count in range(1, in_flight + 1):
        response_s = demand_s * (1 + queue)
        rate = count / (response_s + delay_s)
        queue = rate * response_s
        states.append(QueueState(count, rate, response_s))
    return tuple(states)
