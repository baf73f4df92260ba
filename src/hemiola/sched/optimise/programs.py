"""Linear and mixed-integer programs, solved by HiGHS (the extra `solve`) within a budget that is the same everywhere.

The budget counts iterations and nodes, never seconds, so that a journal that is replayed decides alike. Where it is
used up, the best answer so far is there, and `Solution.exhausted` says so. HiGHS is imported with the first program
(about 0.2 s). Must not know: jobs, views, policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hemiola.core.errors import InternalError, PolicyError

__all__ = [
    "Budget",
    "BudgetUsedUpError",
    "Program",
    "Solution",
    "Sparse",
    "good_enough",
    "need_solver",
    "solve",
]

Floats = NDArray[np.float64]


class BudgetUsedUpError(PolicyError):
    """A solver found no answer at all within its budget."""


@dataclass(frozen=True)
class Budget:
    """How long a solver may go on, in what it does and not in seconds.

    Attributes:
        nodes: of branch and bound, of a mixed-integer program. With 0 the root is worked on, and nothing below it.
        iterations: of the simplex method, of a linear program.
        gap: a mixed-integer program is solved once the incumbent is this close to the bound, as a share of it.
    """

    nodes: int = 2_000
    iterations: int = 200_000
    gap: float = 1e-4

    def __post_init__(self) -> None:
        for name, least in (("nodes", 0), ("iterations", 1), ("gap", 0.0)):
            if not getattr(self, name) >= least:
                raise PolicyError(
                    f"a solver's {name} cannot be {getattr(self, name)}", f"give {least} or more"
                )


@dataclass(frozen=True, eq=False)
class Sparse:
    """A matrix by rows: row i has `values[k]` in column `columns[k]` for k from `starts[i]` up to `starts[i + 1]`."""

    starts: NDArray[np.int32]
    columns: NDArray[np.int32]
    values: Floats

    @property
    def rows(self) -> int:
        """How many rows."""
        return len(self.starts) - 1

    @classmethod
    def of_dense(cls, matrix: ArrayLike) -> Sparse:
        """From all its entries, rows x columns."""
        entries = np.atleast_2d(np.asarray(matrix, dtype=float))
        rows, columns = np.nonzero(entries)
        return cls.of_entries(rows, columns, entries[rows, columns], len(entries))

    @classmethod
    def of_entries(cls, rows: ArrayLike, columns: ArrayLike, values: ArrayLike, height: int) -> Sparse:
        """From the row, column and value of each entry that is not 0, in any order, each place once."""
        row = np.asarray(rows, dtype=np.int64)
        column, value = np.broadcast_arrays(
            np.asarray(columns, dtype=np.int32), np.asarray(values, dtype=float)
        )
        order = np.argsort(row, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=height))])
        return cls(starts.astype(np.int32), column[order].copy(), value[order].copy())

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[Sequence[int], Sequence[float]]]) -> Sparse:
        """From the columns and the values of each row."""
        lengths = [len(columns) for columns, _ in rows]
        return cls(
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            np.array([column for columns, _ in rows for column in columns], dtype=np.int32),
            np.array([value for _, values in rows for value in values], dtype=float),
        )


@dataclass(frozen=True, eq=False)
class Program:
    """Minimise (or maximise) cost·x, where row_lower <= matrix·x <= row_upper and lower <= x <= upper.

    Attributes:
        cost: one for each variable.
        matrix: rows x variables.
        row_lower, row_upper: one for each row, or one for all.
        lower, upper: one for each variable, or one for all.
        integer: whether each variable (or all) has to be a whole number.
        maximise: the largest, and not the smallest, is wanted.

    Example:
        >>> Program([3.0, 2.0], Sparse.of_dense([[1, 1], [2, 1]]), row_upper=[4, 5], maximise=True).variables
        2
    """

    cost: ArrayLike
    matrix: Sparse
    row_lower: ArrayLike = -np.inf
    row_upper: ArrayLike = np.inf
    lower: ArrayLike = 0.0
    upper: ArrayLike = np.inf
    integer: ArrayLike = False
    maximise: bool = False

    @property
    def variables(self) -> int:
        """How many there are."""
        return len(np.atleast_1d(self.cost))

    @property
    def is_linear(self) -> bool:
        """Whether no variable has to be whole."""
        return not np.any(self.integer)

    def relaxed(self) -> Program:
        """The same, but that no variable has to be whole."""
        return Program(
            self.cost, self.matrix, self.row_lower, self.row_upper, self.lower, self.upper, False, self.maximise
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Solution:
    """What a solver found.

    Attributes:
        incumbent: the best x so far; None if there is none, or none was found in time (`exhausted` says which).
        objective: what it is worth; nan without one.
        bound: no x is better than this.
        gap: how far the objective may be from the best there is, as a share of the objective; inf without one.
        exhausted: whether the budget was used up before the incumbent was proved to be the best.
        prices: of a linear program, how much the objective grows with each row's binding side; else None.
    """

    incumbent: Floats | None
    objective: float
    bound: float
    gap: float
    exhausted: bool
    prices: Floats | None = field(default=None)

    @property
    def infeasible(self) -> bool:
        """Whether it was proved that there is no x."""
        return self.incumbent is None and not self.exhausted

    @property
    def word(self) -> str:
        """For a decision's reason: "" where nothing was left to find, else how far from the best it may be."""
        return f"budget used up, at most {self.gap:.1%} from the best" if self.exhausted else ""

    def found(self, what: str) -> Floats:
        """The incumbent.

        Raises:
            BudgetUsedUpError: if none was found in time; `what` says of what.
            PolicyError: if there is none at all.
        """
        if self.incumbent is not None:
            return self.incumbent
        if self.exhausted:
            raise BudgetUsedUpError(f"{what} has no answer within its budget", "raise the policy's budget")
        raise PolicyError(f"{what} has no answer at all", "look for a job that cannot be placed anywhere")

    def proved(self, what: str) -> Floats:
        """The best x, and no other.

        Raises:
            BudgetUsedUpError: if the budget did not suffice to prove it; `what` says of what.
        """
        if self.exhausted:
            raise BudgetUsedUpError(f"{what} is not solved within its budget", "raise the policy's budget")
        return self.found(what)


