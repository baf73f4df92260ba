"""`hemiola predict` from a graph's file to its tables and files."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import msgspec
import numpy as np
import pytest
from equal_layers import gpu, model

from hemiola.cli.predict import predict
from hemiola.core.collective.shapes import ring
from hemiola.core.errors import InputError, TopologyError
from hemiola.core.topology import MeasuredLink, Topology
from hemiola.cost.profiles import load_library
from hemiola.trace.graph_json import write_graph
from hemiola.trace.jobs.timeline_json import read_timeline
from hemiola.trace.struct_json import write_hardware, write_schedule
from hemiola.trace.topologies import write_topology

CLUSTER = "flat:hosts=4,gpus_per_host=4,nic=10gbit"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, str]:
    graph, hardware = tmp_path / "job.graph.json", tmp_path / "gpu.json"
    write_graph(model(), graph)
    write_hardware(msgspec.structs.replace(gpu(), noise=0.02), hardware)
    return graph, str(hardware)


def test_tables_say_what_and_why(files: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    predict(files[0], hardware=files[1], topology=CLUSTER, ranks=8, what_if=True, other=(files[1],))
    shown = capsys.readouterr().out
    for words in (
        "layers: ", "per iteration", "90%: ", "samples/s", "exposed communication", "busiest link: n0 nic", "bucket 1",
        "critical path", "network bandwidth ×2", "half the ranks per host", "no measured nccl transfers",
    ):  # fmt: skip
        assert words in shown, words


def test_names_are_printed_as_they_are(files: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    name = "layers [v2][/old] :ram:"
    write_graph(replace(model(), name=name), files[0])
    predict(files[0], hardware=files[1], topology=CLUSTER, ranks=8)
    assert f"{name}: " in capsys.readouterr().out


def test_json_and_files(files: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line, profile = tmp_path / "line.json", tmp_path / "profile.json"
    predict(
        files[0], hardware=files[1], topology=CLUSTER, ranks=4, parallelism="fsdp", placement="2,2", json=True,
        timeline=line, profile=profile,
    )  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "hemiola.prediction/1"
    assert (found["ranks"], found["hosts"], found["strategy"]) == (4, 2, "fsdp")
    assert sum(found["breakdown"].values()) == pytest.approx(found["iteration_s"], rel=1e-4)
    assert found["low_s"] < found["iteration_s"] < found["high_s"]
    assert read_timeline(line).predicted
    assert load_library(str(profile)).find("predicted/layers") is not None


def test_files_are_written_whoever_reads(files: tuple[Path, str], tmp_path: Path, unread: TextIO) -> None:
    line = tmp_path / "line.json"
    with redirect_stdout(unread), pytest.raises(SystemExit):
        predict(files[0], hardware=files[1], topology=CLUSTER, ranks=4, timeline=line)
    assert read_timeline(line).predicted


@pytest.fixture
def slow(tmp_path: Path) -> str:
    """Four hosts, one of them at a quarter of the others' rate, as `hemiola probe` writes them."""
    bare = Topology.flat(hosts=4, gpus_per_host=1)
    rates = np.array([50e6, 50e6, 50e6, 12.5e6])
    measured = (MeasuredLink("n3 in", 12.5e6, 12e6, 13e6),)
    hosts = replace(bare.hosts, nic_bytes_per_s=rates)
    write_topology(replace(bare, hosts=hosts, measured=measured), tmp_path / "network.toml")
    return str(tmp_path / "network.toml")


def test_schedules_fit_a_measured_network(
    files: tuple[Path, str], slow: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twelve buckets of 40 MB, of which each takes 3.2 s over the slow host's link; by a ring, half as much again."""
    predict(
        files[0], hardware=files[1], topology=slow, ranks=4, library="hemiola", schedules="auto", json=True,
        what_if=True,
    )  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    (use,) = found["strategies"]
    assert (use["collective"], use["size_bytes"], use["count"], use["usual"]) == (
        "all-reduce",
        4e7,
        12,
        "ring",
    )
    assert use["strategy"] == found["transfers"][0]["algorithm"] != "ring"
    assert use["usual_s"] == pytest.approx(4.8, rel=0.001)
    assert 3.2 < use["seconds"] < 3.2 * 1.02
    by_change = {one["change"]: one["relative"] for one in found["what_if"]}
    assert by_change["collectives the usual way"] == pytest.approx(1.5, rel=0.02)


def test_the_schedules_are_shown_beside_the_usual_way(
    files: tuple[Path, str], slow: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    write_schedule(ring([0, 1, 3, 2]), tmp_path / "ring.json")
    for schedules in ("auto", str(tmp_path / "ring.json")):
        predict(files[0], hardware=files[1], topology=slow, ranks=4, library="hemiola", schedules=schedules)
        shown = capsys.readouterr().out
        assert "usually" in shown and "ring" in shown and "12" in shown
    assert "ring 0-1-3-2" in shown


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"hardware": "abacus"}, InputError, "abacus"),
        ({"hardware": __file__}, InputError, "not a hardware file"),
        ({"topology": "flat:hosts=2,gpus_per_host=2,nic=0gbit"}, (InputError, TopologyError), "0"),
        ({"ranks": 17}, InputError, "17 ranks"),
        ({"ranks": 0}, InputError, "0 ranks"),
        ({"parallelism": "gossip"}, InputError, "unknown parallelism"),
        ({"placement": "2;2"}, InputError, "placement"),
        ({"plan": Path("nowhere.json")}, InputError, "nowhere.json"),
        ({"plan": Path("plan.json"), "parallelism": "fsdp"}, InputError, "beside --plan"),
        ({"cores": -1.0}, InputError, "cores"),
        ({"library": "mpi"}, InputError, "no library 'mpi'"),
        ({"library": "hemiola", "plan": Path("plan.json")}, InputError, "beside --plan"),
        ({"schedules": "auto"}, InputError, "nccl, which chooses"),
        ({"schedules": "auto", "library": "gloo"}, InputError, "gloo, which chooses"),
        ({"schedules": "nowhere.json", "library": "hemiola"}, InputError, "no such file"),
        ({"schedules": __file__, "library": "hemiola"}, InputError, "is no XML"),
        ({"schedules": "auto", "profile": Path("profile.json")}, InputError, "beside --profile"),
        ({"timeline": Path("/nowhere/line.json")}, InputError, "no folder"),
    ],
)  # fmt: skip
def test_impossible_questions_are_answered_with_what_to_do(
    files: tuple[Path, str], changes: dict[str, object], error: type[Exception], says: str
) -> None:
    asked = {"hardware": files[1], "topology": CLUSTER, "ranks": 4} | changes
    with pytest.raises(error, match=says) as raised:
        predict(files[0], **asked)
    assert raised.value.remedy  # type: ignore[attr-defined]
