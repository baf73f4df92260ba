"""What hosts have left beside GPUs: where jobs find it, what they take of it, and what stopping others gives back."""

from __future__ import annotations

from random import Random as Chance

import pytest
from replays import CheckedMachine, cluster, job

from hemiola.core.decisions import Decision, Move, Placement, Start, Stop
from hemiola.core.events import (
    Arrived,
    Event,
    Finished,
    Requeued,
    ResourcesOffered,
    ResourcesRequested,
    Started,
)
from hemiola.core.resources import ResourceRequest, Resources
from hemiola.core.topology import Topology
from hemiola.sched.job_state import WAITING
from hemiola.sched.placement import RULES, find
from hemiola.sched.policies import policy_from_text
from hemiola.sched.view import ClusterView

FOUR = cluster([4, 4], [4, 4])
CPUS = 16.0


def machine_on(topology: Topology, *left: float) -> CheckedMachine:
    """Hosts with 16 processors and 1,000 bytes of memory, of which others leave so many processors."""
    machine = CheckedMachine(ClusterView(topology, estimates=None))  # type: ignore[arg-type]
    machine.apply(*(furnished(host, cpus) for host, cpus in enumerate(left)))
    return machine


def furnished(
    host: int, cpus: float = CPUS, memory: float = 1000.0, *, has: float = CPUS
) -> ResourcesOffered:
    return ResourcesOffered(0.0, host, Resources(cpus, memory), Resources(has, 1000.0))


def comes(
    name: str, gpus: int, claim: ResourceRequest, *, hosts: int = 0, submit_s: float = 0.0
) -> list[Event]:
    return [Arrived(0.0, job(name, submit_s, gpus, 10.0, hosts=hosts)), ResourcesRequested(0.0, name, claim)]


def decided(machine: CheckedMachine, policy: str = "fifo-backfill") -> list[Decision]:
    """What the policy decides now, all of which is accepted."""
    found = []
    for decision in policy_from_text(policy).decide(machine.view):
        assert machine.execute(decision) == "", decision
        found.append(decision)
    return found


def hosts_of(decisions: list[Decision]) -> dict[str, tuple[int, ...]]:
    return {one.job_id: one.placement.hosts for one in decisions if isinstance(one, Start | Move)}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize(
    "claim",
    [ResourceRequest(cpus=8.0), ResourceRequest(cpus_per_host=8.0), ResourceRequest(cpus_per_gpu=4.0)],
)
def test_every_rule_finds_the_host_that_has_what_a_job_needs(rule, claim):
    machine = machine_on(FOUR, 7.0, 0.0, 8.0, 7.0)
    machine.apply(*comes("a", 2, claim, hosts=1))
    assert find(machine.view.inventory, machine.view.jobs["a"], rule()).hosts == (2,)
    assert machine.view.inventory.masks == [0b1111] * 4 and machine.view.free == 16, "nothing was taken"
    machine.validate()


def test_memory_counts_as_processors_do():
    machine = machine_on(FOUR)
    machine.apply(furnished(0, memory=400.0), furnished(1, memory=600.0))
    machine.apply(
        *comes("a", 1, ResourceRequest(memory_bytes=500.0), hosts=1),
        *comes("b", 1, ResourceRequest(all_memory=True)),
    )
    decisions = decided(machine)
    assert hosts_of(decisions)["a"] == (1,) and hosts_of(decisions)["b"] in ((2,), (3,))


def start_on(name: str, host: int, mask: int = 1) -> Start:
    return Start(name, Placement((host,), (mask,)), "")


def test_jobs_of_one_instant_do_not_share_what_suffices_for_one():
    machine = machine_on(FOUR, CPUS, CPUS, CPUS, CPUS)
    machine.apply(
        *(event for name in "abcdef" for event in comes(name, 1, ResourceRequest(cpus=10.0), hosts=1))
    )
    assert sorted(hosts_of(decided(machine)).values()) == [(0,), (1,), (2,), (3,)]
    machine.apply(Finished(5.0, "b"))
    assert len(hosts_of(decided(machine))) == 1, "what one had another one gets"


