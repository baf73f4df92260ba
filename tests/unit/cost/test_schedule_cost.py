"""A schedule's cost: alone its executed time, on links its bytes; and predictions by schedules, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules_drawn import shapes
from tiny_graphs import device, layers

from hemiola.core.collective.schedule import PIECE_BYTES, CollectiveSchedule
from hemiola.core.collective.shapes import all_pairs, ring, trees
from hemiola.core.errors import InputError, ScheduleError
from hemiola.core.hardware import CollectiveCost
from hemiola.core.plan import Plan
from hemiola.core.topology import Level, MeasuredLink, Topology
from hemiola.cost.collective.duration import bounds, schedule_seconds
from hemiola.cost.collective.library import GLOO, GROUP, Cost, Library, Variant, algorithm, collective_cost
from hemiola.cost.collective.price import Fitting, both_ways, given_schedule, schedule_cost
from hemiola.cost.parallelism import DDP, FSDP
from hemiola.cost.places import RankPlaces, place_ranks
from hemiola.cost.prediction import Prediction, PredictionOptions, predict
from hemiola.plan.collective.planner import SchedulePlanner, fitted_to
from hemiola.plan.collective.synthesis import synthesise
from hemiola.trace.msccl import equal_chunks, msccl_text, parse_msccl

MB = 1e6
RING = (Variant(algorithm("all-reduce", "ring"), 0.0, 0.0, 0.0),)
IDEAL = Library(
    "ideal", 1 << 30, {"all-reduce": RING}, "no limits, any number of collectives at once", by_schedules=True
)
SLOW = (50 * MB, 50 * MB, 50 * MB, 12.5 * MB)
FLAT_TREES = msgspec.structs.replace(
    trees([[-1, 0, 0, 0], [1, -1, 1, 1], [2, 2, -1, 2]]), name="three stars", chunk_bytes=1 << 16
)


EMPTY = Plan(name="empty", graph="", ranks=4, update="together", chunk_bytes=1, transfers=())


def topology(
    *rates: float, gpus: int = 1, latency_s: float = 0.0, uplinks: tuple[float, ...] = ()
) -> Topology:
    """Hosts with NICs of these rates under one switch, or half of them each in racks behind two uplinks."""
    bare = Topology.flat(hosts=len(rates), gpus_per_host=gpus)
    hosts = replace(
        bare.hosts, nic_bytes_per_s=np.array(rates, dtype=float), nic_latency_s=np.full(len(rates), latency_s)
    )
    racks = np.arange(len(rates)) * 2 // len(rates)
    levels = (Level("rack", ("a", "b"), racks, np.array(uplinks, dtype=float)),) if uplinks else ()
    return replace(bare, hosts=hosts, levels=levels).check()


def placed(*rates: float, gpus: int = 1, **more: Any) -> RankPlaces:
    return place_ranks(topology(*rates, gpus=gpus, **more), len(rates) * gpus)


@settings(max_examples=80)
@given(st.data())
def test_alone_a_cost_is_the_executed_time(data: Any) -> None:
    """On any network, in pieces or whole, and with the library's headers and steps in both."""
    rates = data.draw(st.lists(st.sampled_from([1.0, 2.0, 5.0, 10.0]), min_size=2, max_size=6))
    uplinks = data.draw(st.sampled_from([(), (1.0, 3.0), (20.0, 2.0)]))
    place = placed(*rates, gpus=data.draw(st.integers(1, 2)), latency_s=0.3, uplinks=uplinks)
    drawn = data.draw(shapes(ranks=place.ranks))
    schedule = msgspec.structs.replace(drawn, chunk_bytes=data.draw(st.sampled_from([0, 7, 30])))
    cost = schedule_cost(schedule, 60.0, place, IDEAL)
    assert cost.seconds(place) == pytest.approx(schedule_seconds(schedule, 60.0, place))
    assert cost.latency_s >= 0.3 * (len(place.counts) > 1 and bool(schedule.moves)) * (1 - 1e-9)
    assert cost.seconds(place) >= bounds(schedule.collective, 60.0, place).seconds * (1 - 1e-9)
    framed = schedule_cost(schedule, 60.0, place, GROUP).seconds(place)
    narrower = replace(
        place, links=tuple(replace(one, bytes_per_s=one.bytes_per_s * 1448 / 1514) for one in place.links)
    )
    assert framed == pytest.approx(schedule_seconds(schedule, 60.0, narrower, local_s=200e-6), rel=1e-6)


