"""Autoscalers: the arithmetic that their makers document, and what ours promises."""

from __future__ import annotations

import pytest

from hemiola.core.errors import PolicyError
from hemiola.core.events import Load
from hemiola.core.job import Objective, RequestRate, Service
from hemiola.core.latency import BatchTime, LatencyProfile, TokenTimes
from hemiola.sched.autoscaling import (
    AUTOSCALERS,
    Autoscaler,
    Dynamo,
    ForecastLoad,
    Hpa,
    Kpa,
    Peak,
    RayServe,
    ServicePast,
    autoscaler_from_text,
)
from hemiola.sched.board import Board, mean_over_peak

PROFILE = LatencyProfile((BatchTime(1, 0.25),))


def past(**more: object) -> ServicePast:
    facts: dict = {"latency": PROFILE, "replicas_max": 100, "cold_start_s": 20.0} | more
    return ServicePast(Service(id="s", submit_s=0.0, gpus=1, objective=Objective(1.0), **facts))


def tell(
    known: ServicePast, scaler: Autoscaler, loads: list[tuple[float, float, float]], replicas: int
) -> list[int]:
    """What is wanted after each (time, rate, ongoing), with so many replicas at first, and then as many as it wanted."""
    wanted = []
    for time_s, rate, ongoing in loads:
        known.add(Load(time_s, "s", rate, 0, 0.3, ongoing), replicas, replicas)
        replicas = scaler.replicas(known)
        wanted.append(replicas)
    return wanted


def test_ray_serve_multiplies_by_ongoing_over_target_after_its_delay() -> None:
    """Two replicas with 5 ongoing requests each and a target of 2 become 5, but not before 30 s."""
    loads = [(10.0 * i, 5.0, 10.0) for i in range(5)]
    assert tell(past(), RayServe(), loads, 2) == [2, 2, 2, 5, 5]


def test_ray_serve_takes_ten_minutes_to_shrink_and_wakes_up_at_once() -> None:
    loads = [(60.0 * i, 0.1, 1.0) for i in range(12)]
    assert tell(past(), RayServe(), loads, 4)[9:] == [4, 1, 1]
    assert tell(past(), RayServe(), [(0.0, 1.0, 1.0)], 0) == [1]


def test_knative_divides_concurrency_by_seventy_percent_of_the_limit() -> None:
    """Concurrency 140 and a target of 70: two replicas."""
    assert tell(past(), Kpa(limit=100.0), [(0.0, 1.0, 140.0)], 2) == [2]


def test_knative_panics_at_twice_as_much_and_ends_none_meanwhile() -> None:
    scaler, known = Kpa(limit=100.0), past()
    loads = [(0.0, 1.0, 70.0), (6.0, 1.0, 350.0), (12.0, 1.0, 70.0), (65.0, 1.0, 70.0), (120.0, 1.0, 70.0)]
    assert tell(known, scaler, loads, 1) == [1, 5, 5, 5, 1]


def test_kubernetes_leaves_a_tenth_alone_and_cools_down() -> None:
    scaler = Hpa(target=2.0)
    assert tell(past(), scaler, [(0.0, 1.0, 4.3)], 2) == [2]
    loads = [(0.0, 1.0, 12.0), (30.0, 1.0, 2.0), (299.0, 1.0, 2.0), (331.0, 1.0, 2.0)]
    assert tell(past(), scaler, loads, 2) == [6, 6, 6, 1]
    assert tell(past(), scaler, [(0.0, 1.0, 12.0), (10.0, 1.0, 60.0)], 2) == [6, 6], "it looks each 30 s"


def test_dynamo_corrects_by_how_late_the_first_token_is() -> None:
    tokens = TokenTimes(0.1, 1e-4, 0.02, together=4, input_tokens=1000, output_tokens=50)
    known = ServicePast(
        Service(
            id="s",
            submit_s=0.0,
            gpus=1,
            objective=Objective(5.0),
            latency=LatencyProfile(tokens=tokens),
            replicas_max=99,
        )
    )
    rate = 4 * known.rate.requests_per_s
    known.add(Load(60.0, "s", rate, 0, 1.0, 1.0, first_token_s=0.2), 2, 2)
    assert Dynamo().replicas(known) == 4
    known.add(Load(120.0, "s", rate, 0, 1.0, 1.0, first_token_s=0.4), 2, 2)
    assert Dynamo().replicas(known) == 8


