"""What hosts in other hands amounted to, and what training got done meanwhile, from instant to instant of a simulation."""

from __future__ import annotations

from collections.abc import Mapping

from hemiola.core.decisions import Lend, Reclaim
from hemiola.core.result import ServiceRecord, ServingFigures
from hemiola.sched.board import ceiling
from hemiola.sched.view import ClusterView
from hemiola.simulator.task import Task

__all__ = ["LoanLedger"]


class LoanLedger:
    """Integrates loans over time.

    Args:
        view: with the loans.
        tasks: every job that arrived, by id.
    """

    def __init__(self, view: ClusterView, tasks: Mapping[str, Task]) -> None:
        self._view, self._tasks = view, tasks
        self._gpus = view.inventory.all_masks
        self.loaned_gpu_s, self.loans = 0.0, 0
        self._rows: list[tuple[float, dict[str, int]]] = []
        self._work_gpu_s, self._worked_until_s = 0.0, 0.0

    def note(self, decision: Lend | Reclaim) -> None:
        """A host changes hands."""
        if isinstance(decision, Lend):
            self.loans += len(decision.hosts)

    def pass_time(self, now: float, seconds: float) -> None:
        """Account for so many seconds from now on, in the present state."""
        loans = self._view.loans
        if not loans and (not self._rows or not self._rows[-1][1]):
            return
        lent: dict[str, int] = {}
        for host, loan in loans.items():
            gpus = self._gpus[host].bit_count()
            lent[loan.borrower] = lent.get(loan.borrower, 0) + gpus
            self.loaned_gpu_s += gpus * seconds
        if not self._rows or self._rows[-1][1] != lent:
            self._rows.append((now, lent))

    def note_work(self, now: float) -> None:
        """All jobs have arrived: what is done of them by now is training's goodput."""
        self._worked_until_s = now
        self._work_gpu_s = sum(
            task.job.gpus * (task.job.duration_s - _left(task, now)) for task in self._tasks.values()
        )

    def figures(self, services: tuple[ServiceRecord, ...], origin_s: float, end_s: float) -> ServingFigures:
        """All of it, at the end."""
        worked_s, span_s = self._worked_until_s - origin_s, end_s - origin_s
        kept = sum(one.answered + one.refused - one.missed for one in services)
        return ServingFigures(
            services=services,
            training_goodput=self._work_gpu_s / worked_s if worked_s > 0 else 0.0,
            inference_goodput=kept / span_s if span_s > 0 else 0.0,
            loaned_gpu_s=self.loaned_gpu_s,
            loans=self.loans,
            ceiling=ceiling(self._view, [task.job for task in self._tasks.values()]),
            rows=tuple(self._rows),
        )


def _left(task: Task, now: float) -> float:
    """Work that it has left now, without settling it."""
    if task.placement is None:
        return max(0.0, task.left_s)
    since_s = max(task.settled_s, task.resume_s)
    return max(0.0, task.left_s - max(0.0, now - since_s) * task.speed)