def test_loads_are_what_crosses_each_link() -> None:
    """A tree 0 - 1, 1 - 2, 1 - 3 over racks of two: everybody sends to each neighbour once, up or down."""
    place = placed(1.0, 1.0, 1.0, 1.0, uplinks=(9.0, 9.0))
    names = [link.name for link in place.links]
    found = schedule_cost(trees([[-1, 0, 1, 1]]), 60.0, place, IDEAL)
    assert {names[link]: size for link, size in found.loads} == {
        "n0 nic": 60, "n1 nic": 180, "n2 nic": 60, "n3 nic": 60, "rack a uplink": 120, "rack b uplink": 120,
    }  # fmt: skip
    assert found.sent_bytes == 180
    down = schedule_cost(trees([[-1, 0, 1, 1]], collective="broadcast"), 60.0, place, IDEAL)
    both = [*names, *(f"{name} in" for name in names)]
    assert {both[link]: size for link, size in down.loads} == {
        "n0 nic": 60, "n1 nic": 120, "rack a uplink": 120, "n1 nic in": 60, "n2 nic in": 60, "n3 nic in": 60,
        "rack b uplink in": 120,
    }  # fmt: skip


def test_within_a_host_the_busiest_rank_counts() -> None:
    """Rank 0 hands down to 1, 2 and 3 of its own host, and to 4 of another one, which hands on to 5, 6 and 7."""
    place = placed(1.0, 1.0, gpus=4)
    found = schedule_cost(trees([[-1, 0, 0, 0, 0, 4, 4, 4]]), 10.0, place, IDEAL)
    assert {place.links[link].name: size for link, size in found.loads} == {
        "n0 nic": 10, "n1 nic": 10, "n0 fabric": 30, "n1 fabric": 30,
    }  # fmt: skip
    assert found.sent_bytes == 40


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("uplinks", [(), (1.1 * MB, 0.9 * MB)])
def test_a_ring_costs_the_same_as_a_schedule(measured: bool, uplinks: tuple[float, ...]) -> None:
    """The same steps, bytes, limits and processor time as the library's own ring, by another way. Where links differ,
    the slowest is at work while others wait: some of the steps' latency hides, which the formula does not know."""
    place = placed(*[2 * MB] * 6, latency_s=1e-3, uplinks=uplinks)
    own = CollectiveCost(
        backend="hemiola", collective="all-reduce", ranks=6, hosts=tuple("abcdef"), alpha_s=3e-4,
        bytes_per_s=0.8 * MB, cpu_s_per_byte=2e-9, cpu_s_per_step=5e-5, spread=0.1, alpha_spread=0.2,
        points=((1e3, 1.0, 1.0),), runs=3,
    )  # fmt: skip
    hardware = msgspec.structs.replace(device(), collectives=(own,)) if measured else device()
    for size_bytes in (1e5, 1e7):
        usual = collective_cost("all-reduce", size_bytes, place, GROUP, hardware, "ring")
        found = schedule_cost(ring(range(6)), size_bytes, place, GROUP, hardware)
        assert dict(found.loads) == pytest.approx(dict(usual.loads))
        if uplinks:
            assert (
                usual.seconds(place) - usual.latency_s < found.seconds(place) < usual.seconds(place) * 1.0001
            )
        else:
            assert found.latency_s == pytest.approx(usual.latency_s)
        for name in ("sent_bytes", "rate_max_bytes_per_s", "cpu_s", "spread", "latency_spread"):
            assert getattr(found, name) == pytest.approx(getattr(usual, name)), name


@pytest.mark.parametrize("rates", [SLOW, (*[125 * MB] * 7, 31.25 * MB)])
def test_a_schedule_that_does_not_say_its_pieces_costs_what_the_group_does(rates: tuple[float, ...]) -> None:
    """MSCCL's files have no word for them: trees of several hops take much longer with chunks that go whole."""
    place = placed(*rates)
    found = synthesise(place, 64 * MB).chosen.schedule
    back = parse_msccl(msccl_text(equal_chunks(found).schedule))
    assert back.chunk_bytes == 0
    said = msgspec.structs.replace(back, chunk_bytes=PIECE_BYTES)
    cost = schedule_cost(back, 64 * MB, place)
    assert cost == schedule_cost(said, 64 * MB, place)
    wanted_s = schedule_cost(found, 64 * MB, place).seconds(place)
    assert cost.seconds(place) == pytest.approx(wanted_s, rel=0.1)


