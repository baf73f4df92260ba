"""What holds of every policy under every rule of placement, on clusters and workloads drawn at random."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import FREE, check_run, cluster, job, profile, replay, times

from hemiola.core.decisions import Start, Stop
from hemiola.core.events import NodeBack, NodeLost
from hemiola.core.goodput import GoodputModel, Noise
from hemiola.core.job import Demand, Job, Profile, batch_job
from hemiola.core.result import Run
from hemiola.core.topology import Topology
from hemiola.sched.placement import RULES
from hemiola.sched.policies import POLICIES, parameters
from hemiola.sched.policies.tiresias import Tiresias
from hemiola.simulator.cluster import Costs

CLUSTERS = {
    "flat": cluster([4, 4, 4], nic=2.0, latency_s=1e-3),
    "two racks": cluster([4, 4], [4, 2], nic=3.0, uplink=2.0),
    "three levels": cluster([2, 2], [2, 2], [4], [4], pods=[0, 0, 1, 1], uplink=2.0, pod_uplink=0.5),
    "two types": cluster(
        [4, 2], [4, 4], types=["A", "B", "A", "B"], uplink=0.7, island=2, bus=0.4, fabric=5.0
    ),
}
PROFILES = (
    None,
    profile(1.0, 1.0),
    profile(0.5, 2.0, overlap=0.5, name="wide", checkpoint_s=2.0, restore_s=7.0, gpu_speed={"A": 2.0, "B": 0.5}),
    profile(2.0, 0.1, overlap=1.0, name="light", checkpoint_s=1.0),
    Profile(
        name="mixture", demands=(Demand(1, 1.0, 0.0), Demand(4, 0.5, 1.0), Demand(8, 0.4, 3.0)),
        pattern="all-to-all", restore_s=3.0,
    ),
    profile(
        0.5, 1.0, name="trained", restore_s=4.0, gpu_speed={"A": 1.5},
        goodput=GoodputModel(
            step_s=(0.1, 0.01), host_sync_s=(0.05, 0.01), network_sync_s=(0.2, 0.01), overlap=1.3, first_batch=64,
            largest_batch=512, largest_on_gpu=100, noise=(Noise(0.0, 50.0), Noise(0.4, 500.0)),
        ),
    ),
)  # fmt: skip
COSTS = Costs(checkpoint_s=2.0, restore_s=5.0, checkpoint_interval_s=20.0)


def texts() -> list[str]:
    """Every policy, and every rule of placement it can be asked to use."""
    found = ["elastic:settle_s=0", "sjf:knows=estimate", "pd-ors:slot_s=10"]  # jobs of these tests are short
    for name, policy in POLICIES.items():
        found.append(name)
        if name in ("earliest-finish", "oasis"):  # pd-ors with other parameters
            continue
        if "placement" in parameters(policy):
            found += [f"{name}:placement={rule}" for rule in RULES]
    return found


TEXTS = texts()


def sized(draw: Any, rigid: Job) -> Job:
    """Some jobs are elastic."""
    each = rigid.gpus // rigid.hosts if rigid.hosts else 1
    if draw(st.integers(0, 2)) or (rigid.hosts and rigid.gpus % rigid.hosts):
        return rigid
    least = each * draw(st.integers(1, rigid.gpus // each))
    most = rigid.gpus + each * draw(st.sampled_from([0, 1, 4]))
    return batch_job(**msgspec.structs.asdict(rigid) | {"gpus_min": least, "gpus_max": most})


@st.composite
def workloads(draw: Any, topology: Topology, profiles: tuple[Profile | None, ...] = PROFILES) -> list[Job]:
    count = draw(st.integers(1, 9))
    arrivals = sorted(
        draw(st.lists(st.sampled_from([0.0, 0.0, 3.0, 10.0, 31.5, 60.0]), min_size=count, max_size=count))
    )
    tiers = ["", "", "", *topology.tiers]
    return [
        sized(draw, job(
            f"j{n}", at, draw(st.sampled_from([1, 1, 2, 3, 4, 6, 8])), draw(st.sampled_from([0.0, 1.0, 7.5, 40.0, 90.0])),
            profile=draw(st.sampled_from(profiles)), user=draw(st.sampled_from(["", "ann", "bob"])),
            gpu_type=draw(st.sampled_from(["", "", *topology.gpu_types])),
            required=draw(st.sampled_from(tiers)), preferred=draw(st.sampled_from(tiers)),
            estimate_s=draw(st.sampled_from([None, 10.0])), hosts=draw(st.sampled_from([0, 0, 0, 1, 2, 2])),
            pinned=draw(st.sampled_from([False, False, False, True])),
        ))
        for n, at in enumerate(arrivals)
    ]  # fmt: skip


@st.composite
def failures(draw: Any, topology: Topology) -> list[NodeLost | NodeBack]:
    """Hosts that fail and all return."""
    events: list[NodeLost | NodeBack] = []
    for host in draw(st.lists(st.integers(0, len(topology.hosts) - 1), max_size=3, unique=True)):
        lost_s = draw(st.sampled_from([-5.0, 0.0, 3.0, 20.0, 31.5]))
        events.append(NodeLost(lost_s, host))
        events.append(NodeBack(lost_s + draw(st.sampled_from([0.0, 4.0, 60.0])), host))
    return events


def everyone_ends(run: Run, rule: str) -> None:
    """With every host back, a job is refused, or done, or its rule of placement had no place for it."""
    statuses = {record.status for record in run.records}
    allowed = {"finished", "refused"} | ({"waiting", "declined"} if "yarn" in rule else set())
    assert statuses <= allowed, [r for r in run.records if r.status not in allowed]


def nobody_is_stopped_for_nothing(run: Run) -> None:
    """A job may be stopped and go elsewhere in one instant, to make room; never back to the same GPUs."""
    last: dict[str, Start] = {}
    stopped: dict[str, float] = {}
    for entry in run.decisions:
        decision = entry.decision
        if isinstance(decision, Stop):
            stopped[decision.job_id] = entry.time_s
        elif isinstance(decision, Start):
            again = stopped.get(decision.job_id) == entry.time_s
            assert not again or last[decision.job_id].placement != decision.placement, decision
            last[decision.job_id] = decision


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=25)
@given(data=st.data())
def test_every_run_adds_up_and_every_job_ends(text: str, data: Any) -> None:
    topology = CLUSTERS[data.draw(st.sampled_from(sorted(CLUSTERS)))]
    jobs = data.draw(workloads(topology))
    run = replay(jobs, topology, text, costs=COSTS, failures=data.draw(failures(topology)))
    check_run(run, jobs, topology)
    everyone_ends(run, text)
    assert run.decisions_refused == 0, [d for d in run.decisions if d.refused]
    assert all(entry.decision.reason for entry in run.decisions)
    if all(wanted.duration_s for wanted in jobs):
        nobody_is_stopped_for_nothing(run)


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=3)
@given(data=st.data())
def test_the_same_seed_gives_the_same_run(text: str, data: Any) -> None:
    topology = CLUSTERS["two racks"]
    jobs = data.draw(workloads(topology))
    one, two = (replay(jobs, topology, text, costs=COSTS) for _ in range(2))
    assert one.records == two.records
    assert one.decisions == two.decisions
    assert one.gpu_seconds == two.gpu_seconds


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=3)
@given(data=st.data())
def test_names_do_not_matter(text: str, data: Any) -> None:
    """Only the random rule looks at a job's name, to draw from."""
    if "random" in text:
        return
    topology = CLUSTERS["two racks"]
    jobs = data.draw(workloads(topology))
    renamed = [msgspec.structs.replace(j, id=f"other/{99 - n}", model="x") for n, j in enumerate(jobs)]
    hosts = with_other_names(topology)
    one, two = replay(jobs, topology, text, costs=COSTS), replay(renamed, hosts, text, costs=COSTS)
    assert [*times(one).values()] == [*times(two).values()]


