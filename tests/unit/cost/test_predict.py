"""Predictions that a reader can work out by hand, bounds that always hold, and symmetry that changes nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_graphs import device, flat, layers

from hemiola.core.errors import GraphError, HardwareError, InputError, PlanError, TopologyError
from hemiola.core.graph import Graph
from hemiola.core.hardware import CollectiveCost, ExchangeCost, Hardware
from hemiola.core.plan import Plan
from hemiola.core.topology import Level, Topology, equal_hosts
from hemiola.cost.collective.library import Library, Variant, algorithm
from hemiola.cost.parallelism import DDP, FSDP, NoExchange, Parallelism, ParameterServer, parse_parallelism
from hemiola.cost.prediction import Prediction, PredictionOptions, predict
from hemiola.cost.prediction.uncertainty import expected_maximum

RING = {
    c: (Variant(algorithm(c, "ring"), 0.0, 0.0, 0.0),) for c in ("all-reduce", "all-gather", "reduce-scatter")
}
SEND = {"send": (Variant(algorithm("send", "direct"), 0.0, 0.0, 0.0),)}
IDEAL = Library("ideal", 1, RING | SEND, "no latency, one collective at a time")
OPTIONS = PredictionOptions(library=IDEAL)
TWO, SECONDS = layers([1000, 1000], [1, 1], [2, 2], 0.5, blocks=True)
TWO_BUCKETS = DDP(bucket_bytes=1000)


def run(
    parallelism: Parallelism, topology: Topology, ranks: int = 2, options: PredictionOptions = OPTIONS, graph: Graph = TWO,
    seconds: np.ndarray = SECONDS, hardware: Hardware | None = None, **more: object,
) -> Prediction:  # fmt: skip
    return predict(
        graph, hardware or device(), topology, ranks, parallelism, options=options, seconds=seconds, **more
    )


# --- by hand: two layers of 1000 B, forward 1 s each, backward 2 s each, optimizer 0.5 s


def test_ddp_hides_the_first_bucket_behind_the_rest_of_backward() -> None:
    """Ready at 4 and 6; 1000 B at 500 B/s take 2 s each: the last ends at 8, then the optimizer."""
    found = run(TWO_BUCKETS, flat(2, rate=500))
    assert found.iteration_s == pytest.approx(8.5)
    assert found.exposed_s == pytest.approx(2.0)
    assert found.communication_s == pytest.approx(4.0)
    assert [(t.ready_s, t.start_s, t.end_s) for t in found.transfers] == [
        pytest.approx((4, 4, 6)), pytest.approx((6, 6, 8)),
    ]  # fmt: skip
    assert [t.exposed_s for t in found.transfers] == pytest.approx([0, 2])
    assert [step.name for step in found.critical_path] == [
        "forward layer.0 to layer.1", "backward layer.1 to layer.0", "all-reduce bucket 1", "optimizer",
    ]  # fmt: skip
    assert found.traffic_bytes == 2000
    assert found.shape == (pytest.approx((4, 6, 1000)), pytest.approx((6, 8, 1000)))
    assert found.samples_per_s == pytest.approx(16 / 8.5)


@pytest.mark.parametrize(
    ("parallelism", "names"),
    [
        (TWO_BUCKETS, {"bucket 0", "bucket 1"}),
        (ParameterServer(), {f"{way} layer.{i}.weight" for i in (0, 1) for way in ("push", "pull")}),
    ],
)
def test_what_is_sent_has_the_name_that_recordings_give_it(parallelism: Parallelism, names: set[str]) -> None:
    timeline = run(parallelism, flat(2, rate=500)).timeline()
    sent = timeline.spans.name[timeline.spans.transfer >= 0]
    assert {timeline.names[i] for i in sent if not timeline.names[i].startswith("wait for ")} == names


def test_a_slow_network_makes_the_second_bucket_wait_for_the_first() -> None:
    """At 250 B/s: 4..8, 8..12, optimizer to 12.5."""
    found = run(TWO_BUCKETS, flat(2, rate=250))
    assert found.iteration_s == pytest.approx(12.5)
    assert found.transfers[1].start_s == pytest.approx(8)


def test_two_collectives_at_once_share_the_link() -> None:
    """Buckets at 4 and 6 over 250 B/s, two at once: 500 B left at 6 share with 1000 B: the first ends at 10, the second at 12."""
    found = run(TWO_BUCKETS, flat(2, rate=250), options=PredictionOptions(library=replace(IDEAL, at_once=2)))
    assert [t.end_s for t in found.transfers] == pytest.approx([10, 12])
    assert found.iteration_s == pytest.approx(12.5)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=9), st.integers(1, 3))
@example([(8, 0), (2, 0), (2, 0)], 2)  # the third begins when the second ends
@settings(max_examples=60)
def test_collectives_go_in_order_each_when_there_is_a_place_for_it(
    buckets: list[tuple[int, int]], at_once: int
) -> None:
    """Each takes as many seconds as it has kB, whatever else is sent; the places are taken as from a queue."""
    sizes, backward = zip(*reversed(buckets), strict=True)
    graph, seconds = layers([1000 * size for size in sizes], [0] * len(sizes), backward)
    measured = CollectiveCost(
        backend="ideal", collective="all-reduce", ranks=2, hosts=("a", "b"), alpha_s=1e-12, bytes_per_s=1e3
    )
    found = run(
        DDP(bucket_bytes=1), flat(2, rate=1e30), options=PredictionOptions(library=replace(IDEAL, at_once=at_once)),
        graph=graph, seconds=seconds, hardware=device(collectives=(measured,)),
    )  # fmt: skip
    free_s, started_s = [0.0] * at_once, []
    for (size, _), ready_s in zip(buckets, itertools.accumulate(s for _, s in buckets), strict=True):
        started_s.append(max(ready_s, free_s[0]))
        free_s = sorted([started_s[-1] + size, *free_s[1:]])
    assert [t.start_s for t in found.transfers] == pytest.approx(started_s)


def test_without_overlap_every_bucket_stops_backward() -> None:
    found = run(TWO_BUCKETS, flat(2, rate=500), options=replace(OPTIONS, overlap=False))
    assert found.iteration_s == pytest.approx(2 + 2 + 2 + 2 + 2 + 0.5)


def test_latency_counts_for_every_step_of_the_ring() -> None:
    """Four ranks: 6 steps of 0.1 s and 1.5 * 1000 B at 1000 B/s per bucket."""
    found = run(TWO_BUCKETS, flat(4, rate=1000, latency_s=0.1), ranks=4)
    assert found.iteration_s == pytest.approx(6 + (0.6 + 1.5) + 0.5 + max(0.0, 4 + 2.1 - 6))


def test_fsdp_gathers_before_it_computes() -> None:
    """A gather or a scatter takes 1 s: gather 0, (gather 1 beside forward 0), gather 1 again, (0 beside backward 1), scatter 0."""
    found = run(FSDP(), flat(2, rate=500))
    assert found.iteration_s == pytest.approx(1 + 2 + 1 + 4 + 1 + 0.25)
    assert found.exposed_s == pytest.approx(3)
    assert found.traffic_bytes == 3000


def test_fsdp_on_processors_hides_nothing() -> None:
    """Six transfers of 1 s, all blocking (the library here scatters for 1 s)."""
    found = run(FSDP(), flat(2, rate=500), hardware=device("cpu"))
    assert found.iteration_s == pytest.approx(6 + 6 + 0.25)


def test_a_server_is_overlapped_with_the_next_forward() -> None:
    """Pushes of the other worker at 4..6 and 6..8, an update 0.25 s each, pulls 6.25..8.25 and 8.25..10.25;
    the next forward of layer 0 waits for the last."""
    found = run(ParameterServer(), flat(2, rate=500))
    assert found.iteration_s == pytest.approx(10.25)
    assert found.breakdown.optimizer_s == 0.0


def test_without_overlap_every_parameter_stops_backward_until_its_server_has_given_it_back() -> None:
    """Layer 1: push 4..6, update 0.25 s, pull 6.25..8.25; backward of layer 0 to 10.25 and the same again."""
    found = run(ParameterServer(), flat(2, rate=500), options=replace(OPTIONS, overlap=False))
    assert found.iteration_s == pytest.approx(14.5)


def test_no_exchange_is_the_sum_of_the_operations() -> None:
    found = run(NoExchange(), flat(2))
    assert found.iteration_s == pytest.approx(6.5)
    assert (found.exposed_s, found.communication_s, found.transfers, found.links) == (0, 0, (), ())


def test_one_rank_computes_and_nothing_else() -> None:
    assert run(TWO_BUCKETS, flat(2), ranks=1).iteration_s == pytest.approx(6.5)


@pytest.mark.parametrize("parallelism", [TWO_BUCKETS, FSDP(), ParameterServer()], ids=lambda s: s.label)
def test_a_network_without_limits_leaves_the_computation(parallelism: Parallelism) -> None:
    found = run(parallelism, flat(2, rate=1e30))
    own = 2 + 4 + 0.5 * parallelism.optimizer_share(2)
    update = (
        0.25 if isinstance(parallelism, ParameterServer) else 0.0
    )  # the server still applies the last gradient
    assert found.iteration_s == pytest.approx(own + update)


# --- inside of a host: two ranks, buckets ready at 4 and 6; a ring sends 1000 B of each


def inside(own: float, fabric: float = 500.0, bus: float = 250.0, **more: object) -> Prediction:
    hosts = equal_hosts(2, 2, fabric_bytes_per_s=fabric, bus_bytes_per_s=bus, **more)
    return run(TWO_BUCKETS, Topology("box", hosts), hardware=device(fabric_bytes_per_s=own))


@pytest.mark.parametrize(
    ("own", "rate", "link", "says"),
    [
        (0.0, 250, "n0 bus", "test has no NVLink"),
        (200.0, 200, "n0 fabric", "test's NVLink, not the 500.00 B/s of the topology's fabric"),
        (900.0, 500, "n0 fabric", "the fabric of the topology, not the 900.00 B/s of test's NVLink"),
    ],
)
def test_the_devices_own_nvlink_bounds_the_topologys(own: float, rate: float, link: str, says: str) -> None:
    """At 250 B/s and less the second bucket waits for the first, which starts at 4."""
    found = inside(own)
    assert found.iteration_s == pytest.approx(max(4 + 2000 / rate, 6 + 1000 / rate) + 0.5)
    assert found.links[0].name == link
    assert [says in note for note in found.notes if "GPUs of one host" in note] == [True]


def test_the_bus_is_no_faster_than_a_slow_fabric_and_several_islands_use_it() -> None:
    assert inside(0.0, fabric=200.0).iteration_s == pytest.approx(14.5)
    found = inside(900.0, island_gpus=1)
    assert (found.links[0].name, found.iteration_s) == ("n0 bus", pytest.approx(12.5))
    assert any("several NVLink islands" in note for note in found.notes)
    assert not any("one host" in note for note in inside(500.0).notes)


def test_processors_of_one_host_have_no_nvlink_to_ask_about() -> None:
    hosts = equal_hosts(1, 2, fabric_bytes_per_s=500.0, bus_bytes_per_s=1.0)
    found = run(TWO_BUCKETS, Topology("box", hosts), hardware=device("cpu"))
    assert found.iteration_s == pytest.approx(8.5)
    assert not any("one host" in note for note in found.notes)


def test_a_server_in_the_workers_host_moves_bytes() -> None:
    """Both push 1000 B at 500 B/s: 4..8 and 8..12, updates 0.25 s each, pulls 8.25..12.25 and 12.25..16.25."""
    found = run(ParameterServer(), flat(1, 2, fabric=500))
    assert found.iteration_s == pytest.approx(16.25)
    assert [(use.name, use.bytes) for use in found.links] == [("n0 fabric", 4000), ("n0 fabric in", 4000)]


def test_a_server_elsewhere_is_reached_over_the_network_alone() -> None:
    """A worker alone with its server uses no link; the other host's two share its interface."""
    hosts = equal_hosts(2, 2, nic_bytes_per_s=1000.0, nic_latency_s=0.0, fabric_bytes_per_s=500.0)
    found = run(ParameterServer(), Topology("boxes", hosts), ranks=3, placement=(1, 2))
    assert {use.name for use in found.links} == {"n0 nic", "n0 nic in", "n1 nic", "n1 nic in"}
    assert {use.bytes for use in found.links} == {4000}


