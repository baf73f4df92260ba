"""Measures a store: latency, the rate of a stream, what all streams get together. Reads only, within a budget.

First one connection, with requests of three sizes in turn: L is the lowest quartile of first-byte times, b comes from
the times of bodies by Theil and Sen, so that a hiccup moves neither. Then more requests at a time, four times as
many each time, until they give less than three quarters of what so many streams could: C. Ranges are drawn by chance, so that a cache shows itself when one is read again.
"""

from __future__ import annotations

import math
import random
import statistics
import threading
import time
from collections.abc import Callable

import msgspec

from hemiola.core.errors import InputError
from hemiola.core.units import format_bytes
from hemiola.cost.io import MeasuredRange, StoreModel, StoreProbe, SurfacePoint, robust_requests
from hemiola.plan.io.tuner import SATURATED, ReadLimits
from hemiola.train.input.reader import RangeReader, ReadPatience
from hemiola.train.input.source import ByteSource, open_source

__all__ = ["ProbeBudget", "measure_stream", "probe_store"]

SIZES = (2**14, 2**17, 2**20)
BOOTSTRAPS = 200
SLICE_S = 0.1

Say = Callable[[str], None]


class ProbeBudget(msgspec.Struct, frozen=True):
    """What a probe may use.

    Attributes:
        bytes_: to read, at most.
        seconds: in all, at most.
        in_flight: requests at once, at most.
    """

    bytes_: float = 2.0**26
    seconds: float = 10.0
    in_flight: int = 64


class _Budget:
    """What is left of it."""

    def __init__(self, budget: ProbeBudget) -> None:
        self.budget, self.begun_s, self.used = budget, time.monotonic(), 0

    @property
    def left_s(self) -> float:
        return self.budget.seconds - (time.monotonic() - self.begun_s)

    @property
    def left_bytes(self) -> float:
        return self.budget.bytes_ - self.used


class _Stream:
    """Timed requests on one connection."""

    def __init__(self, source: ByteSource, chance: random.Random, budget: _Budget) -> None:
        self._source, self._chance, self._budget = source, chance, budget
        self.firsts: list[float] = []
        self.bodies: list[tuple[float, float]] = []

    def offset(self, size: int) -> int:
        return self._chance.randrange(max(1, self._source.size() - size))

    def read(self, size: int, offset: int | None = None) -> tuple[float, float]:
        """Seconds to the first byte, and from there to the last."""
        size = min(size, self._source.size())
        marks: list[float] = []
        begun_s = time.perf_counter()
        self._source.read(
            self.offset(size) if offset is None else offset,
            memoryview(bytearray(size)),
            lambda count: marks.append(time.perf_counter()),
        )
        self._budget.used += size
        ended_s = time.perf_counter()
        first_s = (marks[0] if marks else ended_s) - begun_s
        return first_s, ended_s - begun_s - first_s

    def sample(self, size: int) -> None:
        first_s, body_s = self.read(size)
        self.firsts.append(first_s)
        self.bodies.append((min(size, self._source.size()), body_s))

    def model(self) -> StoreModel:
        return StoreModel(_quartile(self.firsts), _rate(self.bodies))


def measure_stream(source: ByteSource, *, seed: int = 0, seconds: float = 1.5) -> StoreModel:
    """Latency and stream rate from a few requests on one connection: what a tuner begins with.

    Args:
        source: read at random places; a few MiB at most.
        seed: of the places.
        seconds: after which no further request begins.
    """
    if source.size() < 1:
        raise InputError(f"{source.url} is empty", "probe an object with something in it")
    found: list[StoreModel | BaseException] = []

    def measure() -> None:
        try:
            budget = _Budget(ProbeBudget(seconds=seconds))
            stream = _Stream(source, random.Random(seed), budget)
            stream.read(SIZES[0])
            for size in (*SIZES[::2], SIZES[0], SIZES[2], SIZES[0], SIZES[2]):
                if len(stream.firsts) < 2 or budget.left_s > 0:
                    stream.sample(size)
            found.append(stream.model())
        except BaseException as error:
            found.append(error)

    worker = threading.Thread(target=measure, daemon=True)  # a connection of its own, that goes with it
    worker.start()
    worker.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def probe_store(
    target: str | ByteSource,
    budget: ProbeBudget | None = None,
    *,
    seed: int = 0,
    say: Say = lambda text: None,
) -> StoreProbe:
    """Measure a store by reading one of its objects.

    Args:
        target: a URL (file, http, s3, any of fsspec's) or a source.
        budget: 64 MiB and 10 s unless given.
        seed: of the places that are read.
        say: is told what is being done.

    Raises:
        InputError: an object that is too small to say anything.
        StoreError: it cannot be read.
    """
    source = open_source(target) if isinstance(target, str) else target
    spent = _Budget(budget or ProbeBudget())
    if source.size() < 2 * SIZES[0]:
        raise InputError(
            f"{source.url} has {source.size()} bytes", f"probe an object of {2 * SIZES[0]} bytes or more"
        )
    say(
        f"reads at most {format_bytes(spent.budget.bytes_)} of {source.url} within {spent.budget.seconds:g} s; "
        "writes nothing"
    )
    chance = random.Random(seed)
    stream = _Stream(source, chance, spent)
    first_s, _ = stream.read(SIZES[0])
    _interleave(stream, source, spent)
    cold_s, warm_s = _twice(stream, source, spent)
    say("one connection is measured; now several at once")
    model = stream.model()
    surface, slices, saturated = _widen(source, model, chance, spent)
    best = max(range(len(surface)), key=lambda i: surface[i].goodput_bytes_per_s)
    return StoreProbe(
        url=source.url,
        size_bytes=source.size(),
        latency_s=_bootstrap(stream.firsts, _quartile, chance),
        stream_bytes_per_s=_bootstrap(stream.bodies, _rate, chance),
        share_bytes_per_s=_spread(surface[best].goodput_bytes_per_s, slices[best]),
        connect_s=max(0.0, first_s - statistics.median(stream.firsts)),
        cold_s=cold_s,
        warm_s=warm_s,
        surface=surface,
        saturated=saturated,
        read_bytes_total=spent.used,
        seconds=time.monotonic() - spent.begun_s,
    )