def test_measured_rates_are_of_data() -> None:
    """What `hemiola probe` measured has no headers in it; what a cluster's owner wrote down has."""
    written = topology(*SLOW)
    probed = replace(written, measured=(MeasuredLink("n3 in", 12.5e6, 12e6, 13e6),))
    for cost in (
        lambda place: schedule_cost(FLAT_TREES, 16 * MB, place),
        lambda place: collective_cost("all-reduce", 16 * MB, place, GROUP),
        lambda place: collective_cost("all-reduce", 16 * MB, place, GLOO),
    ):
        one, other = (dict(cost(place_ranks(its, 4)).loads) for its in (written, probed))
        assert one[3] == pytest.approx(other[3] * 1514 / 1448)


def test_directions_are_said_by_all_or_by_none() -> None:
    alike, down = (
        Cost("ring", 0.0, ((0, 5.0), (1, 5.0)), 5.0, 1.0),
        Cost("tree", 0.0, ((0, 3.0), (3, 3.0)), 3.0, 1.0),
    )
    assert both_ways([alike, alike], 2) == [alike, alike]
    assert [cost.loads for cost in both_ways([alike, down], 2)] == [
        ((0, 5.0), (1, 5.0), (2, 5.0), (3, 5.0)), ((0, 3.0), (3, 3.0)),
    ]  # fmt: skip


def run(
    schedules: Fitting | None, *sizes: int, cluster: Topology | None = None, library: Library | None = IDEAL,
    kind: Any = None, **more: Any,
) -> Prediction:  # fmt: skip
    """Layers of these bytes, each forward and backward in no time, after a second in the last one's forward."""
    graph, seconds = layers(list(sizes), [1.0] + [0.0] * (len(sizes) - 1), [0.0] * len(sizes), blocks=True)
    return predict(
        graph, device(), cluster or topology(*SLOW), 4, kind or DDP(bucket_bytes=1.0), seconds=seconds,
        options=PredictionOptions(library=library, schedules=schedules), **more,
    )  # fmt: skip


def test_one_host_at_a_quarter_of_the_rate() -> None:
    """16 MB among 50, 50, 50 and 12.5 MB/s: a ring takes 3/2 x 1.28 s, packed trees the bound of 1.28 s and the
    pipeline. The prediction takes what the schedule takes."""
    usual, fitted = run(None, 16_000_000), run(fitted_to, 16_000_000)
    assert usual.iteration_s == pytest.approx(1 + 1.5 * 1.28)
    assert 1 + 1.28 < fitted.iteration_s < 1 + 1.28 * 1.02
    schedule = SchedulePlanner(topology(*SLOW), ["n0", "n1", "n2", "n3"]).schedule("all-reduce", 16e6)
    assert schedule is not None
    alone_s = schedule_seconds(schedule, 16e6, placed(*SLOW))
    assert fitted.iteration_s == pytest.approx(1 + alone_s)
    (use,) = fitted.schedules
    assert (use.collective, use.size_bytes, use.count, use.schedule, use.usual) == (
        "all-reduce", 16e6, 1, schedule.name, "ring",
    )  # fmt: skip
    assert (use.seconds, use.usual_s) == pytest.approx((alone_s, 1.92))
    assert [t.algorithm for t in fitted.transfers] == [schedule.name]
    assert {use.name: use.bytes for use in fitted.links}["n3 nic"] == pytest.approx(16e6)
    assert usual.schedules == ()


def test_two_at_once_share_the_slow_link() -> None:
    """Three stars, each a third of the data: degrees 5/3, 5/3, 5/3 and 1. Two all-reduces of 8 MB that are ready
    together put 16 MB on the slow host's link."""
    found = run(given_schedule(FLAT_TREES), 8_000_000, 8_000_000)
    assert found.links[0].name == "n3 nic" and found.links[0].bytes == pytest.approx(16e6)
    assert {use.name: use.bytes for use in found.links}["n0 nic"] == pytest.approx(16e6 * 5 / 3)
    alone_s = schedule_seconds(FLAT_TREES, 8e6, placed(*SLOW))
    assert found.iteration_s == pytest.approx(1 + alone_s + 0.64)