def test_servers_stand_with_the_first_ranks_as_they_do_in_training() -> None:
    """Two servers and four ranks per host: both on the first, whose workers reach them without the network."""
    found = run(ParameterServer(2), flat(2, 4), ranks=8)
    assert {use.name for use in found.links if "fabric" in use.name} == {"n0 fabric", "n0 fabric in"}


def test_what_a_server_computes_is_no_communication() -> None:
    """Pushes 4..4.1 and 6..6.1, updates of 2 s each: 4.1..6.1 and 6.1..8.1; pulls 6.1..6.2 and 8.1..8.2. From 6 on
    the worker waits; 1.9 s of it nothing is sent."""
    graph, seconds = layers([1000, 1000], [1, 1], [2, 2], 4.0)
    found = run(ParameterServer(), flat(2, rate=1e4), graph=graph, seconds=seconds)
    assert found.iteration_s == pytest.approx(8.2)
    assert found.breakdown.server_s == pytest.approx(1.9)
    assert found.exposed_s == pytest.approx(0.3)
    assert found.exposed_s <= found.communication_s == pytest.approx(0.4)
    assert sum(t.exposed_s for t in found.transfers) == pytest.approx(found.exposed_s)
    assert [s.end_s - s.start_s for s in found.critical_path if s.kind == "server"] == [pytest.approx(2)]
    line = found.timeline()
    served = [line.names[n] for n, kind in zip(line.spans.name, line.spans.kind, strict=True) if kind == 5]
    assert served == ["server applies layer.0.weight"]
    waits = line.spans.kind == 2
    assert (line.spans.end_s - line.spans.start_s)[waits].sum() == pytest.approx(0.3)