def test_peak_wants_all_that_there_may_be() -> None:
    assert tell(past(replicas_max=7), Peak(), [(0.0, 0.0, 0.0)], 7) == [7]


def test_forecast_adds_three_deviations_and_looks_at_yesterday() -> None:
    scaler, known = ForecastLoad(headroom=1.0), past()
    day = 86400.0
    for i in range(200):
        known.add(Load(15.0 * i, "s", 10.0, 0, 0.3, 3.0), 1, 1)
        assert scaler.expected(known) == pytest.approx(10.0)
    known.add(Load(15.0 * 200, "s", 16.0, 0, 0.3, 3.0), 1, 1)
    assert scaler.expected(known) > known.note.mean + 3 * 1.0
    known.add(Load(day - 60.0, "s", 10.0, 0, 0.3, 3.0), 1, 1)
    scaler.expected(known)
    known.add(Load(day + 15 * 200.0 - 60.0, "s", 10.0, 0, 0.3, 3.0), 1, 1)
    assert scaler.expected(known) >= 0.85 * 16.0, "the same time yesterday was busier"


def test_forecast_learns_from_misses_and_forgets_slowly() -> None:
    scaler, known = ForecastLoad(), past()
    wanted = []
    for i in range(60):
        late = 2.0 if 20 <= i < 25 else 0.3
        known.add(Load(15.0 * i, "s", 20.0, 0, late, 6.0), 8, 8)
        wanted.append(scaler.replicas(known))
    assert (wanted[19], wanted[25]) == (8, 11), "for 23, and for 1.1^5 times as many requests per second"
    assert wanted[59] > wanted[19], "ten minutes later it is not forgotten"


def test_forecast_falls_to_zero_and_keeps_what_it_wanted_for_two_minutes() -> None:
    loads = [(15.0 * i, 20.0 if i < 4 else 0.0, 1.0) for i in range(160)]
    wanted = tell(past(), ForecastLoad(), loads, 1)
    assert wanted[3] >= 7 and wanted[8] >= wanted[4]
    assert wanted[-1] <= 1


def test_autoscalers_are_asked_for_by_name_and_parameters() -> None:
    assert autoscaler_from_text("ray-serve/target=5/up_delay_s=10") == RayServe(target=5.0, up_delay_s=10.0)
    assert set(AUTOSCALERS) == {"forecast", "ray-serve", "kpa", "hpa", "dynamo", "peak"}
    for name, kind in AUTOSCALERS.items():
        assert autoscaler_from_text(name) == kind() and kind.source
    with pytest.raises(PolicyError, match="no autoscaler is called 'kp'"):
        autoscaler_from_text("kp")


def test_the_board_counts_how_often_load_outgrew_what_was_kept() -> None:
    known = past()
    board = Board(known)
    assert board.outgrown(2.0, 300.0) == 0.5, "nothing is known yet"
    for i in range(400):  # each 600 s load doubles for one interval
        known.add(Load(15.0 * i, "s", 20.0 if i % 40 == 0 else 10.0, 0, 0.3, 3.0), 1, 1)
        board.look()
    assert board.outgrown(1.5, 300.0) == pytest.approx(21 / 40 - 1 / 40, abs=0.05)
    assert board.outgrown(2.5, 1800.0) == 0.0 and board.outgrown(0.9, 60.0) == 1.0
    assert board.outgrown(1.5, 60.0) <= board.outgrown(1.5, 300.0) <= board.outgrown(1.5, 900.0)
    assert 0 < board.availability(1.5, 900.0) < 1 == board.availability(3.0, 900.0)


def test_mean_over_peak_is_of_time() -> None:
    rates = (RequestRate(0.0, 10.0), RequestRate(900.0, 20.0), RequestRate(1000.0, 0.0))
    service = Service(id="s", submit_s=0.0, gpus=1, objective=Objective(1.0), arrivals=rates)
    assert mean_over_peak([service]) == pytest.approx(11.0 / 20.0)


def test_a_service_without_a_profile_is_refused() -> None:
    with pytest.raises(PolicyError, match="how long a replica of service 's' takes"):
        past(latency=None)
