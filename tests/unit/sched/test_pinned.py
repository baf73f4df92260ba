"""Jobs that may not be stopped: no policy asks for it, and none stops others in vain for them."""

from __future__ import annotations

import pytest
from replays import check_run, cluster, job, profile, replay, steps, times

ONE = cluster([4])
PREEMPTIVE = (
    "srtf", "srsf", "tiresias:thresholds=40", "gittins:thresholds=40", "gandiva:slice_s=100", "themis:lease_s=100",
    "dally:thresholds=40",
)  # fmt: skip


@pytest.mark.parametrize("policy", PREEMPTIVE)
def test_nobody_is_stopped_for_room_that_a_pinned_job_holds(policy: str) -> None:
    """w needs the whole host, of which p keeps half until 1,000 s: q runs on."""
    jobs = [job("p", 0, 2, 1000, pinned=True), job("q", 0, 2, 900), job("w", 50, 4, 10)]
    run = replay(jobs, ONE, policy)
    check_run(run, jobs, ONE)
    assert {what for _, what, _ in steps(run)} == {"Start"} and run.decisions_refused == 0
    assert times(run) == {"p": (0, 1000), "q": (0, 900), "w": (1000, 1010)}


@pytest.mark.parametrize("policy", PREEMPTIVE)
@pytest.mark.parametrize("hosts", [[4], [2, 2]], ids=str)
def test_another_is_stopped_where_that_helps(policy: str, hosts: list[int]) -> None:
    """p would come last and is pinned; q, before it, has the two GPUs that w needs."""
    topology = cluster(hosts)
    jobs = [job("q", 0, 2, 900), job("p", 0, 2, 1000, pinned=True), job("w", 150, 2, 10)]
    run = replay(jobs, topology, policy)
    check_run(run, jobs, topology)
    stopped = [(name, what) for _, what, name in steps(run) if what != "Start"]
    assert stopped and set(stopped) <= {("q", "Stop"), ("w", "Stop")}
    assert times(run)["p"] == (0, 1000) and run.decisions_refused == 0


def test_gandiva_leaves_a_pinned_job_spread() -> None:
    """Both GPUs of the second host are free from 40 s on."""
    jobs = [
        job("left", 0, 1, 300), job("filler", 0, 1, 5), job("right", 0, 1, 40),
        job("wide", 6, 2, 100, profile=profile(1.0, 1.0), pinned=True),
    ]  # fmt: skip
    run = replay(jobs, cluster([2, 2]), "gandiva")
    assert times(run)["wide"] == (6, 206), "at half its speed to the end"
    assert run.decisions_refused == 0
