"""From timed replays and real iterations to what a hardware file says."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hemiola.core.graph import KINDS, PHASES, Graph
from hemiola.core.hardware import Hardware, KindEfficiency, Measurement, PhaseCost, signature_key, spread_of
from hemiola.cost.operations import (
    CONTEXTS,
    context_of,
    main_dtype,
    operation_seconds,
    peak_name,
    shape_sizes,
)

__all__ = [
    "ReplayTimes",
    "TrainingTimes",
    "efficiencies_of",
    "iteration_of",
    "measurements_of",
    "nonnegative_least_squares",
    "phases_of",
]


# Least squares where no coefficient may be negative: times, latencies and bandwidths are not.


def nonnegative_least_squares(design: Floats, target: Floats) -> Floats:
    """The x >= 0 for which |design @ x - target| is least.

    The best of the unconstrained solutions on every subset of columns, which is exact (the optimum's
    positive coefficients solve the problem on their own columns) and quick for the few columns here.

    Args:
        design: rows are observations.
        target: one value per row.

    >>> nonnegative_least_squares(np.array([[1.0, 1.0], [1.0, 2.0]]), np.array([3.0, 5.0])).round(6).tolist()
    [1.0, 2.0]
    """
    count = design.shape[1]
    best, least = np.zeros(count), float((target**2).sum())
    for size in range(1, count + 1):
        for columns in itertools.combinations(range(count), size):
            trial = np.zeros(count)
            trial[list(columns)] = np.linalg.lstsq(design[:, columns], target, rcond=None)[0]
            error = float(((design @ trial - target) ** 2).sum())
            if (trial >= 0).all() and error < least:
                best, least = trial, error
    return best


Floats = NDArray[np.float64]

_VIEW = KINDS.index("view")
_LEAST_S = 2e-7
_TINY_BYTES = 16_384
_PULL = 1.0  # an error of 0.1 in the factor weighs as much as one of 10 % in an iteration
_REACHED = 0.65  # efficiency is what operations with this share of a kind's time stay below


@dataclass(frozen=True, eq=False)
class ReplayTimes:
    """A replayed graph.

    Attributes:
        graph: it.
        seconds: by round and row; NaN for rows left out.
        disturbed: by round.
    """

    graph: Graph
    seconds: Floats
    disturbed: NDArray[np.bool_]

    @property
    def ran(self) -> NDArray[np.bool_]:
        """Which rows were run."""
        return np.asarray(~np.isnan(self.seconds).all(axis=0))


@dataclass(frozen=True, eq=False)
class TrainingTimes:
    """Iterations that really ran.

    Attributes:
        graph: of the network.
        seconds: by iteration: zeroing gradients, forward, backward, optimizer.
    """

    graph: Graph
    seconds: Floats


def measurements_of(replays: Sequence[ReplayTimes], *, caller_s: bool) -> dict[str, Measurement]:
    """One measurement for each signature and context, over all rows and rounds where it ran.

    Args:
        caller_s: whether calling an operation from Python takes part in the times; it is taken off then.
    """
    found: dict[str, list[tuple[ReplayTimes, int]]] = {}
    context: dict[str, str] = {}
    for replay in replays:
        graph, contexts = replay.graph, context_of(replay.graph)
        keys: dict[tuple[int, int], str] = {}
        for row in np.flatnonzero(replay.ran & (graph.operations.kind != _VIEW)).tolist():
            case = int(graph.operations.signature[row]), int(contexts[row])
            if case not in keys:
                keys[case] = signature_key(graph.signatures[case[0]], CONTEXTS[case[1]])
                context[keys[case]] = CONTEXTS[case[1]]
            found.setdefault(keys[case], []).append((replay, row))
    call_s = _call_s(replays) if caller_s else 0.0
    return {key: _measurement(places, context[key], call_s) for key, places in found.items()}


def _call_s(replays: Iterable[ReplayTimes]) -> float:
    """What a call costs from Python: that of the cheapest views, which do nothing else."""
    views = [r.seconds[:, r.ran & (r.graph.operations.kind == _VIEW)] for r in replays]
    known = np.concatenate([np.nanmedian(view, axis=0) for view in views if view.size] or [np.zeros(1)])
    return float(np.quantile(known, 0.05))


def _measurement(places: list[tuple[ReplayTimes, int]], context: str, call_s: float) -> Measurement:
    replay, row = places[0]
    operations = replay.graph.operations
    signature = replay.graph.signatures[operations.signature[row]]
    columns = [r.seconds[:, i] for r, i in places]
    runs = np.concatenate(columns)
    runs = runs[~np.isnan(runs)]
    # where it stands decides as much as chance: the mean over places of each place's median
    seconds = max(float(np.mean([np.nanmedian(column) for column in columns])) - call_s, _LEAST_S)
    return Measurement(
        operation=operations.name[row],
        kind=KINDS[operations.kind[row]],
        dtype=main_dtype(signature),
        context=context,
        sizes=shape_sizes(signature),
        flop=float(operations.flop[row]),
        read_bytes=float(operations.read_bytes[row]),
        written_bytes=float(operations.written_bytes[row]),
        seconds=seconds,
        least_s=max(float(runs.min()) - call_s, _LEAST_S / 2),
        spread=spread_of(runs, _LEAST_S),
        runs=len(runs),
        disturbed=bool(np.mean([r.disturbed.mean() for r, _ in places]) > 0.5),
    )


def efficiencies_of(
    measured: dict[str, Measurement], peaks: dict[str, float], bytes_per_s: float
) -> tuple[dict[str, KindEfficiency], list[str]]:
    """The efficiency of every kind, and the kinds that nothing was measured of (they get that of "elementwise")."""
    by_kind: dict[str, list[Measurement]] = {kind: [] for kind in KINDS if kind != "view"}
    for measurement in measured.values():
        by_kind[measurement.kind].append(measurement)
    found = {kind: _efficiency(those, peaks, bytes_per_s) for kind, those in by_kind.items() if those}
    missing = [kind for kind in by_kind if kind not in found]
    for kind in missing:
        found[kind] = found["elementwise"]
    return {kind: found[kind] for kind in by_kind}, missing


def _efficiency(measured: list[Measurement], peaks: dict[str, float], bytes_per_s: float) -> KindEfficiency:
    seconds = np.array([m.seconds for m in measured])
    size_bytes = np.array([m.read_bytes + m.written_bytes for m in measured])
    flop = np.array([m.flop / peaks.get(peak_name(m.kind, m.dtype, peaks), np.inf) for m in measured])
    tiny = seconds[size_bytes <= _TINY_BYTES]
    least = float(np.median(tiny)) if tiny.size else float(seconds.min())
    busy = np.maximum(seconds - least, seconds / 5)
    move = size_bytes / bytes_per_s
    compute = _reached(flop / busy, np.where(flop > move, seconds, 0))
    memory = _reached(move / busy, np.where((move >= flop) & (size_bytes > _TINY_BYTES), seconds, 0))
    model = np.maximum(flop / compute, move / memory) + least
    apart = np.abs(np.log(seconds / model))
    return KindEfficiency(
        compute=compute, memory=memory, overhead_s=least, spread=float(np.average(apart, weights=seconds))
    )


def _reached(shares: Floats, weights: Floats) -> float:
    """The share below which operations with `_REACHED` of the weight stay; the best of all if none has any."""
    if weights.sum() <= 0:
        return float(shares.max()) or 1.0
    order = np.argsort(shares)
    place = int(np.searchsorted(np.cumsum(weights[order]), _REACHED * weights.sum()))
    return float(shares[order][min(place, len(shares) - 1)])


def phases_of(trained: Sequence[TrainingTimes], hardware: Hardware) -> dict[str, PhaseCost]:
    """What the framework adds in each phase: real iterations against the sum of their operations.

    seconds(phase) = factor * operations + operation_s * number + view_s * views, by least squares of
    the relative error, no coefficient below 0. On a GPU, seconds are the host's, and factor is 1.

    Args:
        trained: networks whose operations the hardware has measured.
        hardware: with phases that add nothing.
    """
    found = {}
    for phase, name in enumerate(PHASES):
        target = np.array([np.median(each.seconds[:, phase + 1]) for each in trained])
        design = np.array([_sums(each.graph, phase, hardware) for each in trained]) / target[:, None]
        ones = np.ones(len(trained))
        if hardware.kind == "gpu":
            operation_s, view_s = nonnegative_least_squares(design[:, 1:], ones).tolist()
            found[name] = PhaseCost(operation_s=operation_s, view_s=view_s)
            continue
        pulled = np.vstack(
            [design, [_PULL, 0, 0]]
        )  # towards a factor of 1, which few or noisy networks leave open
        factor, operation_s, view_s = nonnegative_least_squares(pulled, np.append(ones, _PULL)).tolist()
        found[name] = PhaseCost(operation_s=operation_s, view_s=view_s, factor=factor)
    return found


def _sums(graph: Graph, phase: int, hardware: Hardware) -> tuple[float, float, float]:
    """Of one phase: seconds of its operations alone, their number, and that of its views."""
    here, view = graph.operations.phase == phase, graph.operations.kind == _VIEW
    alone = operation_seconds(graph, hardware).seconds
    return float(alone[here].sum()), float((here & ~view).sum()), float((here & view).sum())


def iteration_of(trained: Sequence[TrainingTimes]) -> tuple[float, float]:
    """What an iteration takes beside its phases (zeroing gradients), and the relative spread of whole iterations."""
    rest = float(np.median([np.median(each.seconds[:, 0]) for each in trained]))
    return rest, float(np.median([spread_of(each.seconds.sum(axis=1)) for each in trained]))
