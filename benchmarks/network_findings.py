"""What the points of the study say: paired differences, best and worst cells, regret. Writes no text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from network_points import FRESH, Cell, Row

from hemiola.report.metrics import ConfidenceInterval, interval

METRICS = {"makespan": "makespan_s", "mean JCT": "jct_mean_s", "exposed communication": "exposed_gpu_s"}
NOTICEABLE = 0.01
"""A difference below this counts as none, however sure."""


class Points:
    """Rows by cell, policy and seed."""

    def __init__(self, rows: Iterable[Row]) -> None:
        names = [field.name for field in fields(Cell)]
        self._rows: dict[tuple[Cell, str], dict[int, Row]] = {}
        for row in rows:
            cell = Cell(**{name: row[name] for name in names})
            self._rows.setdefault((cell, row["policy"]), {})[row["seed"]] = row

    def __contains__(self, of: tuple[Cell, str]) -> bool:
        return of in self._rows

    def cells(self, policy: str) -> list[Cell]:
        """Every cell in which this policy was run."""
        return [cell for cell, name in self._rows if name == policy]

    def seeds(self, cell: Cell, policy: str, fresh: bool = False) -> dict[int, Row]:
        """Rows by seed: those of the search, or the fresh ones."""
        return {seed: row for seed, row in self._rows[cell, policy].items() if (seed >= FRESH) == fresh}

    def mean(self, cell: Cell, policy: str, metric: str) -> ConfidenceInterval:
        """A figure over the seeds."""
        return interval([row[metric] for row in self.seeds(cell, policy).values()])

    def difference(
        self, cell: Cell, policy: str, baseline: str, metric: str, fresh: bool = False
    ) -> ConfidenceInterval:
        """Mean relative difference to the baseline over paired seeds: -0.2 for a fifth less."""
        base = self.seeds(cell, baseline, fresh)
        return interval(
            [
                row[metric] / base[seed][metric] - 1.0 if base[seed][metric] else 0.0
                for seed, row in self.seeds(cell, policy, fresh).items()
                if seed in base
            ]
        )


def verdict(found: ConfidenceInterval) -> str:
    """better, worse or neither: the whole interval on one side and the mean beyond a percent."""
    if found.high is not None and found.high < 0 and found.mean <= -NOTICEABLE:
        return "better"
    if found.low is not None and found.low > 0 and found.mean >= NOTICEABLE:
        return "worse"
    return "neither"


@dataclass(frozen=True)
class Best:
    """Where a policy gains most on a baseline in one figure."""

    metric: str
    baseline: str
    cell: Cell
    found: ConfidenceInterval


def best(points: Points, policy: str, baseline: str, metric: str, cells: Sequence[Cell]) -> Best:
    """The cell with the largest mean reduction."""
    return min(
        (Best(metric, baseline, cell, points.difference(cell, policy, baseline, metric)) for cell in cells),
        key=lambda one: one.found.mean,
    )


def counts(points: Points, policy: str, baseline: str, metric: str, cells: Sequence[Cell]) -> dict[str, int]:
    """In how many cells the policy is better, worse, or neither."""
    all_of = [verdict(points.difference(cell, policy, baseline, metric)) for cell in cells]
    return {name: all_of.count(name) for name in ("better", "neither", "worse")}


def regret(
    points: Points, cell: Cell, timers: Mapping[str, str], metric: str
) -> dict[str, ConfidenceInterval]:
    """Each timer's figure over that of the timer that is best on average in this cell, minus one."""
    winner = min(timers.values(), key=lambda policy: points.mean(cell, policy, metric).mean)
    return {name: points.difference(cell, policy, winner, metric) for name, policy in timers.items()}


def above_floor(points: Points, cell: Cell, policy: str) -> ConfidenceInterval:
    """Exposed communication beyond what the jobs would expose alone on their best places, over that floor."""
    return interval(
        [row["exposed_gpu_s"] / row["floor_gpu_s"] - 1.0 for row in points.seeds(cell, policy).values()]
    )
