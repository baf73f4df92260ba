"""The shared loop against the same definition written the slow way: equal schedules, start for start."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from replays import FREE, check_run, cluster, job, profile, replay, steps

from hemiola.core.decisions import Decision, Placement, Start, Stop
from hemiola.core.events import NodeBack, NodeLost
from hemiola.core.job import Job
from hemiola.core.topology import Topology
from hemiola.sched.job_state import JobState
from hemiola.sched.placement import Rule, TierAware, find
from hemiola.sched.policies.shortest import ByRemaining, ByRemainingService, Srsf, Srtf
from hemiola.sched.policies.tiresias import ByAttainedService, Tiresias, with_timers
from hemiola.sched.policy import Policy
from hemiola.sched.queues import Order
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import Costs

CLUSTERS = [cluster([4, 4]), cluster([3, 2], [4])]
KEYS = {
    "fifo": lambda wanted: wanted.submit_s,
    "fifo-backfill": lambda wanted: wanted.submit_s,
    "sjf": lambda wanted: wanted.duration_s,
    "sjf:knows=estimate": lambda wanted: math.inf if wanted.estimate_s is None else wanted.estimate_s,
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
    run = replay(jobs, topology, f"{policy}{',' if ':' in policy else ':'}placement={rule}")
    assert {r.id: (r.first_start_s, r.finish_s) for r in run.records} == naive(jobs, topology, policy)


# ---- pre-emption -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Naive(Policy):
    """The same loop from its definition: no memory, nothing skipped, everything sorted afresh."""

    order: Order
    rule: Rule = TierAware()
    name = "naive"

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        decisions = self._decide(view)
        if isinstance(self.order, ByAttainedService):
            return with_timers(view, self.order, decisions)
        return decisions

    def _decide(self, view: ClusterView) -> Iterator[Decision]:
        while (found := self._first(view)) is not None:
            yield from found

    def _first(self, view: ClusterView) -> list[Decision] | None:
        now = view.now
        keys = {s.id: (self.order.waiting(s, now), s.index) for s in view.waiting.values()}
        for name in sorted(keys, key=lambda each: keys[each]):
            state = view.jobs[name]
            placement = find(view.inventory, state, self.rule)
            if placement is not None:
                return [Start(name, placement, "it fits")]
            found = self._in_place_of_others(view, state, keys[name])
            if found is not None:
                return found
        return None

    def _in_place_of_others(self, view: ClusterView, state: JobState, key: Any) -> list[Decision] | None:
        ranks = {s.id: (self.order.running(s, view.now), s.index) for s in view.running.values()}
        with view.supposing() as trial:
            for victim in sorted(ranks, key=lambda each: ranks[each], reverse=True):
                if ranks[victim] <= key:
                    return None
                trial.without([view.jobs[victim]])
                placement = find(view.inventory, state, self.rule)
                if placement is not None:
                    needed = [v for v in trial.gone if _meet(v.placement, placement)]
                    stops: list[Decision] = [Stop(v.id, "it comes later") for v in needed]
                    return [*stops, Start(state.id, placement, "in place of others")]
        return None


def _meet(one: Placement | None, other: Placement) -> bool:
    return one is not None and not set(one.ranks()).isdisjoint(other.ranks())


SLOW = profile(1.0, 0.0, gpu_speed={"slow": 0.5})
PREEMPTIVE: dict[str, tuple[Policy, Order]] = {
    "srtf": (Srtf(), ByRemaining()),
    "srsf": (Srsf(), ByRemainingService()),
    "tiresias": (Tiresias(thresholds="8/40", promote=0.0), ByAttainedService((8.0, 40.0), 0.0)),
    "tiresias with promotion": (Tiresias(thresholds="8/40", promote=2.0), ByAttainedService((8.0, 40.0), 2.0)),
}  # fmt: skip


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from([1, 2, 4]), st.integers(1, 40)), min_size=2, max_size=12
    ),
    st.sampled_from(sorted(PREEMPTIVE)),
    st.sampled_from([
        cluster([6], types=["slow"]), cluster([3, 2, 2], types=["slow"] * 3),
        cluster([4, 1], [1, 2], types=["slow"] * 4), cluster([1, 1, 1, 1, 1], types=["slow"] * 5),
    ]),
    st.sampled_from(["free", "dear", "hosts fail", "some are slow"]),
)  # fmt: skip
def test_preemption_equals_the_naive_one(
    sizes: list[tuple[int, int, int]], policy: str, topology: Topology, life: str
) -> None:
    """Start for start, stop for stop: jobs without constraints fit by number, so no scatter is in the way.

    Sizes are powers of two, so that all times are exact.
    """
    some = SLOW if life == "some are slow" else None
    jobs = [
        job(f"j{n}", float(at), gpus, float(long), profile=some if long % 2 else None)
        for n, (at, gpus, long) in enumerate(sorted(sizes))
    ]
    costs = Costs(checkpoint_s=1.0, restore_s=2.0) if life == "dear" else FREE
    last = len(topology.hosts) - 1
    lost = [NodeLost(7.0, 0), NodeBack(11.0, 0), NodeLost(13.0, last), NodeBack(29.0, last)]
    fast, order = PREEMPTIVE[policy]
    one, two = (
        replay(jobs, topology, each, costs=costs, failures=lost if life == "hosts fail" else [])
        for each in (fast, Naive(order))
    )
    assert steps(one) == steps(two)
    assert one.records == two.records
    check_run(one, jobs, topology)
