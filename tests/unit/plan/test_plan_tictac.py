"""TIC and TAC: the paper's rules by hand, Johnson's optimum by brute force, the toy graphs of the authors' code."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemiola.core.errors import GraphError
from hemiola.plan.tictac import ReceiveGraph, efficiency, tac, tic, tic_ranks


def chain(transfer_s, compute_s):
    """Operation i reads transfer i and waits for operation i - 1."""
    count = len(compute_s)
    return ReceiveGraph(
        names=tuple(f"r{i}" for i in range(count)),
        transfer_s=tuple(transfer_s),
        compute_s=tuple(compute_s),
        reads=tuple((i,) for i in range(count)),
        after=tuple((i - 1,) if i else () for i in range(count)),
    )


def apart(transfer_s, compute_s):
    """Operation i reads transfer i and waits for nothing else."""
    count = len(compute_s)
    return ReceiveGraph(
        names=tuple(f"r{i}" for i in range(count)), transfer_s=tuple(transfer_s), compute_s=tuple(compute_s),
        reads=tuple((i,) for i in range(count)), after=((),) * count,
    )  # fmt: skip


def best_s(graph):
    return min(graph.execute(order).makespan_s for order in permutations(range(len(graph.names))))


def test_a_chain_is_sent_in_its_own_order():
    graph = chain([2.0] * 32, [2.0] * 32)  # seq-32 of the authors' code
    assert tic(graph) == tac(graph) == tuple(range(32))
    found = efficiency(graph, tac(graph))
    assert found.makespan_s == pytest.approx(33 * 2.0)  # all but the first transfer hidden
    assert efficiency(graph, tuple(range(32))[::-1]).efficiency == pytest.approx(0.0)  # nothing can be hidden
    assert found.speedup == pytest.approx(1.0)  # transfers take as long as computing: at best twice as fast


def test_of_transfers_that_are_alike_any_order_is_best():
    graph = apart([2.0] * 32, [2.0] * 32)  # par-32
    assert efficiency(graph, tac(graph)).makespan_s == pytest.approx(66.0)
    assert set(tic_ranks(graph)) == {0}


def test_tic_by_hand():
    """op0 reads r0; op1 reads r1; op2 reads r2 and waits for op0; op3 waits for op1 and op2."""
    graph = ReceiveGraph(
        names=("r0", "r1", "r2"), transfer_s=(1.0, 1.0, 1.0), compute_s=(1.0,) * 4,
        reads=((0,), (1,), (2,), ()), after=((), (), (0,), (1, 2)),
    )  # fmt: skip
    # op2 waits for two transfers {r0, r2}, op3 for three: M+ is 2, 3, 2
    assert tic_ranks(graph) == (0, 2, 0)
    assert tic(graph) == (0, 2, 1)


def test_tac_is_johnsons_rule_where_each_operation_waits_for_one_transfer():
    """S. M. Johnson's example (1954): jobs (a, b) = (3, 6), (5, 2), (1, 2), (6, 6), (7, 5); the least is 24."""
    graph = apart([3, 5, 1, 6, 7], [6, 2, 2, 6, 5])
    assert graph.execute(tac(graph)).makespan_s == 24 == best_s(graph)
    assert tac(graph)[0] == 2


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6))
def test_tac_is_best_for_independent_operations(jobs):
    graph = apart([float(a) for a, _ in jobs], [float(b) for _, b in jobs])
    assert graph.execute(tac(graph)).makespan_s == pytest.approx(best_s(graph))


def test_tac_is_best_of_eight():
    graph = apart([4, 1, 7, 3, 9, 2, 6, 5], [5, 5, 1, 8, 4, 2, 3, 7])
    assert graph.execute(tac(graph)).makespan_s == best_s(graph)


@st.composite
def graphs(draw):
    transfers = draw(st.integers(1, 5))
    operations = draw(st.integers(1, 7))
    reads = tuple(
        tuple(sorted(draw(st.sets(st.integers(0, transfers - 1), max_size=2)))) for _ in range(operations)
    )
    after = tuple(
        tuple(sorted(draw(st.sets(st.integers(0, i - 1), max_size=2)))) if i else ()
        for i in range(operations)
    )
    return ReceiveGraph(
        names=tuple(f"r{i}" for i in range(transfers)),
        transfer_s=tuple(float(draw(st.integers(1, 9))) for _ in range(transfers)),
        compute_s=tuple(float(draw(st.integers(0, 9))) for _ in range(operations)),
        reads=reads,
        after=after,
    )


@settings(deadline=None, max_examples=80)
@given(graphs())
def test_orders_name_each_transfer_once_and_stay_within_the_bounds(graph):
    for order in (tic(graph), tac(graph)):
        assert sorted(order) == list(range(len(graph.names)))
        found = efficiency(graph, order)
        assert found.least_s - 1e-9 <= best_s(graph) <= found.makespan_s + 1e-9
        assert found.makespan_s <= found.most_s + 1e-9


def test_an_order_that_leaves_something_out_is_refused():
    with pytest.raises(GraphError, match="order of 1 for 2"):
        chain([1, 1], [1, 1]).execute((0,))