def test_a_pull_is_ready_when_its_server_has_come_to_its_update() -> None:
    """Pushes 4..4.1 and 5..5.1, updates of 2 s each: 4.1..6.1 and, where the server is free, 6.1..8.1."""
    graph, seconds = layers([1000, 1000], [1, 1], [1, 2], 4.0)
    found = run(ParameterServer(), flat(2, rate=1e4), graph=graph, seconds=seconds)
    pulls = [t for t in found.transfers if t.collective == "pull"]
    assert [t.ready_s for t in pulls] == pytest.approx([1.1, 3.1])  # since the next forward began, at 5
    assert [t.start_s for t in pulls] == pytest.approx([1.1, 3.1])


# --- processors


def test_copies_and_hooks_are_overhead() -> None:
    exchange = ExchangeCost(parameter_s=0.1, bucket_s=0.2, copy_s_per_byte=1e-4, iteration_s=0.3)
    found = run(TWO_BUCKETS, flat(2, rate=1e30), hardware=device(exchange=exchange, iteration_s=0.05))
    assert found.breakdown.overhead_s == pytest.approx(2 * 0.1 + 2 * 0.2 + 2000 * 1e-4 + 0.3 + 0.05)
    assert found.iteration_s == pytest.approx(6.5 + found.breakdown.overhead_s)


