"""The profile that is learnt of a report says again what was reported, and what another place would change."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.core.decisions import Placement
from hemiola.core.job import batch_job
from hemiola.cost.iteration import IterationModel
from hemiola.cost.job_profile import learnt
from hemiola.trace.reports import JobReport
from hemiola.trace.topologies.read import read_topology

RATE = 1.25e9
MODEL = IterationModel(
    read_topology("leaf-spine:hosts=8,gpus_per_host=4,hosts_per_rack=4,nic=10gbit,oversubscription=8")
)
NEAR, FAR = Placement((0, 1), (0xF, 0xF)), Placement((0, 4), (0xF, 0xF))
JOB = batch_job(id="j", submit_s=0.0, gpus=8, duration_s=100.0, user="ada")


def report(iteration_s: float, compute_s: float, traffic_bytes: float) -> JobReport:
    return JobReport(
        job="1", time_s=0.0, gpus=8, iterations=9, iteration_s=iteration_s, compute_s=compute_s,
        traffic_bytes=traffic_bytes,
    )  # fmt: skip


@given(st.floats(0.01, 10.0), st.floats(0.0, 10.0), st.floats(0.0, 1e9), st.sampled_from([NEAR, FAR]))
def test_the_law_repeats_what_was_reported_where_a_network_could_do_it(
    compute_s: float, exposed_s: float, traffic: float, place: Placement
) -> None:
    given_report = report(compute_s + exposed_s, compute_s, traffic)
    profile = learnt(MODEL, JOB, place, given_report, "train")
    job = msgspec.structs.replace(JOB, profile=profile)
    said_s = MODEL.alone_s(job, place)
    assert said_s >= given_report.iteration_s * (1 - 1e-9)
    if profile.overlap < 1:
        assert said_s == pytest.approx(given_report.iteration_s)


def test_a_wide_place_tells_what_is_hidden_and_a_narrow_one_keeps_it() -> None:
    near = learnt(MODEL, JOB, NEAR, report(0.2, 0.2, 0.1 * RATE), "train")
    assert near.overlap == pytest.approx(
        0.5, rel=1e-3
    )  # 0.1 s were sent, and nobody waited: as much is hidden, or more
    known = msgspec.structs.replace(JOB, profile=near)
    far = learnt(MODEL, known, FAR, report(0.25, 0.2, 0.1 * RATE), "train")  # there the same takes 0.2 s
    assert far.overlap == pytest.approx(0.75, rel=1e-3)
    again = learnt(
        MODEL, msgspec.structs.replace(JOB, profile=far), NEAR, report(0.2, 0.2, 0.1 * RATE), "train"
    )
    assert again.overlap == pytest.approx(0.75, rel=1e-3)


def test_the_model_keeps_nothing_of_what_is_learnt_until_it_is_used() -> None:
    kept = len(MODEL._profiles), len(MODEL._needs)
    for number in range(100):
        learnt(MODEL, JOB, FAR, report(0.25, 0.2, (1 + number) * 1e6), "train")
    assert (len(MODEL._profiles), len(MODEL._needs)) == kept


def test_waiting_for_a_late_rank_goes_along_wherever_it_runs() -> None:
    profile = learnt(MODEL, JOB, NEAR, report(0.06, 0.03, 1000.0), "train")
    job = msgspec.structs.replace(JOB, profile=profile)
    assert MODEL.alone_s(job, FAR) == pytest.approx(0.06, rel=0.01)
    assert profile.name == "learnt/ada/train"
