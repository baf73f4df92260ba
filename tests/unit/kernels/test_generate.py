"""Generated workloads: what was asked for, exactly repeated."""

from __future__ import annotations

import hashlib
import statistics

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.core.errors import InputError
from hemiola.core.job import Workload, batch_job
from hemiola.kernels.generate import ARRIVALS, MIXES, generate, is_generator_spec

SPECS = st.builds(
    "generated:jobs={},gpus={},load={},mix={},arrivals={}".format,
    st.integers(1, 60),
    st.integers(1, 4096),
    st.floats(0.05, 3).map(lambda load: round(load, 3)),
    st.sampled_from(sorted(MIXES)),
    st.sampled_from(sorted(ARRIVALS)),
)


def work(workload: Workload) -> float:
    return sum(job.gpus * job.duration_s for job in workload.jobs)


@given(spec=SPECS, seed=st.integers(0, 1000))
def test_the_same_seed_repeats_exactly(spec: str, seed: int) -> None:
    assert generate(spec, seed) == generate(spec, seed)


@given(spec=SPECS)
def test_jobs_are_sound(spec: str) -> None:
    workload = generate(spec)
    arrivals = [job.submit_s for job in workload.jobs]
    assert arrivals[0] == 0.0
    assert arrivals == sorted(arrivals)
    assert [job.id for job in workload.jobs] == [str(i) for i in range(len(workload.jobs))]
    gpus = int(spec.split("gpus=")[1].split(",")[0])
    for job in workload.jobs:
        assert 1 <= job.gpus <= gpus
        assert job.duration_s >= 1.0


def test_another_seed_is_another_workload() -> None:
    spec = "generated:jobs=50,gpus=64"
    others = [generate(spec), generate(spec, 1), generate(f"{spec},seed=1"), generate(f"{spec},seed=2", 1)]
    assert len({str(workload.jobs) for workload in others}) == 4


def test_changing_one_part_leaves_the_others_as_they_were() -> None:
    plain = generate("generated:jobs=50,gpus=64")
    bursts = generate("generated:jobs=50,gpus=64,arrivals=burst,models=bert+gpt2,load=0.4")
    assert [(j.gpus, j.duration_s) for j in plain.jobs] == [(j.gpus, j.duration_s) for j in bursts.jobs]
    assert {job.model for job in bursts.jobs} == {"bert", "gpt2"}
    assert {job.model for job in plain.jobs} == {""}


def test_the_first_jobs_are_those_that_a_seed_has_always_given() -> None:
    first = generate("generated:jobs=12,gpus=64,mix=lingjun,models=bert+gpt2,seed=2", 1).jobs
    assert [job.gpus for job in first] == [1, 2, 1, 1, 1, 1, 2, 2, 4, 16, 2, 32]
    assert [job.id for job in first if job.model == "bert"] == ["8", "10"]
    assert first[-1].submit_s == 5779.601
    assert first[-1].duration_s == 3465.403


def test_every_processor_makes_the_same_jobs() -> None:
    """Sums by another BLAS kernel, exponentials by other instructions: the last bits differ, the jobs do not."""
    made = hashlib.sha256()
    for mix in ("philly", "lingjun", "acme"):
        for arrivals in ("poisson", "diurnal", "burst"):
            workload = generate(f"generated:jobs=5000,gpus=512,mix={mix},arrivals={arrivals}")
            made.update(repr([(job.submit_s, job.gpus, job.duration_s) for job in workload.jobs]).encode())
    assert made.hexdigest() == "c36a30751746163f4b5dc8765d208d78eae398868e68c4b24bbcbc7aa9d34928"


