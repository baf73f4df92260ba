"""Known answers of the alpha-beta model, messages counted one by one, and libraries' choices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_graphs import device, flat

from hemiola.core.errors import InputError
from hemiola.core.hardware import CollectiveCost
from hemiola.core.topology import Level, Topology, equal_hosts
from hemiola.cost.collective.library import (
    ALGORITHMS,
    GLOO,
    NCCL,
    Variant,
    algorithm,
    collective_cost,
    fit_collective,
    variant_cost,
)
from hemiola.cost.parallelism import Transfer
from hemiola.cost.places import RankPlaces, place_ranks
from hemiola.cost.prediction.setting import server_cost

SIZE = 1200.0
Message = tuple[int, int, float]


def seconds(collective: str, name: str, place: RankPlaces, alpha_s: float) -> float:
    return variant_cost(Variant(algorithm(collective, name), 0.0, alpha_s, alpha_s), SIZE, place).seconds(
        place
    )


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize(
    ("collective", "name", "steps", "share"),
    [
        ("all-reduce", "ring", lambda k: 2 * (k - 1), lambda k: 2 * (k - 1) / k),
        ("all-reduce", "halving-doubling", lambda k: 2 * math.log2(k), lambda k: 2 * (k - 1) / k),
        ("all-reduce", "direct", lambda k: 2, lambda k: 2 * (k - 1) / k),
        ("all-reduce", "tree", lambda k: 2 * math.log2(k), lambda k: 2),
        ("all-gather", "ring", lambda k: k - 1, lambda k: (k - 1) / k),
        ("all-gather", "halving-doubling", math.log2, lambda k: (k - 1) / k),
        ("reduce-scatter", "direct", lambda k: 1, lambda k: (k - 1) / k),
        ("all-to-all", "direct", lambda k: k - 1, lambda k: (k - 1) / k),
        ("broadcast", "tree", math.log2, math.log2),
        ("broadcast", "ring", lambda k: math.log2(k) + k - 1, lambda k: 2 * (k - 1) / k),
    ],
)
def test_textbook_times_on_one_rank_per_host(
    collective: str, name: str, steps: Callable[[int], float], share: Callable[[int], float], ranks: int
) -> None:
    place = place_ranks(flat(ranks, 1, rate=100.0), ranks)
    expected = steps(ranks) * 0.5 + share(ranks) * SIZE / 100.0
    assert seconds(collective, name, place, 0.5) == pytest.approx(expected)


def test_one_rank_needs_nothing() -> None:
    place = place_ranks(flat(2), 1)
    assert collective_cost("all-reduce", SIZE, place, NCCL).seconds(place) == 0.0


# --- every message counted


def _ring_all_reduce(k: int) -> Iterator[Message]:
    for _ in range(2 * (k - 1)):
        yield from ((r, (r + 1) % k, SIZE / k) for r in range(k))


def _ring_all_gather(k: int) -> Iterator[Message]:
    for _ in range(k - 1):
        yield from ((r, (r + 1) % k, SIZE / k) for r in range(k))


def _direct(k: int) -> Iterator[Message]:
    yield from ((a, b, SIZE / k) for a in range(k) for b in range(k) if a != b)


def _doubling(k: int) -> Iterator[Message]:
    for i in range(int(math.log2(k))):
        yield from ((r, r ^ (1 << i), SIZE / 2 ** (i + 1)) for r in range(k))


def _binomial(k: int) -> Iterator[Message]:
    distance = k // 2
    while distance:
        yield from ((r, r + distance, SIZE) for r in range(0, k, 2 * distance))
        distance //= 2


COUNTED: list[tuple[str, str, Callable[[int], Iterator[Message]], int]] = [
    ("all-reduce", "ring", _ring_all_reduce, 1),
    ("all-gather", "ring", _ring_all_gather, 1),
    ("all-reduce", "direct", _direct, 2),
    ("reduce-scatter", "direct", _direct, 1),
    ("all-to-all", "direct", _direct, 1),
    ("all-reduce", "halving-doubling", _doubling, 2),
    ("all-gather", "halving-doubling", _doubling, 1),
    ("broadcast", "tree", _binomial, 1),
]


@pytest.mark.parametrize(("hosts", "gpus"), [(2, 1), (2, 4), (4, 2), (8, 1)])
@pytest.mark.parametrize(("collective", "name", "messages", "times"), COUNTED, ids=lambda v: str(v) if isinstance(v, str) else "")  # fmt: skip
def test_link_loads_are_the_messages_that_cross_them(
    collective: str,
    name: str,
    messages: Callable[[int], Iterator[Message]],
    times: int,
    hosts: int,
    gpus: int,
) -> None:
    """The busiest host's and the busiest rack's outgoing bytes, by sending every message."""
    half = max(hosts // 2, 1)
    rack = np.arange(hosts) // half
    level = Level("rack", ("a", "b"), rack, np.array([1e3, 1e3]))
    place = place_ranks(Topology("racks", equal_hosts(hosts, gpus), (level,)), hosts * gpus)
    cost = variant_cost(Variant(algorithm(collective, name), 0.0, 0.0, 0.0), SIZE, place)
    loads = {place.links[i].name.split()[-1]: size for i, size in cost.loads}
    for kind, domain in (("nic", [r // gpus for r in range(hosts * gpus)]), ("uplink", [int(rack[r // gpus]) for r in range(hosts * gpus)])):  # fmt: skip
        out = np.zeros(hosts)
        for a, b, size in messages(hosts * gpus):
            if domain[a] != domain[b]:
                out[domain[a]] += times * size
        assert loads[kind] == pytest.approx(out.max())


@given(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from(["ring", "halving-doubling", "direct"]), st.data())
def test_link_loads_of_uneven_hosts_are_what_the_executor_sends(
    ranks: int, name: str, data: st.DataObject
) -> None:
    """By counting what every step of every rank sends to other hosts, and to the other rack."""
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'hemiola[torch]'")
    from hemiola.train.accelerate.exchange import schedule

    counts = data.draw(st.lists(st.integers(1, ranks), max_size=5).filter(lambda those: sum(those) < ranks))
    counts.append(ranks - sum(counts))
    rack = np.arange(len(counts)) // 2 % 2
    level = Level("rack", ("a", "b"), rack, np.array([1e3, 1e3]))
    topology = Topology("racks", equal_hosts(len(counts), ranks), (level,))
    place = place_ranks(topology, ranks, tuple(counts))
    cost = variant_cost(Variant(algorithm("all-reduce", name), 0.0, 0.0, 0.0), ranks, place)
    loads = dict(cost.loads)
    for number, (link, below) in enumerate(zip(place.links, place.ranks_below, strict=True)):
        if link.inner or (name == "ring" and len(link.hosts) > 2):
            continue  # a ring in order of ranks goes round racks as often as they take turns
        parts = [
            (rank, part)
            for rank in below
            for step in schedule(name, rank, ranks, ranks)
            for part in step.sends
        ]
        crossed = sum(part.stop - part.start for _, part in parts if part.peer not in below)
        assert loads.get(number, 0.0) == pytest.approx(crossed)


def test_halving_between_hosts_that_are_not_aligned_crosses_a_link_more_often() -> None:
    """Ranks 2 to 5 of 8 each send a quarter out of their host and then an eighth, and as much again on the way back."""
    place = place_ranks(flat(3, 4), 8, (2, 4, 2))
    cost = variant_cost(Variant(algorithm("all-reduce", "halving-doubling"), 0.0, 0.0, 0.0), SIZE, place)
    assert dict(cost.loads)[1] == pytest.approx(3 * SIZE)


@given(
    st.sampled_from([(c, a.name) for c, those in ALGORITHMS.items() for a in those]),
    st.integers(1, 6), st.integers(1, 8), st.floats(1.0, 1e9),
)  # fmt: skip
def test_no_algorithm_beats_its_lower_bound(
    which: tuple[str, str], hosts: int, gpus: int, size: float
) -> None:
    """Whatever the placement: each rank's bytes at the fastest link, and one latency."""
    place = place_ranks(flat(hosts, gpus, rate=10.0, fabric=10.0), hosts * gpus)
    if place.ranks == 1:
        return
    cost = variant_cost(Variant(algorithm(*which), 0.0, 1.0, 1.0), size, place)
    ring = (place.ranks - 1) / place.ranks
    least = {"all-reduce": 2 * ring, "broadcast": 1.0, "send": 1.0}.get(which[0], ring)
    assert cost.sent_bytes >= least * size * (1 - 1e-12)
    assert cost.latency_s >= 1.0
    assert cost.seconds(place) >= cost.latency_s


