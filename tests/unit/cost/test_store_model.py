"""The model of a store: answers worked out by hand, those of the shared vectors, and what must hold for any store."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemiola.core.errors import InputError
from hemiola.cost.io import (
    StoreModel,
    batch_wait,
    buffer_batches,
    connection_paces,
    connection_shares,
    fit_requests,
    forecast_input,
    jain_index,
    mean_value_analysis,
    robust_requests,
    synchronous_iteration_s,
)

KB64, MB1 = 65536, 1048576
STORES = st.builds(StoreModel, st.floats(1e-4, 0.2), st.floats(1e6, 1e9), st.floats(1e6, 1e9))
SIZES = st.integers(1, 2**24)


def test_goodput_and_knees_of_a_store_far_away() -> None:
    store = StoreModel(0.02, 20e6, 50e6)
    assert store.goodput(KB64, 1) == pytest.approx(2815507.2862249105, rel=1e-12)
    assert store.goodput(MB1, 2) == pytest.approx(28954669.96553857, rel=1e-12)
    assert store.goodput(MB1, 4) == 50e6
    assert [store.knee(KB64 * 4**i) for i in range(4)] == [18, 7, 4, 3]
    assert store.loaded_s(MB1, 8) == pytest.approx(8 * MB1 / 50e6)


def test_a_read_waits_a_fifth_of_its_time() -> None:
    assert StoreModel(0.02, 20e6).read_bytes() == 2**21  # 4 · 20 ms · 20 MB/s = 1.6 MB
    assert StoreModel(0.0, 20e6).read_bytes() == 2**16
    assert StoreModel(5.0, 1e9).read_bytes() == 2**23


def test_least_squares_give_known_latency_rate_and_errors() -> None:
    exact = fit_requests([(s, 0.02 + s / 20e6) for s in (16384, 65536, 262144, 1048576)])
    assert exact.latency_s == pytest.approx(0.02) and exact.stream_bytes_per_s == pytest.approx(20e6)
    noisy = fit_requests(
        [(16384, 0.022462), (16384, 0.022046), (65536, 0.023638), (65536, 0.022828),
         (262144, 0.032637), (262144, 0.02849), (1048576, 0.073337), (1048576, 0.070406)]
    )  # fmt: skip
    assert noisy.latency_s == pytest.approx(0.01989397014925374, rel=1e-9)
    assert noisy.stream_bytes_per_s == pytest.approx(20376284.888812218, rel=1e-9)
    assert noisy.latency_error_s == pytest.approx(0.001003566483704654, rel=1e-9)
    assert noisy.inverse_error_s == pytest.approx(1.8533830320557106e-09, rel=1e-9)


def test_a_hiccup_moves_neither_latency_nor_rate() -> None:
    points = [
        (s, 0.02 + s / 20e6 + wobble) for s in (16384, 131072, 1048576) for wobble in (0, 2e-4, -2e-4, 1e-4)
    ]
    points[5] = (points[5][0], 1.5)
    latency_s, rate = robust_requests(points)
    assert latency_s == pytest.approx(0.02, rel=0.05) and rate == pytest.approx(20e6, rel=0.05)


@pytest.mark.parametrize("points", [[], [(5, 0.1)], [(5, 0.1), (5, 0.2)]])
def test_one_size_is_not_enough(points: list[tuple[float, float]]) -> None:
    with pytest.raises(InputError, match="of one size"):
        fit_requests(points)


def test_an_iteration_waits_for_the_longer_of_computing_and_reading() -> None:
    assert batch_wait(0.1, 8e6, 50e6) == pytest.approx((0.16, 0.06))
    assert batch_wait(0.1, 4e6, 50e6) == (0.1, 0.0) and not batch_wait(0.1, 4e6, 50e6).input_bound
    assert synchronous_iteration_s(0.1, 4e6, [40e6, 10e6]) == pytest.approx(0.4)
    assert synchronous_iteration_s(0.1, 4e6, [40e6, 10e6], equalised=True) == pytest.approx(0.16)
    assert buffer_batches(0.1, 0.1) == 6 and buffer_batches(0.1, 0.0) == 1


def test_a_job_is_input_bound_where_its_ranks_share_too_little() -> None:
    store = StoreModel(0.02, 20e6, 50e6)
    alone, four = forecast_input(0.1, 4e6, store), forecast_input(0.1, 4e6, store, ranks=4)
    assert (alone.iteration_s, alone.stall_s) == (0.1, 0.0) and "not input-bound" in alone.sentence
    assert four.iteration_s == pytest.approx(0.32) and four.share_bytes_per_s == 12.5e6
    assert four.sentence.startswith("input-bound: 69 % of the iteration waits")


def test_a_link_divides_itself_by_connections() -> None:
    assert connection_shares([32, 2], 50e6) == pytest.approx([47058823.52941176, 2941176.470588235])
    assert jain_index([40e6, 10e6]) == pytest.approx(0.7352941176470589)
    assert jain_index([0.0, 0.0]) == 1.0
    assert connection_paces([2, 1, 1], [4, 8, 1], 40e6) == pytest.approx([5e6, 1.25e6, 10e6])


def test_mean_value_analysis_of_eight_requests() -> None:
    states = mean_value_analysis(0.02, 0.05, 8)
    assert states[0].requests_per_s == pytest.approx(1 / 0.07)
    assert states[7].requests_per_s == pytest.approx(49.84450055848433, rel=1e-12)
    assert states[7].response_s == pytest.approx(0.1104991505655336, rel=1e-12)


@settings(max_examples=40)
@given(STORES, SIZES, st.integers(1, 64))
def test_goodput_grows_with_requests_and_size_and_never_above_the_share(
    store: StoreModel, size: int, flights: int
) -> None:
    here = store.goodput(size, flights)
    assert here <= store.share_bytes_per_s
    assert store.goodput(size, flights + 1) >= here * (1 - 1e-12)
    assert store.goodput(size + 1, flights) >= here * (1 - 1e-12)


@settings(max_examples=40)
@given(STORES, SIZES)
def test_the_knee_is_the_fewest_that_fill_the_share(store: StoreModel, size: int) -> None:
    knee = store.knee(size)
    assert store.goodput(size, knee) == pytest.approx(store.share_bytes_per_s, rel=1e-6)
    assert knee == 1 or store.goodput(size, knee - 1) < store.share_bytes_per_s


@settings(max_examples=40)
@given(st.floats(1e-4, 0.1), st.floats(0, 0.2), st.integers(1, 40))
def test_the_queue_stays_below_both_asymptotes(demand_s: float, delay_s: float, flights: int) -> None:
    last = mean_value_analysis(demand_s, delay_s, flights)[-1]
    assert last.requests_per_s <= min(flights / (demand_s + delay_s), 1 / demand_s) * (1 + 1e-9)


@pytest.mark.parametrize(
    "fields", [(-1.0, 1e6, 1e6), (math.nan, 1e6, 1e6), (0.1, 0.0, 1e6), (0.1, 1e6, -1.0)]
)
def test_a_store_that_cannot_be_is_refused(fields: tuple[float, float, float]) -> None:
    with pytest.raises(InputError):
        StoreModel(*fields)


@pytest.mark.shared_data
def test_all_shared_vectors(shared: Path) -> None:
    vectors = json.loads((shared / "data/io/diot_vectors.json").read_text())
    for row in vectors["surface"]:
        store = StoreModel(row["L_s"], row["b"], row["C"])
        for key, expected in row["goodput_bytes_per_s"].items():
            size, flights = map(int, key.split(","))
            assert store.goodput(size, flights) == pytest.approx(expected, rel=1e-12)
        assert {size: store.knee(int(size)) for size in row["knee"]} == row["knee"]
    for row in vectors["fit"]:
        assert fit_requests(row["points"])[:2] == pytest.approx((row["L_s"], row["b_bytes_per_s"]), rel=1e-9)
    for row in vectors["unfair"]:
        assert connection_shares(row["connections"], row["link"]) == pytest.approx(row["shares"])
        assert jain_index(row["shares"]) == pytest.approx(row["jain"])
    for row in vectors["weighted"]:
        paces = connection_paces(row["weights"], row["connections"], row["C"])
        assert paces == pytest.approx(row["pace_per_connection"])
    for row in vectors["stall"]:
        wait = batch_wait(row["compute_s"], row["batch_bytes"], row["goodput"])
        assert wait == pytest.approx((row["steady_s"], row["stall_s"]))
        assert wait.input_bound == row["io_bound"]
    for row in vectors["straggler"]:
        given_ = row["compute_s"], row["batch_bytes"], row["per_rank_goodput"]
        assert synchronous_iteration_s(*given_) == pytest.approx(row["sync_iteration_s"])
        assert synchronous_iteration_s(*given_, equalised=True) == pytest.approx(row["if_equalised_s"])
    found = mean_value_analysis(vectors["mva"]["D"], vectors["mva"]["Z"], vectors["mva"]["N"])
    for state, expected in zip(found, vectors["mva"]["n_X_R"], strict=True):
        assert state == pytest.approx(expected, rel=1e-12)