def with_other_names(topology: Topology) -> Topology:
    """The same cluster, its hosts under other names."""
    names = tuple(f"host-{100 - n}" for n in range(len(topology.hosts)))
    return dataclasses.replace(topology, name="other", hosts=dataclasses.replace(topology.hosts, names=names))


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=3)
@given(data=st.data())
def test_models_that_send_nothing_run_like_jobs_without_a_model(text: str, data: Any) -> None:
    topology = CLUSTERS["two racks"]
    silent = profile(1.0, 0.0, checkpoint_s=COSTS.checkpoint_s, restore_s=COSTS.restore_s)
    jobs = data.draw(workloads(topology, (silent,)))
    plain = [msgspec.structs.replace(j, profile=None) for j in jobs]
    one, two = replay(jobs, topology, text, costs=COSTS), replay(plain, topology, text, costs=COSTS)
    assert times(one) == times(two)


ORDERED_BY_TIME_ALONE = [
    text for text in TEXTS if text.split(":")[0] in ("fifo", "fifo-backfill", "sjf", "srtf", "srsf")
]


@settings(max_examples=30)
@given(
    data=st.data(), text=st.sampled_from([*ORDERED_BY_TIME_ALONE, "tiresias"]),
    scale=st.sampled_from([0.25, 4.0, 1024.0]),
)  # fmt: skip
def test_when_every_time_is_scaled_the_schedule_is(text: str, data: Any, scale: float) -> None:
    """A power of two scales floats exactly; latency and bandwidth stand for the network's own times."""
    topology = cluster([4, 4], [4, 2], nic=3.0, uplink=2.0)
    jobs = data.draw(workloads(topology))
    lost = data.draw(failures(topology))
    slow = [NodeLost(f.time_s * scale, f.host) if isinstance(f, NodeLost) else NodeBack(f.time_s * scale, f.host) for f in lost]  # fmt: skip
    costs = Costs(checkpoint_s=2.0 * scale, restore_s=5.0 * scale, checkpoint_interval_s=20.0 * scale)
    one = replay(jobs, topology, _tiresias(text, 1.0), costs=COSTS, failures=lost)
    two = replay(
        [_slower(j, scale) for j in jobs], topology, _tiresias(text, scale), costs=costs, failures=slow
    )
    for a, b in zip(one.records, two.records, strict=True):
        assert a.status == b.status
        if a.finish_s is not None:
            assert b.finish_s == pytest.approx(a.finish_s * scale, rel=1e-6)
        assert a.preemptions == b.preemptions


