"""Services and their replicas, loans between virtual clusters, and what links say: the state machine's tables."""

from __future__ import annotations

import math
from typing import Any

import pytest
from replays import CheckedMachine, cluster, job

from hemiola.core.decisions import Align, Decision, Lend, Placement, Reclaim, Scale, Start, Stop
from hemiola.core.errors import InputError
from hemiola.core.events import (
    Arrived,
    Failed,
    Finished,
    LinkFeedback,
    Load,
    Measured,
    NodeLost,
    ReplicaLost,
    ReplicaReady,
)
from hemiola.core.job import Objective, RequestRate, Service
from hemiola.core.virtual_cluster import Loan, VirtualCluster
from hemiola.sched.view import ClusterView

PROMISED = Objective(latency_s=0.5, share=0.99)


def service(name: str = "s", gpus: int = 2, **more: Any) -> Service:
    more.setdefault("replicas_max", 3)
    return Service(id=name, submit_s=0.0, gpus=gpus, objective=PROMISED, **more)


def at(host: int, mask: int = 0b11) -> Placement:
    return Placement((host,), (mask,))


def machine_of(*racks: list[int], **more: Any) -> CheckedMachine:
    machine = CheckedMachine(ClusterView(cluster(*(racks or ([4, 4],))), estimates=None, **more))  # type: ignore[arg-type]
    machine.apply(Arrived(0.0, job("a", 0.0, 4, 100.0)))
    return machine


def serving() -> CheckedMachine:
    """One host has two replicas of a service, the other one a job."""
    machine = machine_of()
    machine.apply(Arrived(0.0, service(replicas_min=1)))
    assert not machine.execute(Start("a", at(1, 0b1111), ""))
    assert not machine.execute(Scale("s", (at(0), at(0, 0b1100)), "two"))
    return machine


def test_a_service_scales_and_its_replicas_get_ready() -> None:
    machine = serving()
    state = machine.view.services["s"]
    assert list(state.replicas.values()) == [False, False] and machine.view.free == 0
    machine.apply(ReplicaReady(5.0, "s", at(0)))
    assert state.ready == 1
    assert machine.execute(Scale("s", (at(0),), "one is enough")) == ""
    assert state.replicas == {at(0): True}, "who stays goes on"
    assert machine.view.free == 2
    machine.apply(ReplicaReady(6.0, "s", at(0, 0b1100)), ReplicaLost(6.0, "s", at(0, 0b1100), "late"))
    assert state.replicas == {at(0): True}, "it was given up meanwhile"
    machine.apply(ReplicaLost(7.0, "s", at(0), "out of memory"))
    assert not state.replicas and machine.view.free == 4


def test_a_replica_may_take_gpus_that_another_gives_up() -> None:
    machine = serving()
    both = Placement((0,), (0b0110,))
    assert machine.execute(Scale("s", (both,), "across")) == ""
    assert list(machine.view.services["s"].replicas) == [both]


@pytest.mark.parametrize(
    ("replicas", "why"),
    [
        ((), "1 to 3 replicas, not on 0"),
        ((at(0), at(0, 0b1100), at(0, 0b1), at(0, 0b10)), "not on 4"),
        ((at(0), at(0)), "two of its replicas"),
        ((at(0, 0b111),), "2 GPUs, not 3"),
        ((at(1),), "occupied"),
        ((at(7),), "occupied, down or not there"),
        ((at(0), at(0, 0b0110)), "occupied"),
        ((Placement((0, 0), (1, 2)),), "names a host twice"),
    ],
)
def test_a_scale_that_cannot_be_changes_nothing(replicas: tuple[Placement, ...], why: str) -> None:
    machine = serving()
    before = dict(machine.view.services["s"].replicas), list(machine.view.inventory.masks)
    assert why in machine.execute(Scale("s", replicas, ""))
    assert (dict(machine.view.services["s"].replicas), machine.view.inventory.masks) == before


def test_what_is_no_service_is_not_scaled_and_no_job_is_started_twice() -> None:
    machine = serving()
    assert "no service" in machine.execute(Scale("a", (at(0),), ""))
    assert "no job" in machine.execute(Start("s", at(0), ""))
    with pytest.raises(InputError, match="arrived twice"):
        machine.apply(Arrived(1.0, service("a")))
    with pytest.raises(InputError, match="arrived twice"):
        machine.apply(Arrived(1.0, job("s", 1.0, 1, 1.0)))


def test_a_replica_stays_within_its_tier() -> None:
    machine = machine_of([2, 2], [2])
    machine.apply(Arrived(0.0, service(gpus=4, required="rack")))
    wide = Placement((1, 2), (0b11, 0b11))
    assert "within one rack" in machine.execute(Scale("s", (wide,), ""))
    assert machine.execute(Scale("s", (Placement((0, 1), (0b11, 0b11)),), "")) == ""


def test_a_host_takes_its_replicas_with_it_and_a_withdrawn_service_its_own() -> None:
    machine = serving()
    machine.apply(NodeLost(1.0, 0))
    assert not machine.view.services["s"].replicas
    for end in (Finished(1.0, "s"), Failed(1.0, "s", "withdrawn")):
        machine = serving()
        machine.apply(end)
        assert not machine.view.services and machine.view.free == 4


