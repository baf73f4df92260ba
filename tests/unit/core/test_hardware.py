"""What hardware may say, and how signatures are told apart."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from hemiola.core.errors import HardwareError
from hemiola.core.graph import KINDS, PHASES, Signature
from hemiola.core.hardware import (
    CollectiveCost,
    Hardware,
    KindEfficiency,
    Measurement,
    PhaseCost,
    signature_key,
    spread_of,
)


def test_a_spread_is_half_the_interquartile_range_over_the_median():
    assert spread_of([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(1 / 3)
    assert spread_of([1.0, 2.0, 3.0, 4.0, 5.0], least=6.0) == pytest.approx(1 / 6)
    assert spread_of([0.0, 0.0]) == 0.0


def hardware(**changes: Any) -> Hardware:
    whole: dict[str, Any] = {
        "name": "toy",
        "kind": "cpu",
        "peak_flop_per_s": {"float32": 1e11},
        "memory_bytes_per_s": 1e10,
        "memory_bytes": 1e10,
        "phases": dict.fromkeys(PHASES, PhaseCost(operation_s=1e-6, view_s=1e-7)),
        "efficiencies": {k: KindEfficiency(compute=0.5, memory=0.8) for k in KINDS if k != "view"},
        "cores": 4,
        "threads_per_rank": 1,
    }
    return Hardware(**(whole | changes))


def test_sound_hardware_is_returned() -> None:
    assert hardware().check() == hardware()


@pytest.mark.parametrize("field", ["memory_bytes_per_s", "memory_bytes", "cores", "threads_per_rank"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_impossible_numbers_are_named(field: str, value: float) -> None:
    with pytest.raises(HardwareError, match=field):
        hardware(**{field: value}).check()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"peak_flop_per_s": {}}, "no peak_flop_per_s"),
        ({"peak_flop_per_s": {"float32": 0.0}}, "peak_flop_per_s.float32"),
        ({"noise": -0.1}, "noise"),
        ({"phases": {"forward": PhaseCost(operation_s=0, view_s=0)}}, "lacks .*backward"),
        ({"efficiencies": {}}, "lacks .*matmul"),
        ({"phases": dict.fromkeys(PHASES, PhaseCost(operation_s=0, view_s=0, factor=0))}, "forward.factor"),
    ],
)
def test_impossible_parts_are_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(HardwareError, match=said):
        hardware(**change).check()


def test_an_unknown_kind_of_operation_is_refused() -> None:
    more = hardware().efficiencies | {"teleport": KindEfficiency(compute=1, memory=1)}
    with pytest.raises(HardwareError, match="teleport"):
        hardware(efficiencies=more).check()


def link(**changes: Any) -> CollectiveCost:
    whole: dict[str, Any] = {
        "backend": "gloo", "collective": "all-reduce", "ranks": 2, "hosts": ("a", "b"),
        "alpha_s": 1e-4, "bytes_per_s": 1e9,
    }  # fmt: skip
    return CollectiveCost(**(whole | changes))


@pytest.mark.parametrize(
    "change", [{"bytes_per_s": 0.0}, {"alpha_s": math.nan}, {"ranks": 1}, {"hosts": ("a",)}]
)
def test_impossible_links_are_refused(change: dict[str, Any]) -> None:
    hardware(collectives=(link(),)).check()
    with pytest.raises(HardwareError):
        hardware(collectives=(link(**change),)).check()


def measurement(**changes: Any) -> Measurement:
    whole: dict[str, Any] = {
        "operation": "aten.mm.default", "kind": "matmul", "dtype": "float32", "context": "", "sizes": (4, 4, 0, 2, 0),
        "flop": 16, "read_bytes": 32, "written_bytes": 16, "seconds": 1e-6, "least_s": 1e-6, "spread": 0.1, "runs": 3,
    }  # fmt: skip
    return Measurement(**(whole | changes))


def test_a_measurement_takes_some_time() -> None:
    with pytest.raises(HardwareError, match=r"measured\.mm\.seconds"):
        hardware(measured={"mm": measurement(seconds=0.0)}).check()


@pytest.mark.parametrize("kind", ["teleport", "view"])
def test_what_was_measured_is_of_a_kind_that_takes_time(kind: str) -> None:
    with pytest.raises(HardwareError, match=rf"measured\.mm is of the kind '{kind}'"):
        hardware(measured={"mm": measurement(kind=kind)}).check()


def test_gpus_have_no_cores() -> None:
    hardware(kind="gpu", cores=0, threads_per_rank=0).check()


def tensor(*shape: int, stride: list[int] | None = None, dtype: str = "float32") -> dict[str, Any]:
    return {"shape": list(shape), "dtype": dtype, "stride": stride}


def test_the_key_tells_shapes_types_strides_and_context_apart() -> None:
    def key(*arguments: Any, context: str = "", **keywords: Any) -> str:
        return signature_key(Signature("aten.x.default", arguments, keywords), context)

    keys = [
        key(tensor(2, 3, stride=[3, 1])),
        key(tensor(3, 2, stride=[2, 1])),
        key(tensor(2, 3, stride=[1, 2])),
        key(tensor(2, 3, stride=[3, 1], dtype="bfloat16")),
        key(tensor(2, 3, stride=[3, 1]), 1),
        key(tensor(2, 3, stride=[3, 1]), 1.0),
        key(tensor(2, 3, stride=[3, 1]), alpha=1),
        key([tensor(2, 3, stride=[3, 1])]),
        key(tensor(2, 3, stride=[3, 1]), context="optimizer"),
    ]
    assert len(set(keys)) == len(keys)
    assert key(tensor(2, 3, stride=[3, 1])) == key(tensor(2, 3))


def test_the_key_survives_a_file() -> None:
    signature = Signature(
        "aten.x.default", (tensor(2, 3, stride=[1, 2]), [tensor(4)], None, 0.1, True), {"a": "b"}
    )
    again = msgspec.json.decode(msgspec.json.encode(signature), type=Signature)
    assert signature_key(again) == signature_key(signature)
