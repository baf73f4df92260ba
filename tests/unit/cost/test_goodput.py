"""Goodput: Pollux's own numbers (T8), its properties, and the batch that it chooses."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.core.errors import InputError
from hemiola.core.goodput import GoodputModel, Noise
from hemiola.core.job import Configuration
from hemiola.cost.goodput import (
    best_configuration,
    efficiency,
    goodput,
    iteration_s,
    kept_worth,
    own_configuration,
    step_s,
    sync_s,
    throughput,
)

NOISE = 128 * 0.000502 / 0.00136
T8 = GoodputModel(
    step_s=(0.121, 0.00568), network_sync_s=(0.0236, 0.00634), host_sync_s=(0.0118, 0.00317), overlap=1.14,
    first_batch=128, largest_batch=4096, largest_on_gpu=1024, noise=(Noise(0.0, NOISE),),
)  # fmt: skip


@pytest.mark.parametrize(
    ("split", "samples_per_s", "worth", "good"),
    [
        ((1, 128, 1), 150.936276, 1.0, 150.936276),
        ((2, 64, 1), 260.869015, 1.0, 260.869015),
        ((4, 64, 1), 517.640565, 0.577902, 299.145479),
    ],
)
def test_pollux_own_numbers(
    split: tuple[int, int, int], samples_per_s: float, worth: float, good: float
) -> None:
    """(N, K, m, s) of T8: all on one host, one step."""
    one = Configuration(*split)
    assert throughput(T8, one, 1) == pytest.approx(samples_per_s, rel=1e-6)
    assert efficiency(T8, one.batch, NOISE) == pytest.approx(worth, abs=1e-6)
    assert goodput(T8, one, 1, NOISE) == pytest.approx(good, rel=1e-6)


models = st.builds(
    GoodputModel,
    step_s=st.tuples(st.floats(1e-3, 1), st.floats(1e-5, 0.1)),
    host_sync_s=st.tuples(st.floats(0, 1), st.floats(0, 0.1)),
    network_sync_s=st.tuples(st.floats(0, 1), st.floats(0, 0.1)),
    overlap=st.floats(1, 10),
    first_batch=st.just(64),
    largest_batch=st.sampled_from([0, 128, 1000, 4096]),
    largest_on_gpu=st.sampled_from([0, 16, 64, 256]),
)
splits = st.builds(Configuration, st.integers(1, 64), st.integers(1, 256), st.integers(1, 4))


@given(models, splits, st.sampled_from([1, 2, 5]), st.floats(0, 1e6))
def test_what_holds_of_every_iteration(
    model: GoodputModel, one: Configuration, hosts: int, noise: float
) -> None:
    """Between the longer of its parts and their sum; goodput is at most throughput from the own batch on."""
    step, sync = step_s(model, one.per_gpu_batch), sync_s(model, one.gpus, hosts)
    before = (one.accumulation - 1) * step
    assert before + max(step, sync) <= iteration_s(model, one, hosts) * (1 + 1e-9)
    assert iteration_s(model, one, hosts) <= (before + step + sync) * (1 + 1e-9)
    if one.batch >= model.first_batch:
        assert goodput(model, one, hosts, noise) <= throughput(model, one, hosts) * (1 + 1e-9)
    assert efficiency(model, model.first_batch, noise) == 1.0
    assert efficiency(model, one.batch + 1, noise) <= efficiency(model, one.batch, noise)


@given(models, st.integers(1, 64), st.sampled_from([1, 2]), st.floats(0, 1e6))
def test_the_best_split_is_admitted_and_no_worse_than_its_own(
    model: GoodputModel, gpus: int, hosts: int, noise: float
) -> None:
    best, own = best_configuration(model, gpus, hosts, noise), own_configuration(model, gpus)
    assert best is not None and best.gpus == gpus
    assert model.admits(best.gpus, best.per_gpu_batch, best.accumulation)
    if own.batch == model.first_batch:
        assert goodput(model, best, hosts, noise) >= goodput(model, own, hosts, noise) * (1 - 1e-9)


def test_noise_decides_how_large_a_batch_pays() -> None:
    quiet, noisy = (best_configuration(T8, 8, 1, noise) for noise in (10.0, 5_000.0))
    assert quiet is not None and noisy is not None
    assert 128 <= quiet.batch < noisy.batch


def test_too_many_gpus_for_the_largest_batch() -> None:
    few = GoodputModel(step_s=(0.1, 0.01), first_batch=4)
    assert best_configuration(few, 8, 2, 1.0) is None


def test_one_gpu_adds_up_two_steps_beyond_its_own_batch() -> None:
    large = best_configuration(T8, 1, 1, 1e6)
    assert large is not None and large.batch > 128
    assert large.accumulation >= 2


def test_only_the_named_splits_are_chosen_where_there_are_some() -> None:
    named = (Configuration(2, 64, 1), Configuration(4, 100, 1))
    assert best_configuration(T8, 4, 1, NOISE, among=named) == named[1]
    assert best_configuration(T8, 3, 1, NOISE, among=named) is None


def test_gpus_that_keep_their_batch_waste_some_of_a_larger_one() -> None:
    assert kept_worth(T8, 2, 4, NOISE) == pytest.approx(0.577902, abs=1e-6)
    assert kept_worth(T8, 4, 2, NOISE) == 1.0
    assert kept_worth(T8, 4, 8, math.inf) == 1.0


def test_noise_goes_by_the_share_of_the_work() -> None:
    model = GoodputModel(step_s=(0.1, 0.0), noise=(Noise(0.0, 5.0), Noise(0.5, 50.0)))
    assert [model.noise_at(share) for share in (0.0, 0.49, 0.5, 1.0)] == [5.0, 5.0, 50.0, 50.0]
    assert (model.next_noise(0.0), model.next_noise(0.5)) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"step_s": (-1.0, 0.0)}, "times are"),
        ({"step_s": (0.0, 0.0)}, "times are"),
        ({"overlap": 0.5}, "overlap is 0.5"),
        ({"first_batch": 8, "largest_batch": 4}, "batches are 8 to 4"),
        ({"noise": (Noise(0.2, 1.0),)}, "ascend from 0"),
        ({"noise": (Noise(0.0, math.inf),)}, "noise scale"),
    ],
)
def test_a_model_that_cannot_be_is_refused(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        GoodputModel(**({"step_s": (0.1, 0.0)} | wrong))  # type: ignore[arg-type]
