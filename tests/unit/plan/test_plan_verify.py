"""`Plan.verify`: what would train wrongly is refused, naming what; plans that the planner makes pass."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_graphs import device, flat, layers

from hemiola.core.errors import InputError, PlanError
from hemiola.core.plan import Piece, Plan, PlannedTransfer
from hemiola.plan.baselines import FifoOrder
from hemiola.plan.bytescheduler import ByteScheduler
from hemiola.plan.caramel import batched, extended, split, widened, with_primitives
from hemiola.plan.p3 import P3
from hemiola.plan.planner import planned
from hemiola.plan.problem import PlanProblem
from hemiola.trace.struct_json import read_plan, write_plan
from hemiola.trace.topologies import read_topology

GRAPH, SECONDS = layers([4000, 400_000, 40], [0.01] * 3, [0.02] * 3, 0.001)


def problem(graph=GRAPH, ranks=2):
    return PlanProblem(graph, device("cpu"), flat(ranks), ranks)


def plan(*transfers, **fields):
    given = {"name": "by hand", "graph": "layers", "ranks": 2, "update": "on-arrival", "chunk_bytes": 1024}
    return Plan(**given | fields, transfers=transfers)


def one(*pieces, name="t", **fields):
    return PlannedTransfer(
        name=name, pieces=tuple(Piece(f"layer.{p}.weight", a, b) for p, a, b in pieces), **fields
    )


WHOLE = (one((0, 0, 1000)), one((1, 0, 60_000)), one((1, 60_000, 100_000), (2, 0, 10)))


def test_a_plan_that_reduces_everything_once_is_proved():
    assert plan(*WHOLE).verify(GRAPH).transfers == WHOLE


CLUSTER = read_topology("leaf-spine:hosts=4,gpus_per_host=2,hosts_per_rack=2")


@pytest.mark.parametrize("placement", [None, (2,), (1, 1), (0, 0, 1, 1), (1, 0, 0, 1)])
def test_a_plan_whose_ranks_have_room_is_proved(placement):
    assert plan(*WHOLE).verify(GRAPH, CLUSTER, placement)


@pytest.mark.parametrize(
    ("ranks", "placement", "said"),
    [
        (9, None, "is for 9 ranks, and 'leaf-spine.*' has 8 GPUs"),
        (2, (1, 0, 0, 0, 1), r"\(1, 0, 0, 0, 1\) names 5 hosts, and 'leaf-spine.*' has 4"),
        (3, (0, 3), r"puts 3 ranks on host 'n1', which has 2 GPUs"),
        (2, (3, -1), r"puts 3 ranks on host 'n0'"),
        (2, (2, 1), r"\(2, 1\) is of 3 ranks, and the plan 'by hand' is for 2"),
    ],
)
def test_a_plan_whose_ranks_have_no_room_is_refused(ranks, placement, said):
    with pytest.raises(PlanError, match=said):
        plan(*WHOLE, ranks=ranks).verify(GRAPH, CLUSTER, placement)


def test_a_link_without_bandwidth_is_refused_where_ranks_use_it():
    hosts, (rack, *rest) = CLUSTER.hosts, CLUSTER.levels
    dead = replace(hosts, nic_bytes_per_s=np.array([1e9, 1e9, 0.0, 1e9]))
    with pytest.raises(PlanError, match=r"link of host 'n2', which carries 0 bytes/s"):
        plan(*WHOLE).verify(GRAPH, replace(CLUSTER, hosts=dead), (0, 0, 1, 1))
    plan(*WHOLE).verify(GRAPH, replace(CLUSTER, hosts=dead), (0, 0, 2))
    cut = replace(CLUSTER, levels=(replace(rack, uplink_bytes_per_s=np.array([1e9, 0.0])), *rest))
    with pytest.raises(PlanError, match=rf"link of rack {rack.domains[1]!r}, which carries 0 bytes/s"):
        plan(*WHOLE).verify(GRAPH, cut, (1, 0, 1))
    plan(*WHOLE).verify(GRAPH, cut, (0, 0, 1, 1))


@pytest.mark.parametrize(
    ("transfers", "said"),
    [
        (WHOLE[1:], r"'layer\.0\.weight' has 1000 elements, of which 0"),
        ((*WHOLE, one((2, 0, 10))), r"'layer\.2\.weight': elements from 0 are reduced twice"),
        ((one((0, 0, 1000)), one((1, 0, 50_000)), WHOLE[2]), "elements from 50000 are reduced not at all"),
        ((one((0, 0, 1001)), *WHOLE[1:]), r"has 1000 elements, of which 1001"),
        ((one((0, 5, 5)), *WHOLE), "a piece from 5 to 5"),
        ((one((7, 0, 1)), *WHOLE), r"'layer\.7\.weight' is no parameter"),
        ((one(), *WHOLE), "holds nothing"),
        ((*WHOLE[:2], msgspec.structs.replace(WHOLE[2], algorithm="magic")), "no algorithm 'magic'"),
    ],
)
def test_what_would_train_wrongly_is_refused(transfers, said):
    with pytest.raises(PlanError, match=said):
        plan(*transfers).verify(GRAPH)


def test_orders_respect_what_operations_wait_for():
    count = len(GRAPH.operations)
    plan(*WHOLE, operation_order=tuple(range(count))).verify(GRAPH)
    with pytest.raises(PlanError, match="comes before operation 0"):
        plan(*WHOLE, operation_order=(1, 0, *range(2, count))).verify(GRAPH)
    with pytest.raises(PlanError, match="each of the 7 operations once"):
        plan(*WHOLE, operation_order=(0, 0, *range(2, count))).verify(GRAPH)


def test_types_are_not_mixed():
    changed = [
        msgspec.structs.replace(p, dtype="bfloat16") if p.name == "layer.2.weight" else p
        for p in GRAPH.parameters
    ]

    with pytest.raises(PlanError, match="mixes bfloat16 and float32"):
        plan(*WHOLE).verify(replace(GRAPH, parameters=tuple(changed)))


sizes = st.lists(st.integers(1, 5000).map(lambda n: 4 * n), min_size=1, max_size=6)


@settings(deadline=None, max_examples=60)
@given(sizes, st.integers(1, 30_000), st.integers(4, 30_000))
def test_every_pass_keeps_a_plan_right(given_sizes, limit, piece):
    graph, _ = layers(given_sizes, [0.01] * len(given_sizes), [0.02] * len(given_sizes))
    it = problem(graph)
    others = (planned(it, planner) for planner in (FifoOrder(), P3(700), ByteScheduler(900)))
    for start in (it.apart(), it.usual(), *others):
        together = batched(it, start, limit)
        apart = split(it, together, piece)
        for found in (start, together, apart, extended(it, apart), with_primitives(it, apart)):
            found.verify(graph)
            assert sorted(t.priority for t in found.transfers) == list(range(len(found.transfers)))
        largest = max(max(given_sizes), limit)
        known = {p.name: p for p in graph.parameters}
        for transfer in together.transfers if start.name == "first use" else ():
            assert sum(known[p.parameter].size_bytes for p in transfer.pieces) <= largest


def test_slices_have_p3s_size():
    found = planned(problem(), P3())
    pieces = [t.pieces[0] for t in found.transfers if t.pieces[0].parameter == "layer.1.weight"]
    assert [(p.start, p.stop) for p in pieces] == [(0, 50_000), (50_000, 100_000)]


def test_a_widened_order_is_one_that_can_be_executed():
    order = widened(GRAPH, SECONDS)
    plan(*WHOLE, operation_order=order).verify(GRAPH)


def test_files_come_back_equal_and_say_what_is_wrong(tmp_path):
    path = tmp_path / "plan.json"
    made = plan(*WHOLE, changes=("why",))
    write_plan(made, path)
    assert read_plan(path) == made
    path.write_text(path.read_text().replace('"chunk_bytes": 1024', '"chunk_bytes": "large"'))
    with pytest.raises(InputError, match="chunk_bytes"):
        read_plan(path)
    path.write_text('{"schema": "hemiola.graph/1"}')
    with pytest.raises(InputError, match=r"hemiola\.graph/1"):
        read_plan(path)


def test_elements_of_the_tiny_graph():
    assert [math.prod(p.shape) for p in GRAPH.parameters] == [1000, 100_000, 10]
