"""`hemiola.accelerate` in real processes: trains as DDP does, and ends clearly when something goes wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import patience
from ranks import SOURCE, run, start
from repository import ROOT

from hemiola.trace.jobs.timeline_json import read_timeline
from hemiola.trace.struct_json import read_acceleration

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow


def until_there(*files: Path) -> None:
    limit = time.monotonic() + patience(60)
    while not all(file.exists() for file in files):
        assert time.monotonic() < limit
        time.sleep(0.05)


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_script_trains_as_with_ddp(ranks, tmp_path):
    assert run(HERE / "scenarios.py", ranks, str(tmp_path / "meet")) == ["all the same"] * ranks


def test_it_measures_plans_goes_over_and_judges(tmp_path):
    said = run(HERE / "lives.py", 2, str(tmp_path / "meet"), "finds_a_plan")
    assert said[0] == said[1]
    states = said[0].splitlines()[0].split()[2:]
    assert "profiling" in states and "on" in states
    report = read_acceleration(tmp_path / "meet.report")
    assert report.state in ("on", "reverted")
    assert report.before_s and report.predicted_s and report.measured_s and report.bound_s
    assert report.bound_s <= report.predicted_s * 1.001


def test_where_the_links_cannot_be_measured_all_are_told_and_nothing_is_kept(tmp_path):
    assert run(HERE / "lives.py", 2, str(tmp_path / "meet"), "cannot_measure") == ["left"] * 2


def test_transfers_that_are_deferred_begin_after_backward_and_change_nothing(tmp_path):
    assert run(HERE / "lives.py", 3, str(tmp_path / "meet"), "defers_transfers") == ["left"] * 3


def test_where_no_plan_is_faster_ddp_goes_on_in_the_fastest_buckets(tmp_path):
    assert run(HERE / "lives.py", 2, str(tmp_path / "meet"), "stays_with_ddp") == ["left"] * 2


def test_what_is_frozen_for_a_while_trains_again_after_it(tmp_path):
    assert run(HERE / "lives.py", 2, str(tmp_path / "meet"), "freezes_for_a_while") == ["left"] * 2


def test_what_is_waited_for_in_closures_is_measured(tmp_path):
    assert run(HERE / "lives.py", 2, str(tmp_path / "meet"), "steps_by_closures") == ["left"] * 2


def test_a_module_keeps_nothing_of_who_trained_it(tmp_path):
    assert run(HERE / "lives.py", 2, str(tmp_path / "meet"), "keeps_nothing") == ["left"] * 2


def test_without_exchange_ranks_stay_apart_whoever_takes_over(tmp_path):
    assert run(HERE / "lives.py", 2, str(tmp_path / "meet"), "stays_apart_in_no_sync") == ["left"] * 2


def test_accumulation_by_ddps_attribute_is_ddps_in_every_phase(tmp_path):
    assert run(HERE / "lives.py", 2, str(tmp_path / "meet"), "accumulates_in_every_phase") == ["left"] * 2


def test_what_does_other_work_is_not_called_faster(tmp_path):
    assert run(HERE / "lives.py", 2, str(tmp_path / "meet"), "changes_its_work") == ["left"] * 2


def test_what_ddp_has_counts_or_is_refused(tmp_path):
    assert run(HERE / "lives.py", 2, str(tmp_path / "meet"), "takes_what_ddp_takes") == ["left"] * 2


def test_a_backward_that_fails_on_one_rank_is_left_out_by_nobody(tmp_path):
    assert run(HERE / "lives.py", 2, str(tmp_path / "meet"), "leaves_out_a_batch") == ["left"] * 2


def test_ddp_is_tried_in_buckets_that_may_be_faster_and_the_faster_one_stays(tmp_path):
    assert run(HERE / "lives.py", 2, str(tmp_path / "meet"), "tries_other_buckets") == ["left"] * 2


def test_the_report_says_what_a_given_plan_takes_and_goes_on_to_the_end(tmp_path):
    assert run(HERE / "lives.py", 2, str(tmp_path / "meet"), "reports_to_its_end") == ["left"] * 2


def test_copies_exchange_nothing_and_compiled_ones_are_refused(tmp_path):
    assert run(HERE / "lives.py", 2, str(tmp_path / "meet"), "is_copied") == ["left"] * 2


def test_a_report_that_cannot_be_written_ends_no_training(tmp_path):
    assert run(HERE / "lives.py", 2, str(tmp_path / "meet"), "trains_for_long") == ["left"] * 2


def test_groups_that_are_a_part_of_the_job_have_collectives_of_their_own(tmp_path):
    assert run(HERE / "lives.py", 4, str(tmp_path / "meet"), "is_one_of_two_groups") == ["left"] * 4


def test_a_rank_that_is_done_waits_for_one_that_is_not(tmp_path):
    assert run(HERE / "lives.py", 2, str(tmp_path / "meet"), "waits_at_the_end") == ["left"] * 2


def test_who_leaves_before_its_step_waits_for_nobody(tmp_path):
    assert run(HERE / "lives.py", 2, str(tmp_path / "meet"), "leaves_before_its_step") == ["left"] * 2


def test_a_recording_holds_every_transfer_of_the_plan(tmp_path):
    assert run(HERE / "lives.py", 2, str(tmp_path / "meet"), "is_recorded") == ["left"] * 2
    timeline = read_timeline(tmp_path / "meet.json")
    log = timeline.transfers
    names = [timeline.names[name] for name in log.name.tolist()]
    sizes = {
        "0.weight": 64 * 256,
        "0.bias": 256,
        "2.weight": 256 * 256,
        "2.bias": 256,
        "4.weight": 8 * 256,
        "4.bias": 8,
    }
    whole = [row for row, iteration in enumerate(log.iteration.tolist()) if iteration in range(1, 7)]
    assert sorted(names[row] for row in whole) == sorted(list(sizes) * 2 * 6)
    for row in whole:
        assert log.size_bytes[row] == 4 * sizes[names[row]]
        assert log.enqueue_s[row] <= log.first_byte_s[row] <= log.last_byte_s[row]
        assert log.needed_s[row] <= log.released_s[row]


def test_mistakes_are_named(tmp_path):
    assert run(HERE / "lives.py", 2, str(tmp_path / "meet"), "meets_mistakes") == ["left"] * 2


def test_a_killed_rank_is_named_by_the_others(tmp_path):
    processes = [start(HERE / "lives.py", rank, 2, str(tmp_path / "meet"), "is_killed") for rank in range(2)]
    until_there(tmp_path / "meet.1")
    processes[1].send_signal(signal.SIGKILL)
    output, problem = processes[0].communicate(timeout=patience(90))
    assert "rank 1 is gone" in output, problem[-2000:]
    assert processes[0].returncode == 0
    processes[1].communicate()


def test_a_rank_with_fewer_batches_ends_well_and_the_other_is_told(tmp_path):
    said = run(HERE / "lives.py", 2, str(tmp_path / "meet"), "has_fewer_batches")
    assert said[1].splitlines()[0] == "done True"
    assert "rank 1 has closed its transport" in said[0] or "rank 1 is gone" in said[0]


def test_ctrl_c_reaches_a_rank_that_waits(tmp_path):
    processes = [
        start(HERE / "lives.py", rank, 2, str(tmp_path / "meet"), "is_interrupted") for rank in range(2)
    ]
    until_there(tmp_path / "meet.0", tmp_path / "meet.1")
    time.sleep(3)  # rank 0 waits for rank 1, which sleeps; if not yet, it is interrupted earlier
    for process in processes:
        process.send_signal(signal.SIGINT)
    for process in processes:
        output, problem = process.communicate(timeout=patience(60))
        assert "interrupted" in output, problem[-2000:]


def test_the_example_learns_the_same_either_way(tmp_path):
    losses = []
    for more in ([], ["--accelerate"]):
        command = [
            sys.executable, "-c", "from hemiola.cli import main; main()", "run", "--nproc", "2", str(ROOT / "examples" / "train.py"),
            "--steps", "24", "--losses", str(tmp_path / "losses.csv"), *more,
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": SOURCE, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience(200))
        assert done.returncode == 0, done.stderr[-3000:]
        lines = (tmp_path / "losses.csv").read_text().split()[1:]
        losses.append([line.split(",")[1] for line in lines])
    assert losses[0] == losses[1]
    assert len(losses[0]) == 24
    assert "acceleration is" in done.stderr


def test_without_a_process_group_it_says_so():
    torch = pytest.importorskip("torch")
    import hemiola

    model = torch.nn.Linear(2, 2)
    with pytest.raises(hemiola.HemiolaError, match="there is no process group"):
        hemiola.accelerate(model, torch.optim.SGD(model.parameters(), 0.1))
