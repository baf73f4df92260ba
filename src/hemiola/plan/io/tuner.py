"""How many reads in flight, and how large: from measured latency and stream rate, then by paired steps.

In the style of Diot (its text is not public). The start is the model's, not a search's: the read size spends a fifth
of a request waiting, a short ramp finds what the store gives in all, and the concurrency is 1.15 times the knee and one more.
After that one step at a time is tried and compared with the window before it.

Two simpler ways fail. Steering by the request time alone ends in a death spiral when streams become slower: the time
rises as if requests queued, fewer are asked for, goodput falls, and so on (the flaw of gradient limits). Steering by
goodput alone drifts upwards on its flat top, and two such tuners race for a shared link. Only a paired step in
concurrency tells a queue from a slow stream. Failures are treated the same way: fewer requests are kept only if they
fail less often.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from hemiola.core.errors import InputError
from hemiola.core.units import format_bytes
from hemiola.cost.io import READ_LEAST_BYTES, READ_MOST_BYTES, StoreModel

__all__ = ["ReadLimits", "ReadSetting", "ReadTuner", "ReadWindow", "worker_share"]

MARGIN, SPARE = 1.15, 1
"""Concurrency over the knee, as a factor and in requests: at the knee itself the share is reached only if requests
never come together (mean value analysis says how much is lost where they do)."""
SATURATED = 0.75
"""Below this part of what streams could give, the store or the link is full."""
FAILING = 0.05
"""More than this part of requests failing is an answer to how many there are."""
KEPT_FALL = 0.03
"""Fewer requests are kept if they cost no more than this of the most that was seen: small losses would add up."""
WORTH = 0.07
"""More requests are kept if goodput rises by half of what they did, or by this much."""
REST_WINDOWS = 6
REMEMBERED_S = 60.0
WINDOW_LEAST_S = 0.5


class ReadWindow(NamedTuple):
    """What a reader saw for a while.

    Attributes:
        at_s: when it ended, on any clock.
        duration_s: how long it was.
        arrived_bytes: bytes that arrived, of unfinished requests too.
        in_flight: requests in flight, its mean.
        wanted: part of the time in which every request that is allowed was wanted; below 0.8 the consumer sets the pace.
        requests: that ended, well or not.
        failures: of them by 429, 503, a time-out or a reset.
        first_byte_s: lower quartile of the time to the first byte; 0 if none came.
        cpu: part of the time that the process computed, on one core.
        read_bytes: mean size of a request, where objects are smaller than what was set; 0: as it was set.
    """

    at_s: float
    duration_s: float
    arrived_bytes: float
    in_flight: float
    wanted: float = 1.0
    requests: int = 0
    failures: int = 0
    first_byte_s: float = 0.0
    cpu: float = 0.0
    read_bytes: float = 0.0

    @property
    def goodput_bytes_per_s(self) -> float:
        """Bytes per second that arrived."""
        return self.arrived_bytes / self.duration_s


@dataclass(frozen=True)
class ReadLimits:
    """What a reader may use.

    Attributes:
        memory_bytes: of all reads in flight and all that is kept ready.
        buffer_bytes: of it, what is kept ready.
        in_flight: most requests at once.
        read_least_bytes, read_most_bytes: between which a read may be; equal where something else sets it.
    """

    memory_bytes: float = 256e6
    buffer_bytes: float = 0.0
    in_flight: int = 64
    read_least_bytes: int = READ_LEAST_BYTES
    read_most_bytes: int = READ_MOST_BYTES

    def __post_init__(self) -> None:
        room = self.memory_bytes - self.buffer_bytes
        if not room >= self.read_least_bytes:
            raise InputError(
                f"a memory budget of {format_bytes(self.memory_bytes)} with {format_bytes(self.buffer_bytes)} kept "
                f"ready leaves no room for one read of {format_bytes(self.read_least_bytes)}",
                "give a larger budget, or keep fewer batches ready",
            )
        if self.in_flight < 1:
            raise InputError(f"{self.in_flight} requests in flight", "allow 1 or more")

    def most(self, read_bytes: float) -> int:
        """Requests of this size that fit."""
        return max(1, min(self.in_flight, int((self.memory_bytes - self.buffer_bytes) // read_bytes)))

    def read_bytes(self, store: StoreModel) -> int:
        """The read size that suits a store, where it fits."""
        wanted = store.read_bytes(least_bytes=self.read_least_bytes, most_bytes=self.read_most_bytes)
        room = self.memory_bytes - self.buffer_bytes
        while wanted > self.read_least_bytes and wanted * 4 > room:
            wanted //= 2
        return max(wanted, self.read_least_bytes)


class ReadSetting(NamedTuple):
    """How to read from now on.

    Attributes:
        read_bytes: of one request.
        in_flight: requests at once.
        settle_s: leave so much out before the next window begins.
        window_s: how long that one should be.
        reason: why, in words.
    """

    read_bytes: int
    in_flight: int
    settle_s: float
    window_s: float
    reason: str


@dataclass(frozen=True)
class _Step:
    """A step that is being tried."""

    from_in_flight: int
    goodput: float
    changed: bool


@dataclass(frozen=True)
class _BackOff:
    """Fewer requests after failures: what it was before, and how often they failed."""

    from_in_flight: int
    failing: float
    until_s: float
    steps: int = 1


class ReadTuner:
    """Decides from windows how to read next; `setting` is the present answer.

    Args:
        store: latency and stream rate, as a short probe on one connection gives them; what it says of the share is
            not looked at.
        limits: what may be used.
    """

    def __init__(self, store: StoreModel, limits: ReadLimits | None = None) -> None:
        self.limits = limits or ReadLimits()
        self.store = store
        self.read_bytes = self.limits.read_bytes(store)
        self._asked = float(self.read_bytes)
        self._in_flight = self._bounded(4)
        self._ramping = True
        self._best = 0.0
        self._base: float | None = None
        self._peak = 0.0
        self._step: _Step | None = None
        self._factor = 1.25
        self._rest_up = self._rest_down = 0
        self._back: _BackOff | None = None
        self._failed: tuple[float, int] | None = None
        self._forgiven: tuple[float, float] | None = None
        self.setting = self._set("ramp: the first requests at once")

    @property
    def alone_s(self) -> float:
        """T0: one request with nothing beside it."""
        return self.store.request_s(self._asked)

    def observe(self, window: ReadWindow) -> ReadSetting:
        """Take what was seen, and say how to read next."""
        self._asked = min(window.read_bytes, 2.0 * self.read_bytes) or float(self.read_bytes)
        if window.requests and window.failures > self._bearable(window) * window.requests:
            return self._failing(window)
        if window.arrived_bytes <= 0 or window.duration_s <= 0:
            return self._hold("nothing arrived: nothing is known")
        if self._back is not None:
            return self._recover(window)
        if window.wanted < 0.8:
            return self._unwanted()
        if self._ramping:
            return self._ramp(window)
        return self._judge(window) if self._step else self._settled(window)

    # ---- the start ----

    def _ramp(self, window: ReadWindow) -> ReadSetting:
        goodput, c = window.goodput_bytes_per_s, self._in_flight
        self._best = max(self._best, goodput)
        more = self._bounded(4 * c)
        if goodput >= SATURATED * c * self._asked / self.alone_s and more > c:
            self._in_flight = more
            return self._set("ramp: streams still add up")
        self._ramping = False
        return self._at_knee(self._best, "the model's knee")

    def _at_knee(self, share: float, why: str) -> ReadSetting:
        knee = share * self.alone_s / self._asked
        self._in_flight = self._bounded(math.ceil(MARGIN * knee) + SPARE)
        self._base, self._peak, self._rest_up, self._rest_down = None, 0.0, 0, 0
        return self._set(why)

    # ---- paired steps ----

    def _settled(self, window: ReadWindow) -> ReadSetting:
        goodput, c = window.goodput_bytes_per_s, self._in_flight
        before = self._base
        self._base = goodput if before is None else 0.7 * before + 0.3 * goodput
        self._peak = max(self._peak, self._base)
        self._rest_up, self._rest_down = self._rest_up - 1, self._rest_down - 1
        queueing = window.in_flight * self._asked / goodput / self.alone_s
        if before is not None and not 0.75 * before < goodput < 1.33 * before:
            return self._try(2.0, window, changed=True)
        if window.cpu < 0.9 and self._rest_up <= 0 and (queueing <= 1.3 or self._rest_up <= -REST_WINDOWS):
            return self._try(self._factor, window)
        fewer = min(c - 1, round(0.8 * c))
        if self._rest_down <= 0 and fewer * self._asked / self.alone_s >= (1 - KEPT_FALL) * goodput:
            return self._try(0.8, window)
        return self._hold("nothing better is near")

    def _try(self, factor: float, window: ReadWindow, *, changed: bool = False) -> ReadSetting:
        c = self._in_flight
        other = self._bounded(max(c + 1, round(factor * c)) if factor > 1 else min(c - 1, round(factor * c)))
        if self._failed and window.at_s < self._failed[0] + REMEMBERED_S:
            other = min(other, max(1, self._failed[1] - 1)) if other > c else other
        self._rest_up, self._rest_down = (
            (REST_WINDOWS, self._rest_down) if factor > 1 else (self._rest_up, REST_WINDOWS)
        )
        if other == c:
            return self._hold("at its limit")
        self._step = _Step(c, window.goodput_bytes_per_s, changed)
        self._in_flight = other
        return self._set("the store has changed: a step up" if changed else f"try {other} instead of {c}")

    def _judge(self, window: ReadWindow) -> ReadSetting:
        step, goodput, c = self._step, window.goodput_bytes_per_s, self._in_flight
        assert step is not None
        self._step = None
        gain, rise = goodput / step.goodput - 1, c / step.from_in_flight - 1
        if rise < 0:
            return (
                self._keep(goodput, "fewer do") if gain >= -KEPT_FALL else self._back_to(step, "fewer cost")
            )
        if gain >= min(rise / 2, WORTH):
            return self._helped(window, step, most_of_it=gain >= 0.8 * rise)
        self._factor = 1.25
        if step.changed:
            return self._at_knee(max(goodput, step.goodput), "the share has changed")
        return self._back_to(step, "more did not help")

    def _helped(self, window: ReadWindow, step: _Step, *, most_of_it: bool) -> ReadSetting:
        """More gave more: learn what a stream is now, and go on upwards at once."""
        self._learn(window)
        self._factor = 2.0 if most_of_it else min(2.0, self._factor + 0.25)
        self._base = window.goodput_bytes_per_s
        if step.changed and most_of_it:
            return self._ramp_again()
        return self._try(self._factor, window)

    def _ramp_again(self) -> ReadSetting:
        self._ramping, self._best, self._base = True, 0.0, None
        better = self.limits.read_bytes(self.store)
        if better >= 4 * self.read_bytes or better * 4 <= self.read_bytes:
            self._in_flight = max(2, round(self._in_flight * self.read_bytes / better))
            self.read_bytes, self._asked = better, float(better)
        self._in_flight = self._bounded(2 * self._in_flight)
        return self._set("ramp: streams are slower, and still add up")

    def _keep(self, goodput: float, why: str) -> ReadSetting:
        self._base = goodput
        return self._set(why)

    def _back_to(self, step: _Step, why: str) -> ReadSetting:
        self._in_flight, self._base = step.from_in_flight, step.goodput
        return self._set(why)

    def _learn(self, window: ReadWindow) -> None:
        """More requests gave more: what one takes now is no queue, so the stream is what it seems."""
        seen_s = window.in_flight * self._asked / window.goodput_bytes_per_s
        first_s = window.first_byte_s or self.store.latency_s
        latency_s = min(first_s, 0.9 * seen_s)
        self.store = StoreModel(latency_s, self._asked / (seen_s - latency_s))

    # ---- failures ----

    def _bearable(self, window: ReadWindow) -> float:
        if self._forgiven and window.at_s < self._forgiven[0]:
            return max(FAILING, 1.5 * self._forgiven[1])
        return FAILING

    def _failing(self, window: ReadWindow) -> ReadSetting:
        """Fewer requests, unless fewer fail as often: then it is not their number."""
        share, back = window.failures / window.requests, self._back
        self._step, self._ramping = None, False
        if back is not None and window.at_s < back.until_s:
            return self._hold("backing off")
        if back is not None and back.steps >= 2 and share > 0.6 * back.failing:
            self._forgiven, self._back, self._failed = (window.at_s + REMEMBERED_S, share), None, None
            self._in_flight, self._base = back.from_in_flight, None
            return self._set("as many fail with fewer: it is not their number")
        first = back or _BackOff(self._in_flight, share, 0.0, 0)
        self._back = replace(
            first, until_s=window.at_s + (2.0 if back is None else 0.0), steps=first.steps + 1
        )
        self._failed = (window.at_s, first.from_in_flight)
        self._in_flight = self._bounded(int(0.7 * self._in_flight))
        return self._set(f"{share:.0%} of requests fail: fewer")

    def _recover(self, window: ReadWindow) -> ReadSetting:
        back = self._back
        assert back is not None
        if window.at_s < back.until_s:
            return self._hold("backing off")
        if self._in_flight + 1 >= back.from_in_flight:
            self._back, self._base = None, None
            return self._hold("below what failed")
        self._in_flight = self._bounded(self._in_flight + 1)
        return self._set("one more after failures")

    # ---- what all share ----

    def _unwanted(self) -> ReadSetting:
        if self._step:
            step, self._step = self._step, None
            return self._back_to(step, "the consumer sets the pace")
        return self._hold("the consumer sets the pace")

    def _bounded(self, in_flight: int) -> int:
        return max(1, min(in_flight, self.limits.most(min(self.read_bytes, self._asked))))

    def _hold(self, why: str) -> ReadSetting:
        self.setting = self.setting._replace(settle_s=0.0, reason=why)
        return self.setting

    def _set(self, why: str) -> ReadSetting:
        alone_s = self.alone_s
        upwards = self._ramping or (self._step is not None and self._in_flight > self._step.from_in_flight)
        window_s = max(0.3, 1.5 * alone_s) if self._ramping else max(WINDOW_LEAST_S, 2 * alone_s)
        settle_s = self.store.latency_s if upwards else alone_s
        self.setting = ReadSetting(self.read_bytes, self._in_flight, settle_s, window_s, why)
        return self.setting


def worker_share(in_flight: int, workers: int, worker: int) -> int:
    """Of a host's requests in flight what one of its processes gets: equal parts that add up, at least 1 each."""
    return max(1, in_flight // workers + (worker < in_flight % workers))