# --- libraries


def test_gloo_reduces_and_scatters_by_reducing_everything() -> None:
    place = place_ranks(flat(4, 1, rate=100.0), 4)
    whole = collective_cost("all-reduce", SIZE, place, GLOO)
    assert collective_cost("reduce-scatter", SIZE, place, GLOO) == whole


def test_nccl_takes_a_tree_for_small_tensors_on_many_hosts_and_a_ring_for_large_ones() -> None:
    place = place_ranks(flat(64, 1, rate=12.5e9), 64)
    assert collective_cost("all-reduce", 4096, place, NCCL).algorithm == "tree"
    assert collective_cost("all-reduce", 1e9, place, NCCL).algorithm == "ring"


def test_a_measured_latency_and_rate_go_before_the_librarys() -> None:
    measured = CollectiveCost(
        backend="gloo", collective="all-reduce", ranks=2, hosts=("a", "b"), alpha_s=0.25, bytes_per_s=50.0,
        cpu_s_per_byte=0.5, cpu_s_per_step=0.125, spread=0.1,
    )  # fmt: skip
    hardware = device("cpu", collectives=(measured,))
    place = place_ranks(flat(2, 1, rate=1e9), 2)
    cost = collective_cost("all-reduce", SIZE, place, GLOO, hardware)
    assert cost.seconds(place) == pytest.approx(2 * 0.25 + SIZE / 50.0)
    assert cost.cpu_s == pytest.approx(0.5 * SIZE + 2 * 0.125)
    assert cost.spread == 0.1


