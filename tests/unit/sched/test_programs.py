"""Programs: known answers, brute force, and what happens when the budget is used up."""

import itertools
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemiola.core.errors import PolicyError
from hemiola.sched.optimise.programs import Budget, Program, Solution, Sparse, solve

pytest.importorskip("highspy")


def knapsack(values: list[int], weights: list[int], room: float, integer: bool = True) -> Program:
    return Program(
        values, Sparse.of_dense([weights]), row_upper=room, upper=1, integer=integer, maximise=True
    )


def hard(items: int = 40, rows: int = 20) -> Program:
    """A knapsack of many dimensions that takes dozens of nodes."""
    chance = np.random.default_rng(0)
    weights = chance.integers(5, 100, (rows, items)).astype(float)
    return Program(
        chance.integers(10, 100, items).astype(float), Sparse.of_dense(weights),
        row_upper=weights.sum(axis=1) / 2, upper=1, integer=True, maximise=True,
    )  # fmt: skip


def test_a_linear_program_with_its_prices() -> None:
    """Max 3x + 2y with x + y <= 4 and 2x + y <= 5: the corner (1, 3), worth 9; both rows are worth 1."""
    best = solve(Program([3, 2], Sparse.of_dense([[1, 1], [2, 1]]), row_upper=[4, 5], maximise=True))
    assert best.incumbent is not None
    assert best.incumbent.tolist() == pytest.approx([1, 3])
    assert (best.objective, best.bound, best.gap) == (pytest.approx(9), pytest.approx(9), 0)
    assert best.prices is not None
    assert best.prices.tolist() == pytest.approx([1, 1])
    assert not best.exhausted
    assert not best.word


def test_a_knapsack_is_whole_only_where_it_has_to_be() -> None:
    program = knapsack([60, 100, 120], [10, 20, 30], 50)
    assert solve(program).objective == pytest.approx(220)
    assert solve(program.relaxed()).objective == pytest.approx(240)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=7), st.integers(1, 90)
)
def test_a_knapsack_is_what_enumeration_finds(items: list[tuple[int, int]], room: int) -> None:
    values, weights = [v for v, _ in items], [w for _, w in items]
    best = max(
        np.dot(values, taken)
        for taken in itertools.product((0, 1), repeat=len(items))
        if np.dot(weights, taken) <= room
    )
    found = solve(knapsack(values, weights, room), Budget(gap=0))
    assert found.objective == pytest.approx(best)
    assert found.bound >= best - 1e-6


def test_a_program_without_an_answer_says_so() -> None:
    none = solve(Program([1.0], Sparse.of_dense([[1], [1]]), row_lower=[2, -np.inf], row_upper=[np.inf, 1]))
    assert none.infeasible
    with pytest.raises(PolicyError, match="the split has no answer at all"):
        none.found("the split")


def test_an_unbounded_program_is_an_error() -> None:
    with pytest.raises(PolicyError, match="unbounded"):
        solve(Program([-1.0], Sparse.of_dense([[-1]]), row_upper=0))


def test_a_budget_that_is_used_up_leaves_the_incumbent() -> None:
    found = solve(hard(), Budget(nodes=1))
    assert found.exhausted
    assert found.incumbent is not None
    best = solve(hard(), Budget(gap=0))
    assert not best.exhausted
    assert found.objective <= best.objective <= found.bound
    assert 0 < found.gap < 0.2
    assert found.word.startswith("budget used up, at most ")


def test_a_given_beginning_is_never_lost() -> None:
    best = solve(hard(), Budget(gap=0))
    again = solve(hard(), Budget(nodes=0), begin=best.incumbent)
    assert again.objective == pytest.approx(best.objective)


def test_a_linear_program_out_of_iterations_has_a_bound_and_no_wrong_answer() -> None:
    whole, cut = solve(hard().relaxed()), solve(hard().relaxed(), Budget(iterations=5))
    assert cut.exhausted
    assert cut.incumbent is None or cut.objective <= whole.objective + 1e-6
    assert cut.bound >= whole.objective - 1e-6


def test_the_same_program_has_the_same_answer() -> None:
    one, other = solve(hard(), Budget(nodes=5)), solve(hard(), Budget(nodes=5))
    assert one.incumbent is not None and other.incumbent is not None
    assert one.incumbent.tobytes() == other.incumbent.tobytes()


def test_entries_in_any_order_make_the_same_matrix() -> None:
    dense = Sparse.of_dense([[0, 2, 1], [0, 0, 0], [3, 0, 0]])
    entries = Sparse.of_entries([2, 0, 0], [0, 1, 2], [3, 2, 1], 3)
    rows = Sparse.of_rows([((1, 2), (2, 1)), ((), ()), ((0,), (3,))])
    for other in (entries, rows):
        assert other.starts.tolist() == dense.starts.tolist() == [0, 2, 2, 3]
        assert other.columns.tolist() == dense.columns.tolist()
        assert other.values.tolist() == dense.values.tolist()


def test_a_bad_budget_is_refused() -> None:
    with pytest.raises(PolicyError, match="nodes cannot be -1"):
        Budget(nodes=-1)


def test_without_highspy_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(PolicyError, match=r"hemiola\[solve\]"):
        solve(Program([1.0], Sparse.of_dense([[1]]), row_upper=1))


def test_no_incumbent_within_the_budget_is_an_error_with_a_remedy() -> None:
    with pytest.raises(PolicyError, match="raise the policy's budget"):
        Solution(None, np.nan, 5.0, np.inf, exhausted=True).found("the allocation")
