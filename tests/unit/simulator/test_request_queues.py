"""What requests wait in, at both fidelities: known answers, M/D/n, and nobody lost."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import slowly
from serving import EIGHT, ONE, service

from hemiola.core.job import Objective, RequestRate, Service
from hemiola.core.latency import BatchTime, LatencyProfile, Request, TokenTimes
from hemiola.simulator.serving.arrivals import RequestSource
from hemiola.simulator.serving.fluid import FluidQueue
from hemiola.simulator.serving.queue import RequestQueue
from hemiola.simulator.serving.requests import SingleRequests


def queues(asked: Service, seed: int = 0) -> tuple[RequestQueue, RequestQueue]:
    return tuple(kind(asked, RequestSource(asked, (seed, 0))) for kind in (FluidQueue, SingleRequests))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("rate", "servers", "seconds", "wait_s"), [(3.0, 1, 0.25, 0.375), (9.0, 1, 0.1, 0.45)]
)
def test_requests_one_by_one_wait_as_m_d_1(rate: float, servers: int, seconds: float, wait_s: float) -> None:
    asked = service(
        rate, arrivals=(RequestRate(0.0, rate),), latency=LatencyProfile((BatchTime(1, seconds),))
    )
    means = []
    for seed in range(2):
        _, single = queues(asked, seed)
        single.join(0)
        single.advance(6000.0)
        means.append(single.counts.waited_s / single.counts.answered)
    assert sum(means) / 2 == pytest.approx(wait_s, rel=0.12)


@pytest.mark.parametrize(("rate", "replicas"), [(3.0, 1), (36.0, 12), (15.0, 5)])
def test_the_fluid_misses_as_many_as_requests_one_by_one(rate: float, replicas: int) -> None:
    asked = service(rate, arrivals=(RequestRate(0.0, rate),), objective=Objective(0.5))
    shares = []
    for queue in queues(asked):
        for number in range(replicas):
            queue.join(number)
        queue.advance(3000.0)
        shares.append(queue.counts.missed / queue.counts.arrived)
    assert shares[0] == pytest.approx(shares[1], rel=0.15, abs=0.01)


def test_a_batch_is_as_large_as_answers_most_within_the_objective() -> None:
    assert [EIGHT.rate(objective_s).batch for objective_s in (0.3, 0.5, 2.0)] == [1, 2, 8]
    _, single = queues(service(30.0, latency=EIGHT))
    single.join(0), single.join(1)
    single.advance(600.0)
    assert single.counts.missed == 0 and single.counts.answered > 17_000, (
        "one by one two replicas would answer 10 per second"
    )


def test_a_language_model_reads_prompts_and_writes_tokens() -> None:
    """By hand: prompts from 1 s to 2 s and to 3 s, in which nothing is written. Then a token of both each 0.15 s: the second ends its
    6 at 3.75 s, of the first 5 of 10 are left, and end at 4.25 s. The third takes 1 s and 10 tokens of 0.1 s."""
    tokens = TokenTimes(0.0, 0.01, 0.1, step_more_s=0.05, together=2, input_tokens=100, output_tokens=11)
    asked = service(
        arrivals=(), latency=LatencyProfile(tokens=tokens), objective=Objective(9.0, first_token_s=1.5),
        requests=(Request(1.0, 100, 11), Request(1.0, 100, 6), Request(20.0, 0, 0)),
    )  # fmt: skip
    _, single = queues(asked)
    single.join(0)
    single.advance(3.8)
    assert single.counts.answered == 1 and single.load(3.8).latency_s == pytest.approx(2.75)
    single.advance(4.5)
    load = single.load(4.5)
    assert (load.first_token_s, load.latency_s) == (pytest.approx(1.0), pytest.approx(3.25))
    assert load.per_token_s == pytest.approx((4.25 - 2.0) / 10)
    single.advance(60.0)
    assert (single.counts.answered, single.counts.missed) == (3, 1), (
        "of the second the first token came after 2 s"
    )
    assert single.load(60.0).latency_s == pytest.approx(2.0)


def test_a_cache_holds_so_many_tokens_at_once() -> None:
    tokens = TokenTimes(0.0, 0.001, 0.1, together=8, cache_tokens=250, input_tokens=100, output_tokens=20)
    assert LatencyProfile(tokens=tokens).rate(100.0).servers == 2
    _, single = queues(
        service(
            arrivals=(),
            latency=LatencyProfile(tokens=tokens),
            requests=tuple(Request(0.0, 100, 20) for _ in range(4)),
        )
    )
    single.join(0)
    single.advance(1.0)
    assert single.load(1.0).queue == 2


def test_what_waits_too_long_is_refused_and_missed() -> None:
    for queue in queues(service(2.0, until_s=100.0, timeout_s=20.0)):
        queue.advance(200.0)
        counts = queue.counts
        assert counts.refused == counts.missed == counts.arrived > 150 and counts.waiting == 0


def test_what_a_lost_replica_had_in_hand_waits_again() -> None:
    _, single = queues(service(arrivals=(), requests=(Request(0.0), Request(0.1))))
    single.join("a")
    single.advance(0.2)
    assert single.leave("a", lost=True) == 0.2
    single.join("b")
    single.advance(1.0)
    assert single.counts.answered == 2 and single.counts.waiting == 0
    assert single.counts.arrived == 2


@given(st.data())
def test_arrived_is_answered_and_refused_and_waiting(data: st.DataObject) -> None:
    asked = service(
        data.draw(st.floats(0, 20)), until_s=60.0, timeout_s=data.draw(st.floats(1, 20)),
        latency=data.draw(st.sampled_from([ONE, EIGHT, LatencyProfile(tokens=TokenTimes(0.05, 1e-4, 0.02, 0.001, together=4))])),
        burst_cv=data.draw(st.sampled_from([0.0, 0.7])),
    )  # fmt: skip
    steps = data.draw(st.lists(st.tuples(st.floats(0.1, 15), st.sampled_from("joinleavelost")), max_size=12))
    for queue in queues(asked):
        now, replicas = 0.0, 0
        for seconds, what in steps:
            now += seconds
            queue.advance(now)
            if what in "join":
                queue.join(replicas)
                replicas += 1
            elif replicas:
                replicas -= 1
                queue.leave(replicas, lost=what in "lost")
            counts = queue.counts
            queue.advance(now)
            assert counts.arrived == pytest.approx(counts.answered + counts.refused + counts.waiting)
            assert (
                0 <= counts.missed <= counts.answered + counts.refused + 1e-9 and 0 <= counts.attainment <= 1
            )


def test_three_days_of_128_gpus_take_the_fluid_two_seconds() -> None:
    """A service on 64 GPUs whose load is told each 15 s, the rate another each minute; processor time."""
    rates = tuple(RequestRate(60.0 * i, 900.0 + 300.0 * math.sin(i / 200)) for i in range(3 * 1440))
    queue, _ = queues(service(arrivals=rates, latency=EIGHT, replicas_max=64))
    for number in range(64):
        queue.join(number)
    begin_s = time.process_time()
    for i in range(1, 3 * 5760 + 1):
        queue.advance(15.0 * i)
        queue.load(15.0 * i)
    assert time.process_time() - begin_s < slowly(2.0)
    assert (
        queue.counts.arrived == pytest.approx(queue.counts.answered + queue.counts.waiting)
        and queue.counts.missed == 0
    )


def test_bursts_are_the_same_for_every_policy_at_a_seed() -> None:
    asked = service(10.0, burst_cv=0.7, until_s=3000.0)
    first, again = (list(RequestSource(asked, (1, 0)).steps(3000.0)) for _ in range(2))
    assert first == again != list(RequestSource(asked, (2, 0)).steps(3000.0))
    came = sum((end - begin) * rate for begin, end, rate in first)
    assert came == pytest.approx(30_000, rel=0.1) and len({rate for *_, rate in first}) > 500