def test_equal_links_keep_the_usual_way() -> None:
    cluster = topology(*[50 * MB] * 4)
    usual, fitted = (run(how, 16_000_000, cluster=cluster) for how in (None, fitted_to))
    assert fitted.iteration_s == usual.iteration_s
    assert [(use.schedule, use.seconds) for use in fitted.schedules] == [("", fitted.schedules[0].usual_s)]


def test_a_given_schedule_is_used_for_its_collective_above_64_kb() -> None:
    found = run(given_schedule(FLAT_TREES), 100_000, 65_536, 65_540)
    assert [(use.size_bytes, use.schedule) for use in found.schedules] == [
        (100_000, "three stars"), (65_540, "three stars"), (65_536, ""),
    ]  # fmt: skip
    other = run(given_schedule(all_pairs(4, "all-gather")), 1_000_000)
    assert [use.schedule for use in other.schedules] == [""]


def test_sharded_ranks_gather_by_schedules() -> None:
    """FSDP gathers a layer of 4 MB three times over and scatters once; here everybody sends to everybody."""
    gathers = given_schedule(all_pairs(4, "all-gather"))
    library = replace(IDEAL, variants={**GROUP.variants, "all-reduce": RING})
    found = run(gathers, 4_000_000, 4_000_000, library=library, kind=FSDP())
    ways = {use.collective: use.schedule for use in found.schedules}
    assert ways == {"all-gather": "all pairs", "reduce-scatter": ""}


def test_the_usual_way_goes_one_at_a_time_and_schedules_at_once() -> None:
    """Two buckets of 8 MB that are ready together: the first is there after half the time, or both at the end."""
    library = replace(IDEAL, at_once=1)
    usual, fitted = (
        run(how, 8_000_000, 8_000_000, library=library) for how in (None, given_schedule(FLAT_TREES))
    )
    assert [t.end_s for t in usual.transfers] == pytest.approx([1.96, 2.92])
    ends = [t.end_s for t in fitted.transfers]
    assert ends == pytest.approx([2.28] * 2, rel=0.01)


def test_one_rank_goes_no_way() -> None:
    graph, seconds = layers([1_000_000], [1.0], [0.0])
    found = predict(
        graph,
        device(),
        topology(1e6),
        1,
        seconds=seconds,
        options=PredictionOptions(library=IDEAL, schedules=fitted_to),
    )
    assert found.schedules == () and found.iteration_s == pytest.approx(1)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"library": GLOO}, InputError, "gloo, which chooses its own"),
        ({"library": None}, InputError, "nccl, which chooses its own"),
        ({"schedules": given_schedule(ring(range(3)))}, ScheduleError, "for 3 ranks, here are 4"),
        ({"plan": EMPTY}, InputError, "pause each other"),
    ],
)
def test_what_cannot_go_by_schedules_is_refused(
    changes: dict[str, Any], error: type[Exception], says: str
) -> None:
    asked = {"schedules": fitted_to} | changes
    with pytest.raises(error, match=says):
        run(asked.pop("schedules"), 1_000_000, **asked)


def test_a_process_group_and_a_prediction_choose_alike() -> None:
    """By name of host, by class of size, for every collective."""
    cluster = topology(*SLOW, uplinks=(40 * MB, 20 * MB))
    place = place_ranks(cluster, 4)
    choose, planner = fitted_to(place), SchedulePlanner(cluster, cluster.hosts.names)
    for collective in ("all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce"):
        mine, its = choose(collective, 15e6), planner.schedule(collective, 1 << 24)
        assert (mine and mine.moves) == (its and its.moves)


def test_no_library_of_others_carries_out_a_schedule() -> None:
    schedule: CollectiveSchedule = ring(range(2))
    with pytest.raises(InputError, match="gloo chooses its own algorithms"):
        schedule_cost(schedule, 1.0, placed(1.0, 1.0), GLOO)