@pytest.mark.parametrize(
    "policy",
    ["fifo-backfill", "sjf", "srtf", "srsf", "tiresias", "gittins", "gandiva", "lwf", "dally", "fifo"],
)
def test_who_lacks_processors_waits_and_keeps_nobody_waiting_who_does_not(policy):
    backfills = policy != "fifo"
    machine = machine_on(FOUR, *[4.0] * 4)
    machine.view.estimates = AnyEstimates()
    greedy, modest = (
        comes("greedy", 1, ResourceRequest(cpus=16.0), hosts=1),
        comes("modest", 1, ResourceRequest(cpus=1.0), hosts=1),
    )
    machine.apply(*greedy, *modest)
    assert hosts_of(decided(machine, policy)).keys() == ({"modest"} if backfills else set())
    machine.apply(furnished(3))
    assert hosts_of(decided(machine, policy))["greedy"] == (3,), "as soon as a host has enough"


class AnyEstimates:
    def slowdown(self, job, tier):
        return 1.0

    def switch_s(self, job):
        return 0.0

    def demand(self, job):
        return 1.0, 0.0, 0.0

    def speed_at(self, job, gpus):
        return 1.0


def test_a_job_may_have_unequal_parts_where_equal_ones_are_not_to_be_had():
    machine = machine_on(cluster([4, 4, 4]), 12.0, 4.0, 1.0)
    machine.apply(*comes("a", 2, ResourceRequest(cpus=16.0, cpus_per_host=2.0), hosts=2))
    assert hosts_of(decided(machine)) == {"a": (0, 1)}
    machine.apply(Finished(1.0, "a"), *comes("b", 2, ResourceRequest(cpus=17.0, cpus_per_host=2.0), hosts=2))
    assert decided(machine) == [], "not enough in all"


def test_fewer_gpus_of_a_host_are_of_use_where_each_needs_processors():
    machine = machine_on(cluster([4, 4]), 2.0, 16.0)
    machine.apply(*comes("a", 6, ResourceRequest(cpus_per_gpu=1.0)))
    (one,) = decided(machine)
    assert dict(zip(one.placement.hosts, (m.bit_count() for m in one.placement.masks), strict=True)) == {
        0: 2,
        1: 4,
    }


def test_a_job_that_wants_whole_hosts_has_those_on_which_nobody_is():
    machine = machine_on(FOUR, 15.0, CPUS)
    machine.apply(furnished(2, 32.0, has=64.0), furnished(3, 0.0))
    machine.apply(*comes("a", 4, ResourceRequest(cpus=1.0, whole=True), hosts=1))
    assert hosts_of(decided(machine)) == {"a": (1,)}


def test_hosts_of_which_nobody_says_anything_have_enough():
    machine = machine_on(FOUR, 0.0)
    machine.apply(*comes("a", 4, ResourceRequest(cpus=100.0), hosts=1))
    assert hosts_of(decided(machine)) == {"a": (1,)}


def test_the_state_machine_refuses_what_a_host_does_not_have():
    machine = machine_on(FOUR, 3.0, *[CPUS] * 3)
    machine.apply(
        *comes("a", 1, ResourceRequest(cpus=4.0, memory_bytes=9.0), hosts=1), furnished(1, memory=1.0)
    )
    name = FOUR.hosts.names[0]
    assert machine.execute(start_on("a", 0)) == f"{name} has 3 CPUs left, and it needs 4"
    assert (
        "MiB of memory left" in machine.execute(start_on("a", 1)) and machine.view.jobs["a"].status == WAITING
    )
    assert machine.execute(start_on("a", 2)) == ""
    machine.apply(*comes("b", 1, ResourceRequest(cpus=13.0), hosts=1))
    assert "has 12 CPUs left" in machine.execute(start_on("b", 2, 0b10)), "the first has 4 of 16"
    assert machine.execute(Move("a", Placement((0,), (1,)), "")).endswith("needs 4")
    machine.apply(ResourcesRequested(1.0, "a", ResourceRequest(cpus=2.0)))
    assert machine.execute(start_on("b", 2, 0b10)) == "", "it takes less than it seemed to"


