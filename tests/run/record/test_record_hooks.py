"""What the hooks must not do: break training, stay behind, or be compiled into the model. One process, one rank."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hemiola.run.record import record
from hemiola.run.record.session import Session
from hemiola.trace.jobs.timeline_json import read_timeline

HOOKED = (
    (torch.autograd, "backward"),
    (dist.Work, "wait"),
    (nn.parallel.DistributedDataParallel, "forward"),
    (torch.utils.data.DataLoader, "__iter__"),
)


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(iterations: int) -> float:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(iterations):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    return sum(float(p.detach().sum()) for p in model.parameters())


def test_after_recording_pytorch_is_as_before(tmp_path: Path) -> None:
    before = [getattr(owner, name) for owner, name in HOOKED]
    with record(tmp_path / "run.json"):
        assert [getattr(owner, name) for owner, name in HOOKED] != before
        train(2)
    assert [getattr(owner, name) for owner, name in HOOKED] == before
    assert Session.active is None


def test_a_failure_of_the_recording_is_not_one_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = train(4)
    with record(tmp_path / "run.json") as recorder:
        found = _broken_after_one(recorder, monkeypatch)
    assert found == expected
    assert sum("recording has stopped" in entry.message for entry in caplog.records) == 1
    assert "disk is full" in read_timeline(tmp_path / "run.json").facts["partial"][0]


def _broken_after_one(recorder: object, monkeypatch: pytest.MonkeyPatch) -> float:
    def full(*arguments: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(recorder, "backward", full)
    return train(4)


def test_explicit_steps_and_several_waits(tmp_path: Path) -> None:
    with record(tmp_path / "run.json") as recorder:
        for _ in range(3):
            value = torch.ones(5)
            work = dist.all_reduce(value, async_op=True)
            assert work is not None
            work.wait()
            dist.broadcast(value, 0)
            recorder.step()
    timeline = read_timeline(tmp_path / "run.json")
    assert timeline.iterations.number.tolist() == [0, 1, 2]
    names = [timeline.names[k] for k in timeline.transfers.collective]
    assert names == ["all-reduce", "broadcast"] * 3
    assert (timeline.transfers.needed_s <= timeline.transfers.released_s).all()
    assert timeline.transfers.size_bytes.tolist() == [20.0] * 6


def test_buffers_broadcast_by_ddp_are_waited_for(tmp_path: Path) -> None:
    with record(tmp_path / "run.json"):
        train(3)
    timeline = read_timeline(tmp_path / "run.json")
    transfers = timeline.transfers
    broadcast = (transfers.collective == timeline.names.index("broadcast")) & (transfers.iteration == 2)
    assert broadcast.any()
    assert (transfers.needed_s <= transfers.released_s)[broadcast].all()


def test_recording_inside_a_recording_does_nothing(tmp_path: Path) -> None:
    with record(tmp_path / "outer.json") as outer, record(tmp_path / "inner.json") as inner:
        assert inner is outer
        train(1)
    assert not (tmp_path / "inner.json").exists()


@pytest.mark.filterwarnings("ignore")
def test_compiled_functions_stay_the_graphs_they_are(tmp_path: Path) -> None:
    import torch.distributed._functional_collectives as functional
    from torch._dynamo.testing import CompileCounter

    def communicate(value: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(value * 2, "sum", dist.group.WORLD) + 1

    with record(tmp_path / "run.json") as recorder:
        counter = CompileCounter()
        compiled = torch.compile(communicate, backend=counter, fullgraph=True)
        for _ in range(3):
            assert compiled(torch.ones(3)).tolist() == [3.0] * 3
            recorder.step()
    assert counter.frame_count == 1
    timeline = read_timeline(tmp_path / "run.json")
    assert len(timeline.transfers) == 3
    assert (timeline.transfers.needed_s <= timeline.transfers.released_s).all()
