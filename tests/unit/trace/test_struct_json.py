"""Plans, schedules and hardware as files: a field that they do not have is refused by name, however deep it lies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hemiola.core.collective.schedule import ChunkMove, ChunkPlace, CollectiveSchedule, SendRate
from hemiola.core.errors import InputError
from hemiola.core.graph import KINDS, PHASES
from hemiola.core.hardware import (
    CollectiveCost,
    ExchangeCost,
    Hardware,
    KindEfficiency,
    Measurement,
    PhaseCost,
)
from hemiola.core.plan import Piece, Plan, PlannedTransfer
from hemiola.trace.struct_json import (
    read_hardware,
    read_plan,
    read_schedule,
    write_hardware,
    write_plan,
    write_schedule,
)

PLAN = Plan(
    name="p", graph="g", ranks=2, update="together", chunk_bytes=1024,
    transfers=(PlannedTransfer(name="t", pieces=(Piece("w", 0, 4),)),),
)  # fmt: skip
SCHEDULE = CollectiveSchedule(
    name="s", collective="broadcast", ranks=2, chunks=1,
    moves=(ChunkMove(ChunkPlace(0, "input", 0), ChunkPlace(1, "input", 0)),), paces=(SendRate(0, 1, 1e9),),
)  # fmt: skip
HARDWARE = Hardware(
    name="toy", kind="cpu", peak_flop_per_s={"float32": 1e11}, memory_bytes_per_s=1e10, memory_bytes=1e10,
    phases=dict.fromkeys(PHASES, PhaseCost(operation_s=1e-6, view_s=1e-7)),
    efficiencies={kind: KindEfficiency(compute=0.5, memory=0.8) for kind in KINDS if kind != "view"},
    cores=4, threads_per_rank=1,
    measured={
        "mm": Measurement(
            operation="aten.mm.default", kind="matmul", dtype="float32", context="", sizes=(4, 4, 0, 2, 0),
            flop=16, read_bytes=32, written_bytes=16, seconds=2e-6, least_s=1e-6, spread=0.1, runs=3,
        )
    },
    collectives=(
        CollectiveCost(
            backend="gloo", collective="all-reduce", ranks=2, hosts=("a", "b"), alpha_s=1e-4, bytes_per_s=1e9
        ),
    ),
    exchange=ExchangeCost(parameter_s=1e-5, bucket_s=5e-5, copy_s_per_byte=4e-10),
)  # fmt: skip

KINDS_OF_FILE: dict[str, tuple[msgspec.Struct, Callable[..., None], Callable[[Path], msgspec.Struct]]] = {
    "plan": (PLAN, write_plan, read_plan),
    "schedule": (SCHEDULE, write_schedule, read_schedule),
    "hardware": (HARDWARE, write_hardware, read_hardware),
}


@pytest.mark.parametrize("kind", KINDS_OF_FILE)
def test_what_is_written_reads_back(kind: str, tmp_path: Path) -> None:
    value, write, read = KINDS_OF_FILE[kind]
    write(value, tmp_path / "f.json")
    assert read(tmp_path / "f.json") == value


@pytest.mark.parametrize(
    ("kind", "keys", "said"),
    [
        ("plan", (), "unknown fields priorty"),
        ("plan", ("transfers", 0), "`priorty` - at `$.transfers[0]`"),
        ("plan", ("transfers", 0, "pieces", 0), "`priorty` - at `$.transfers[0].pieces[0]`"),
        ("schedule", ("moves", 0), "`priorty` - at `$.moves[0]`"),
        ("schedule", ("moves", 0, "source"), "`priorty` - at `$.moves[0].source`"),
        ("schedule", ("paces", 0), "`priorty` - at `$.paces[0]`"),
        ("hardware", ("phases", "forward"), "`priorty` - at `$.phases[...]`"),
        ("hardware", ("efficiencies", "matmul"), "`priorty` - at `$.efficiencies[...]`"),
        ("hardware", ("measured", "mm"), "`priorty` - at `$.measured[...]`"),
        ("hardware", ("collectives", 0), "`priorty` - at `$.collectives[0]`"),
        ("hardware", ("exchange",), "`priorty` - at `$.exchange`"),
    ],
)
def test_an_unknown_field_is_refused_with_its_place(
    kind: str, keys: tuple[str | int, ...], said: str, tmp_path: Path
) -> None:
    value, write, read = KINDS_OF_FILE[kind]
    path = tmp_path / "f.json"
    write(value, path)
    content: Any = json.loads(path.read_text())
    part = content
    for key in keys:
        part = part[key]
    part["priorty"] = 3
    path.write_text(json.dumps(content))
    with pytest.raises(InputError) as caught:
        read(path)
    assert said in caught.value.what
    assert str(path) in caught.value.what
    assert caught.value.remedy


@pytest.mark.parametrize("kind", KINDS_OF_FILE)
def test_what_is_nested_very_deeply_is_no_such_file(kind: str, tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text('{"schema":' + "[" * 50_000)
    with pytest.raises(InputError, match="is not a"):
        KINDS_OF_FILE[kind][2](tmp_path / "f.json")
