"""Requests as a fluid: rates in, rates out, in steps of a few seconds. For sweeps over days.

While a step's rate is below what the replicas answer and nothing is left over, requests wait as in M/D/n in its steady state
(`sched.queueing`). What is more than they answer is kept by when it came, first come first served, and its wait is known.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable

from hemiola.core.events import Load
from hemiola.core.job import Service
from hemiola.sched.queueing import decay_per_s, typical_wait_s, wait_exceeds
from hemiola.simulator.serving.arrivals import STEP_S, RequestSource
from hemiola.simulator.serving.queue import RequestQueue

__all__ = ["FluidQueue"]

_DROP = 1e-9


class FluidQueue(RequestQueue):
    """Requests that are not told apart.

    Args:
        service: with a latency profile.
        source: its requests.
    """

    def __init__(self, service: Service, source: RequestSource) -> None:
        super().__init__(service)
        self._source = source
        assert service.latency is not None
        count = len(service.requests)
        sums = [
            sum(getattr(one, name) for one in service.requests) for name in ("input_tokens", "output_tokens")
        ]
        self._rate = service.latency.rate(
            service.objective.latency_s, *(total / count for total in sums if count)
        )
        self._slack_s = service.objective.latency_s - self._rate.latency_s
        self._replicas: set[Hashable] = set()
        self._backlog: deque[tuple[float, float]] = deque()
        self._waiting = 0.0
        self._since_s, self._came, self._late_s = source.now, 0.0, 0.0
        self._before, self._worst_s = (0.0, 0.0), 0.0

    def join(self, replica: Hashable) -> None:
        """A replica takes requests from now on."""
        self._replicas.add(replica)

    def leave(self, replica: Hashable, *, lost: bool = False) -> float:
        """A replica takes no more requests; what it has in hand is too little to be told apart."""
        self._replicas.discard(replica)
        return self._source.now + (0.0 if lost else self._rate.latency_s)

    def advance(self, to_s: float) -> None:
        """Let requests come and be answered until then."""
        for begin_s, end_s, rate in self._source.steps(to_s, STEP_S):
            self._came += rate * (end_s - begin_s)
            capacity = len(self._replicas) * self._rate.requests_per_s
            if self._waiting > _DROP or rate > capacity:
                self._overloaded(begin_s, end_s, rate, capacity)
            elif rate:
                self._steady(end_s - begin_s, rate)

    def _steady(self, seconds: float, rate: float) -> None:
        """Nothing is left over: all that comes is answered."""
        counts, one = self.counts, self._rate
        servers, amount = len(self._replicas) * one.servers, rate * seconds
        counts.arrived += amount
        counts.answered += amount
        if self._slack_s < 0:
            counts.missed += amount
        else:
            counts.missed += amount * wait_exceeds(self._slack_s, rate, one.service_s, servers)
        self._late_s = 0.0

    def _overloaded(self, begin_s: float, end_s: float, rate: float, capacity: float) -> None:
        """More comes than is answered, or has come before: the oldest first."""
        counts, backlog = self.counts, self._backlog
        amount = rate * (end_s - begin_s)
        counts.arrived += amount
        if amount:
            backlog.append(((begin_s + end_s) / 2, amount))
            self._waiting += amount
        able = total = capacity * (end_s - begin_s)
        while backlog and able > _DROP:
            came_s, left = backlog[0]
            answered = min(left, able)
            able -= answered
            begun_s = begin_s + (end_s - begin_s) * (1 - (able + answered / 2) / total)
            self._answer(max(0.0, begun_s - came_s), answered)
            if answered < left:
                backlog[0] = came_s, left - answered
            else:
                backlog.popleft()
        self._refuse(end_s)
        counts.waiting = self._waiting = sum(left for _, left in backlog)
        self._late_s = end_s - backlog[0][0] if backlog else 0.0

    def _answer(self, wait_s: float, amount: float) -> None:
        self.counts.answered += amount
        self.counts.waited_s += wait_s * amount
        self._worst_s = max(self._worst_s, wait_s + self._rate.latency_s)
        if wait_s > self._slack_s:
            self.counts.missed += amount

    def _refuse(self, now: float) -> None:
        """Who has waited for too long is sent away."""
        while self._backlog and now - self._backlog[0][0] > self.service.timeout_s:
            _, amount = self._backlog.popleft()
            self.counts.refused += amount
            self.counts.missed += amount

    def load(self, now: float) -> Load:
        """What the service had to do since the last call."""
        seconds = now - self._since_s
        rate = self._came / seconds if seconds > 0 else 0.0
        self._since_s, self._came = now, 0.0
        latency_s = max(self._latency_s(rate), self._missed_s())
        wait_s = 0.0 if self._waiting else min(self.mean_wait_s(rate), self.service.timeout_s)
        ongoing = self._waiting + rate * (self._rate.latency_s + wait_s)
        tokens = self.service.latency.tokens if self.service.latency else None
        return Load(
            now, self.service.id, rate, round(self._waiting), latency_s, ongoing,
            first_token_s=self._late_s + tokens.first_s(tokens.input_tokens) if tokens else 0.0,
            per_token_s=tokens.step(self._rate.batch) if tokens else 0.0,
        )  # fmt: skip

    def _latency_s(self, rate: float) -> float:
        """At the share that the objective names."""
        one, servers = self._rate, len(self._replicas) * self._rate.servers
        if not servers or self._waiting > _DROP:
            return self._late_s + one.latency_s
        waiting, share = wait_exceeds(0.0, rate, one.service_s, servers), 1 - self.service.objective.share
        if waiting <= max(share, _DROP):
            return one.latency_s
        return one.latency_s + math.log(waiting / max(share, _DROP)) / decay_per_s(
            rate, one.service_s, servers
        )

    def _missed_s(self) -> float:
        """At that share of the interval, if more than the objective allows were missed in it: above the objective; else 0."""
        counts, objective = self.counts, self.service.objective
        done, missed = counts.answered + counts.refused, counts.missed
        before, self._before = self._before, (done, missed)
        worst_s, self._worst_s = self._worst_s, 0.0
        if missed - before[1] <= (1 - objective.share) * (done - before[0]):
            return 0.0
        return max(worst_s, 1.01 * objective.latency_s)

    def mean_wait_s(self, rate: float) -> float:
        """In the steady state at a rate, with the replicas that there are."""
        servers = len(self._replicas) * self._rate.servers
        return typical_wait_s(rate, self._rate.service_s, servers) if servers else 0.0
