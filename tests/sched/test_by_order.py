"""The shared loop against the same definition written the slow way: equal schedules, start for start."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from replays import check_run, cluster, job, replay

from hemiola.core.job import Job
from hemiola.core.topology import Topology

CLUSTERS = [cluster([4, 4]), cluster([3, 2], [4])]
KEYS = {
    "fifo": lambda wanted: wanted.submit_s,
    "fifo-backfill": lambda wanted: wanted.submit_s,
    "sjf": lambda wanted: wanted.duration_s if wanted.estimate_s is None else wanted.estimate_s,
}


@st.composite
def workloads(draw: Any) -> list[Job]:
    count = draw(st.integers(1, 14))
    arrivals = sorted(draw(st.lists(st.integers(0, 12), min_size=count, max_size=count)))
    return [
        job(
            f"j{n}", float(at), draw(st.integers(1, 9)), float(draw(st.integers(0, 9))),
            estimate_s=draw(st.sampled_from([None, None, 1.0, 5.0])),
        )
        for n, at in enumerate(arrivals)
    ]  # fmt: skip


def naive(jobs: list[Job], topology: Topology, policy: str) -> dict[str, tuple[float | None, float | None]]:
    """Go through the queue from its head at each instant; without constraints only the number counts."""
    total = topology.gpus
    order = {wanted.id: (KEYS[policy](wanted), n) for n, wanted in enumerate(jobs)}
    result: dict[str, tuple[float | None, float | None]] = {wanted.id: (None, None) for wanted in jobs}
    running: list[tuple[float, int]] = []
    waiting: list[Job] = []
    coming = [wanted for wanted in jobs if wanted.gpus <= total]
    while coming or running:
        now = min([wanted.submit_s for wanted in coming[:1]] + [end for end, _ in running])
        running = [(end, gpus) for end, gpus in running if end > now]
        while coming and coming[0].submit_s <= now:
            waiting.append(coming.pop(0))
        free = total - sum(gpus for _, gpus in running)
        for wanted in sorted(waiting, key=lambda each: order[each.id]):
            if wanted.gpus <= free:
                free -= wanted.gpus
                running.append((now + wanted.duration_s, wanted.gpus))
                result[wanted.id] = (now, now + wanted.duration_s)
                waiting.remove(wanted)
            elif policy == "fifo":
                break
    return result


@settings(max_examples=60)
@given(workloads(), st.sampled_from(CLUSTERS), st.sampled_from(sorted(KEYS)))
def test_schedules_equal_the_naive_ones(jobs: list[Job], topology: Topology, policy: str) -> None:
    run = replay(jobs, topology, policy)
    check_run(run, jobs, topology)
    assert {r.id: (r.first_start_s, r.finish_s) for r in run.records} == naive(jobs, topology, policy)
    assert run.decisions_refused == 0


@settings(max_examples=25)
@given(
    workloads(),
    st.sampled_from(sorted(KEYS)),
    st.sampled_from(["best-fit", "first-fit", "random"]),
)
def test_without_constraints_the_rule_of_placement_changes_nothing(
    jobs: list[Job], policy: str, rule: str
) -> None:
    """Where jobs send nothing, any greedy rule starts the same jobs at the same time."""
    topology = CLUSTERS[1]
    run = replay(jobs, topology, f"{policy}:placement={rule}")
    assert {r.id: (r.first_start_s, r.finish_s) for r in run.records} == naive(jobs, topology, policy)
