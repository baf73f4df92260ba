"""What each operation is expected to take, and which of these expectations are off together."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hemiola.core.graph import Graph
from hemiola.core.hardware import Hardware
from hemiola.cost.operations import EVIDENCE, operation_seconds

__all__ = ["QUARTILE", "OperationEstimates", "estimate", "exact"]

QUARTILE = NormalDist().inv_cdf(0.75)
"""Half the interquartile range of a normal law, in standard deviations: what calibration gives as spread."""


@dataclass(frozen=True, eq=False)
class OperationEstimates:
    """One entry per operation in every column.

    Attributes:
        seconds: expected.
        deviation: relative standard deviation.
        together: operations of one number are off together, others independently.
    """

    seconds: NDArray[np.float64]
    deviation: NDArray[np.float64]
    together: NDArray[np.int64]


def estimate(graph: Graph, hardware: Hardware) -> OperationEstimates:
    """From the hardware: measured operations are off by signature, all others with their kind.

    Raises:
        HardwareError: the hardware does not know a type that the graph computes in.
    """
    costs = operation_seconds(graph, hardware)
    measured = costs.evidence == EVIDENCE.index("measured")
    operations = graph.operations
    return OperationEstimates(
        seconds=costs.seconds,
        deviation=np.where(measured, costs.spread / QUARTILE, costs.spread),
        together=np.where(
            measured, operations.signature, len(graph.signatures) + operations.kind.astype(np.int64)
        ),
    )


def exact(seconds: NDArray[np.float64]) -> OperationEstimates:
    """Times that are known, such as those of emulated computation."""
    return OperationEstimates(seconds, np.zeros(len(seconds)), np.zeros(len(seconds), dtype=np.int64))