def _tiresias(text: str, scale: float) -> Any:
    return text if text != "tiresias" else Tiresias(thresholds=f"{40 * scale}/{160 * scale}", promote=1.0)


def _slower(wanted: Job, scale: float) -> Job:
    """The same job with all its times longer; its traffic too, so that sending takes longer alike."""
    model = wanted.profile
    if model is not None:
        demands = tuple(Demand(d.gpus, d.compute_s * scale, d.traffic_bytes * scale) for d in model.demands)
        model = msgspec.structs.replace(
            model, demands=demands, checkpoint_s=model.checkpoint_s * scale, restore_s=model.restore_s * scale
        )
    estimate_s = None if wanted.estimate_s is None else wanted.estimate_s * scale
    return msgspec.structs.replace(
        wanted, submit_s=wanted.submit_s * scale, duration_s=wanted.duration_s * scale,
        estimate_s=estimate_s, profile=model,
    )  # fmt: skip


@pytest.mark.parametrize("text", [*POLICIES, "crux:order=sjf", "sjf:knows=estimate"])
def test_what_users_declared_counts_only_where_the_name_says_so(text: str) -> None:
    topology = CLUSTERS["two racks"]
    sizes = [(0, 14, 10), (1, 14, 9), (2, 14, 3), (3, 7, 5), (4, 14, 1)]
    plain = [job(f"j{n}", at, gpus, long) for n, (at, gpus, long) in enumerate(sizes)]
    told = [msgspec.structs.replace(j, estimate_s=60.0 - 10 * n) for n, j in enumerate(plain)]
    same = times(replay(plain, topology, text)) == times(replay(told, topology, text))
    assert same is ("estimate" not in text)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("origin_s", [-4096.0, 65536.0])
def test_the_origin_of_time_does_not_matter(text: str, origin_s: float) -> None:
    topology = CLUSTERS["two racks"]
    sizes = [(0, 4, 40), (0, 2, 7.5), (3, 8, 16), (3, 14, 4), (8, 1, 64), (10, 4, 0), (24, 6, 32)]
    jobs = [job(f"j{n}", at, gpus, long) for n, (at, gpus, long) in enumerate(sizes)]
    moved = [msgspec.structs.replace(j, submit_s=j.submit_s + origin_s) for j in jobs]
    one, two = replay(jobs, topology, text), replay(moved, topology, text)
    check_run(two, moved, topology)
    rounds = "WakeAt" in {type(d.decision).__name__ for d in one.decisions}
    if not rounds:  # rounds may stand at multiples of a period since 0
        shifted = {i: tuple(t and t - origin_s for t in span) for i, span in times(two).items()}
        plain = {i: tuple(t or 0 for t in span) for i, span in times(one).items()}
        assert {i: tuple(t or 0 for t in span) for i, span in shifted.items()} == plain


@pytest.mark.parametrize("text", TEXTS)
def test_a_lone_job_runs_as_long_as_its_trace_says(text: str) -> None:
    """At once, on its best placement: what every policy owes an idle cluster."""
    for name, topology in CLUSTERS.items():
        if name == "two types":
            continue  # its types differ in speed
        for gpus in (1, 4, 6):
            jobs = [job("a", 5.0, gpus, 100.0, profile=profile(1.0, 1.0))]
            run = replay(jobs, topology, text, costs=FREE)
            if run.records[0].status == "waiting" and "yarn" in text:
                continue
            start_s, end_s = times(run)["a"]
            assert end_s is not None
            own = "placement" not in parameters(POLICIES[text.split(":")[0]])
            if own or any(blind in text for blind in ("random", "first-fit", "best-fit")):
                assert end_s >= 105.0 - 1e-9  # they look at no topology, or at more than the topology
            else:
                assert (start_s, end_s) == (5.0, pytest.approx(105.0)), (name, gpus)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_policy_says_who_it_is(name: str) -> None:
    policy = POLICIES[name]()
    assert policy.name == name and policy.source and policy.__doc__
    card = policy.card()
    assert card and all(isinstance(v, str) and v for v in card.values())
    assert POLICIES[name]() == policy, "a policy is a value"
    hash(policy)
