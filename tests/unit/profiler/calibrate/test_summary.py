"""From timed rounds to measurements, efficiencies and overheads: known answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.core.graph import KINDS, PHASES, Graph, Operations, Signature
from hemiola.core.hardware import Hardware, KindEfficiency, Measurement, PhaseCost, signature_key
from hemiola.cost.operations import roofline
from hemiola.profiler.calibrate.summary import (
    ReplayTimes,
    TrainingTimes,
    efficiencies_of,
    iteration_of,
    measurements_of,
    nonnegative_least_squares,
    phases_of,
)

KIND = {"mm": "matmul", "add": "elementwise", "t": "view"}


def signature(name: str, size: int) -> Signature:
    return Signature(f"aten.{name}.default", ({"shape": [size], "dtype": "float32", "stride": None},))


def graph(rows: Sequence[tuple[str, int, int]]) -> Graph:
    """Rows of (name, size, phase): 1,000 FLOP per element for mm, 8 bytes per element for all."""
    count = len(rows)
    distinct = list(dict.fromkeys((name, size) for name, size, _ in rows))
    zeros = np.zeros(count, dtype=np.int64)
    return Graph(
        name="toy",
        signatures=tuple(signature(*each) for each in distinct),
        operations=Operations(
            name=tuple(f"aten.{name}.default" for name, _, _ in rows),
            kind=np.array([KINDS.index(KIND[name]) for name, _, _ in rows], dtype=np.int8),
            phase=np.array([phase for *_, phase in rows], dtype=np.int8),
            micro_step=zeros.astype(np.int16),
            flop=np.array([1000.0 * size if name == "mm" else 0.0 for name, size, _ in rows]),
            read_bytes=np.array([8.0 * size for _, size, _ in rows]),
            written_bytes=np.zeros(count),
            module=zeros,
            forward=zeros - 1,
            signature=np.array([distinct.index((name, size)) for name, size, _ in rows], dtype=np.int64),
            dep_start=np.zeros(count + 1, dtype=np.int64),
            dep=np.zeros(0, dtype=np.int64),
        ),
    ).check()


def replayed(toy: Graph, rounds: Sequence[Sequence[float]], disturbed: Sequence[bool] = ()) -> ReplayTimes:
    seconds = np.array(rounds)
    return ReplayTimes(toy, seconds, np.array(disturbed or [False] * len(seconds)))


def test_a_measurement_is_the_mean_over_places_of_medians_less_the_call() -> None:
    toy = graph([("t", 4, 0), ("mm", 4, 0), ("mm", 4, 1), ("mm", 8, 0)])
    rounds = [[2e-6, 1e-3, 3e-3, math.nan], [2e-6, 1e-3, 3e-3, math.nan], [2e-6, 9e-3, 3e-3, math.nan]]
    found = measurements_of([replayed(toy, rounds, [True, True, False])], caller_s=True)
    assert list(found) == [signature_key(signature("mm", 4))]
    (one,) = found.values()
    assert one.seconds == pytest.approx(2e-3 - 2e-6)
    assert one.least_s == pytest.approx(1e-3 - 2e-6)
    assert (one.runs, one.flop, one.read_bytes, one.disturbed) == (6, 4000, 32, True)
    assert one.spread == pytest.approx((3e-3 - 1.5e-3) / 2 / 3e-3)


def test_on_a_gpu_nothing_is_taken_off() -> None:
    toy = graph([("t", 4, 0), ("mm", 4, 0)])
    (one,) = measurements_of([replayed(toy, [[2e-6, 1e-3]])], caller_s=False).values()
    assert one.seconds == 1e-3


def machine(measured: dict[str, Any], kind: str = "cpu") -> Hardware:
    return Hardware(
        name="toy",
        kind=kind,  # type: ignore[arg-type]
        peak_flop_per_s={"float32": 1e10},
        memory_bytes_per_s=1e9,
        memory_bytes=1e9,
        phases=dict.fromkeys(PHASES, PhaseCost(operation_s=0, view_s=0)),
        efficiencies={k: KindEfficiency(compute=1, memory=1) for k in KINDS if k != "view"},
        cores=1 if kind == "cpu" else 0,
        threads_per_rank=1 if kind == "cpu" else 0,
        measured=measured,
    )


GRAPHS = [
    graph([("mm", n, p) for p in range(3)] + [("t", 1, p) for p in range(3)] * views + [("add", n, 1)] * adds)
    for n, views, adds in [(1000, 1, 3), (5000, 7, 1), (20000, 2, 9), (300, 4, 2), (100, 1, 12)]
]


def measured() -> dict[str, Any]:
    seconds = {"mm": 1e-7, "add": 1e-8}
    replays = []
    for each in GRAPHS:
        names = [name.split(".")[1] for name in each.operations.name]
        sizes = each.operations.read_bytes / 8
        replays.append(replayed(each, [[seconds.get(n, 0.0) * s for n, s in zip(names, sizes, strict=True)]]))
    return measurements_of(replays, caller_s=False)


def trained(phase_costs: Sequence[PhaseCost], *, device: bool = False) -> list[TrainingTimes]:
    """Iterations that take exactly what the law says."""
    found = []
    for each in GRAPHS:
        row = [1e-4]
        for phase, cost in enumerate(phase_costs):
            here = each.operations.phase == phase
            view = each.operations.kind == KINDS.index("view")
            sizes = each.operations.read_bytes / 8
            per = np.where(each.operations.flop > 0, 1e-7, np.where(view, 0.0, 1e-8)) * sizes
            host = cost.operation_s * (here & ~view).sum() + cost.view_s * (here & view).sum()
            row.append(host + (0 if device else cost.factor * per[here].sum()))
        found.append(TrainingTimes(each, np.array([row, row])))
    return found


def test_what_the_framework_adds_is_found_back() -> None:
    law = [
        PhaseCost(operation_s=5e-6, view_s=2e-6),
        PhaseCost(operation_s=9e-6, view_s=4e-6),
        PhaseCost(operation_s=3e-6, view_s=1e-6),
    ]
    found = phases_of(trained(law), machine(measured()))
    assert list(found) == list(PHASES)
    for cost, expected in zip(found.values(), law, strict=True):
        assert cost.factor == pytest.approx(1, abs=1e-3)
        assert cost.operation_s == pytest.approx(expected.operation_s, rel=0.05)
        assert cost.view_s == pytest.approx(expected.view_s, rel=0.05)


def test_cold_caches_show_as_a_factor() -> None:
    law = [PhaseCost(operation_s=5e-6, view_s=2e-6, factor=1.2)] * 3
    for cost in phases_of(trained(law), machine(measured())).values():
        assert 1.1 < cost.factor < 1.2  # drawn towards 1


def test_on_a_gpu_the_host_pays_per_operation() -> None:
    law = [PhaseCost(operation_s=5e-6, view_s=2e-6)] * 3
    for cost in phases_of(trained(law, device=True), machine(measured(), "gpu")).values():
        assert (cost.operation_s, cost.view_s, cost.factor) == (pytest.approx(5e-6), pytest.approx(2e-6), 1.0)


def test_efficiency_is_what_the_long_operations_reach() -> None:
    """1e-7 s per element and 1,000 FLOP: 1e10 FLOP/s, the whole peak; additions 8 bytes in 1e-8 s: 0.8 of the rate."""
    found, missing = efficiencies_of(measured(), {"float32": 1e10}, 1e9)
    assert found["matmul"].compute == pytest.approx(1, rel=0.02)
    assert found["elementwise"].memory == pytest.approx(0.8, rel=0.1)
    assert "attention" in missing
    assert found["attention"] == found["elementwise"]
    assert set(found) == set(KINDS) - {"view"}


def test_a_convolution_takes_again_what_it_was_measured_to_take() -> None:
    """It runs as TF32 where there is a rate of that: 8 FLOP in 2 s are half of 8 FLOP/s, not 4 times 1 FLOP/s."""

    def timed(kind: str, flop: float, read_bytes: float, seconds: float) -> Measurement:
        return Measurement(
            operation=kind, kind=kind, dtype="float32", context="", sizes=(1, 1, 1, 1, 1), flop=flop, read_bytes=read_bytes,
            written_bytes=0.0, seconds=seconds, least_s=seconds, spread=0.0, runs=1,
        )  # fmt: skip

    known = {
        "tiny": timed("convolution", 0.0, 0.0, 1e-6), "moves": timed("convolution", 0.0, 1e6, 2e-6),
        "computes": timed("convolution", 8.0, 1e6, 2.0), "add": timed("elementwise", 0.0, 0.0, 1e-6),
    }  # fmt: skip
    peaks = {"float32": 1.0, "tf32": 8.0}
    found, _ = efficiencies_of(known, peaks, 1e12)
    gpu = msgspec.structs.replace(
        machine({}, kind="gpu"), peak_flop_per_s=peaks, memory_bytes_per_s=1e12, efficiencies=found
    )
    kind = KINDS.index("convolution")
    assert roofline([kind], ["float32"], np.array([8.0]), np.array([1e6]), gpu) == pytest.approx([2.0])


def test_iterations_give_their_rest_and_their_noise() -> None:
    rows = [[1e-4, 1e-3, 2e-3, 1e-3 + extra] for extra in (0.0, 0.0, 1e-3, 2e-3, 2e-3)]
    rest, noise = iteration_of([TrainingTimes(GRAPHS[0], np.array(rows))])
    assert rest == 1e-4
    assert noise == pytest.approx(1e-3 / 5.1e-3)


@given(st.lists(st.tuples(*[st.floats(-5, 5)] * 4), min_size=4, max_size=8), st.integers(0, 2**31))
def test_no_nonnegative_point_is_better(rows: list[tuple[float, ...]], seed: int) -> None:
    table = np.array(rows)
    design, target = table[:, :3], table[:, 3]
    found = nonnegative_least_squares(design, target)
    assert (found >= 0).all()
    others = np.random.default_rng(seed).exponential(1.0, (200, 3)) * np.random.default_rng(seed).integers(
        0, 2, (200, 3)
    )
    errors = ((others @ design.T - target) ** 2).sum(axis=1)
    assert ((design @ found - target) ** 2).sum() <= errors.min() + 1e-6
