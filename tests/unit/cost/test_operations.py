"""What an operation takes: by hand, by preference of evidence, and on a device that a host feeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.core.errors import HardwareError
from hemiola.core.graph import KINDS, PHASES, Graph, Operations, Signature
from hemiola.core.hardware import Hardware, KindEfficiency, Measurement, PhaseCost, signature_key
from hemiola.cost.operations import CONTEXTS, EVIDENCE, context_of, operation_seconds, shape_sizes

PEAK, RATE = 1e11, 1e10
Row = tuple[str, str, str, float, float, Signature]  # name, kind, phase, flop, bytes, signature


def tensor(*shape: int, dtype: str = "float32") -> dict[str, Any]:
    return {"shape": list(shape), "dtype": dtype, "stride": None}


def row(
    operation: str,
    kind: str,
    *tensors: dict[str, Any],
    phase: str = "forward",
    flop: float = 0,
    size: float = 0,
) -> Row:
    return operation, kind, phase, flop, size, Signature(operation, tensors)


def graph(rows: Sequence[Row], modules: Sequence[int] | None = None) -> Graph:
    count = len(rows)
    keys = list(dict.fromkeys(signature_key(signature) for *_, signature in rows))
    signatures = {signature_key(signature): signature for *_, signature in rows}
    return Graph(
        name="by hand",
        modules=("", "table", "head"),
        signatures=tuple(signatures[key] for key in keys),
        operations=Operations(
            name=tuple(name for name, *_ in rows),
            kind=np.array([KINDS.index(kind) for _, kind, *_ in rows], dtype=np.int8),
            phase=np.array([PHASES.index(phase) for _, _, phase, *_ in rows], dtype=np.int8),
            micro_step=np.zeros(count, dtype=np.int16),
            flop=np.array([flop for _, _, _, flop, _, _ in rows], dtype=float),
            read_bytes=np.array([size for *_, size, _ in rows], dtype=float),
            written_bytes=np.zeros(count),
            module=np.array(modules if modules is not None else [0] * count, dtype=np.int64),
            forward=np.full(count, -1, dtype=np.int64),
            signature=np.array([keys.index(signature_key(s)) for *_, s in rows], dtype=np.int64),
            dep_start=np.zeros(count + 1, dtype=np.int64),
            dep=np.zeros(0, dtype=np.int64),
        ),
    ).check()


def hardware(**changes: Any) -> Hardware:
    kinds = [kind for kind in KINDS if kind != "view"]
    whole: dict[str, Any] = {
        "name": "toy",
        "kind": "cpu",
        "peak_flop_per_s": {"float32": PEAK},
        "memory_bytes_per_s": RATE,
        "memory_bytes": 1e10,
        "phases": {
            "forward": PhaseCost(operation_s=1e-3, view_s=1e-4),
            "backward": PhaseCost(operation_s=2e-3, view_s=2e-4, factor=1.5),
            "optimizer": PhaseCost(operation_s=0, view_s=0),
        },
        "efficiencies": {
            kind: KindEfficiency(compute=0.5, memory=0.8, overhead_s=1e-5, spread=0.4) for kind in kinds
        },
        "cores": 1,
        "threads_per_rank": 1,
    }
    return Hardware(**(whole | changes)).check()


def measurement(
    signature: Signature, seconds: float, *, flop: float, size: float, **changes: Any
) -> Measurement:
    whole: dict[str, Any] = {
        "operation": signature.operation, "kind": "matmul", "dtype": "float32", "context": "",
        "sizes": shape_sizes(signature), "flop": flop, "read_bytes": size, "written_bytes": 0.0,
        "seconds": seconds, "least_s": seconds, "spread": 0.03, "runs": 9,
    }  # fmt: skip
    return Measurement(**(whole | changes))


def mm(n: int) -> Signature:
    return Signature("aten.mm.default", (tensor(n, n), tensor(n, n)))


def mm_row(n: int, phase: str = "forward") -> Row:
    return "aten.mm.default", "matmul", phase, 2.0 * n**3, 12.0 * n**2, mm(n)


def test_roofline_by_hand() -> None:
    rows = [
        row("a.mm.x", "matmul", tensor(1), flop=1e10, size=1e6),  # 1e10 / (1e11 * 0.5) = 0.2 s
        row("a.add.x", "elementwise", tensor(2), size=8e8),  # 8e8 / (1e10 * 0.8) = 0.1 s
        row("a.mm.x", "matmul", tensor(1), flop=1e10, size=1e6, phase="backward"),
        row("a.t.x", "view", tensor(3), phase="backward"),
    ]
    costs = operation_seconds(graph(rows), hardware())
    forward, backward = 1e-5 + 1e-3, 1.5 * (0.2 + 1e-5) + 2e-3
    assert costs.seconds == pytest.approx([0.2 + forward, 0.1 + forward, backward, 2e-4])
    assert [EVIDENCE[i] for i in costs.evidence] == ["roofline", "roofline", "roofline", "overhead"]
    assert costs.spread == pytest.approx([0.4, 0.4, 0.4, 0])


def test_a_measurement_goes_before_its_class_and_that_before_the_roofline() -> None:
    known = measurement(mm(64), 0.5, flop=2.0 * 64**3, size=12.0 * 64**2)
    machine = hardware(measured={signature_key(mm(64)): known})
    costs = operation_seconds(
        graph([mm_row(64), mm_row(80), row("a.add.x", "elementwise", size=8.0)]), machine
    )
    assert [EVIDENCE[i] for i in costs.evidence] == ["measured", "shape class", "roofline"]
    assert costs.seconds[0] == 0.5 + 1e-3
    assert costs.spread[0] == 0.03


def test_a_class_scales_as_its_neighbours_do() -> None:
    """Everything measured takes 3 times its roofline, so what lies between does too."""
    bare = hardware(phases=dict.fromkeys(PHASES, PhaseCost(operation_s=0, view_s=0)))
    sizes = (64, 128, 256, 512)
    roof = operation_seconds(graph([mm_row(n) for n in sizes]), bare).seconds
    measured = {
        signature_key(mm(n)): measurement(mm(n), 3 * s, flop=2.0 * n**3, size=12.0 * n**2)
        for n, s in zip(sizes, roof.tolist(), strict=True)
    }
    asked = graph([mm_row(n) for n in (96, 200, 300, 400)])
    expected = 3 * operation_seconds(asked, bare).seconds
    found = operation_seconds(asked, msgspec.structs.replace(bare, measured=measured))
    assert found.seconds == pytest.approx(expected, rel=0.1)


MEASURED = {
    signature_key(mm(n)): measurement(mm(n), 2e-11 * n**3 + 1e-6, flop=2.0 * n**3, size=12.0 * n**2)
    for n in (16, 64, 256, 1024)
}
BARE = hardware(phases=dict.fromkeys(PHASES, PhaseCost(operation_s=0, view_s=0)))


def test_twice_the_size_takes_longer_and_not_too_much() -> None:
    sizes = [24, 48, 96, 192, 384, 768]
    known = msgspec.structs.replace(BARE, measured=MEASURED)
    found = operation_seconds(graph([mm_row(n) for n in sizes]), known).seconds
    assert (found[1:] / found[:-1] > 1).all()
    assert found[-2:] == pytest.approx([2e-11 * n**3 for n in sizes[-2:]], rel=0.25)


@given(st.integers(1, 5000))
def test_a_class_stays_between_its_likes_and_the_roofline(n: int) -> None:
    """Whatever is asked, the ratio to the roofline is one that was measured, or 1, or between."""
    known = msgspec.structs.replace(BARE, measured=MEASURED)
    sizes = graph([mm_row(size) for size in (16, 64, 256, 1024)])
    ratios = operation_seconds(sizes, known).seconds / operation_seconds(sizes, BARE).seconds
    asked = graph([mm_row(n)])
    ratio = operation_seconds(asked, known).seconds / operation_seconds(asked, BARE).seconds
    assert min(ratios.min(), 1) * (1 - 1e-9) <= ratio[0] <= max(ratios.max(), 1) * (1 + 1e-9)


def test_far_from_anything_measured_the_roofline_decides() -> None:
    """A counter of one element says nothing about an image."""
    tiny = Signature("aten.add_.Tensor", (tensor(1), 1))
    known = measurement(tiny, 1e-3, flop=0, size=16.0, kind="elementwise")
    large = row("aten.add_.Tensor", "elementwise", tensor(10**8), tensor(10**8), size=8e8)
    found = operation_seconds(graph([large]), hardware(measured={signature_key(tiny): known})).seconds
    assert found[0] < 5 * 0.1


def test_the_optimizer_is_a_context_of_its_own_and_a_sparse_table_another() -> None:
    table = Signature("aten.embedding.default", (tensor(10_000, 8), tensor(16, dtype="int64")))
    rows = [
        ("aten.embedding.default", "embedding", "forward", 0.0, 8.0, table),
        mm_row(8),
        row("aten.sqrt.default", "elementwise", tensor(10_000, 8), phase="optimizer"),
        row("aten.sqrt.default", "elementwise", tensor(8, 8), phase="optimizer"),
    ]
    found = context_of(graph(rows, modules=[1, 2, 1, 2]))
    assert [CONTEXTS[i] for i in found] == ["", "", "optimizer, sparse", "optimizer"]


def test_a_table_that_a_batch_fills_is_not_sparse() -> None:
    table = Signature("aten.embedding.default", (tensor(20, 8), tensor(16, dtype="int64")))
    rows = [
        ("aten.embedding.default", "embedding", "forward", 0.0, 8.0, table),
        row("aten.sqrt.default", "elementwise", tensor(20, 8), phase="optimizer"),
    ]
    assert CONTEXTS[context_of(graph(rows, modules=[1, 1]))[1]] == "optimizer"


def test_measured_in_one_context_is_not_measured_in_another() -> None:
    signature = Signature("aten.sqrt.default", (tensor(8, 8),))
    key = signature_key(signature, "optimizer")
    known = measurement(signature, 0.5, flop=0, size=512.0, kind="elementwise", context="optimizer")
    rows = [
        ("aten.sqrt.default", "elementwise", phase, 0.0, 512.0, signature)
        for phase in ("forward", "optimizer")
    ]
    costs = operation_seconds(graph(rows), hardware(measured={key: known}))
    assert [EVIDENCE[i] for i in costs.evidence] == ["shape class", "measured"]


def test_a_gpu_waits_for_its_host() -> None:
    """Launches every 1 ms; the device takes 0.1, 5, 0.1 and 0.1 ms, so only the first and the last wait."""
    launched = dict.fromkeys(PHASES, PhaseCost(operation_s=1e-3, view_s=0))
    kinds = {kind: KindEfficiency(compute=1, memory=1) for kind in KINDS if kind != "view"}
    machine = hardware(kind="gpu", phases=launched, efficiencies=kinds, cores=0, threads_per_rank=0)
    rows = [
        row("a.add.x", "elementwise", tensor(i), size=size) for i, size in enumerate([1e6, 5e7, 1e6, 1e6])
    ]
    ends = np.cumsum(operation_seconds(graph(rows), machine).seconds)
    assert ends == pytest.approx([1.1e-3, 7e-3, 7.1e-3, 7.2e-3])
    short = np.cumsum(operation_seconds(graph(rows[:1] + rows[2:]), machine).seconds)
    assert short == pytest.approx([1.1e-3, 2.1e-3, 3.1e-3])


def test_convolutions_of_float32_may_use_tf32_and_products_not() -> None:
    machine = hardware(
        kind="gpu", cores=0, threads_per_rank=0, peak_flop_per_s={"float32": PEAK, "tf32": 8 * PEAK},
        phases=dict.fromkeys(PHASES, PhaseCost(operation_s=0, view_s=0)),
    )  # fmt: skip
    rows = [
        row("aten.mm.default", "matmul", tensor(8, 8), tensor(8, 8), flop=1e10),
        row("aten.convolution.default", "convolution", tensor(1, 8, 9, 9), tensor(8, 8, 3, 3), flop=1e10),
    ]
    product, convolution = operation_seconds(graph(rows), machine).seconds
    assert product / convolution == pytest.approx(8, rel=1e-3)


def test_only_a_convolution_has_a_window() -> None:
    image, weight = tensor(1, 8, 9, 9), tensor(4, 8, 3, 3)
    assert shape_sizes(Signature("aten.convolution.default", (image, weight)))[3] == 9
    assert shape_sizes(Signature("aten.convolution_backward.default", (image, image, weight)))[3] == 9
    assert shape_sizes(Signature("mylib.convert.default", (tensor(4, 6),)))[:4] == (24, 0, 0, 6)
    assert shape_sizes(Signature("convlib.scale.default", (tensor(4, 6), tensor(6))))[:4] == (24, 6, 0, 6)


def test_a_type_without_a_peak_is_refused() -> None:
    half = row("aten.mm.default", "matmul", tensor(8, 8, dtype="float16"), flop=1e9)
    with pytest.raises(HardwareError, match="float16"):
        operation_seconds(graph([half]), hardware())


def test_an_empty_graph_takes_no_time() -> None:
    assert len(operation_seconds(graph([]), hardware()).seconds) == 0


def test_a_large_graph_is_many_times_the_same_case() -> None:
    """The cost of one operation does not depend on how many there are."""
    one = operation_seconds(graph([mm_row(64)]), hardware()).seconds[0]
    many = graph([mm_row(64)] * 1000)
    assert operation_seconds(many, hardware()).seconds == pytest.approx(one)
