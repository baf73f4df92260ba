"""The tuner against a store made of the model: how near the best it comes, how soon, and what misleads it not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemiola.core.errors import InputError
from hemiola.cost.io import StoreModel
from hemiola.plan.io.tuner import ReadLimits, ReadSetting, ReadTuner, ReadWindow, worker_share

PROFILES = [
    StoreModel(0.001, 200e6, 100e6), StoreModel(0.005, 50e6, 50e6), StoreModel(0.02, 20e6, 50e6),
    StoreModel(0.05, 10e6, 37.5e6), StoreModel(0.1, 5e6, 25e6), StoreModel(0.02, 5e6, 6.25e6),
    StoreModel(0.15, 4e6, 25e6), StoreModel(0.001, 100e6, 25e6), StoreModel(0.02, 20e6, 100e6),
]  # fmt: skip


@dataclass
class Simulated:
    """A store, a tuner on it, and the time."""

    store: StoreModel
    tuner: ReadTuner
    noise: random.Random
    at_s: float = 0.0
    failing: Callable[[int], float] = lambda c: 0.0

    def window(self) -> ReadWindow:
        setting = self.tuner.setting
        self.at_s += setting.settle_s + setting.window_s
        failing = self.failing(setting.in_flight)
        wobble = self.noise.uniform(0.97, 1.03)
        goodput = self.store.goodput(setting.read_bytes, setting.in_flight) * (1 - failing) * wobble
        requests = max(1, round(goodput * setting.window_s / setting.read_bytes))
        return ReadWindow(
            self.at_s, setting.window_s, goodput * setting.window_s, setting.in_flight,
            requests=requests, failures=round(failing * requests), first_byte_s=self.store.latency_s,
        )  # fmt: skip

    def run(self, seconds: float) -> list[ReadSetting]:
        end_s, settings_ = self.at_s + seconds, []
        while self.at_s < end_s:
            settings_.append(self.tuner.observe(self.window()))
        return settings_

    def of_best(self, settings_: list[ReadSetting]) -> float:
        """What the last settings give on average, of the best of any concurrency at these sizes."""
        best = max(self.store.goodput(2**size, 64) for size in range(16, 25))
        return sum(self.store.goodput(s.read_bytes, s.in_flight) for s in settings_) / len(settings_) / best


def simulated(store: StoreModel, seed: int = 0, **limits: float) -> Simulated:
    probe = StoreModel(store.latency_s, min(store.stream_bytes_per_s, store.share_bytes_per_s))
    return Simulated(store, ReadTuner(probe, ReadLimits(**limits)), random.Random(seed))  # type: ignore[arg-type]


@pytest.mark.parametrize("store", PROFILES, ids=str)
def test_nine_tenths_of_the_best_within_five_seconds(store: StoreModel) -> None:
    here = simulated(store)
    here.run(5)
    last = here.run(5)
    assert here.of_best(last) >= 0.9
    size = last[-1].read_bytes
    middle = sorted(s.in_flight for s in last)[len(last) // 2]
    assert middle <= max(1.5 * store.knee(size), store.knee(size) + 2)


@pytest.mark.parametrize("store", PROFILES, ids=str)
@pytest.mark.parametrize("part", ["share / 4", "share x 4", "stream / 4", "latency x 10"])
def test_nine_tenths_again_fifteen_seconds_after_a_change(store: StoreModel, part: str) -> None:
    here = simulated(store, in_flight=128)
    here.run(10)
    here.store = {
        "share / 4": replace(store, share_bytes_per_s=store.share_bytes_per_s / 4),
        "share x 4": replace(store, share_bytes_per_s=store.share_bytes_per_s * 4),
        "stream / 4": replace(store, stream_bytes_per_s=store.stream_bytes_per_s / 4),
        "latency x 10": replace(store, latency_s=min(store.latency_s * 10, 0.3)),
    }[part]
    here.run(15)
    assert here.of_best(here.run(5)) >= 0.9


def test_ten_minutes_of_the_same_store_leave_it_where_it_is() -> None:
    here = simulated(StoreModel(0.02, 20e6, 50e6))
    here.run(10)
    flights = [s.in_flight for s in here.run(600)]
    middle = sorted(flights)[len(flights) // 2]
    assert max(flights) <= 1.25 * middle + 0.5 and min(flights) >= 0.75 * middle - 0.5


def test_a_slower_stream_is_no_queue() -> None:
    """The death spiral: request times rise fourfold, and fewer requests would be the wrong answer."""
    here = simulated(StoreModel(0.02, 20e6, 50e6))
    before = here.run(10)[-1].in_flight
    here.store = StoreModel(0.02, 5e6, 50e6)
    assert here.run(15)[-1].in_flight > 2 * before


def test_failures_that_follow_the_number_of_requests_leave_fewer() -> None:
    here = simulated(StoreModel(0.05, 10e6, 37.5e6))
    here.failing = lambda c: 0.5 if c > 3 else 0.0
    assert all(s.in_flight <= 4 for s in here.run(30)[-10:])


def test_failures_that_do_not_are_borne() -> None:
    here = simulated(StoreModel(0.05, 10e6, 37.5e6))
    before = here.run(10)[-1].in_flight
    here.failing = lambda c: 0.2
    after = sorted(s.in_flight for s in here.run(25)[-9:])
    assert after[4] >= 0.75 * before  # one of them may be a try of fewer


def test_a_consumer_that_wants_less_teaches_nothing() -> None:
    here = simulated(StoreModel(0.02, 20e6, 50e6))
    settled = here.run(10)[-1]
    for _ in range(20):
        idle = here.window()._replace(wanted=0.3, arrived_bytes=1e5)
        assert abs(here.tuner.observe(idle).in_flight - settled.in_flight) <= 0.25 * settled.in_flight + 1


def test_a_dead_store_teaches_nothing() -> None:
    tuner = ReadTuner(StoreModel(0.02, 20e6))
    assert tuner.observe(ReadWindow(1.0, 1.0, 0.0, 4)).in_flight == 4


@settings(max_examples=30)
@given(
    st.builds(StoreModel, st.floats(1e-3, 0.3), st.floats(1e6, 4e8), st.floats(1e6, 4e8)),
    st.floats(2**16, 1e9),
    st.integers(1, 99),
)
def test_never_above_its_budget(store: StoreModel, memory_bytes: float, seed: int) -> None:
    here = simulated(store, seed, memory_bytes=memory_bytes)
    for setting in here.run(20):
        assert setting.in_flight * setting.read_bytes <= memory_bytes
        assert 1 <= setting.in_flight <= 64 and math.isfinite(setting.window_s)


def test_a_budget_below_one_read_is_refused() -> None:
    with pytest.raises(InputError, match="no room for one read"):
        ReadLimits(memory_bytes=1000)


def test_shares_of_workers_add_up() -> None:
    assert [worker_share(10, 4, w) for w in range(4)] == [3, 3, 2, 2]
    assert [worker_share(2, 4, w) for w in range(4)] == [1, 1, 1, 1]
