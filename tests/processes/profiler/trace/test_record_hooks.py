"""What the hooks must not do: break training, stay behind, or be compiled into the model. One process, one rank."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from patience import patience
from torch import nn

from hemiola.core.job_timeline import SPAN_KINDS, JobTimeline
from hemiola.profiler.trace import record
from hemiola.profiler.trace.collectives import PYTHON, Collectives, Groups, Payload
from hemiola.profiler.trace.profile import LIGHT_FIRST, Profiling
from hemiola.profiler.trace.recorder import IterationRecorder
from hemiola.profiler.trace.session import TraceSession
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
    assert TraceSession.active is None


def test_a_failure_of_the_recording_is_not_one_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = train(4)
    with record(tmp_path / "run.json") as recorder:
        found = _broken_after_one(recorder, monkeypatch)
    assert found == expected
    assert sum("recording has stopped" in entry.message for entry in caplog.records) == 1
    assert "disk is full" in read_timeline(tmp_path / "run.json").facts["partial"][0]


@pytest.mark.parametrize("inside", [True, False])
def test_a_part_that_cannot_be_written_is_no_failure_of_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, inside: bool
) -> None:
    (tmp_path / "run.json.parts").write_text("a plain file")
    with record(tmp_path / "run.json") as recorder:
        if inside:
            with recorder.span("evaluation"):
                train(1)
        recorder.step()
        train(1)
    assert [entry.message.partition(":")[0] for entry in caplog.records] == [
        "recording has stopped, training goes on"
    ]


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


def test_what_an_optimizer_leaves_of_an_iteration_is_no_iteration(tmp_path: Path) -> None:
    """The first call of `step` comes when the optimizer has ended the first iteration."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(tmp_path / "run.json") as recorder:
        for _ in range(3):
            model(torch.ones(4, 2)).sum().backward()
            optimizer.step()
            recorder.step()
    assert read_timeline(tmp_path / "run.json").iterations.number.tolist() == [0, 1, 2]


def test_a_port_that_is_none_is_no_failure_of_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    with record(tmp_path / "run.json", listen=65535) as recorder:
        recorder.step()
    assert recorder.failure == ""
    assert "no metrics are served at 65535" in caplog.text


def test_sparse_tensors_are_as_large_as_their_indices_and_values(tmp_path: Path) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Embedding(5, 2, sparse=True))
    with record(tmp_path / "run.json") as recorder:
        dist.all_reduce(torch.eye(3).to_sparse())
        dist.all_reduce(torch.ones(5))
        model(torch.tensor([1, 3])).sum().backward()
        recorder.step()
    assert recorder.failure == ""
    transfers = read_timeline(tmp_path / "run.json").transfers
    assert transfers.size_bytes.tolist() == [3 * (2 * 8 + 4), 5 * 4, 2 * (8 + 2 * 4)]


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


def test_a_wait_is_not_taken_for_one_of_a_collective_that_left_no_work() -> None:
    """NCCL hands none back for a collective that blocks: nothing waits for it in Python."""
    collectives = Collectives(IterationRecorder(), Groups(lambda group: None))
    value = torch.ones(3)
    transfer = collectives.before("all-reduce", dist.group.WORLD, Payload(12, False), PYTHON, blocking=True)
    collectives.after(transfer, ([value], None), PYTHON, blocking=True)
    work = dist.all_reduce(value, async_op=True)
    assert work is not None
    assert collectives.waiting(work) is None
    work.wait()
    assert transfer.last is not None


def test_collectives_have_one_number_on_all_ranks_however_much_goes_between_two() -> None:
    """Stages of a pipeline have unlike numbers of sends; clocks are compared by the numbers of collectives."""
    recorder = IterationRecorder()
    names = ("send", "all-reduce", "send", "recv", "all-reduce")
    assert [recorder.transfer(name, 0, 4, 0).sequence for name in names] == [0, 0, 1, 2, 1]


