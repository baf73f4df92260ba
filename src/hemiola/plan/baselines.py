"""What others do, as plans: P3's slices and ByteScheduler's partitions. To compare with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import msgspec

from hemiola.core.graph import Parameter
from hemiola.core.plan import Piece, Plan, PlannedTransfer
from hemiola.plan.problem import PlanProblem, used_at

__all__ = ["bytescheduler", "fifo", "p3"]

P3_ELEMENTS = 50_000
BYTESCHEDULER_BYTES = 4_096_000


def fifo(problem: PlanProblem) -> Plan:
    """Every parameter by itself as its gradient becomes ready, all before the optimizer."""
    transfers = tuple(
        msgspec.structs.replace(t, priority=rank)
        for rank, t in enumerate(sorted(problem.apart().transfers, key=lambda t: t.ready(problem.by_name)))
    )
    return msgspec.structs.replace(
        problem.apart(), name="fifo", update="together", transfers=transfers, source="first in, first out"
    )


def p3(problem: PlanProblem, elements: int = P3_ELEMENTS) -> Plan:
    """Priority-based parameter propagation (Jayarajan et al., MLSys 2019): slices of equal size, by first use."""
    return _sliced(problem, "p3", lambda p: elements, f"P3, slices of {elements:,} elements")


def bytescheduler(
    problem: PlanProblem, partition_bytes: int = BYTESCHEDULER_BYTES, partitions: int = 4
) -> Plan:
    """ByteScheduler (Peng et al., SOSP 2019): partitions by first use.

    Its credit, so many bytes in flight that are not pre-empted, is written down as `chunk_bytes` and delays nothing here:
    predictions pre-empt at any instant, and the transport that executes plans after 256 KiB at most.

    Args:
        partition_bytes: BytePS' own size unless told otherwise; the paper tunes it.
        partitions: of credit.
    """
    plan = _sliced(
        problem,
        "bytescheduler",
        lambda p: max(1, partition_bytes * math.prod(p.shape) // max(p.size_bytes, 1)),
        f"ByteScheduler, partitions of {partition_bytes} bytes, credit {partitions}",
    )
    return msgspec.structs.replace(plan, chunk_bytes=partition_bytes * partitions)


def _sliced(problem: PlanProblem, name: str, elements: Callable[[Parameter], int], source: str) -> Plan:
    order = sorted(problem.trained, key=lambda p: used_at(p, problem.graph))
    transfers: list[PlannedTransfer] = []
    for parameter in order:
        for number, piece in enumerate(slices(parameter, elements(parameter))):
            transfers.append(
                PlannedTransfer(name=f"{parameter.name} [{number}]", pieces=(piece,), priority=len(transfers))
            )
    plan = problem.apart()
    return msgspec.structs.replace(plan, name=name, transfers=tuple(transfers), source=source)


def slices(parameter: Parameter, elements: int) -> Iterator[Piece]:
    """A parameter in pieces of at most so many elements."""
    count = math.prod(parameter.shape)
    for start in range(0, count, elements):
        yield Piece(parameter.name, start, min(start + elements, count))