def test_ranks_that_outnumber_the_cores_share_them() -> None:
    """Four ranks of one thread on two cores: all takes twice as long."""
    hardware = device("cpu", cores=2)
    found = run(NoExchange(), flat(1, 4), ranks=4, hardware=hardware)
    assert found.iteration_s == pytest.approx(13)
    apart = run(NoExchange(), flat(4, 1), ranks=4, hardware=hardware)
    assert apart.iteration_s == pytest.approx(6.5)
    together = run(NoExchange(), flat(4, 1), ranks=4, hardware=hardware, options=replace(OPTIONS, cores=2))
    assert together.iteration_s == pytest.approx(13)


def test_communication_takes_processor_time_from_computation() -> None:
    """One core. 1000 B cost 1 s of it (bucket 0 beside backward 0, half each: 4..6, then 1 s more of backward);
    bucket 1 has 1 s to itself at the end."""
    measured = CollectiveCost(
        backend="ideal", collective="all-reduce", ranks=2, hosts=("a", "b"), alpha_s=1e-12, bytes_per_s=1e30,
        cpu_s_per_byte=1e-3,
    )  # fmt: skip
    hardware = device("cpu", cores=1, collectives=(measured,))
    found = run(TWO_BUCKETS, flat(2, rate=1e30), hardware=hardware)
    assert found.iteration_s == pytest.approx(4 + 3 + 1 + 0.5)
    assert found.breakdown.backward_s == pytest.approx(5)
    assert found.bound_s == pytest.approx(6.5 + 2)


