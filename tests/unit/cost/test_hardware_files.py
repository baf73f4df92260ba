"""Hardware files: shipped, written, read, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hemiola.core.errors import HardwareError, InputError
from hemiola.core.graph import KINDS, PHASES
from hemiola.core.hardware import (
    CollectiveCost,
    ExchangeCost,
    Hardware,
    KindEfficiency,
    Measurement,
    PhaseCost,
)
from hemiola.cost.operations import known_hardware, load_hardware
from hemiola.trace.struct_json import read_hardware, write_hardware

TOY = Hardware(
    name="toy",
    kind="cpu",
    peak_flop_per_s={"float32": 1e11},
    memory_bytes_per_s=1e10,
    memory_bytes=1e10,
    phases=dict.fromkeys(PHASES, PhaseCost(operation_s=1e-6, view_s=1e-7)),
    efficiencies={k: KindEfficiency(compute=0.5, memory=0.8) for k in KINDS if k != "view"},
    cores=4,
    threads_per_rank=1,
    measured={
        "aten.mm.default(float32[2,2], float32[2,2])": Measurement(
            operation="aten.mm.default", kind="matmul", dtype="float32", context="", sizes=(4, 4, 0, 2, 0),
            flop=16, read_bytes=32, written_bytes=16, seconds=2e-6, least_s=1e-6, spread=0.1, runs=3,
        )
    },
    collectives=(
        CollectiveCost(
            backend="gloo", collective="all-reduce", ranks=2, hosts=("a", "b"), alpha_s=1e-4,
            bytes_per_s=1e9, points=((4.0, 2e-4, 1e-4),),
        ),
    ),
    exchange=ExchangeCost(parameter_s=1e-5, bucket_s=5e-5, copy_s_per_byte=4e-10),
    sources={"noise": "not measured"},
)  # fmt: skip


def test_known_devices_are_sound_and_say_where_numbers_come_from() -> None:
    assert set(known_hardware()) == {"A100", "H100", "H200", "V100", "T4", "L4"}
    for name in known_hardware():
        device = load_hardware(name)
        assert device.kind == "gpu"
        for field in ("peak_flop_per_s", "memory_bytes_per_s", "efficiencies.matmul.compute", "phases"):
            assert device.sources[field], (name, field)
        assert "datasheet" in device.sources["peak_flop_per_s"]


def test_known_answers_from_the_datasheets() -> None:
    """Dense rates: NVIDIA's figures with sparsity are twice these."""
    bfloat16 = {name: load_hardware(name).peak_flop_per_s.get("bfloat16") for name in known_hardware()}
    assert bfloat16 == {
        "A100": 312e12,
        "H100": 989e12,
        "H200": 989e12,
        "L4": 121e12,
        "T4": None,
        "V100": None,
    }
    assert load_hardware("V100").memory_bytes_per_s == 900e9
    assert load_hardware("H200").memory_bytes_per_s == 4.8e12
    assert load_hardware("A100").fabric_bytes_per_s == 300e9


def test_case_does_not_matter() -> None:
    assert load_hardware("h100") == load_hardware("H100")


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(InputError) as refused:
        load_hardware("H1000")
    assert "A100, H100, H200, L4, T4, V100" in refused.value.remedy


def test_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "toy.hardware.json"
    write_hardware(TOY, path)
    assert load_hardware(path) == TOY
    assert json.loads(path.read_text())["schema"] == "hemiola.hardware/1"


def test_impossible_hardware_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "toy.json"
    with pytest.raises(HardwareError):
        write_hardware(
            Hardware(**{f: getattr(TOY, f) for f in Hardware.__struct_fields__} | {"cores": 0}), path
        )
    assert not path.exists()


def edited(path: Path, **changes: Any) -> Path:
    write_hardware(TOY, path)
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
    return path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": "hemiola.graph/1"}, "hemiola.graph/1"),
        ({"schema": None}, "not a hardware file"),
        ({"memory_bytes_per_s": 0}, "memory_bytes_per_s is 0"),
        ({"memory_bytes_per_s": "fast"}, "memory_bytes_per_s"),
        ({"memory_bytes_per_s": None}, "memory_bytes_per_s"),
        ({"kind": "tpu"}, "tpu"),
        ({"colour": "green"}, "colour"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        read_hardware(edited(tmp_path / "toy.json", **changes))
    assert refused.value.remedy


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"\x00\x01", b"name,kind\n"])
def test_what_is_no_hardware_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a hardware file"):
        read_hardware(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        load_hardware(tmp_path / "nowhere.json")