@pytest.mark.parametrize(("hosts", "small_s"), [(1, 30e-6), (8, 120e-6)])
def test_what_was_measured_of_a_library_that_chooses_is_what_it_takes(hosts: int, small_s: float) -> None:
    """Whichever of its algorithms that was; among more ranks latency grows as that of the tree, among fewer as the ring's."""
    place = place_ranks(flat(hosts, 8, rate=400e9, fabric=450e9), 8 * hosts)
    sizes = [4.0, 16_384.0, 1e6, 16e6, 64e6]
    points = [(size, small_s + size / 100e9, 0.0) for size in sizes]
    measured = fit_collective("nccl", "all-reduce", [f"n{rank // 8}" for rank in range(8 * hosts)], points)
    hardware = device(collectives=(measured,))
    for size, seconds, _ in points:
        found = collective_cost("all-reduce", size, place, NCCL, hardware).seconds(place)
        assert found == pytest.approx(seconds, rel=1e-3)
    more = place_ranks(flat(64 * hosts, 8, rate=400e9, fabric=450e9), 512 * hosts)
    times = math.log2(512 * hosts) / math.log2(8 * hosts)
    cost = collective_cost("all-reduce", 4, more, NCCL, hardware)
    assert cost.seconds(more) == pytest.approx(times * small_s, rel=1e-3)
    large = collective_cost("all-reduce", 64e6, place, NCCL, hardware)
    assert max(size for _, size in large.loads) == pytest.approx(large.sent_bytes), "no protocol beside it"