def need_solver() -> Any:
    """HiGHS.

    Raises:
        PolicyError: if it is not installed.
    """
    try:
        import highspy
    except ImportError as error:
        raise PolicyError(
            f"this policy solves a program, which needs highspy: {error}", "pip install 'hemiola[solve]'"
        ) from error
    return highspy


def good_enough(objective: float, bound: float, budget: Budget) -> bool:
    """Whether an answer is as close to a bound as a mixed-integer program is solved."""
    return _gap(objective, bound) <= budget.gap


def solve(program: Program, budget: Budget | None = None, begin: ArrayLike | None = None) -> Solution:
    """The best x that the budget allows; the same on every machine with the same version of HiGHS.

    Args:
        program: what is wanted.
        budget: when to stop.
        begin: an x that fits, from which branch and bound goes on: no answer is worse.

    Raises:
        PolicyError: if HiGHS is missing, or the program has no best because it is unbounded.
        InternalError: if the solver fails.
    """
    highspy = need_solver()
    solver = _prepared(highspy, program, budget or Budget())
    if begin is not None and not program.is_linear:
        _begun(highspy, solver, np.asarray(begin, dtype=float))
    solver.run()
    return _solution(highspy, solver, program)


def _prepared(highspy: Any, program: Program, budget: Budget) -> Any:
    solver = highspy.Highs()
    options = {
        "output_flag": False,
        "threads": 1,
        "parallel": "off",
        "random_seed": 0,
        "simplex_iteration_limit": budget.iterations,
        "mip_max_nodes": budget.nodes,
        "mip_rel_gap": budget.gap,
    }
    for name, value in options.items():
        if solver.setOptionValue(name, value) == highspy.HighsStatus.kError:
            raise InternalError(f"HiGHS refuses {name} = {value}", f"pip install 'highspy==1.14.*' (this is {solver.version()})")  # fmt: skip
    if solver.passModel(_model(highspy, program)) == highspy.HighsStatus.kError:
        raise InternalError("HiGHS refuses the program", "please report it with the policy and the workload")
    return solver


