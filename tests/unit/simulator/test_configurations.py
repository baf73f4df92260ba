"""Jobs that are told how to split their batch: work is samples times their worth."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from replays import Script, check_run, cluster, job, profile, replay, times

from hemiola.core.decisions import Placement, Resize, Start
from hemiola.core.errors import PolicyError
from hemiola.core.goodput import GoodputModel, Noise
from hemiola.core.job import Configuration, Elastic, Job, Profile

ONE, TWO = cluster([8]), cluster([4, 4], nic=1e12)
MODEL = GoodputModel(
    step_s=(0.0, 0.01), host_sync_s=(0.2, 0.0), network_sync_s=(1.0, 0.0), first_batch=40, largest_batch=400,
    noise=(Noise(0.0, 120.0),),
)  # fmt: skip
"""40 samples on 4 GPUs: 10 each, 0.1 s, and 0.2 s to synchronise: 133.33 samples/s, for which run times stand."""


def trained(model: GoodputModel = MODEL, duration_s: float = 100.0, **more: Any) -> Job:
    return job("a", 0.0, 4, duration_s, profile=profile(1.0, 0.0, goodput=model), gpus_min=1, gpus_max=8, **more)  # fmt: skip


def one_host(gpus: int, first: int = 0) -> Placement:
    return Placement((0,), (((1 << gpus) - 1) << first,))


def told(gpus: int, batch: int, steps: int = 1) -> Start:
    return Start("a", one_host(gpus), "as told", Configuration(gpus, batch, steps))


@pytest.mark.parametrize(
    ("split", "ends_s"),
    [
        ((4, 10, 1), 100.0),
        ((8, 5, 1), 100.0 * (40 / 0.3) / (40 / 0.25)),
        ((4, 50, 1), 100.0 * (40 / 0.3) / (200 / 0.7 * 160 / 320)),
        ((4, 10, 2), 100.0 * (40 / 0.3) / (80 / 0.4 * 160 / 200)),
        ((1, 40, 1), 100.0 * (40 / 0.3) / (40 / 0.4)),
    ],
)
def test_a_run_lasts_as_long_as_its_goodput_says(split: tuple[int, int, int], ends_s: float) -> None:
    jobs = [trained()]
    run = replay(jobs, ONE, Script({0.0: [told(*split)]}))
    check_run(run, jobs, ONE)
    assert times(run)["a"][1] == pytest.approx(ends_s)


def test_it_synchronises_longer_over_several_hosts() -> None:
    start = Start("a", Placement((0, 1), (0b11, 0b11)), "spread", Configuration(4, 10))
    run = replay([trained()], TWO, Script({0.0: [start]}))
    assert times(run)["a"][1] == pytest.approx(100.0 * 1.1 / 0.3)


def test_what_it_sends_is_shared_with_others() -> None:
    """Its iterations take 1.1 s alone, of which it sends for 1 s, as those of a job that nobody tells anything: beside one
    like itself it is slowed as much."""
    topology = cluster([4, 4], nic=1.0)
    plain, model = profile(0.1, 1.0), profile(0.1, 1.0, goodput=MODEL)

    def ends_s(names: str, one: Profile, split: Configuration | None) -> float:
        jobs = [job(n, 0.0, 4, 100.0, profile=one, gpus_min=1, gpus_max=8) for n in names]
        places = {"a": Placement((0, 1), (0b11, 0b11)), "b": Placement((0, 1), (0b1100, 0b1100))}
        run = replay(jobs, topology, Script({0.0: [Start(n, places[n], "spread", split) for n in names]}))
        return times(run)["a"][1] or 0.0

    split = Configuration(4, 10)
    assert ends_s("a", model, split) == pytest.approx(100.0 * 1.1 / 0.3)
    slowed = ends_s("ab", plain, None) / ends_s("a", plain, None)
    assert slowed > 1.5
    assert ends_s("ab", model, split) / ends_s("a", model, split) == pytest.approx(slowed)


def test_gpus_that_keep_their_batch_waste_what_the_noise_says() -> None:
    """8 GPUs for 4: a batch of 80, each sample worth 160 / 200."""
    run = replay([trained()], ONE, Script({0.0: [Start("a", one_host(8), "all of them")]}))
    assert times(run)["a"][1] == pytest.approx(100.0 / (2 * 0.8))


def test_a_resize_changes_the_batch() -> None:
    resize = Resize("a", one_host(8), "more", Configuration(8, 5))
    run = replay([trained()], ONE, Script({0.0: [told(4, 10)], 50.0: [resize]}))
    assert times(run)["a"][1] == pytest.approx(50 + 50 * 0.25 / 0.3)


def test_noise_that_grows_makes_samples_worth_more() -> None:
    """Half of the work at a noise of 40, half at 360: a batch of 200 is worth 80/240, then 400/560 a sample."""
    model = GoodputModel(
        step_s=(0.0, 0.01), host_sync_s=(0.2, 0.0), first_batch=40, largest_batch=400,
        noise=(Noise(0.0, 40.0), Noise(0.5, 360.0)),
    )  # fmt: skip
    jobs = [trained(model)]
    run = replay(jobs, ONE, Script({0.0: [told(4, 50)]}))
    check_run(run, jobs, ONE)
    own, large = 40 / 0.3, 200 / 0.7
    assert times(run)["a"][1] == pytest.approx(50 * own / (large * 80 / 240) + 50 * own / (large * 400 / 560))


def refused(jobs: Iterable[Job], start: Start) -> str:
    run = replay(list(jobs), ONE, Script({0.0: [start]}))
    return next((entry.refused for entry in run.decisions if entry.refused), "")


def test_no_gpu_gets_more_than_it_holds_and_no_batch_is_too_large() -> None:
    small = GoodputModel(step_s=(0.0, 0.01), first_batch=40, largest_batch=80, largest_on_gpu=20)
    assert "none of its configurations" in refused([trained(small)], told(2, 21))
    assert "none of its configurations" in refused([trained(small)], told(8, 20))
    assert not refused([trained(small)], told(4, 20))


def test_named_configurations_bind_it() -> None:
    named = (Configuration(4, 10),)
    assert "none of its configurations" in refused([trained(configurations=named)], told(4, 20))


def test_without_a_model_nobody_knows_how_fast_it_is() -> None:
    jobs = [job("a", 0.0, 4, 100.0, gpus_min=1, gpus_max=8, configurations=(Configuration(4, 10),))]
    assert isinstance(jobs[0], Elastic)
    with pytest.raises(PolicyError, match="no goodput model"):
        replay(jobs, ONE, Script({0.0: [told(4, 10)]}))