# --- spreads


def test_a_synchronous_job_waits_for_its_slowest_rank() -> None:
    hardware = device(noise=0.06745, measured_on="here")
    calm = run(
        TWO_BUCKETS,
        flat(8, rate=1e30),
        ranks=8,
        hardware=hardware,
        options=replace(OPTIONS, straggling=False),
    )
    found = run(TWO_BUCKETS, flat(8, rate=1e30), ranks=8, hardware=hardware)
    assert calm.iteration_s == pytest.approx(6.5)
    assert found.iteration_s == pytest.approx(6.5 * (1 + 0.1 * expected_maximum(8)), rel=1e-4)
    assert found.straggling_s == pytest.approx(found.iteration_s - 6.5)
    assert found.low_s < found.iteration_s < found.high_s
    assumed = run(TWO_BUCKETS, flat(8, rate=1e30), ranks=8, hardware=device(noise=0.06745))
    assert assumed.iteration_s == pytest.approx(6.5)


def test_without_a_known_spread_there_is_no_interval() -> None:
    found = run(TWO_BUCKETS, flat(2, rate=500))
    assert (found.low_s, found.high_s, found.straggling_s) == (found.iteration_s, found.iteration_s, 0)


def test_the_expected_maximum_is_that_of_draws() -> None:
    draws = np.random.default_rng(1).standard_normal((20000, 64))
    for count in (2, 8, 64):
        assert expected_maximum(count) == pytest.approx(draws[:, :count].max(axis=1).mean(), abs=0.03)
    assert expected_maximum(1) == 0


# --- what always holds

PARALLELISMS = st.sampled_from(["ddp", "ddp:bucket=3000B", "ddp:bucket=1B", "fsdp", "fsdp:reshard=no", "ps", "ps:servers=3"])  # fmt: skip
LAYERS = st.lists(
    st.tuples(st.integers(4, 5000), st.floats(0.01, 5), st.floats(0.01, 5)), min_size=1, max_size=8
)


@settings(max_examples=60)
@given(PARALLELISMS, LAYERS, st.integers(1, 3), st.integers(1, 4), st.floats(10, 1e5), st.floats(0, 0.5), st.sampled_from(["cpu", "gpu"]))  # fmt: skip
def test_bounds_parts_and_symmetry(
    text: str,
    chain: list[tuple[int, float, float]],
    gpus: int,
    hosts: int,
    rate: float,
    latency_s: float,
    kind: str,
) -> None:
    """At least the computation and the busiest link, at most all of it in a row; the parts add up; every rank
    by itself gives the same."""
    sizes, forward, backward = (list(column) for column in zip(*chain, strict=True))
    graph, seconds = layers(sizes, forward, backward, 0.3, blocks=True)
    topology, ranks = flat(hosts, gpus, rate, latency_s, fabric=rate * 3), hosts * gpus
    own = {"cores": 2} if kind == "cpu" else {}
    ask = {"graph": graph, "seconds": seconds, "ranks": ranks, "hardware": device(kind, **own)}
    found = run(parse_parallelism(text), topology, **ask)
    assert found.iteration_s >= found.transfer_bound_s * (1 - 1e-9)
    assert found.transfer_bound_s >= found.bound_s
    assert found.breakdown.iteration_s == pytest.approx(found.iteration_s, rel=1e-4)
    assert all(t.start_s >= t.ready_s - 1e-6 for t in found.transfers)
    assert all(link.busy <= 1 + 1e-6 for link in found.links)
    ends = [step.end_s for step in found.critical_path]
    assert ends == sorted(ends)
    starts = [step.start_s for step in found.critical_path]
    assert starts[1:] == pytest.approx(ends[:-1])
    assert ends[-1] - starts[0] == pytest.approx(found.iteration_s, rel=1e-4)
    alone = run(parse_parallelism(text), topology, options=replace(OPTIONS, symmetric=False), **ask)
    assert alone.iteration_s == pytest.approx(found.iteration_s, rel=1e-6)