def test_load_and_links_are_what_was_said_last() -> None:
    machine = serving()
    said = Load(9.0, "s", requests_per_s=12.0, queue=3, latency_s=0.7)
    machine.apply(said, LinkFeedback(9.0, 1, used=0.9, marked=0.1), Load(9.0, "nobody", 1.0, 0, 0.1))
    assert machine.view.services["s"].load == said
    assert machine.view.feedback[1].marked == 0.1


def test_how_noisy_gradients_are_is_kept() -> None:
    machine = serving()
    machine.apply(Measured(1.0, "a", 1.0, gradient_noise_scale=512.0), Measured(2.0, "a", 0.5))
    assert machine.view.jobs["a"].gradient_noise_scale == 512.0


@pytest.mark.parametrize(
    ("decision", "why"),
    [
        (Align("a", 0, 0.5, ""), ""),
        (Align("a", 1, 0.0, ""), ""),
        (Align("a", 2, 0.5, ""), "no link 2"),
        (Align("a", -1, 0.5, ""), "no link -1"),
        (Align("a", 0, -1.0, ""), "0 or more"),
        (Align("a", 0, math.nan, ""), "0 or more"),
        (Align("s", 0, 0.5, ""), "not running"),
    ],
)
def test_jobs_are_aligned_on_links_that_there_are(decision: Decision, why: str) -> None:
    refused = serving().execute(decision)
    assert why in refused and bool(refused) is bool(why)


OURS, THEIRS = VirtualCluster("training", (0,)), VirtualCluster("inference", (1, 2))


def lending(*decisions: Decision) -> CheckedMachine:
    machine = machine_of([4, 4, 4], clusters=(OURS, THEIRS))
    assert not machine.execute(Start("a", at(1, 0b1111), ""))
    for decision in decisions:
        assert machine.execute(decision) == ""
    return machine


LENT = Lend((2,), "inference", "training", 100.0, "it is night")


def test_a_host_is_lent_and_comes_back_once_nothing_runs_there() -> None:
    machine = lending(LENT)
    loans = machine.view.loans
    assert loans == {2: Loan("inference", "training", 0.0, 100.0)}
    machine.apply(Arrived(1.0, job("b", 1.0, 4, 100.0)))
    assert machine.execute(Start("b", at(2, 0b1111), "")) == ""
    assert machine.execute(Reclaim((2,), "inference", 30.0, "it is morning")) == ""
    assert loans == {2: Loan("inference", "training", 0.0, 30.0, recalled=True)}
    assert machine.execute(Stop("b", "the host goes back")) == ""
    assert loans == {}


def test_an_idle_host_comes_back_at_once() -> None:
    assert lending(LENT, Reclaim((2,), "inference", 30.0, "")).view.loans == {}


@pytest.mark.parametrize(
    ("decision", "why"),
    [
        (Lend((0,), "training", "nobody", 9.0, ""), "no virtual cluster is called 'nobody'"),
        (Lend((0,), "training", "training", 9.0, ""), "to itself"),
        (Lend((0,), "training", "inference", 0.0, ""), "no time in the future"),
        (Lend((0,), "training", "inference", math.nan, ""), "no time in the future"),
        (Lend((), "training", "inference", 9.0, ""), "names no host"),
        (Lend((0, 0), "training", "inference", 9.0, ""), "twice"),
        (Lend((0, 1), "training", "inference", 9.0, ""), "host 1 does not belong to training"),
        (Lend((1,), "inference", "training", 9.0, ""), "something runs on host 1"),
        (Lend((2,), "inference", "training", 9.0, ""), "on loan to training"),
        (Reclaim((2,), "training", 9.0, ""), "not on loan from training"),
        (Reclaim((0,), "training", 9.0, ""), "not on loan from training"),
        (Reclaim((2, 2), "inference", 9.0, ""), "twice"),
        (Reclaim((2,), "inference", -1.0, ""), "no time from now on"),
        (Reclaim((2,), "inference", math.inf, ""), "no time from now on"),
    ],
)
def test_a_loan_that_cannot_be_changes_nothing(decision: Decision, why: str) -> None:
    machine = lending(LENT)
    before = dict(machine.view.loans)
    assert why in machine.execute(decision)
    assert machine.view.loans == before


@pytest.mark.parametrize(
    ("clusters", "why"),
    [
        ((OURS, OURS), "two virtual clusters"),
        ((OURS, VirtualCluster("other", (0,))), "belongs to"),
        ((VirtualCluster("far", (9,)),), "no host 9"),
    ],
)
def test_virtual_clusters_that_cannot_be(clusters: tuple[VirtualCluster, ...], why: str) -> None:
    with pytest.raises(InputError, match=why):
        machine_of(clusters=clusters)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"gpus": 0}, "0 GPUs for a replica"),
        ({"replicas_min": 4}, "4 to 3 replicas"),
        ({"replicas_max": 0}, "0 to 0 replicas"),
        ({"cold_start_s": -1.0}, "cold_start_s"),
        ({"arrivals": (RequestRate(1.0, 5.0), RequestRate(1.0, 6.0))}, "do not ascend"),
        ({"arrivals": (RequestRate(1.0, -5.0),)}, "no rate"),
    ],
)
def test_a_service_that_cannot_be(more: dict[str, Any], why: str) -> None:
    assert why in service(**more).flaw()
    with pytest.raises(InputError, match=why):
        machine_of().apply(Arrived(0.0, service(**more)))
