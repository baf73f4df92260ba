"""A collective's latency and bandwidth from what was measured at several sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import HardwareError
from hemiola.core.hardware import CollectiveCost
from hemiola.cost.collective.library import LIBRARIES

__all__ = ["fit_collective"]

_SMALL_BYTES, _LARGE_BYTES = 16_384, 1_000_000  # up to, from: where latency, and where bandwidth, decides
_ROUNDS = 10
_LEAST_ALPHA_S = 1e-7

Floats = NDArray[np.float64]


def fit_collective(
    backend: str,
    collective: str,
    hosts: Sequence[str],
    points: Sequence[tuple[float, float, float]],
    *,
    spreads: Sequence[float] = (),
    runs: int = 0,
) -> CollectiveCost:
    """Fit seconds = steps * alpha + share * size / bandwidth.

    Alpha is the median over the small sizes, bandwidth that over the large ones, so that one disturbed
    size changes little, nor do the sizes between: a shaper's bucket lets them pass at once. Steps and
    share are those of the library's algorithm (`cost.collectives`).

    Args:
        backend: "gloo", "nccl" or "hemiola".
        collective: as `cost.collectives` names it.
        hosts: of the ranks, in order of rank.
        points: (size_bytes, seconds, cpu_s): of one call, and the processor time of one rank.
        spreads: relative, of single calls, one for each point; the fit's own misfit is added.
        runs: timed calls per size.

    Raises:
        HardwareError: if there are fewer than two ranks or sizes, or time does not grow with size.
    """
    algorithm = LIBRARIES[backend].variants[collective][0].algorithm
    ranks = len(hosts)
    if ranks < 2:
        raise HardwareError(f"{ranks} ranks have no links between them", "measure between at least two")
    sizes, seconds, cpu_s = np.array(points, dtype=float).reshape(-1, 3).T
    if len(set(sizes.tolist())) < 2:
        raise HardwareError(f"{collective} was measured at {len(sizes)} sizes", "measure at least two sizes")
    steps, sent = algorithm.steps(ranks), algorithm.share(ranks) * sizes
    alpha_s, per_byte_s = _line(sizes, steps, sent, seconds)
    if per_byte_s <= 0:
        raise HardwareError(
            f"{collective} of {ranks} ranks takes no longer for {sizes.max():g} bytes than for {sizes.min():g}",
            "measure larger sizes, on a quieter machine",
        )
    cpu_step_s, cpu_byte_s = _line(sizes, steps, sent, cpu_s)
    deviations = np.hypot(
        np.abs((steps * alpha_s + sent * per_byte_s) / seconds - 1),
        np.array(spreads) if len(spreads) else 0.0,
    )
    small, large = _ends(sizes)
    return CollectiveCost(
        backend=backend,
        collective=collective,
        ranks=ranks,
        hosts=tuple(hosts),
        alpha_s=max(alpha_s, _LEAST_ALPHA_S),
        bytes_per_s=1 / per_byte_s,
        cpu_s_per_byte=max(cpu_byte_s, 0.0),
        cpu_s_per_step=max(cpu_step_s, 0.0),
        spread=float(np.median(deviations[large])),
        alpha_spread=float(np.median(deviations[small])),
        points=tuple((float(a), float(b), float(c)) for a, b, c in zip(sizes, seconds, cpu_s, strict=True)),
        runs=runs,
    )


def _line(sizes: Floats, steps: float, sent: Floats, seconds: Floats) -> tuple[float, float]:
    """Seconds per step and per byte sent, each the median over the sizes where it decides."""
    small, large = _ends(sizes)
    step_s, byte_s = 0.0, 0.0
    for _ in range(_ROUNDS):
        byte_s = float(np.median((seconds[large] - steps * step_s) / sent[large]))
        step_s = max(float(np.median((seconds[small] - sent[small] * byte_s) / steps)), 0.0)
    return step_s, byte_s


def _ends(sizes: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which sizes tell latency, and which bandwidth."""
    return (
        (sizes <= _SMALL_BYTES) | (sizes == sizes.min()),
        (sizes >= _LARGE_BYTES) | (sizes == sizes.max()),
    )
