"""`hemiola calibrate` as a user types it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from hemiola.cli.calibrate import calibrate
from hemiola.core.errors import InputError, UnitError
from hemiola.cost.operations import load_hardware
from hemiola.profiler.capture import capture
from hemiola.trace.graph_json import write_graph


def test_a_file_is_written_and_a_table_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    graph, output = tmp_path / "job.graph.json", tmp_path / "here.hardware.json"
    write_graph(capture(nn.Linear(33, 7), (torch.zeros(5, 33),), name="job"), graph)
    calibrate(graph, output=output, rounds=1, budget="1s", quick=True, name=os.fsdecode(b"bench \xe9"))
    hardware = load_hardware(output)
    assert hardware.name == "bench \ufffd"
    assert any("float32[5,33]" in key for key in hardware.measured)
    shown, told = capfd.readouterr()
    assert "bench" in shown
    assert "GFLOP/s" in shown
    assert "transformer-64" in told
    assert f"wrote {output}" in told.replace("\n", "")


def test_ctrl_c_writes_nothing_and_says_what_was_done(tmp_path: Path) -> None:
    output = tmp_path / "here.hardware.json"
    code = f"from pathlib import Path; from hemiola.cli.calibrate import calibrate; calibrate(output=Path({str(output)!r}))"
    environment = {**os.environ, "COLUMNS": "200"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=environment
    ) as run:
        assert run.stderr is not None
        said = ""
        while "perceptron-8" not in said:  # the first network is being measured
            line = run.stderr.readline()
            assert line, said
            said += line
        run.send_signal(signal.SIGINT)
        said += run.stderr.read()
    assert run.returncode == 130
    assert "interrupted after 0 of" in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ranks", [1, -2])
def test_one_rank_is_refused_before_anything_is_measured(tmp_path: Path, ranks: int) -> None:
    with pytest.raises(InputError, match="ranks"):
        calibrate(output=tmp_path / "x.json", ranks=ranks)


def test_links_that_cannot_be_measured_do_not_cost_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "here.hardware.json"
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))  # where the ranks find no Python
    with pytest.raises(InputError, match="without the links between 2 processes: rank 0 failed"):
        calibrate(output=output, rounds=1, budget="1s", ranks=2, quick=True)
    hardware = load_hardware(output)
    assert hardware.measured
    assert hardware.collectives == ()


def test_wrong_input_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    output = tmp_path / "x.json"
    with pytest.raises(InputError, match="nowhere"):
        calibrate(output=tmp_path / "nowhere" / "x.json")
    with pytest.raises(InputError, match=r"missing\.json"):
        calibrate(tmp_path / "missing.json", output=output)
    with pytest.raises(InputError, match=r"links\.json"):
        calibrate(output=output, links=(tmp_path / "links.json",))
    with pytest.raises(UnitError):
        calibrate(output=output, budget="4")
