"""Waits in M/D/n: known answers, and the queue itself as the oracle."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.sched.queueing import decay_per_s, mean_wait_s, servers_for, typical_wait_s, wait_exceeds, waits


@pytest.mark.parametrize(
    ("rate", "service_s", "wait_s"), [(3.0, 0.25, 0.375), (9.0, 0.1, 0.45), (0.0, 1.0, 0.0)]
)
def test_one_server_waits_as_pollaczek_and_khinchine_say(
    rate: float, service_s: float, wait_s: float
) -> None:
    assert mean_wait_s(rate, service_s) == pytest.approx(wait_s, rel=1e-12)
    assert waits(rate, service_s) == pytest.approx(rate * service_s)


@pytest.mark.parametrize(("servers", "load"), [(4, 0.9), (10, 0.8)])
def test_several_servers_wait_as_the_queue_itself_does(servers: int, load: float) -> None:
    mean, wait = _simulated(servers * load, servers, 200_000)
    assert mean_wait_s(servers * load, 1.0, servers) == pytest.approx(mean, rel=0.06)
    assert waits(servers * load, 1.0, servers) == pytest.approx((wait > 0).mean(), rel=0.02)
    for seconds in (0.25, 0.5, 1.0):
        assert wait_exceeds(seconds, servers * load, 1.0, servers) == pytest.approx(
            (wait > seconds).mean(), rel=0.2, abs=0.004
        )


def _simulated(rate: float, servers: int, count: int) -> tuple[float, np.ndarray]:
    """Mean wait, and all waits, of requests that take a second each."""
    arrivals = np.cumsum(np.random.default_rng(0).exponential(1 / rate, count)).tolist()
    free = [0.0] * servers
    wait = []
    for time in arrivals:
        begin = max(time, heapq.heappop(free))
        wait.append(begin - time)
        heapq.heappush(free, begin + 1.0)
    return float(np.mean(wait)), np.array(wait)


def test_the_tail_falls_by_the_root_of_its_equation() -> None:
    decay = decay_per_s(3.0, 0.25)
    assert decay == pytest.approx(3.0 * math.expm1(decay * 0.25))
    assert decay_per_s(0.0, 1.0) == math.inf


@given(st.integers(1, 40), st.floats(0.05, 0.98), st.floats(0.01, 3.0))
def test_a_share_is_a_share_and_falls_with_time_and_servers(
    servers: int, load: float, seconds: float
) -> None:
    rate = servers * load
    here = wait_exceeds(seconds, rate, 1.0, servers)
    assert 0 <= here <= 1
    assert wait_exceeds(2 * seconds, rate, 1.0, servers) <= here
    assert wait_exceeds(seconds, rate, 1.0, servers + 1) <= here + 1e-9


def test_more_than_is_answered_waits_for_ever() -> None:
    assert mean_wait_s(5.0, 1.0, 4) == math.inf
    assert waits(5.0, 1.0, 4) == wait_exceeds(9.0, 5.0, 1.0, 4) == 1.0


@pytest.mark.parametrize("rate", [0.5, 7.3, 120.0])
def test_servers_are_the_fewest_that_suffice(rate: float) -> None:
    n = servers_for(rate, 0.4, 0.6, 1e-3)
    assert wait_exceeds(0.6, rate, 0.4, n) <= 1e-3
    assert n == math.ceil(rate * 0.4) or wait_exceeds(0.6, rate, 0.4, n - 1) > 1e-3
    assert servers_for(0.0, 0.4, 0.6, 1e-3) == 0
    assert servers_for(1000.0, 0.4, 0.6, 1e-3, most=10) == 10


def test_the_fast_mean_is_near_the_exact_one() -> None:
    for servers in (2, 8, 33):
        for load in (0.3, 0.55, 0.81, 0.93):
            exact = mean_wait_s(servers * load, 1.0, servers)
            assert typical_wait_s(servers * load, 1.0, servers) == pytest.approx(exact, rel=0.06, abs=1e-6)
