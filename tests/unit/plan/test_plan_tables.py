"""Plans that send parts of tables: proved, sized and predicted by hand."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tiny_graphs import device, flat, layers

from hemiola.core.errors import GraphError, PlanError
from hemiola.core.plan import Piece, Plan, PlannedTransfer
from hemiola.cost.parallelism import DDP
from hemiola.plan.advice import make_plan
from hemiola.plan.caramel import batched, split
from hemiola.plan.problem import PlanProblem

RATE = 1e6
FRAMED = 1514 / 1448
"""Bytes on the wire per byte that is sent."""
ROWS, WIDTH = 1000, 100
TABLE_BYTES = 4 * ROWS * WIDTH


def tied(touched=0.05, head_ready=3):
    """A table, a layer and the table again as output layer: 0.1 s each forward, 0.2 s backward; 3 is the output's backward."""
    graph, seconds = layers([TABLE_BYTES, 100_000, 40], [0.1] * 3, [0.2] * 3)
    first, *others = graph.parameters
    table = msgspec.structs.replace(first, shape=(ROWS, WIDTH), touched=touched, head_ready=head_ready)
    return replace(graph, parameters=(table, *others)).check(), seconds


def problem(graph, seconds):
    return PlanProblem(graph, device("cpu"), flat(2, rate=RATE), 2, seconds=seconds)


def piece(part, start=0, stop=ROWS * WIDTH, name="layer.0.weight"):
    return PlannedTransfer(name=part, pieces=(Piece(name, start, stop),), part=part)


OTHERS = tuple(
    PlannedTransfer(name=str(i), pieces=(Piece(f"layer.{i}.weight", 0, count),))
    for i, count in ((1, 25_000), (2, 10))
)


def plan(*transfers):
    return Plan(
        name="by hand", graph="layers", ranks=2, update="on-arrival", chunk_bytes=1024, transfers=(*transfers, *OTHERS)
    )  # fmt: skip


@pytest.mark.parametrize("parts", [("all",), ("rows",), ("head", "rows")])
def test_a_table_may_go_in_parts(parts):
    graph, _ = tied()
    plan(*map(piece, parts)).verify(graph)


@pytest.mark.parametrize(
    ("transfers", "said"),
    [
        ((piece("head"),), "has 100000 elements, of which 0 are reduced"),
        (
            (piece("head"), piece("all")),
            "output layer's part is reduced without a transfer for its other rows",
        ),
        ((piece("head"), piece("head"), piece("rows")), "output layer's part is reduced twice"),
        ((piece("rows"), piece("all")), "elements from 0 are reduced twice"),
        ((piece("rows", 0, 500),), "is of the elements 0 to 500 of 100000"),
        ((piece("all"), piece("rows", 0, 25_000, "layer.1.weight")), "a parameter of 1 dimensions"),
        ((piece("half"),), "there is no part 'half'"),
    ],
)
def test_parts_that_leave_something_out_are_refused(transfers, said):
    graph, _ = tied()
    with pytest.raises(PlanError, match=said):
        plan(*transfers).verify(graph)


def test_what_the_graph_knows_no_output_layer_of_cannot_be_predicted():
    graph, seconds = tied(head_ready=-1)
    with pytest.raises(PlanError, match=r"'layer\.0\.weight' is not the output layer's weight"):
        problem(graph, seconds).predict(plan(piece("head"), piece("rows")))


def test_a_share_of_rows_is_a_share():
    with pytest.raises(GraphError, match=r"1\.5 of its rows are touched"):
        tied(touched=1.5)


def test_sizes_are_of_what_goes():
    graph, _ = tied()
    known = {p.name: p for p in graph.parameters}
    bits = ROWS / 8
    assert piece("all").size_bytes(known) == TABLE_BYTES
    assert piece("rows").size_bytes(known) == pytest.approx(0.05 * TABLE_BYTES + bits)
    assert piece("head").size_bytes(known) == pytest.approx(0.95 * TABLE_BYTES + bits)
    assert piece("head").ready(known) == 3 and piece("rows").ready(known) == 5


def test_the_planner_hides_a_tied_table_behind_backward():
    """All of it ready at 0.9 s takes 0.4 s more; what nobody has looked up is ready at 0.5 s and there at 0.9 s."""
    graph, seconds = tied()
    own = problem(graph, seconds)
    late = own.predict(own.apart())
    assert late.iteration_s == pytest.approx(0.9 + FRAMED * 0.4, rel=0.001)
    advice = make_plan(own)
    assert {t.part for t in advice.plan.transfers} == {"head", "rows", "all"}
    rows_s = FRAMED * (0.05 * TABLE_BYTES + ROWS / 8) / RATE
    assert advice.after.iteration_s == pytest.approx(0.9 + rows_s, rel=0.005)
    assert advice.bound_s <= advice.after.iteration_s


def test_the_planner_leaves_out_rows_that_nobody_has_touched():
    graph, seconds = tied(head_ready=-1)
    advice = make_plan(problem(graph, seconds))
    assert {t.part for t in advice.plan.transfers} == {"rows", "all"}
    rows_s = FRAMED * (0.05 * TABLE_BYTES + ROWS / 8) / RATE
    assert advice.after.iteration_s == pytest.approx(0.9 + rows_s, rel=0.001)


@pytest.mark.parametrize(("touched", "head_ready"), [(0.95, -1), (0.6, 3), (1.0, 3)])
def test_where_most_rows_are_touched_all_go(touched, head_ready):
    graph, seconds = tied(touched, head_ready)
    assert {t.part for t in make_plan(problem(graph, seconds)).plan.transfers} == {"all"}


def test_other_plans_and_ddp_are_what_they_were():
    (graph, seconds), (dense, _) = tied(), tied(1.0, -1)
    own, other = problem(graph, seconds), problem(dense, seconds)
    for one, another in ((own.apart(), other.apart()), (own.usual(), other.usual())):
        assert one == another
        assert own.predict(one).iteration_s == other.predict(another).iteration_s
    assert own.predict_parallelism(DDP()).iteration_s == other.predict_parallelism(DDP()).iteration_s


def test_parts_are_neither_joined_nor_cut():
    graph, seconds = tied()
    own = problem(graph, seconds)
    parts = own.apart(by_rows=True)
    joined = batched(own, parts, 1e9).transfers
    assert [t.part for t in joined] == ["head", "rows", "all"]
    assert len(joined[2].pieces) == 2
    assert split(own, parts, 1000.0).transfers[:2] == parts.transfers[:2]
