"""How long a service's replica takes for a batch of requests, or for the tokens of one. Knows nothing of arrivals or queues."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable

import msgspec

__all__ = ["BatchTime", "LatencyProfile", "ReplicaRate", "Request", "TokenTimes"]


class Request(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, array_like=True):
    """One request, as a trace has it; written as an array of its fields.

    Attributes:
        time_s: when it arrives.
        input_tokens, output_tokens: of a language model; 0 where the trace does not say.
    """

    time_s: float
    input_tokens: int = 0
    output_tokens: int = 0


class BatchTime(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A replica answers so many requests together in that time."""

    batch: int
    seconds: float


class TokenTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A language model's replica: it reads a prompt whole, then writes a token of every answer at each step.

    While it reads a prompt no answer goes on, as where prompts go first (vLLM without chunked prefill).

    Attributes:
        prompt_s: to the first token of an answer, but for the prompt's length.
        input_token_s: more for each token of the prompt.
        step_s: one token of one answer.
        step_more_s: longer for each further answer in the same step.
        together: answers in one step at most.
        cache_tokens: tokens of prompts and answers that its memory holds (the KV cache); 0 for as many as come.
        input_tokens, output_tokens: of a request of which nothing else is known.
    """

    prompt_s: float
    input_token_s: float
    step_s: float
    step_more_s: float = 0.0
    together: int = 1
    cache_tokens: int = 0
    input_tokens: float = 1024.0
    output_tokens: float = 128.0

    def first_s(self, input_tokens: float) -> float:
        """Time to the first token of a prompt that nothing waits for."""
        return self.prompt_s + self.input_token_s * input_tokens

    def step(self, together: int) -> float:
        """One token of each of so many answers."""
        return self.step_s + self.step_more_s * (together - 1)

    def fitting(self, tokens: float) -> int:
        """How many requests of so many tokens it has at once."""
        if not self.cache_tokens:
            return self.together
        return max(1, min(self.together, int(self.cache_tokens / max(tokens, 1.0))))


class ReplicaRate(msgspec.Struct, frozen=True, gc=False):
    """What one replica can do, as queueing theory sees it.

    Attributes:
        servers: requests that it has in hand at once and one by one.
        service_s: how long each of them takes one.
        latency_s: from the begin of a request to its answer.
        batch: requests together.
    """

    servers: int
    service_s: float
    latency_s: float
    batch: int

    @property
    def requests_per_s(self) -> float:
        """At most."""
        return self.servers / self.service_s


class LatencyProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long a replica takes: by batch, or by tokens.

    Attributes:
        batches: by ascending batch; between two the time is interpolated, beyond the last none is formed.
        tokens: of a language model, in place of `batches`.
        source: where the numbers come from.

    Example:
        >>> profile = LatencyProfile((BatchTime(1, 0.1), BatchTime(4, 0.16)))
        >>> round(profile.seconds(2), 3), profile.rate(0.5).batch, profile.rate(0.2).batch
        (0.12, 4, 1)
    """

    batches: tuple[BatchTime, ...] = ()
    tokens: TokenTimes | None = None
    source: str = ""

    @property
    def batch_max(self) -> int:
        """Requests that are answered together at most."""
        return self.tokens.together if self.tokens else self.batches[-1].batch

    def seconds(self, batch: int) -> float:
        """Time for so many together; of a language model the time of a request of the usual length among so many."""
        if self.tokens:
            return self._token_s(batch)
        known = self.batches
        i = bisect_left(known, batch, key=lambda one: one.batch)
        if i == len(known) or known[i].batch == batch or i == 0:
            return known[min(i, len(known) - 1)].seconds
        low, high = known[i - 1], known[i]
        return low.seconds + (high.seconds - low.seconds) * (batch - low.batch) / (high.batch - low.batch)

    def _token_s(self, together: int, input_tokens: float = 0.0, output_tokens: float = 0.0) -> float:
        """Its own prompt and those of the others that come meanwhile, then its own answer."""
        assert self.tokens is not None
        one = self.tokens
        prompt_s = one.first_s(input_tokens or one.input_tokens)
        return together * prompt_s + (output_tokens or one.output_tokens) * one.step(together)

    def rate(self, objective_s: float, input_tokens: float = 0.0, output_tokens: float = 0.0) -> ReplicaRate:
        """The most that a replica answers in a second, each within the objective while nobody waits.

        A batch has to end and the next one to be answered in that time, as a request may come just after one has begun.
        Where not even one request is answered in time, one by one.
        """
        if self.tokens:
            return self._token_rate(objective_s, input_tokens, output_tokens)
        best = 1
        for batch in range(2, self.batch_max + 1):
            seconds = self.seconds(batch)
            if 2 * seconds <= objective_s and batch / seconds > best / self.seconds(best):
                best = batch
        seconds = self.seconds(best)
        return ReplicaRate(1, seconds / best, seconds if best == 1 else 1.5 * seconds, best)

    def _token_rate(self, objective_s: float, input_tokens: float, output_tokens: float) -> ReplicaRate:
        assert self.tokens is not None
        asked = input_tokens or self.tokens.input_tokens, output_tokens or self.tokens.output_tokens
        found = [(1, self._token_s(1, *asked))]
        for together in range(2, self.tokens.fitting(sum(asked)) + 1):
            seconds = self._token_s(together, *asked)
            if seconds <= objective_s:
                found.append((together, seconds))
        best, seconds = max(found, key=lambda one: (one[0] / one[1], -one[0]))
        return ReplicaRate(best, seconds, seconds, best)

    def flaw(self) -> str:
        """What is wrong with it, in words; "" if nothing is."""
        if bool(self.batches) == (self.tokens is not None):
            return "its latency has batches or tokens, one of both"
        if self.tokens:
            one = self.tokens
            times = one.prompt_s, one.input_token_s, one.step_s, one.step_more_s
            if not _durations(times) or one.first_s(one.input_tokens) + one.step_s <= 0:
                return "its latency by tokens has a time below 0, or none above 0"
            if one.together < 1 or one.cache_tokens < 0 or min(one.input_tokens, one.output_tokens) < 0:
                return "its latency by tokens has together below 1, or a number of tokens below 0"
            return ""
        sizes = [one.batch for one in self.batches]
        if sizes != sorted(set(sizes)) or sizes[0] != 1:
            return "its latency's batches do not ascend from 1, each once"
        seconds = [one.seconds for one in self.batches]
        return (
            ""
            if _durations(seconds) and min(seconds) > 0
            else "its latency has a batch without a time above 0"
        )


def _durations(times: Iterable[float]) -> bool:
    return all(0 <= time < math.inf for time in times)
