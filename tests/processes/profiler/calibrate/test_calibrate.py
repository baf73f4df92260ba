"""This machine really measured, on a small budget."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hemiola.core.errors import InputError
from hemiola.core.graph import Graph
from hemiola.core.hardware import Hardware, signature_key
from hemiola.cost.operations import EVIDENCE, operation_seconds
from hemiola.profiler.calibrate import calibrate
from hemiola.profiler.calibrate.replay import exchange_of
from hemiola.profiler.capture import capture
from hemiola.trace.struct_json import read_hardware, write_hardware


@pytest.fixture(scope="module")
def graph() -> Graph:
    model = nn.Sequential(nn.Linear(40, 72), nn.Tanh(), nn.Linear(72, 5))
    return capture(model, (torch.zeros(6, 40),), name="given")


@pytest.fixture(scope="module")
def measured(graph: Graph) -> Hardware:
    before = torch.get_num_threads(), torch.initial_seed(), torch.get_rng_state().sum()
    found = calibrate([graph], rounds=2, budget_s=1, small=True)
    assert (torch.get_num_threads(), torch.initial_seed(), torch.get_rng_state().sum()) == before
    return found


def test_every_number_is_finite_and_possible(measured: Hardware) -> None:
    assert measured.check() == measured
    assert measured.kind == "cpu"
    assert measured.memory_bytes_per_s > 1e8
    assert measured.peak_flop_per_s["float32"] > 1e8
    assert measured.cores >= 1
    assert len(measured.measured) > 200
    assert measured.exchange is not None


def test_a_given_graph_rests_on_measurements(measured: Hardware, graph: Graph) -> None:
    costs = operation_seconds(graph, measured)
    names = {EVIDENCE[i] for i in costs.evidence}
    assert names <= {"measured", "overhead"}
    assert (costs.seconds >= 0).all()
    assert np.isfinite(costs.spread).all()
    key = signature_key(graph.signatures[graph.operations.signature[1]])
    assert measured.measured[key].runs >= 2


def test_the_files_tells_how_it_was_measured(measured: Hardware, tmp_path: Path) -> None:
    path = tmp_path / "here.hardware.json"
    write_hardware(measured, path)
    assert read_hardware(path) == measured
    assert "given" in measured.sources["measured"]
    assert f"PyTorch {torch.__version__}" in measured.measured_on


def test_a_probe_that_chance_made_faster_under_ddp_spoils_nothing() -> None:
    costs = np.array([8e-6, 1e-4, 4e-10, 5e-5])
    rows = [(14, 1, 300_000, 1), (14, 2, 300_000, 1), (30, 1, 1_200_000, 1), (30, 5, 1_200_000, 1),
            (8, 3, 45_000_000, 1), (8, 5, 45_000_000, 1)]  # fmt: skip
    added_s = rows @ costs
    added_s[2] = -1e-5
    found = exchange_of(rows, [1e-3, 1e-3, 6e-3, 6e-3, 30e-3, 30e-3], added_s.tolist())
    each = np.array([found.parameter_s, found.bucket_s, found.copy_s_per_byte, found.iteration_s])
    others = [row for row in range(len(rows)) if row != 2]
    assert (rows @ each)[others] == pytest.approx(added_s[others], rel=0.1)


def test_an_interruption_ends_it_at_once_and_leaves_nothing() -> None:
    told: list[tuple[str, int]] = []

    def interrupt(what: str, done: int, steps: int) -> None:
        told.append((what, done))
        if done == 1:
            raise KeyboardInterrupt

    before = torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt):
        calibrate(rounds=1, small=True, progress=interrupt)
    assert told[-1][1] == 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    "wrong", [{"threads": 0}, {"rounds": 0}, {"budget_s": 0.0}, {"budget_s": float("nan")}, {"device": "tpu"}]
)
def test_impossible_arguments_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        calibrate(**wrong)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="no device 'cuda'"):
        calibrate(device="cuda")


@pytest.mark.parametrize("device", ["cuda:1", "cuda:all"])
def test_a_gpu_beside_the_only_one_is_refused(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match=f"no device '{device}'"):
        calibrate(device=device)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no GPU beside the first")
def test_another_gpu_than_the_first_is_current_while_it_is_measured() -> None:
    current = set()
    calibrate(
        device="cuda:1", rounds=1, budget_s=1, small=True,
        progress=lambda *_: current.add(torch.cuda.current_device()),
    )  # fmt: skip
    assert current == {1}
    assert torch.cuda.current_device() == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_is_measured(graph: Graph) -> None:
    device = calibrate(device="cuda", rounds=2, budget_s=5, small=True)
    assert device.kind == "gpu"
    assert device.peak_flop_per_s["bfloat16"] > device.peak_flop_per_s["float32"]
    assert device.phases["forward"].operation_s > 0