def measured_on(hosts: str, bytes_per_s: float, collective: str = "all-reduce") -> CollectiveCost:
    return CollectiveCost(
        backend="gloo", collective=collective, ranks=len(hosts), hosts=tuple(hosts), alpha_s=1e-9, bytes_per_s=bytes_per_s,
    )  # fmt: skip


def test_ranks_of_one_host_take_what_was_measured_within_one_and_ranks_of_several_what_was_between() -> None:
    """Between hosts another collective, measured there, goes before the same one within a host."""
    between, within, gathered = (
        measured_on("ab", 50.0), measured_on("aa", 400.0), measured_on("aaaa", 300.0, "all-gather"),
    )  # fmt: skip
    one, two = place_ranks(flat(1, 2), 2), place_ranks(flat(2, 1), 2)
    push = Transfer("weight", "push", SIZE, (0,), after=0, before=1, server=0)
    for known, on_one, on_two in (
        ((between, within, gathered), 400.0, 50.0),
        ((gathered, within, between), 400.0, 50.0),
        ((between,), math.inf, 50.0),
        ((within,), 400.0, 400.0),
    ):
        hardware = device("cpu", collectives=known)
        for place, rate in ((one, on_one), (two, on_two)):
            reduced = collective_cost("all-reduce", SIZE, place, GLOO, hardware)
            assert reduced.rate_max_bytes_per_s == rate
            assert server_cost(push, place, GLOO, hardware).rate_max_bytes_per_s == rate
    everything = device("cpu", collectives=(gathered, within, between))
    assert collective_cost("all-gather", SIZE, one, GLOO, everything).rate_max_bytes_per_s == 300.0
    assert collective_cost("all-gather", SIZE, two, GLOO, everything).rate_max_bytes_per_s == 50.0


def test_a_measured_push_takes_what_a_send_took() -> None:
    sent = fit_collective("nccl", "send", ["a", "b"], [(4.0, 50e-6, 0.0), (64e6, 50e-6 + 64e6 / 1e9, 0.0)])
    place = place_ranks(flat(2, 1, rate=2e9), 2)
    push = Transfer("weight", "push", 32e6, (0,), after=0, before=1, server=0)
    cost = server_cost(push, place, NCCL, device(collectives=(sent,)))
    assert cost.seconds(place) == pytest.approx(50e-6 + 32e6 / 1e9)


def test_ranks_of_one_host_use_no_network() -> None:
    place = place_ranks(flat(2, 4, rate=1.0, fabric=600.0), 4)
    cost = variant_cost(Variant(algorithm("all-reduce", "ring"), 0.0, 0.0, 0.0), SIZE, place)
    assert cost.seconds(place) == pytest.approx(1.5 * SIZE / 600.0)
    assert [link.name for link in place.links] == ["n0 fabric"]


def test_what_a_library_lacks_is_refused() -> None:
    place = place_ranks(flat(2), 2)
    with pytest.raises(InputError, match="all-to-all"):
        collective_cost("all-to-all", SIZE, place, GLOO)
    with pytest.raises(InputError, match="bucket-brigade"):
        algorithm("all-reduce", "bucket-brigade")


# --- placements


def test_hosts_are_filled_in_order() -> None:
    assert place_ranks(flat(4, 8), 20).counts == ((0, 8), (1, 8), (2, 4))
    assert place_ranks(flat(4, 8), 6, (2, 0, 4)).counts == ((0, 2), (2, 4))


@pytest.mark.parametrize(
    ("ranks", "placement", "says"),
    [(0, None, "0 ranks"), (9, None, "9 ranks on 'flat', which has 8 GPUs"), (4, (2, 1), "placement"),
     (5, (5,), "5 ranks on host 'n0'"), (4, (1, 1, 2), "placement"), (2, (3, -1), "placement")],
)  # fmt: skip
def test_a_placement_that_does_not_fit_is_refused(
    ranks: int, placement: tuple[int, ...] | None, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        place_ranks(flat(2, 4), ranks, placement)
