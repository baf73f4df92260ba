"""Requests one by one: a queue, replicas that take batches from it or read prompts and write tokens.

First come, first served. By batches: a free replica takes what waits, up to the batch at which it answers the most within
the objective, and answers it together. By tokens: a replica reads one prompt after another, in which time its answers stand
still, then writes a token of each answer at each step (continuous batching, Orca, OSDI'22; prompts first, as vLLM does
without chunked prefill). A request is taken up when its tokens fit the cache.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import NamedTuple

from hemiola.core.events import Load
from hemiola.core.job import Objective, Service
from hemiola.core.latency import LatencyProfile, Request, TokenTimes
from hemiola.simulator.serving.arrivals import RequestSource
from hemiola.simulator.serving.queue import RequestQueue

__all__ = ["SingleRequests"]


class Answer(NamedTuple):
    """One request answered."""

    request: Request
    begun_s: float
    first_s: float
    end_s: float


class Hands(ABC):
    """What one replica has in hand.

    Attributes:
        due_s: when something happens there next; infinite while it has nothing.
        version: counts changes of that; older entries of a heap are void.
    """

    due_s = math.inf
    version = 0

    @abstractmethod
    def take(self, queue: deque[Request], now: float) -> None:
        """Take up what it can of what waits."""

    @abstractmethod
    def step(self, now: float) -> list[Answer]:
        """What is answered at `due_s`."""

    @property
    @abstractmethod
    def held(self) -> list[Request]:
        """The requests in hand."""

    @abstractmethod
    def done_s(self, now: float) -> float:
        """When all of them are answered if no others come."""


class BatchHands(Hands):
    """Answers a batch at a time."""

    def __init__(self, profile: LatencyProfile, batch: int) -> None:
        self._profile, self._most = profile, batch
        self._batch: list[Request] = []
        self._begun_s = 0.0

    def take(self, queue: deque[Request], now: float) -> None:
        if self._batch or not queue:
            return
        self._batch = [queue.popleft() for _ in range(min(self._most, len(queue)))]
        self._begun_s = now
        self.due_s = now + self._profile.seconds(len(self._batch))
        self.version += 1

    def step(self, now: float) -> list[Answer]:
        answers = [Answer(one, self._begun_s, now, now) for one in self._batch]
        self._batch, self.due_s = [], math.inf
        self.version += 1
        return answers

    @property
    def held(self) -> list[Request]:
        return self._batch

    def done_s(self, now: float) -> float:
        return self.due_s if self._batch else now


class TokenHands(Hands):
    """Reads prompts and writes tokens.

    The clock counts tokens that each answer has got since the replica began; an answer ends at the clock's value at its
    first token plus its length.
    """

    def __init__(self, tokens: TokenTimes) -> None:
        self._tokens = tokens
        self._clock, self._at_s = 0.0, 0.0
        self._prompt: tuple[Request, float, float] | None = None  # what is read, since when, until when
        self._writing: list[
            tuple[float, int, Request, float, float]
        ] = []  # (end by the clock, number, request, begun, first)
        self._cached, self._number = 0.0, 0

    def take(self, queue: deque[Request], now: float) -> None:
        if self._prompt is not None or not queue or not self._fits(queue[0]):
            return
        self._pass(now)
        request = queue.popleft()
        self._cached += _length(request, self._tokens)
        self._prompt = request, now, now + self._tokens.first_s(_prompt(request, self._tokens))
        self._plan()

    def _fits(self, request: Request) -> bool:
        one = self._tokens
        if len(self._writing) >= one.together:
            return False
        return (
            not one.cache_tokens
            or not self._writing
            or self._cached + _length(request, one) <= one.cache_tokens
        )

    def _pass(self, now: float) -> None:
        """Let the clock run up to now, unless a prompt is being read."""
        if self._writing and self._prompt is None:
            self._clock += (now - self._at_s) / self._tokens.step(len(self._writing))
        self._at_s = now

    def _plan(self) -> None:
        self.version += 1
        if self._prompt is not None:
            self.due_s = self._prompt[2]
        elif self._writing:
            left = max(0.0, self._writing[0][0] - self._clock)
            self.due_s = self._at_s + left * self._tokens.step(len(self._writing))
        else:
            self.due_s = math.inf

    def step(self, now: float) -> list[Answer]:
        answers: list[Answer] = []
        if self._prompt is not None:
            request, begun_s, _ = self._prompt
            self._at_s, self._prompt = now, None
            self._number += 1
            more = max(0.0, (request.output_tokens or self._tokens.output_tokens) - 1)
            heappush(self._writing, (self._clock + more, self._number, request, begun_s, now))
        else:
            self._pass(now)
            self._clock = max(self._clock, self._writing[0][0])
        while self._writing and self._writing[0][0] <= self._clock:
            _, _, request, begun_s, first_s = heappop(self._writing)
            self._cached -= _length(request, self._tokens)
            answers.append(Answer(request, begun_s, first_s, now))
        self._plan()
        return answers

    @property
    def held(self) -> list[Request]:
        reading = [self._prompt[0]] if self._prompt else []
        return [one[2] for one in self._writing] + reading

    def done_s(self, now: float) -> float:
        """As if all were written at the pace of now: no sooner than it is."""
        begin_s = self._prompt[2] if self._prompt else now
        longest = max((end - self._clock for end, *_ in self._writing), default=0.0)
        if self._prompt:
            longest = max(longest, self._prompt[0].output_tokens or self._tokens.output_tokens)
        return begin_s + longest * self._tokens.step(max(1, len(self.held)))


class SingleRequests(RequestQueue):
    """Every request is its own.

    Args:
        service: with a latency profile.
        source: its requests.
    """

    def __init__(self, service: Service, source: RequestSource) -> None:
        super().__init__(service)
        assert service.latency is not None
        self._source, self._profile = source, service.latency
        self._batch = service.latency.rate(service.objective.latency_s).batch
        self._queue: deque[Request] = deque()
        self._replicas: dict[Hashable, Hands] = {}
        self._leaving: dict[int, Hands] = {}
        self._heap: list[tuple[float, int, Hands, int]] = []
        self._sequence = 0
        self._held = 0
        self._since_s, self._came = source.now, 0
        self._area, self._area_s = 0.0, source.now
        self._latencies: list[float] = []
        self._firsts: list[float] = []
        self._betweens: list[float] = []

    def join(self, replica: Hashable) -> None:
        """A replica takes requests from now on."""
        tokens = self._profile.tokens
        hands = TokenHands(tokens) if tokens else BatchHands(self._profile, self._batch)
        self._replicas[replica] = hands
        self._feed(hands, self._source.now)

    def leave(self, replica: Hashable, *, lost: bool = False) -> float:
        """A replica takes no more requests."""
        now = self._source.now
        hands = self._replicas.pop(replica, None)
        if hands is None:
            return now
        if lost:
            self._held -= len(hands.held)
            self._queue.extendleft(sorted(hands.held, key=lambda one: -one.time_s))
            hands.version += 1
            self._feed_all(now)
            return now
        if hands.held:
            self._leaving[id(hands)] = hands
        return hands.done_s(now)

    def advance(self, to_s: float) -> None:
        """Let requests come and be answered until then."""
        counts, heap = self.counts, self._heap
        for request in self._source.requests(to_s):
            while heap and heap[0][0] <= request.time_s:
                self._step()
            self._pass(request.time_s)
            counts.arrived += 1
            self._came += 1
            self._queue.append(request)
            self._feed_idle(request.time_s)
        while heap and heap[0][0] <= to_s:
            self._step()
        self._pass(to_s)
        self._refuse(to_s)
        counts.waiting = len(self._queue) + self._held

    def _pass(self, now: float) -> None:
        self._area += (now - self._area_s) * (len(self._queue) + self._held)
        self._area_s = now

    def _step(self) -> None:
        """What happens next at a replica."""
        now, _, hands, version = heappop(self._heap)
        if version != hands.version:
            return
        self._pass(now)
        answers = hands.step(now)
        for answer in answers:
            self._note(answer)
        self._held -= len(answers)
        if id(hands) in self._leaving:
            if hands.held:
                self._plan(hands)
            else:
                del self._leaving[id(hands)]
            return
        self._refuse(now)
        self._feed(hands, now)

    def _feed(self, hands: Hands, now: float) -> None:
        before, version = len(self._queue), hands.version
        hands.take(self._queue, now)
        self._held += before - len(self._queue)
        if hands.due_s < math.inf and (hands.version != version or before == len(self._queue)):
            self._plan(hands)

    def _feed_idle(self, now: float) -> None:
        """Who has least to do takes it up, in the order of the replicas."""
        for hands in (
            sorted(self._replicas.values(), key=lambda one: len(one.held))
            if self._profile.tokens
            else self._replicas.values()
        ):
            before = len(self._queue)
            if not before:
                return
            version = hands.version
            hands.take(self._queue, now)
            if hands.version != version:
                self._held += before - len(self._queue)
                self._plan(hands)

    def _feed_all(self, now: float) -> None:
        self._refuse(now)
        self._feed_idle(now)

    def _plan(self, hands: Hands) -> None:
        self._sequence += 1
        heappush(self._heap, (hands.due_s, self._sequence, hands, hands.version))

    def _note(self, answer: Answer) -> None:
        request, counts = answer.request, self.counts
        counts.answered += 1
        counts.waited_s += answer.begun_s - request.time_s
        latency_s, first_s = answer.end_s - request.time_s, answer.first_s - request.time_s
        between_s = 0.0
        if self._profile.tokens:
            written = (request.output_tokens or self._profile.tokens.output_tokens) - 1
            between_s = (answer.end_s - answer.first_s) / written if written > 0 else 0.0
            self._firsts.append(first_s)
            self._betweens.append(between_s)
        self._latencies.append(latency_s)
        counts.missed += not _is_kept(self.service.objective, latency_s, first_s, between_s)

    def _refuse(self, now: float) -> None:
        """Who has waited for too long is sent away."""
        queue, limit_s = self._queue, now - self.service.timeout_s
        while queue and queue[0].time_s < limit_s:
            queue.popleft()
            self.counts.refused += 1
            self.counts.missed += 1

    def load(self, now: float) -> Load:
        """What the service had to do since the last call."""
        seconds = now - self._since_s
        found = Load(
            now, self.service.id, self._came / seconds if seconds > 0 else 0.0, len(self._queue),
            _at_share(self._latencies, self.service.objective.share, self._queue, now),
            self._area / seconds if seconds > 0 else float(self._held + len(self._queue)),
            first_token_s=_mean(self._firsts), per_token_s=_mean(self._betweens),
        )  # fmt: skip
        self._since_s, self._came, self._area = now, 0, 0.0
        self._latencies, self._firsts, self._betweens = [], [], []
        return found


def _is_kept(objective: Objective, latency_s: float, first_s: float, between_s: float) -> bool:
    if latency_s > objective.latency_s + 1e-9:
        return False
    if objective.first_token_s is not None and first_s > objective.first_token_s + 1e-9:
        return False
    return objective.per_token_s is None or between_s <= objective.per_token_s + 1e-9


def _at_share(latencies: list[float], share: float, queue: deque[Request], now: float) -> float:
    if latencies:
        return sorted(latencies)[min(len(latencies) - 1, math.ceil(share * len(latencies)) - 1)]
    return now - queue[0].time_s if queue else 0.0


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _prompt(request: Request, tokens: TokenTimes) -> float:
    return request.input_tokens or tokens.input_tokens


def _length(request: Request, tokens: TokenTimes) -> float:
    return _prompt(request, tokens) + (request.output_tokens or tokens.output_tokens)