def test_stopping_others_gives_back_their_processors_and_stops_only_whom_it_must():
    machine = machine_on(cluster([4]), CPUS)
    machine.view.estimates = AnyEstimates()
    for name, cpus in (("long", 12.0), ("longer", 1.0), ("longest", 1.0)):
        machine.apply(
            Arrived(0.0, job(name, 0.0, 1, 1000.0 + len(name))),
            ResourcesRequested(0.0, name, ResourceRequest(cpus=cpus)),
        )
    assert len(decided(machine)) == 3
    machine.apply(*comes("short", 1, ResourceRequest(cpus=10.0), hosts=1))
    decisions = decided(machine, "srtf")
    assert [one.job_id for one in decisions if isinstance(one, Stop)] == ["long"], (
        "a GPU was free, processors were not"
    )
    assert hosts_of(decisions) == {"short": (0,)}


def test_the_next_try_goes_to_hosts_that_have_not_refused_it_and_to_those_last_where_there_are_no_others():
    machine = machine_on(FOUR)
    machine.apply(Arrived(0.0, job("a", 0.0, 1, 10.0)), Arrived(0.0, job("b", 0.0, 4, 10.0)))
    tried = []
    for now in range(1, 5):
        placed = hosts_of(decided(machine))
        tried += placed["a"]
        machine.apply(Requeued(float(now), "a", "Slurm does not start it", False, True))
    (others,) = machine.view.jobs["b"].placement.hosts
    assert sorted(tried[:3]) == sorted({0, 1, 2, 3} - {others}) and tried[3] == tried[0], (
        "the first is the first again"
    )
    (again,) = hosts_of(decided(machine)).values()
    assert again == (tried[1],)
    machine.apply(Started(9.0, "a"))
    assert machine.view.jobs["a"].shunned == ()


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_gang_finds_the_hosts_that_take_it_one_of_three_being_bad(bad):
    machine = machine_on(cluster([4, 4, 4]))
    machine.apply(Arrived(0.0, job("a", 0.0, 8, 10.0, hosts=2)))
    for now in range(1, 7):
        (hosts,) = hosts_of(decided(machine)).values()
        if bad not in hosts:
            return
        machine.apply(Requeued(float(now), "a", "Slurm does not start it", False, True))
    raise AssertionError(machine.view.jobs["a"].shunned)


def test_what_is_not_the_fault_of_its_hosts_keeps_no_job_from_them():
    machine = machine_on(FOUR)
    machine.apply(Arrived(0.0, job("a", 0.0, 1, 10.0)))
    first = hosts_of(decided(machine))
    machine.apply(Requeued(1.0, "a", "of its array no more may run at once", False))
    assert hosts_of(decided(machine)) == first


@pytest.mark.parametrize("policy", ["fifo-backfill", "srtf", "dally", "tiresias", "gandiva"])
def test_no_host_ever_gives_more_than_it_has(policy):
    chance = Chance(policy)
    machine = machine_on(FOUR, *[CPUS] * 4)
    machine.view.estimates = AnyEstimates()
    has = [CPUS] * 4
    for number in range(120):
        name, now = f"j{number}", float(number)
        claim = ResourceRequest(cpus=float(chance.randint(1, 20)), cpus_per_host=1.0)
        machine.apply(
            Arrived(now, job(name, now, chance.choice((1, 1, 2, 4)), chance.uniform(1, 50), hosts=1)),
            ResourcesRequested(now, name, claim),
        )
        if chance.random() < 0.3:
            host, cpus = chance.randrange(4), chance.choice((4.0, 8.0, 16.0))
            has[host] = cpus
            machine.apply(ResourcesOffered(now, host, Resources(cpus), Resources(16.0)))
        for running in list(machine.view.running):
            if chance.random() < 0.3:
                machine.apply(Finished(now, running))
        used = [0.0] * 4
        for one in machine.view.running.values():
            used[one.placement.hosts[0]] += one.claim.cpus
        for one in decided(machine, policy):
            assert not isinstance(one, Start | Move) or machine.view.jobs[one.job_id].claim is not None
        for host in range(4):
            after = sum(
                one.claim.cpus for one in machine.view.running.values() if one.placement.hosts == (host,)
            )
            assert after <= max(has[host], used[host])