@pytest.mark.parametrize("text", ["ddp:bucket=2000B", "fsdp", "ps:servers=2"])
@pytest.mark.parametrize(("ranks", "kind"), [(8, "gpu"), (32, "gpu"), (8, "cpu"), (32, "cpu")])
def test_symmetry_changes_nothing_on_racks_that_are_filled_unevenly(text: str, ranks: int, kind: str) -> None:
    rack = np.array([0, 0, 0, 1, 1, 2])
    level = Level("rack", ("a", "b", "c"), rack, np.array([4e3, 1e3, 2e3]), latency_s=1e-3)
    topology = Topology("racks", equal_hosts(6, 6, nic_bytes_per_s=2e3, fabric_bytes_per_s=5e3), (level,))
    graph, seconds = layers([1500, 700, 900, 2500] * 3, [0.3] * 12, [0.6] * 12, 0.2, blocks=True)
    own = {"cores": 4} if kind == "cpu" else {}
    measured = CollectiveCost(
        backend="ideal", collective="all-reduce", ranks=2, hosts=("a", "b"), alpha_s=1e-3, bytes_per_s=1.5e3,
        cpu_s_per_byte=1e-4,
    )  # fmt: skip
    ask = {
        "graph": graph,
        "seconds": seconds,
        "ranks": ranks,
        "hardware": device(kind, collectives=(measured,), **own),
    }
    found = run(parse_parallelism(text), topology, **ask)
    alone = run(parse_parallelism(text), topology, options=replace(OPTIONS, symmetric=False), **ask)
    assert found.iteration_s == pytest.approx(alone.iteration_s, rel=0.01)


# --- timeline


@pytest.mark.parametrize("parallelism", [TWO_BUCKETS, FSDP(), ParameterServer()], ids=lambda s: s.label)
def test_the_timeline_says_the_same(parallelism: Parallelism) -> None:
    found = run(parallelism, flat(2, rate=500))
    line = found.timeline()
    assert line.predicted and len(line.ranks) == 1
    assert (line.facts["ranks"], line.facts["hosts"], line.facts["ranks_shown"]) == (2, 2, 1)
    assert "low_s" not in line.facts
    spans, log = line.spans, line.transfers
    length = spans.end_s - spans.start_s
    assert (length > 0).all()
    waits = length[spans.kind == 2].sum()
    assert waits == pytest.approx(found.exposed_s)
    assert found.exposed_s <= found.communication_s * (1 + 1e-9)
    mine = spans.lane == 0
    assert length[mine].sum() == pytest.approx(found.iteration_s)
    assert line.iterations.end_s - line.iterations.start_s == pytest.approx(found.iteration_s)
    assert len(log) == len(found.transfers)
    assert log.last_byte_s == pytest.approx([t.end_s for t in found.transfers])
    late = ~np.isnan(log.needed_s)
    assert (log.released_s[late] >= log.needed_s[late]).all()
    for a, b in itertools.pairwise(np.sort(spans.start_s[mine])):
        assert a <= b


def test_the_timeline_keeps_the_interval() -> None:
    found = run(TWO_BUCKETS, flat(2, rate=500), hardware=device(noise=0.02))
    facts = found.timeline().facts
    assert (facts["confidence"], facts["low_s"], facts["high_s"]) == (0.9, found.low_s, found.high_s)
    assert found.low_s < found.high_s


# --- what cannot be


