"""A real DDP job under torchrun and `hemiola trace`, with one rank that computes longer than the other."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from record_jobs import TORCHRUN, TRACE, TRAIN, run
from record_scripts.train import LAYERS, SLEEP_S, WIDTH
from repository import SOURCE

from hemiola.core.job_timeline import SPAN_KINDS, JobTimeline
from hemiola.trace.jobs.timeline_json import read_timeline

ITERATIONS = 8


@dataclass(frozen=True)
class Traced:
    process: subprocess.CompletedProcess[str]
    timeline: JobTimeline
    folder: Path


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    folder = tmp_path_factory.mktemp("traced")
    own = folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os\nos.environ['OWN_SITECUSTOMIZE'] = 'ran'\n")
    script = folder / "script.py"
    script.write_text(
        f"import os, sys, runpy\nopen({str(folder / 'marks')!r}, 'a').write(os.environ['OWN_SITECUSTOMIZE'] + ' ')\n"
        f"sys.path.insert(0, {str(Path(TRAIN).parent)!r})\nrunpy.run_path({TRAIN!r}, run_name='__main__')\n"
    )
    command = [*TRACE, "-o", str(folder / "run.json"), "--", *TORCHRUN, str(script), "--slow-rank", "1"]
    process = run([*command, "--iterations", str(ITERATIONS)], PYTHONPATH=_path(own))
    assert process.returncode == 0, process.stderr
    return Traced(process, read_timeline(folder / "run.json"), folder)


def _path(first: Path) -> str:
    return f"{first}:{SOURCE}"


def test_every_rank_and_iteration_is_there(traced: Traced) -> None:
    timeline = traced.timeline
    assert [rank.rank for rank in timeline.ranks] == [0, 1]
    for rank in (0, 1):
        mine = timeline.iterations.rank == rank
        assert timeline.iterations.number[mine].tolist() == list(range(ITERATIONS))
        assert (timeline.iterations.start_s[mine][1:] >= timeline.iterations.end_s[mine][:-1]).all()
    assert "partial" not in timeline.facts
    assert not (traced.folder / "run.json.parts").exists()


def test_the_end_says_what_was_recorded(traced: Traced) -> None:
    assert f"recorded {ITERATIONS} iterations of 2 ranks" in traced.process.stderr
    assert "of each iteration waits for communication" in traced.process.stderr
    assert "clocks agree within" in traced.process.stderr


def test_a_sitecustomize_of_the_users_own_still_runs(traced: Traced) -> None:
    assert (traced.folder / "marks").read_text() == "ran ran "


def test_the_buckets_add_up_to_the_gradients(traced: Traced) -> None:
    timeline = traced.timeline
    transfers = timeline.transfers
    names = np.array(timeline.names)[transfers.name]
    gradient_bytes = LAYERS * (WIDTH * WIDTH + WIDTH) * 4
    for rank in (0, 1):
        for number in range(1, ITERATIONS):
            chosen = (transfers.rank == rank) & (transfers.iteration == number)
            chosen &= transfers.collective == timeline.names.index("all-reduce")
            assert names[chosen].tolist() == [f"bucket {k}" for k in range(chosen.sum())]
            assert chosen.sum() > 1
            assert transfers.size_bytes[chosen].sum() == gradient_bytes
    contents = [name for bucket in timeline.facts["buckets"].values() for name in bucket]
    assert sorted(contents) == sorted(
        f"layers.{k}.{part}" for k in range(LAYERS) for part in ("bias", "weight")
    )


def test_the_times_of_a_transfer_are_in_order(traced: Traced) -> None:
    transfers = traced.timeline.transfers
    trained = transfers.iteration >= 0
    assert (transfers.enqueue_s <= transfers.first_byte_s).all()
    assert (transfers.first_byte_s <= transfers.last_byte_s).all()
    assert (transfers.enqueue_s <= transfers.needed_s)[trained].all()
    assert (transfers.needed_s <= transfers.released_s)[trained].all()
    assert (transfers.last_byte_s <= transfers.released_s)[trained].all()


def test_what_one_rank_computes_longer_the_other_waits(traced: Traced) -> None:
    timeline = traced.timeline
    forward = _time(timeline, rank=1, name="forward")
    waiting = _time(timeline, rank=0, kind="wait")
    assert (forward >= SLEEP_S).all()
    assert np.median(waiting) >= 0.5 * SLEEP_S
    assert np.median(_time(timeline, rank=1, kind="wait")) < np.median(waiting)


def test_no_collective_ends_before_all_have_joined_it(traced: Traced) -> None:
    timeline = traced.timeline
    transfers = timeline.transfers
    error = sum(rank.clock_error_s for rank in timeline.ranks)
    columns = [transfers.rank == rank for rank in (0, 1)]
    enqueue = np.maximum(*(transfers.enqueue_s[column] for column in columns))
    last = np.minimum(*(transfers.last_byte_s[column] for column in columns))
    assert (last >= enqueue - error).all()


def test_each_instant_of_the_main_lane_is_one_thing(traced: Traced) -> None:
    timeline = traced.timeline
    spans = timeline.spans
    for rank in (0, 1):
        mine = (spans.lane == timeline.lanes.index("main")) & (spans.rank == rank) & (spans.iteration >= 0)
        order = np.argsort(spans.start_s[mine], kind="stable")
        starts, ends = spans.start_s[mine][order], spans.end_s[mine][order]
        assert (starts[1:] >= ends[:-1] - 1e-8).all()
        chosen = timeline.iterations.rank == rank
        iterations = timeline.iterations.end_s[chosen] - timeline.iterations.start_s[chosen]
        assert (ends - starts).sum() == pytest.approx(iterations.sum(), abs=1e-6)


ALONE = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
dist.all_reduce(torch.zeros(4))
dist.destroy_process_group()
"""


