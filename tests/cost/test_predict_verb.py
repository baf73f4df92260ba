"""`hemiola predict` from a graph's file to its tables and files."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from test_predict_whatif import gpu, model

from hemiola.cli.predict import predict
from hemiola.core.errors import InputError, TopologyError
from hemiola.cost.profiles import load_library
from hemiola.trace.graph_json import write_graph
from hemiola.trace.hardware_json import write_hardware
from hemiola.trace.jobs.timeline_json import read_timeline

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


def test_json_and_files(files: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line, profile = tmp_path / "line.json", tmp_path / "profile.json"
    predict(
        files[0], hardware=files[1], topology=CLUSTER, ranks=4, strategy="fsdp", placement="2,2", json=True,
        timeline=line, profile=profile,
    )  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "hemiola.prediction/1"
    assert (found["ranks"], found["hosts"], found["strategy"]) == (4, 2, "fsdp")
    assert sum(found["breakdown"].values()) == pytest.approx(found["iteration_s"], rel=1e-4)
    assert found["low_s"] < found["iteration_s"] < found["high_s"]
    assert read_timeline(line).predicted
    assert load_library(str(profile)).find("predicted/layers") is not None


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"hardware": "abacus"}, InputError, "abacus"),
        ({"hardware": __file__}, InputError, "not a hardware file"),
        ({"topology": "flat:hosts=2,gpus_per_host=2,nic=0gbit"}, (InputError, TopologyError), "0"),
        ({"ranks": 17}, InputError, "17 ranks"),
        ({"ranks": 0}, InputError, "0 ranks"),
        ({"strategy": "gossip"}, InputError, "unknown strategy"),
        ({"placement": "2;2"}, InputError, "placement"),
        ({"plan": Path("nowhere.json")}, InputError, "nowhere.json"),
        ({"plan": Path("plan.json"), "strategy": "fsdp"}, InputError, "beside --plan"),
        ({"cores": -1.0}, InputError, "cores"),
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