def _model(highspy: Any, program: Program) -> Any:
    model, columns, rows = highspy.HighsLp(), program.variables, program.matrix.rows
    model.num_col_, model.num_row_ = columns, rows
    model.sense_ = highspy.ObjSense.kMaximize if program.maximise else highspy.ObjSense.kMinimize
    model.col_cost_ = _each(program.cost, columns)
    model.col_lower_, model.col_upper_ = _each(program.lower, columns), _each(program.upper, columns)
    model.row_lower_, model.row_upper_ = _each(program.row_lower, rows), _each(program.row_upper, rows)
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = program.matrix.starts
    model.a_matrix_.index_ = program.matrix.columns
    model.a_matrix_.value_ = program.matrix.values
    if not program.is_linear:
        kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
        model.integrality_ = [kinds[whole] for whole in np.broadcast_to(program.integer, columns).tolist()]
    return model


def _each(values: ArrayLike, count: int) -> Floats:
    return np.ascontiguousarray(np.broadcast_to(np.asarray(values, dtype=float), count))


def _begun(highspy: Any, solver: Any, begin: Floats) -> None:
    solution = highspy.HighsSolution()
    solution.col_value = begin.tolist()
    solver.setSolution(solution)


def _solution(highspy: Any, solver: Any, program: Program) -> Solution:
    status, states = solver.getModelStatus(), highspy.HighsModelStatus
    if status == states.kInfeasible:
        return Solution(None, np.nan, np.inf, np.inf, exhausted=False)
    if status in (states.kUnbounded, states.kUnboundedOrInfeasible):
        return _unbounded_or_none(solver, highspy, program, status)
    exhausted = status in (states.kIterationLimit, states.kSolutionLimit)
    if not exhausted and status not in (states.kOptimal, states.kModelEmpty):
        raise InternalError(
            f"HiGHS ended with {solver.modelStatusToString(status)!r}", "please report it with the workload"
        )
    return _answer(solver, program, exhausted)


def _unbounded_or_none(solver: Any, highspy: Any, program: Program, status: Any) -> Solution:
    """Presolve does not tell the two apart: without costs, only what is infeasible has no answer."""
    if status == highspy.HighsModelStatus.kUnboundedOrInfeasible:
        free = Program(np.zeros(program.variables), program.matrix, program.row_lower, program.row_upper,
                       program.lower, program.upper, program.integer)  # fmt: skip
        if solve(free).infeasible:
            return Solution(None, np.nan, np.inf, np.inf, exhausted=False)
    raise PolicyError(
        "a program of this policy is unbounded: it can be made as good as one likes",
        "look for a job with infinite speed, or without any need of GPUs",
    )


_FEASIBLE = 2
"""HiGHS' SolutionStatus of a point that keeps all rows."""


def _answer(solver: Any, program: Program, exhausted: bool) -> Solution:
    info = solver.getInfo()
    has_one = info.primal_solution_status == _FEASIBLE
    x = np.array(solver.getSolution().col_value) if has_one else None
    objective = float(np.dot(_each(program.cost, program.variables), x)) if x is not None else np.nan
    bound = _bound(solver, info, program, exhausted, objective)
    return Solution(x, objective, bound, _gap(objective, bound), exhausted, _prices(solver, program, info))


def _bound(solver: Any, info: Any, program: Program, exhausted: bool, objective: float) -> float:
    if not program.is_linear:
        return float(info.mip_dual_bound)
    if not exhausted:
        return objective
    if info.dual_solution_status == _FEASIBLE:
        return float(info.objective_function_value)  # of a basis, which is the same for both programs
    return np.inf if program.maximise else -np.inf


def _gap(objective: float, bound: float) -> float:
    if not np.isfinite(objective) or not np.isfinite(bound):
        return np.inf
    return abs(objective - bound) / max(abs(objective), 1e-9)


def _prices(solver: Any, program: Program, info: Any) -> Floats | None:
    if not program.is_linear or info.dual_solution_status != _FEASIBLE:
        return None
    return np.array(solver.getSolution().row_dual)