FORKED = """
import multiprocessing, sys, torch, torch.distributed as dist

def train(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    dist.all_reduce(torch.zeros(4))
    dist.destroy_process_group()
    if rank == 1:
        raise ValueError("something of the script's own")

ranks = [multiprocessing.get_context("fork").Process(target=train, args=(rank, sys.argv[1])) for rank in (0, 1)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
"""


def test_ranks_that_are_forked_say_how_they_end(tmp_path: Path) -> None:
    script = tmp_path / "forked.py"
    script.write_text(FORKED)
    command = [sys.executable, str(script), str(tmp_path / "store")]
    process = run([*TRACE, "-o", str(tmp_path / "run.json"), "--", *command])
    assert process.returncode == 0, process.stderr
    timeline = read_timeline(tmp_path / "run.json")
    assert timeline.facts["partial"] == ["rank 1: crashed: ValueError: something of the script's own"]
    assert timeline.transfers.rank.tolist() == [0, 1]


def test_a_path_need_not_be_text(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.json")
    process = run([*TRACE, "-o", str(path), "--", sys.executable, "-c", ALONE, str(tmp_path)])
    assert process.returncode == 0, process.stderr
    assert "caf\\udce9.json" in process.stderr
    timeline = read_timeline(path)
    assert (timeline.name, len(timeline.transfers)) == ("caf\ufffd.json", 1)


def _time(timeline: JobTimeline, *, rank: int, name: str = "", kind: str = "") -> np.ndarray:
    """Seconds per iteration after the first that a rank spent so."""
    spans = timeline.spans
    chosen = (spans.rank == rank) & (spans.iteration > 0)
    if name:
        chosen &= spans.name == timeline.names.index(name)
    if kind:
        chosen &= spans.kind == SPAN_KINDS.index(kind)
    seconds = np.bincount(spans.iteration[chosen], (spans.end_s - spans.start_s)[chosen], ITERATIONS)
    return seconds[1:]