def test_a_loader_that_is_read_ahead_in_another_thread_is_not_waited_for(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    loader = torch.utils.data.DataLoader(torch.ones(4, 2))
    with record(tmp_path / "run.json") as recorder, ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            model(pool.submit(lambda: next(iter(loader))).result()).sum().backward()
            recorder.step()
        model(next(iter(loader))).sum().backward()
        recorder.step()
    timeline = read_timeline(tmp_path / "run.json")
    loading = timeline.spans.kind == SPAN_KINDS.index("input")
    assert set(timeline.spans.iteration[loading].tolist()) == {2}


def test_a_script_may_train_in_another_thread_than_the_one_that_began_the_recording(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    loader = torch.utils.data.DataLoader(torch.ones(4, 2))

    def train() -> None:
        for _ in range(2):
            model(next(iter(loader))).sum().backward()
            recorder.step()

    with record(tmp_path / "run.json") as recorder, ThreadPoolExecutor(1) as pool:
        pool.submit(train).result()
    timeline = read_timeline(tmp_path / "run.json")
    loading = timeline.spans.kind == SPAN_KINDS.index("input")
    assert set(timeline.spans.iteration[loading].tolist()) == {0, 1}


def iterate(recorder: IterationRecorder, iterations: int) -> None:
    for _ in range(iterations):
        (torch.ones(8, 8) @ torch.ones(8, 8)).sum()
        recorder.step()


def with_operations(timeline: JobTimeline) -> set[int]:
    lanes = [number for number, lane in enumerate(timeline.lanes) if lane.startswith("operations")]
    return set(timeline.spans.iteration[np.isin(timeline.spans.lane, lanes)].tolist())


def test_iterations_inside_one_annotation_go_without_operations(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with record(tmp_path / "run.json", mode="full") as recorder:
        iterate(recorder, LIGHT_FIRST + 1)
        with torch.profiler.record_function("several"):
            iterate(recorder, 3)
        iterate(recorder, 2)
    timeline = read_timeline(tmp_path / "run.json")
    assert timeline.iterations.number.tolist() == list(range(LIGHT_FIRST + 6))
    assert with_operations(timeline) - {-1} == {
        LIGHT_FIRST,
        LIGHT_FIRST + 3,
        LIGHT_FIRST + 4,
        LIGHT_FIRST + 5,
    }
    assert caplog.text.count("spans several") == 1
    late = timeline.spans.iteration == LIGHT_FIRST + 3
    assert timeline.spans.end_s[late].min() > timeline.iterations.start_s[LIGHT_FIRST + 3]


def test_starting_the_profiler_belongs_to_no_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, pause_s = Profiling._start, 0.05

    def slowly(profiling: Profiling) -> None:
        time.sleep(pause_s)
        start(profiling)

    monkeypatch.setattr(Profiling, "_start", slowly)
    with record(tmp_path / "run.json", mode="full") as recorder:
        iterate(recorder, LIGHT_FIRST + 1)
    timeline = read_timeline(tmp_path / "run.json")
    begin_s = timeline.iterations.end_s[LIGHT_FIRST - 1]
    assert timeline.iterations.start_s[LIGHT_FIRST] >= begin_s + pause_s
    recording = timeline.spans.name == timeline.names.index("recording")
    assert timeline.spans.start_s[recording].min() >= begin_s
    assert timeline.spans.end_s[recording].min() == timeline.iterations.start_s[LIGHT_FIRST]


def test_a_profiler_of_the_scripts_own_takes_the_place_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with record(tmp_path / "run.json", mode="full") as recorder:
        iterate(recorder, LIGHT_FIRST + 2)
        with torch.profiler.profile() as own:
            iterate(recorder, 2)
        iterate(recorder, 3)
    assert "aten::mm" in {event.name for event in own.events()}
    timeline = read_timeline(tmp_path / "run.json")
    assert timeline.iterations.number.tolist() == list(range(LIGHT_FIRST + 7))
    assert with_operations(timeline) - {-1} == {LIGHT_FIRST + n for n in (0, 1, 5, 6)}
    assert caplog.text.count("a profiler of its own") == 1


def test_a_trace_under_way_when_the_script_ends_is_put_together(tmp_path: Path) -> None:
    stale = tmp_path / "run-demand-1.json"
    stale.write_text("of an earlier run")
    with record(tmp_path / "run.json", listen=0) as recorder:
        iterate(recorder, 1)
        assert TraceSession.active is not None
        address = f"http://{TraceSession.active.head.listen}/trace?iterations=3"
        with urllib.request.urlopen(
            urllib.request.Request(address, method="POST"), timeout=patience(30)
        ) as answer:
            first = json.load(answer)["first_iteration"]
        iterate(recorder, 3)
    assert read_timeline(stale).iterations.number.tolist() == [first, first + 1]
    assert not (tmp_path / "run.json.parts").exists()


def test_handlers_of_the_signal_that_call_each_other_are_called_once(tmp_path: Path) -> None:
    """The script's calls the one before it, which is ours; ours, set anew once training begins, calls the script's."""
    called = []

    def own(number: int, frame: object) -> None:
        called.append(number)
        before(number, frame)

    try:
        with record(tmp_path / "run.json") as recorder:
            before: Any = signal.signal(signal.SIGUSR2, own)
            recorder.step()
            os.kill(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    assert called == [signal.SIGUSR2]


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
