"""Real DDP and FSDP2 jobs that record themselves fully, on clocks set two minutes apart."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ranks import run as run_ranks
from record_jobs import SCRIPTS, ranks, run
from record_scripts.train import LAYERS, SKEW_S, WIDTH

from hemiola.core.job_timeline import JobTimeline
from hemiola.profiler.trace.profile import LIGHT_FIRST
from hemiola.trace.jobs.timeline_json import read_timeline


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    process = run([*ranks(folder, str(SCRIPTS / "recorded.py")), str(folder)])
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    return folder


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def timeline(folder: Path, kind: str) -> JobTimeline:
    return read_timeline(folder / f"{kind}.json")


def test_recording_changes_no_bit_of_the_parameters(folder: Path, kind: str) -> None:
    plain, with_recording, afterwards = json.loads((folder / "digests.json").read_text())[kind]
    assert plain == with_recording == afterwards


def test_a_skewed_clock_is_put_right_within_the_error_it_states(timeline: JobTimeline) -> None:
    reference, skewed = timeline.ranks
    assert reference.clock_offset_s == 0
    assert abs(skewed.clock_offset_s + SKEW_S) <= skewed.clock_error_s + reference.clock_error_s
    assert skewed.clock_error_s < 0.05
    assert timeline.facts["clocks"]["1"].startswith("asked")


def test_the_ranks_are_in_step_on_the_common_clock(timeline: JobTimeline) -> None:
    """An iteration cannot end on one rank before it began on the other: it has collectives."""
    iterations = timeline.iterations
    first, second = (iterations.rank == rank for rank in (0, 1))
    error = sum(rank.clock_error_s for rank in timeline.ranks)
    assert (iterations.end_s[first] > iterations.start_s[second] - error).all()
    assert (iterations.end_s[second] > iterations.start_s[first] - error).all()


def test_transfers_carry_the_names_of_what_they_move(kind: str, timeline: JobTimeline) -> None:
    transfers = timeline.transfers
    chosen = (transfers.rank == 0) & (transfers.iteration == 3)
    names = np.array(timeline.names)
    found = list(zip(names[transfers.name[chosen]], names[transfers.collective[chosen]], strict=True))
    if kind == "ddp":
        assert {collective for _, collective in found} == {"all-reduce"}
        return
    layers = {f"layers.{k}" for k in range(LAYERS)}
    assert {name for name, collective in found if collective == "all-gather"} == layers
    scattered = [name for name, collective in found if collective == "reduce-scatter"]
    assert sorted(scattered) == sorted(layers)
    sizes = transfers.size_bytes[chosen & (transfers.collective == timeline.names.index("reduce-scatter"))]
    assert sizes.sum() == LAYERS * (WIDTH * WIDTH + WIDTH) * 4


def test_a_full_recording_holds_operations_and_says_its_cost(timeline: JobTimeline) -> None:
    spans = timeline.spans
    lanes = [lane for lane in timeline.lanes if lane.startswith("operations")]
    assert lanes
    operations = np.isin(spans.lane, [timeline.lanes.index(lane) for lane in lanes])
    assert set(spans.iteration[operations]) - {-1} == set(range(LIGHT_FIRST, 12))
    assert {"aten::linear", "aten::mm"} <= {timeline.names[name] for name in spans.name[operations]}
    cost = timeline.facts["cost"]
    assert cost["profiled_iteration_s"] / cost["light_iteration_s"] - 1 == pytest.approx(
        cost["profiler_fraction"]
    )
    assert cost["hooks_s_per_iteration"] > 0


def test_spans_of_ones_own_are_kept(timeline: JobTimeline) -> None:
    named = timeline.spans.name == timeline.names.index("evaluation")
    durations = (timeline.spans.end_s - timeline.spans.start_s)[named]
    assert len(durations) == 2
    assert (durations >= 0.3).all()


TWICE = """
import os, sys, time
import torch
import torch.distributed as dist
import hemiola
from hemiola.profiler.trace import api

def slowly(*arguments):
    time.sleep(0.5)
    return collect(*arguments)

collect, api.collect = api.collect, slowly
rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
for iterations in (2, 3):
    with hemiola.record(f"{folder}/run.json") as recorder:
        recorder.step()
        for _ in range(iterations):
            dist.all_reduce(torch.zeros(4))
            recorder.step()
    if rank == 0:
        os.rename(f"{folder}/run.json", f"{folder}/{iterations}.json")
dist.destroy_process_group()
"""


def test_a_rank_may_begin_its_next_recording_before_the_first_one_is_put_together(tmp_path: Path) -> None:
    script = tmp_path / "twice.py"
    script.write_text(TWICE)
    run_ranks(script, 2, str(tmp_path))
    for iterations in (2, 3):
        timeline = read_timeline(tmp_path / f"{iterations}.json")
        assert "partial" not in timeline.facts
        assert timeline.iterations.number.tolist() == [*range(iterations + 1)] * 2
    assert not (tmp_path / "run.json.parts").exists()


LEAVES = """
import sys, threading, time
import torch
import torch.distributed as dist
import hemiola

def late():
    if threading.current_thread() is not threading.main_thread():
        time.sleep(0.3)
    return time.perf_counter_ns()

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
with hemiola.record(f"{sys.argv[1]}/run.json") as recorder:
    recorder.now = late
    work = dist.all_reduce(torch.zeros(4), async_op=True)
"""


def test_a_script_may_end_before_the_backend_has_told_of_its_last_collective(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LEAVES, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_gather_counts_on_every_rank(tmp_path: Path) -> None:
    """Who gives and gets nothing has an empty list in the place of what it would get."""
    said = run_ranks(SCRIPTS / "gathering.py", 2, str(tmp_path))
    assert [json.loads(line) for line in said] == [
        [["gather", 0, size_bytes], ["all-reduce", 1, 12]] for size_bytes in (24, 12)
    ]
