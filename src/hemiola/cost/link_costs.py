"""A collective's latency and bandwidth from what was measured at several sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import HardwareError
from hemiola.core.hardware import CollectiveCost
from hemiola.cost.collectives import GLOO, NCCL
from hemiola.cost.nonnegative import nonnegative_least_squares

__all__ = ["fit_collective"]

_ROUNDS = 20
_OUTLIER = 1.5  # residuals beyond so many times their median count less (Huber)
_LEAST_ALPHA_S = 1e-7

Floats = NDArray[np.float64]


def fit_collective(
    backend: str,
    collective: str,
    hosts: Sequence[str],
    points: Sequence[tuple[float, float, float]],
    *,
    spread: float = 0.0,
    runs: int = 0,
) -> CollectiveCost:
    """Fit seconds = steps * alpha + share * size / bandwidth, small and large sizes counting alike.

    Relative residuals are made small, and outliers count less (Huber's weights). Steps and share are
    those of the library's algorithm (`cost.collectives`).

    Args:
        backend: "gloo" or "nccl".
        collective: as `cost.collectives` names it.
        hosts: of the ranks, in order of rank.
        points: (size_bytes, seconds, cpu_s): of one call, and the processor time of one rank.
        spread: relative, of single calls of one size; the fit's own misfit is added.
        runs: timed calls per size.

    Raises:
        HardwareError: if there are fewer than two sizes, or time does not grow with size.
    """
    algorithm = (GLOO if backend == "gloo" else NCCL).variants[collective][0].algorithm
    ranks = len(hosts)
    sizes, seconds, cpu_s = np.array(points, dtype=float).reshape(-1, 3).T
    if len(set(sizes.tolist())) < 2:
        raise HardwareError(f"{collective} was measured at {len(sizes)} sizes", "measure at least two sizes")
    design = np.column_stack([np.full(len(sizes), algorithm.steps(ranks)), algorithm.share(ranks) * sizes])
    (alpha_s, per_byte_s), misfit = _robust(design, seconds)
    if per_byte_s <= 0:
        raise HardwareError(
            f"{collective} of {ranks} ranks takes no longer for {sizes.max():g} bytes than for {sizes.min():g}",
            "measure larger sizes, on a quieter machine",
        )
    (cpu_step_s, cpu_byte_s), _ = _robust(design, np.maximum(cpu_s, 1e-9))
    return CollectiveCost(
        backend=backend,
        collective=collective,
        ranks=ranks,
        hosts=tuple(hosts),
        alpha_s=max(alpha_s, _LEAST_ALPHA_S),
        bytes_per_s=1 / per_byte_s,
        cpu_s_per_byte=cpu_byte_s,
        cpu_s_per_step=cpu_step_s,
        spread=float(np.hypot(spread, misfit)),
        points=tuple((float(a), float(b), float(c)) for a, b, c in zip(sizes, seconds, cpu_s, strict=True)),
        runs=runs,
    )


def _robust(design: Floats, values: Floats) -> tuple[tuple[float, float], float]:
    """Two coefficients of 0 or more with small relative residuals, and the median of these."""
    scaled, weight = design / values[:, None], np.ones(len(values))
    found = np.zeros(2)
    for _ in range(_ROUNDS):
        found = nonnegative_least_squares(scaled * weight[:, None], weight)
        residual = np.abs(scaled @ found - 1)
        scale = _OUTLIER * float(np.median(residual)) + 1e-12
        weight = np.sqrt(np.minimum(1.0, scale / np.maximum(residual, 1e-12)))
    return (float(found[0]), float(found[1])), float(np.median(np.abs(scaled @ found - 1)))