def _interleave(stream: _Stream, source: ByteSource, spent: _Budget) -> None:
    """Six requests of each size in turn, within a third of the budget; four where that is short."""
    sizes = [size for size in SIZES if size <= source.size()]
    begun_s = time.monotonic()
    for turn in range(8):
        for size in sizes:
            over = (
                time.monotonic() - begun_s > spent.budget.seconds / 3 or spent.used > spent.budget.bytes_ / 4
            )
            if turn >= 2 and over:
                return
            stream.sample(size)


def _twice(stream: _Stream, source: ByteSource, spent: _Budget) -> tuple[float, float]:
    """The same range for the first and the second time: the quicker of three, for a hiccup is no cache."""
    size = min(SIZES[-1], source.size())
    cold, warm = [], []
    for _ in range(3):
        offset = stream.offset(size)
        cold.append(sum(stream.read(size, offset)))
        warm.append(sum(stream.read(size, offset)))
        if spent.left_s < spent.budget.seconds / 2:
            break
    return min(cold), min(warm)


def _widen(
    source: ByteSource, model: StoreModel, chance: random.Random, spent: _Budget
) -> tuple[tuple[SurfacePoint, ...], list[list[float]], bool]:
    """Four times as many requests at a time, until they give less than three quarters of what so many streams could."""
    reader = RangeReader(model, _level(source, 1, spent), tuner=False, patience=ReadPatience(in_all_s=2.0))
    points: list[SurfacePoint] = []
    slices: list[list[float]] = []
    saturated = False
    try:
        flights = 2
        while flights <= spent.budget.in_flight and not saturated:
            reader.limits = _level(source, flights, spent, reader.counts.arrived_bytes)
            size = reader.read_bytes
            measured = _goodput(reader, source, size, model, chance, spent)
            if not measured:
                break
            points.append(SurfacePoint(size, flights, statistics.fmean(measured)))
            slices.append(measured)
            saturated = points[-1].goodput_bytes_per_s < SATURATED * model.goodput(size, flights)
            flights *= 4
    finally:
        spent.used += reader.counts.arrived_bytes
        reader.close()
    if not points:
        raise InputError(
            f"{format_bytes(spent.budget.bytes_)} and {spent.budget.seconds:g} s are not enough for this store",
            "give a larger --budget or more --seconds",
        )
    return tuple(points), slices, saturated


def _level(source: ByteSource, flights: int, spent: _Budget, arrived_bytes: int = 0) -> ReadLimits:
    """So many requests, of a size of which the budget holds four rounds."""
    size = 2**20
    while size > 2**16 and (size > source.size() or 4 * flights * size > spent.left_bytes - arrived_bytes):
        size //= 2
    size = min(size, source.size())
    return ReadLimits(memory_bytes=1e12, in_flight=flights, read_least_bytes=size, read_most_bytes=size)


def _goodput(
    reader: RangeReader,
    source: ByteSource,
    size: int,
    model: StoreModel,
    chance: random.Random,
    spent: _Budget,
) -> list[float]:
    """Bytes per second that arrive, in slices of one request's time; none where the budget does not reach."""
    alone_s = model.request_s(size)
    slice_s = max(SLICE_S, alone_s)
    settled_s = time.monotonic() + model.latency_s
    found: list[float] = []
    mark: tuple[float, int] | None = None
    while len(found) < (3 if alone_s < 0.5 else 2):
        if spent.left_s < 0 or spent.left_bytes < reader.counts.arrived_bytes + reader.active * size:
            break
        while reader.backlog < 2 * reader.in_flight:
            reader.submit(source, chance.randrange(max(1, source.size() - size)), size)
        time.sleep(min(0.005, slice_s / 8))
        now_s, arrived = time.monotonic(), reader.counts.arrived_bytes
        if now_s < settled_s:
            continue
        if mark is None:
            mark = (now_s, arrived)
        elif now_s - mark[0] >= slice_s:
            found.append((arrived - mark[1]) / (now_s - mark[0]))
            mark = (now_s, arrived)
    return found


def _quartile(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 4]


def _rate(bodies: list[tuple[float, float]]) -> float:
    if len({size for size, _ in bodies}) < 2:
        return max(size / max(seconds, 1e-9) for size, seconds in bodies)
    _, rate = robust_requests(bodies)
    return rate if math.isfinite(rate) else max(size / max(seconds, 1e-9) for size, seconds in bodies)


def _bootstrap(values: list, figure: Callable[[list], float], chance: random.Random) -> MeasuredRange:
    """The figure, and the middle 90 % of what it is of values drawn again."""
    drawn = sorted(figure(chance.choices(values, k=len(values))) for _ in range(BOOTSTRAPS))
    value = figure(values)
    return MeasuredRange(
        value, min(value, drawn[int(0.05 * BOOTSTRAPS)]), max(value, drawn[int(0.95 * BOOTSTRAPS)])
    )


def _spread(mean: float, slices: list[float]) -> MeasuredRange:
    """90 % by Student's t over the slices."""
    if len(slices) < 2:
        return MeasuredRange(mean, mean, mean)
    half = {2: 6.31, 3: 2.92}.get(len(slices), 2.13) * statistics.stdev(slices) / math.sqrt(len(slices))
    return MeasuredRange(mean, max(0.0, mean - half), mean + half)
