"""How long requests wait: queues with equal service times. Seconds and rates in, seconds and shares out.

M/D/n: Poisson arrivals, equal service times, n servers, first come first served. Its waits are those of a single server that
gets every n-th arrival (Erlang-n interarrivals), and Spitzer's identity for random walks gives their mean and the
probability of waiting exactly, as sums of Poisson tails (Asmussen, "Applied Probability and Queues", VIII.4; Tijms, "A First
Course in Stochastic Models", 9.6, has the same numbers from other sums).
"""

from __future__ import annotations

import math
from functools import lru_cache

__all__ = ["decay_per_s", "mean_wait_s", "servers_for", "typical_wait_s", "wait_exceeds", "waits"]

BUSIEST = 0.995
"""Above it a queue has no steady state to speak of: who asks is told what holds here."""
_PRECISE = 1e-9
_NEGLIGIBLE = 1e-8
_LARGE = 600


def mean_wait_s(requests_per_s: float, service_s: float, servers: int = 1) -> float:
    """Mean wait in M/D/n; infinite where more comes than is answered.

    Example:
        >>> round(mean_wait_s(3.0, 0.25), 9), round(mean_wait_s(9.0, 0.1), 9)
        (0.375, 0.45)
    """
    load = requests_per_s * service_s / servers
    if load >= 1:
        return math.inf
    if load <= 0:
        return 0.0
    return _spitzer(servers, load)[1] * service_s


def waits(requests_per_s: float, service_s: float, servers: int = 1) -> float:
    """Share of requests that wait at all in M/D/n; 1 where more comes than is answered."""
    load = requests_per_s * service_s / servers
    if load >= 1:
        return 1.0
    return _spitzer(servers, load)[0] if load > 0 else 0.0


def decay_per_s(requests_per_s: float, service_s: float, servers: int = 1) -> float:
    """Exponent of the tail of waits in M/D/n: P(wait > t) falls as exp(-decay t).

    The root above 0 of decay = requests_per_s (exp(decay service_s / servers) - 1); infinite without requests.
    """
    load = requests_per_s * service_s / servers
    if load <= 0:
        return math.inf
    return _decay(max(1e-6, round(min(load, BUSIEST), 6))) * servers / service_s


def wait_exceeds(
    seconds: float, requests_per_s: float, service_s: float, servers: int = 1, burst: float = 1.0
) -> float:
    """Share of requests that wait longer than so many seconds: it falls with the tail's exponent, and has the mean that it has.

    Against simulations it is 3 to 10 % off where a tenth of the requests wait so long (`tests/unit/sched/test_queueing.py`).

    Args:
        burst: squared coefficient of variation of interarrival times; the exponent is divided by it (heavy traffic:
            Kingman 1962), 1 for Poisson.
    """
    load = requests_per_s * service_s / servers
    if load >= 1:
        return 1.0
    if seconds < 0:
        return 1.0
    if load <= 0:
        return 0.0
    falls = math.exp(-decay_per_s(requests_per_s, service_s, servers) * seconds / max(burst, 1.0))
    if falls <= _NEGLIGIBLE:
        return 0.0
    waiting, scale, _ = _interpolated(servers, load)
    return min(waiting, scale * falls)


def servers_for(
    requests_per_s: float,
    service_s: float,
    slack_s: float,
    share: float,
    *,
    each: int = 1,
    most: int = 1 << 16,
) -> int:
    """The fewest multiples of `each` servers with which at most `share` of the requests wait longer than the slack.

    Returns:
        How many multiples; 0 without requests, `most` where not even these suffice.
    """
    if requests_per_s <= 0:
        return 0
    groups = max(1, math.floor(requests_per_s * service_s / each))
    while groups < most and wait_exceeds(slack_s, requests_per_s, service_s, groups * each) > share:
        groups += 1
    return min(groups, most)


def typical_wait_s(requests_per_s: float, service_s: float, servers: int = 1) -> float:
    """Mean wait in M/D/n as `mean_wait_s` has it, on straight lines between loads of whole 50ths: fast, where it is asked for often.

    Above the busiest load that has a steady state it is that of there.
    """
    load = min(requests_per_s * service_s / servers, BUSIEST)
    return _interpolated(servers, load)[2] * service_s if load > 0 else 0.0


def _interpolated(servers: int, load: float) -> tuple[float, float, float]:
    """(share that waits, factor of the tail, mean wait), on straight lines between loads of whole 50ths."""
    low = math.floor(load * 50) / 50
    share = (load - low) * 50
    below, above = _tail_of(servers, round(low, 2)), _tail_of(servers, round(low + 0.02, 2))
    waiting, factor, mean = (one + (other - one) * share for one, other in zip(below, above, strict=True))
    return waiting, factor, mean


@lru_cache(maxsize=65536)
def _tail_of(servers: int, load: float) -> tuple[float, float, float]:
    if load <= 0:
        return 0.0, 0.0, 0.0
    load = min(load, BUSIEST)
    waiting, mean = _spitzer(servers, load)
    return waiting, _decay(load) * servers * mean, mean


@lru_cache(maxsize=4096)
def _decay(load: float) -> float:
    """Root of x = load (exp(x) - 1) above 0, in units of servers per service time (Newton from the right)."""
    x = 2 * (1 - load) + 2 * math.log(1 / load)
    for _ in range(100):
        step = (load * math.expm1(x) - x) / (load * math.exp(x) - 1)
        x -= step
        if abs(step) < 1e-13 * x:
            break
    return x


@lru_cache(maxsize=65536)
def _spitzer(servers: int, load: float) -> tuple[float, float]:
    """(share that waits, mean wait in service times): sums over the walk's steps k of Poisson tails with mean k n load.

    Step k of the walk is k service times less k n interarrivals: P(S_k > 0) = P(Poisson(k n load) >= k n), and
    E max(S_k, 0) = k P(Poisson >= k n) - k / load P(Poisson >= k n + 1).
    """
    if servers == 1:
        return load, load / (2 * (1 - load))
    exponent = mean = 0.0
    k, stride = 1.0, 1.0
    while True:
        if k * servers > _LARGE:
            stride = max(1.0, k // 64)
            k += (stride - 1) / 2  # so many terms at once, by the middle one
        tail, positive = (_large_step if k * servers > _LARGE else _step)(k, servers, load)
        exponent += stride * tail / k
        mean += stride * positive / k
        if tail < _PRECISE * (1 - load):
            return 1 - math.exp(-exponent), mean
        k += (stride + 1) / 2


def _step(k: float, servers: int, load: float) -> tuple[float, float]:
    """(P(S_k > 0), E max(S_k, 0)) of the walk, exactly."""
    m, x = int(k) * servers, k * servers * load
    first = math.exp(m * math.log(x) - x - math.lgamma(m + 1))
    tail = _tail(m, x, first)
    return tail, max(0.0, k * (tail - (tail - first) / load))


def _large_step(k: float, servers: int, load: float) -> tuple[float, float]:
    """The same where the sum of many interarrivals is as good as normal."""
    mean, deviation = k - k / load, math.sqrt(k / servers) / load
    z = mean / deviation
    tail = 0.5 * math.erfc(-z / math.sqrt(2))
    return tail, max(0.0, mean * tail + deviation * math.exp(-z * z / 2) / math.sqrt(2 * math.pi))


def _tail(m: int, x: float, first: float) -> float:
    """P(Poisson(x) >= m) for m above x, from its first term on."""
    total = term = first
    j = m
    while term > 1e-17 * total and total > 0:
        j += 1
        term *= x / j
        total += term
    return total