def test_impossible_questions_are_refused() -> None:
    with pytest.raises(InputError, match="3 ranks on 'flat', which has 2 GPUs"):
        run(TWO_BUCKETS, flat(2), ranks=3)
    with pytest.raises(TopologyError, match="nic_bytes_per_s is 0"):
        run(TWO_BUCKETS, flat(2, rate=0))
    with pytest.raises(HardwareError, match="memory_bytes_per_s"):
        run(TWO_BUCKETS, flat(2), hardware=device(memory_bytes_per_s=0.0))
    with pytest.raises(GraphError, match="entries for 5 operations"):
        run(TWO_BUCKETS, flat(2), seconds=np.ones(4))
    with pytest.raises(InputError, match="cores"):
        PredictionOptions(cores=0)
    with pytest.raises(PlanError, match="of which 0 are reduced"):
        run(
            TWO_BUCKETS,
            flat(2),
            plan=Plan(name="", graph="", ranks=2, update="together", chunk_bytes=1, transfers=()),
        )


@pytest.mark.parametrize(
    ("hosts", "rate", "topology", "says"),
    [
        ("aa", 250.0, flat(1, 2), ""),
        ("ab", 250.0, flat(1, 2), "no measured ideal transfers within a host: no latency"),
        ("ab", 480.0, flat(2, rate=500), ""),
        ("aa", 480.0, flat(2, rate=500), "ideal was measured within a host only"),
        ("ab", 250.0, flat(2, rate=500), "ideal sends at 2 kbit/s as measured, where every link between these hosts carries 4 kbit/s"),
    ],
)  # fmt: skip
def test_what_was_measured_elsewhere_says_so(hosts: str, rate: float, topology: Topology, says: str) -> None:
    """Between other hosts or none, or on a slower network: another one would not help, by this measurement."""
    measured = CollectiveCost(
        backend="ideal", collective="all-reduce", ranks=2, hosts=tuple(hosts), alpha_s=1e-9, bytes_per_s=rate
    )
    found = run(TWO_BUCKETS, topology, hardware=device(collectives=(measured,)))
    notes = [note for note in found.notes if "ideal" in note]
    assert len(notes) == bool(says)
    assert all(note.startswith(says) for note in notes)


def test_a_job_that_does_not_fit_says_so() -> None:
    found = run(TWO_BUCKETS, flat(2), hardware=device(memory_bytes=100.0))
    assert any("does not fit" in note for note in found.notes)


@pytest.mark.parametrize(
    ("kind", "gpus", "cores", "fits"),
    [("gpu", 8, None, True), ("cpu", 1, None, True), ("cpu", 8, None, False), ("cpu", 1, 64, False)],
)
def test_ranks_on_processors_share_their_hosts_memory(
    kind: str, gpus: int, cores: float | None, fits: bool
) -> None:
    """8 ranks of less than 10,000 B each: on a device of that size each, on such a host each, or all on one."""
    found = run(
        TWO_BUCKETS, flat(8 // gpus, gpus), 8, replace(OPTIONS, cores=cores),
        hardware=device(kind, memory_bytes=10_000.0),
    )  # fmt: skip
    assert 5_000 < found.memory_bytes < 10_000
    assert any("does not fit" in note for note in found.notes) is not fits


@pytest.mark.parametrize(
    ("captured", "kind", "softmax", "says"),
    [
        ("cpu", "gpu", True, "overstated; capture again with hemiola capture --device cuda"),
        ("cpu", "gpu", False, "captured for cpu, and test is a GPU; capture again with hemiola capture --device cuda"),
        ("cuda", "cpu", True, "captured for cuda, and test is a processor; capture again with hemiola capture --device cpu"),
        ("cuda", "gpu", True, ""),
        ("cpu", "cpu", True, ""),
    ],
)  # fmt: skip
def test_a_graph_of_another_kind_of_device_says_so(
    captured: str, kind: str, softmax: bool, says: str
) -> None:
    first = "aten._softmax.default" if softmax else "aten._log_softmax.default"
    operations = replace(TWO.operations, name=(first, *TWO.operations.name[1:]))
    source = f"captured with PyTorch 2.13.0+cpu for {captured}; loss: the output's own"
    graph = replace(TWO, source=source, operations=operations)
    found = run(TWO_BUCKETS, flat(2), graph=graph, hardware=device(kind))
    notes = [note for note in found.notes if "captured" in note]
    assert len(notes) == bool(says)
    assert all(says in note for note in notes)
