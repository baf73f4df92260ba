"""ByteScheduler (Peng et al., "A Generic Communication Scheduler for Distributed DNN Training Acceleration", SOSP 2019).

1. **Partitions**: tensors go in partitions of one size in bytes.
2. **Priority**: partitions go by the layer's place in the next forward.
3. **Credit**: so many bytes are on their way that nothing interrupts, so that links stay busy; what is more
   urgent waits for no more than that.

Where the paper is silent, or this differs: it tunes partition and credit by Bayesian optimisation while the job runs; here both
are parameters, and the defaults are those of BytePS. Its credit is written down as the plan's `chunk_bytes` and delays nothing
here: predictions pause what is on its way at any instant, and the transport that executes plans after 256 KiB at most.
Of two parameters that one operation reads, the one whose gradient is ready first goes first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from hemiola.core.errors import PlanError
from hemiola.core.graph import Graph, Parameter
from hemiola.core.plan import Plan
from hemiola.core.topology import Topology
from hemiola.plan.planner import Planner
from hemiola.plan.problem import PlanProblem, sliced

__all__ = ["ByteScheduler"]


@dataclass(frozen=True)
class ByteScheduler(Planner):
    """Every parameter in partitions, by first use.

    Args:
        partition_bytes: the most in a partition; BytePS' own, the paper tunes it.
        partitions: of credit.
    """

    name = "bytescheduler"
    source = "Peng et al.: A Generic Communication Scheduler (ByteScheduler), SOSP 2019"

    partition_bytes: int = 4_096_000
    partitions: int = 4

    def __post_init__(self) -> None:
        for name in ("partition_bytes", "partitions"):
            if getattr(self, name) < 1:
                raise PlanError(f"bytescheduler: {name}={getattr(self, name)}", "give at least 1")

    def improve(self, graph: Graph, topology: Topology, cost: PlanProblem, plan: Plan) -> Plan:
        """What went together goes apart."""
        words = f"Gradients go in partitions of {self.partition_bytes:,} bytes, by the first use of their parameters."
        return msgspec.structs.replace(
            sliced(cost, plan, self._elements),
            name=self.name, chunk_bytes=self.partition_bytes * self.partitions, changes=(*plan.changes, words),
            source=f"ByteScheduler, partitions of {self.partition_bytes} bytes, credit {self.partitions}",
        )  # fmt: skip

    def _elements(self, parameter: Parameter) -> int:
        return max(1, self.partition_bytes * math.prod(parameter.shape) // max(parameter.size_bytes, 1))
