"""Which jobs send over which links, and who meets whom."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replays import Script, at, cluster, job, profile, replay, start

from hemiola.core.decisions import Decision
from hemiola.core.topology import Topology
from hemiola.cost.iteration import IterationModel
from hemiola.sched.crossing import CROSSING, Crosser, CrossingJobs, crossed_links, groups, meetings
from hemiola.sched.inventory import Inventory
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView

TREE = cluster([2, 2], [2, 2], [2, 2], pods=[0, 0, 1], uplink=0.5, pod_uplink=0.25)
FLAT = cluster([2, 2, 2])


@pytest.mark.parametrize("topology", [TREE, FLAT])
@pytest.mark.parametrize("hosts", [(0, 1), (0, 2), (1, 2), (0, 1, 2), (2, 0)])
def test_the_links_are_those_of_the_cost_model(topology: Topology, hosts: tuple[int, ...]) -> None:
    placement = at(*((host, 1) for host in hosts))
    first = [len(topology.hosts)]
    for level in topology.levels:
        first.append(first[-1] + len(level.domains))
    model = IterationModel(topology)
    crossing = model.crossing(job("a", 0, len(hosts), 1, profile=profile()), placement)
    assert sorted(crossed_links(Inventory(topology), first, placement)) == sorted(crossing.links)


class Watch(Policy):
    """Does what a script says, and notes who crosses whenever that changes."""

    name = "watch"

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen: list[tuple[float, list[tuple[str, float]]]] = []
        self.met: list[list[int]] = []

    def decide(self, view: ClusterView):  # type: ignore[no-untyped-def]
        decisions: list[Decision] = []
        for decision in self.script.decide(view):
            decisions.append(decision)
            yield decision
        index: CrossingJobs = view.index(CROSSING)
        crossers = index.settle()
        if crossers is not None:
            self.seen.append((view.now, [(one.job.id, one.alone_s) for one in crossers]))
            self.met.append(meetings(crossers))


def test_those_that_send_over_the_network_and_only_they() -> None:
    """a crosses racks, at 0.5 B/s; b two hosts of one rack; c sits in one host; d sends nothing.

    b slows a from 1 s on, which is no change of who crosses.
    """
    model, silent = profile(1.0, 1.0), profile(1.0, 0.0)
    jobs = [
        job("a", 0, 2, 4, profile=model), job("b", 1, 2, 30, profile=model),
        job("c", 2, 1, 1, profile=model), job("d", 3, 2, 1, profile=silent),
    ]  # fmt: skip
    script = Script({
        0.0: [start("a", (0, 0b1), (2, 0b1))],
        1.0: [start("b", (0, 0b10), (1, 0b1))],
        2.0: [start("c", (4, 0b1))],
        3.0: [start("d", (4, 0b10), (5, 0b1))],
    })  # fmt: skip
    watch = Watch(script)
    run = replay(jobs, TREE, watch)
    ends = [(record.finish_s, record.id) for record in run.records if record.id in "ab"]
    (first_s, first), (last_s, _) = sorted(ends)  # type: ignore[type-var]
    rest = [("b", 1.0)] if first == "a" else [("a", 2.0)]
    assert watch.seen == [
        (0, [("a", 2.0)]), (1, [("a", 2.0), ("b", 1.0)]), (first_s, rest), (last_s, []),
    ]  # fmt: skip


def test_links_without_a_limit_are_shared_by_nobody() -> None:
    """a and b meet on the first host's card alone, which has no limit; nor have both of c's."""
    topology = cluster([3, 1, 1, 1])
    nic = np.array([math.inf, math.inf, 1.0, 1.0])
    topology = dataclasses.replace(topology, hosts=dataclasses.replace(topology.hosts, nic_bytes_per_s=nic))
    jobs = [job(name, 0, 2, 10, profile=profile()) for name in "abc"]
    places = {"a": ((0, 0b1), (2, 1)), "b": ((0, 0b10), (3, 1)), "c": ((0, 0b100), (1, 1))}
    watch = Watch(Script({0.0: [start(name, *parts) for name, parts in places.items()]}))
    run = replay(jobs, topology, watch)
    assert watch.seen[0] == (0, [("a", 1.0), ("b", 1.0)])
    assert watch.met[0] == [0, 0]
    assert {record.status for record in run.records} == {"finished"}


@given(st.lists(st.sets(st.integers(0, 6), min_size=1, max_size=3), max_size=9))
def test_meetings_and_groups(links: list[set[int]]) -> None:
    crossers = [Crosser(None, tuple(sorted(own)), 1.0) for own in links]  # type: ignore[arg-type]
    met = meetings(crossers)
    for i, own in enumerate(links):
        for j, other in enumerate(links):
            assert bool(met[i] >> j & 1) == (i != j and bool(own & other))
    found = list(groups(met))
    assert sorted(position for group in found for position in group) == list(range(len(links)))
    for group in found:
        outside = set(range(len(links))) - set(group)
        assert not any(met[i] >> j & 1 for i in group for j in outside)
        reached = {group[0]}
        while len(more := reached | {j for i in reached for j in group if met[i] >> j & 1}) > len(reached):
            reached = more
        assert reached == set(group)
