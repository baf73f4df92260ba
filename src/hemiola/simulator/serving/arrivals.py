"""When a service's requests come: drawn from its rates, or as its trace has them. The same for every policy at a seed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from hemiola.core.job import Service
from hemiola.core.latency import Request

__all__ = ["RequestSource"]

STEP_S = 5.0
"""Rates hold for as long at most where queues are fluid."""
_BLOCK = 4096


class RequestSource:
    """The requests of one service, in order of time; each moment is asked for once.

    Args:
        seed: of the run, and which of its services it is.
    """

    def __init__(self, service: Service, seed: tuple[int, ...]) -> None:
        self._service = service
        self._requests = service.requests
        self._taken = 0
        self._since = [rate.since_s for rate in service.arrivals]
        self._rates = [rate.requests_per_s for rate in service.arrivals]
        self._at = -1
        self._begin_s = service.submit_s
        self._bursts = np.random.default_rng([*seed, 1])
        self._draws = np.random.default_rng([*seed, 2])
        self._factors = np.ones(0)
        self._window = -1
        self._first_window = 0
        self.now = service.submit_s

    def steps(self, to_s: float, longest_s: float = STEP_S) -> Iterator[tuple[float, float, float]]:
        """(begin, end, requests per second) from where the last ones ended, up to then."""
        while self.now < to_s:
            begin_s = self.now
            if self._requests:
                end_s = min(to_s, begin_s + longest_s)
                count = len(self._until(end_s))
                self.now = end_s
                yield begin_s, end_s, count / (end_s - begin_s)
                continue
            rate, until_s = self._rate(begin_s)
            end_s = self.now = min(to_s, until_s, begin_s + longest_s)
            yield begin_s, end_s, rate

    def requests(self, to_s: float) -> list[Request]:
        """Single requests from where the last ones ended, up to then; of rates a Poisson process."""
        if self._requests:
            self.now = to_s
            return self._until(to_s)
        drawn: list[Request] = []
        for begin_s, end_s, rate in self.steps(to_s, math.inf):
            count = int(self._draws.poisson(rate * (end_s - begin_s)))
            if count:
                times = np.sort(self._draws.random(count)) * (end_s - begin_s) + begin_s
                drawn += [Request(time_s) for time_s in times.tolist()]
        return drawn

    def _until(self, end_s: float) -> list[Request]:
        requests, begin = self._requests, self._taken
        while self._taken < len(requests) and requests[self._taken].time_s < end_s:
            self._taken += 1
        return [one for one in requests[begin : self._taken] if one.time_s >= self._begin_s]

    def _rate(self, now: float) -> tuple[float, float]:
        """The rate that holds now, and until when it does."""
        while self._at + 1 < len(self._since) and self._since[self._at + 1] <= now:
            self._at += 1
        until_s = self._since[self._at + 1] if self._at + 1 < len(self._since) else math.inf
        if self._at < 0:
            return 0.0, until_s
        rate, service = self._rates[self._at], self._service
        if not service.burst_cv:
            return rate, until_s
        window = math.floor((now - self._begin_s) / service.burst_s + 1e-9)
        return rate * self._factor(window), min(until_s, self._begin_s + (window + 1) * service.burst_s)

    def _factor(self, window: int) -> float:
        """How much more than usual comes in this window: gamma distributed, 1 in the mean."""
        while window >= self._first_window + len(self._factors):
            self._first_window += len(self._factors)
            shape = self._service.burst_cv**-2
            self._factors = self._bursts.gamma(shape, 1 / shape, _BLOCK)
        return float(self._factors[window - self._first_window])