def test_elastic_jobs_run_on_a_quarter_to_twice_their_gpus() -> None:
    workload = generate("generated:jobs=400,gpus=48,mix=lingjun,elastic=1")
    for job in workload.jobs:
        assert (job.sizes[0], job.sizes[-1]) == (max(1, job.gpus // 4), min(48, 2 * job.gpus))
        assert job.is_elastic
        assert not job.flaw()
    assert {1, 2, 32} <= {job.gpus for job in workload.jobs}
    assert workload.notes[-1] == (
        "400 of 400 jobs are elastic: from a quarter of their GPUs, at least 1, to twice as many, at most 48"
    )


def test_which_jobs_are_elastic_changes_nothing_else() -> None:
    spec = "generated:jobs=2000,gpus=64,mix=muri,arrivals=burst,models=bert+gpt2"
    plain, half, most = (generate(f"{spec},elastic={share}") for share in (0, 0.5, 0.75))
    assert plain.jobs == generate(spec).jobs
    assert not any(job.is_elastic for job in plain.jobs)
    for workload in (half, most):
        rigid = [
            batch_job(**msgspec.structs.asdict(job) | {"gpus_min": 0, "gpus_max": 0}) for job in workload.jobs
        ]
        assert tuple(rigid) == plain.jobs
    halves, mosts = ({job.id for job in workload.jobs if job.is_elastic} for workload in (half, most))
    assert halves < mosts
    assert len(halves) == pytest.approx(1000, abs=100)
    assert half.notes[-1].startswith(f"{len(halves)} of 2000 jobs are elastic")


@pytest.mark.parametrize("arrivals", sorted(ARRIVALS))
@pytest.mark.parametrize("mix", sorted(MIXES))
def test_the_offered_load_is_the_one_asked_for(mix: str, arrivals: str) -> None:
    workload = generate(f"generated:jobs=3000,gpus=1024,load=0.7,mix={mix},arrivals={arrivals}")
    offered = work(workload) / 1024 / workload.jobs[-1].submit_s
    assert offered == pytest.approx(0.7, rel=0.02)


@pytest.mark.parametrize(
    ("mix", "mean_gpus", "median_gpus"),
    [("philly", 1.304, 1), ("helios", 3.716, 1), ("acme", 5.68, 1), ("lingjun", 36.2, 8), ("muri", 4.037, 2)],
)
def test_sizes_follow_the_published_figures(mix: str, mean_gpus: float, median_gpus: int) -> None:
    sizes, weights = zip(*MIXES[mix].shares.items(), strict=True)
    assert np.average(sizes, weights=weights) == pytest.approx(mean_gpus, rel=0.05)
    drawn = [job.gpus for job in generate(f"generated:jobs=20000,gpus=4096,mix={mix}").jobs]
    assert statistics.mean(drawn) == pytest.approx(mean_gpus, rel=0.12)
    assert statistics.median(drawn) in (median_gpus / 2, median_gpus, median_gpus * 2)


@pytest.mark.parametrize("mix", sorted(MIXES))
def test_durations_follow_the_published_median_and_mean(mix: str) -> None:
    found = MIXES[mix]
    assert np.exp(found.mu) == pytest.approx(found.median_s)
    assert np.exp(found.mu + found.sigma**2 / 2) == pytest.approx(found.mean_s)
    drawn = [job.duration_s for job in generate(f"generated:jobs=20000,gpus=4096,mix={mix}").jobs]
    assert statistics.median(drawn) == pytest.approx(found.median_s, rel=0.05)
    assert max(drawn) <= found.longest_s


def test_durations_can_be_scaled() -> None:
    plain = generate("generated:jobs=2000,gpus=64,mix=lingjun")
    scaled = generate("generated:jobs=2000,gpus=64,mix=lingjun,duration_mean=30min")
    for a, b in zip(plain.jobs, scaled.jobs, strict=True):
        assert b.duration_s == pytest.approx(max(a.duration_s * 1800 / 10800, 1.0), rel=1e-9, abs=1.0)


def test_more_jobs_arrive_by_day_than_by_night() -> None:
    times_s = ARRIVALS["diurnal"](20_000, 10 * 86400.0, np.random.Generator(np.random.PCG64(0)))
    hours = times_s % 86400 / 3600
    day, night = np.sum((hours >= 11) & (hours < 17)), np.sum((hours < 5) | (hours >= 23))
    assert day / night == pytest.approx((1 + 0.6 * 0.9) / (1 - 0.6 * 0.9), rel=0.1)


def test_bursts_crowd() -> None:
    gaps = {
        name: np.diff(process(5000, 1e7, np.random.Generator(np.random.PCG64(0))))
        for name, process in ARRIVALS.items()
    }
    assert np.mean(gaps["burst"] < 20) > 0.8
    assert np.mean(gaps["poisson"] < 20) < 0.05
    assert np.std(gaps["poisson"]) == pytest.approx(np.mean(gaps["poisson"]), rel=0.05)


def test_the_clusters_gpus_serve_where_the_spec_names_none() -> None:
    assert generate("generated:jobs=9", gpus=32).jobs == generate("generated:jobs=9,gpus=32").jobs
    assert generate("generated:jobs=9,gpus=8", gpus=32).jobs == generate("generated:jobs=9,gpus=8").jobs


def test_what_is_a_spec() -> None:
    assert is_generator_spec("generated:jobs=3")
    assert is_generator_spec("generated")
    assert not is_generator_spec("generated.csv")
    assert not is_generator_spec("philly.csv")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("generated:jobz=3,gpus=8", "known are jobs, gpus, load"),
        ("generated:jobs,gpus=8", "key=value"),
        ("generated:jobs=0,gpus=8", "from 1"),
        ("generated:jobs=3.5,gpus=8", "whole number"),
        ("generated:jobs=٣,gpus=8", "whole number"),
        ("generated:jobs=3,gpus=0", "from 1"),
        ("generated:jobs=3", "gpus="),
        ("generated:gpus=8,load=0", "above 0"),
        ("generated:gpus=8,load=nan", "above 0"),
        ("generated:gpus=8,load=much", "above 0"),
        ("generated:gpus=8,mix=slurm", "philly"),
        ("generated:gpus=8,arrivals=never", "poisson"),
        ("generated:gpus=8,duration_mean=2", "write a unit"),
        ("generated:gpus=8,duration_mean=1ms", "at least 1s"),
        ("generated:gpus=8,elastic=1.1", "from 0 to 1"),
        ("generated:gpus=8,elastic=-0.1", "from 0 to 1"),
        ("generated:gpus=8,elastic=nan", "from 0 to 1"),
        ("generated:gpus=8,elastic=all", "from 0 to 1"),
        ("generated:gpus=8,gpus=9", "once"),
        ("philly.csv", "generated:"),
    ],
)
def test_what_is_not_understood_is_refused(spec: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        generate(spec)
    assert said in caught.value.remedy


def test_no_seed_below_zero() -> None:
    with pytest.raises(InputError, match="seed is -1"):
        generate("generated:gpus=8", -1)


@pytest.mark.parametrize(
    ("spec", "cut"),
    [
        ("mix=lingjun,duration_mean=30min,duration_max=5d", False),  # scaled, the longest are shorter
        ("duration_mean=30h,duration_max=20d", True),
        ("duration_max=1h", True),
        ("", False),
    ],
)
def test_a_cut_is_told_where_it_cuts(spec: str, cut: bool) -> None:
    notes = generate(f"generated:jobs=5,gpus=8,{spec}".rstrip(",")).notes
    assert any(note.startswith("durations are cut at") for note in notes) == cut
