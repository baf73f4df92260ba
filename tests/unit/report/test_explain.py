"""A job's story, checked against runs whose every step is known."""

from __future__ import annotations

import re

import msgspec
import pytest
from replays import Script, at, replay, start
from report_build import cluster, comparison, simulate

from hemiola.core.decisions import Move, Placement, Start, Stop, WakeAt
from hemiola.core.errors import InputError
from hemiola.core.job import batch_job
from hemiola.core.result import Comparison, GpuSeconds, JobRecord, LoggedDecision, Run
from hemiola.core.timeline import Timeline
from hemiola.report.story import WIDTH, explain
from hemiola.trace.decisions import write_decisions


def record(name: str, status: str = "finished", **given) -> JobRecord:
    plain = JobRecord(
        id=name, status=status, why="", submit_s=0.0, first_start_s=0.0, finish_s=None, gpus=4, jct_s=None,
        queueing_s=0.0, run_s=0.0, useful_s=0.0, exposed_communication_s=0.0, checkpoint_s=0.0, lost_s=0.0,
        ideal_s=600.0, preemptions=0, migrations=0, tiers_s=(), model="", user="", queue="",
    )  # fmt: skip
    return msgspec.structs.replace(plain, **given)


def staged(**given) -> Comparison:
    """Two racks of two 4-GPU hosts: a and b hold two hosts; c waits, is pre-empted for d, loses a host.

    Its run has what is given instead of what it had.
    """
    zero = dict.fromkeys(GpuSeconds.__struct_fields__, 0.0)
    rows = [
        (0, 0, 0b1111, 0.0, 1000.0, 0.0, 0, 0),
        (1, 1, 0b1111, 0.0, 2000.0, 0.0, 0, 0),
        (2, 0, 0b1111, 1000.0, 1500.0, 1000.0, 1, 1),
        (2, 2, 0b1111, 1000.0, 1500.0, 1000.0, 1, 1),
        (3, 0, 0b0011, 1500.0, 1600.0, 1500.0, 0, 0),
        (2, 2, 0b1111, 1600.0, 1700.0, 1630.0, 0, 4),
        (2, 3, 0b1111, 1800.0, 2500.0, 1830.0, 0, 0),
    ]
    log = [
        (0.0, Start("a", Placement((0,), (15,)), "it was first"), 16, 2, ""),
        (0.0, Start("b", Placement((1,), (15,)), "it was second"), 12, 1, ""),
        (100.0, WakeAt(1300.0, "c", "declined the offer of the whole cluster for a rack"), 8, 1, ""),
        (200.0, WakeAt(1300.0, "c", "declined the offer of the whole cluster for a rack"), 8, 1, ""),
        (300.0, Start("c", Placement((0,), (15,)), "a mistake"), 8, 1, "n0 has no free GPU"),
        (1000.0, Start("c", Placement((0, 2), (15, 15)), "the narrowest place that fits"), 12, 1, ""),
        (1500.0, Stop("c", "d is more urgent"), 4, 1, ""),
        (1500.0, Start("d", Placement((0,), (3,)), "it is urgent"), 12, 2, ""),
        (1600.0, Start("c", Placement((2,), (15,)), "room again"), 12, 1, ""),
        (1800.0, Move("c", Placement((3,), (15,)), "n2 is down"), 12, 1, ""),
    ]
    records = (
        record("a", finish_s=1000.0), record("b", finish_s=2000.0),
        record("c", submit_s=100.0, gpus=8, finish_s=2500.0, queueing_s=1100.0, run_s=1300.0, useful_s=910.0,
               exposed_communication_s=300.0, checkpoint_s=60.0, lost_s=30.0, model="gpt2", user="ada"),
        record("d", submit_s=1400.0, finish_s=1600.0, gpus=2),
        record("e", "refused", submit_s=50.0, gpus=99, why="it wants 99 GPUs, the cluster has 16"),
        record("f", "waiting", submit_s=2400.0, why="the simulation was stopped"),
    )  # fmt: skip
    wanted = tuple(
        batch_job(
            id=r.id,
            submit_s=r.submit_s,
            gpus=r.gpus,
            duration_s=600.0,
            required="rack" if r.id == "c" else "",
        )
        for r in records
    )
    run = Run(
        policy="toy", seed=0, semantics={}, origin_s=0.0, end_s=2500.0, gpu_seconds=GpuSeconds(**zero),
        records=records, decisions_made=len(log), decisions_refused=1, events=0, wall_s=0.0, cpu_s=0.0,
        interrupted=True, timeline=Timeline.from_rows(rows),
        decisions=tuple(LoggedDecision(*entry) for entry in log),
    )  # fmt: skip
    return Comparison(cluster(), (msgspec.structs.replace(run, **given),), "toy", workloads={0: wanted})


def story(tmp_path, found, job, **chosen) -> str:
    path = tmp_path / "decisions.jsonl"
    write_decisions(found, path)
    text = explain(path, job, **chosen)
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    return re.sub(r"\s+", " ", text)


def test_the_whole_story_in_order(tmp_path):
    text = story(tmp_path, staged(), "c")
    told = [
        "Job c under toy (seed 0, INTERRUPTED before its end)",
        "It wanted 8 GPUs inside one rack (for gpt2 of user ada); alone on its best placement it would run 10.00 min.",
        "00:01:40 submitted. 8 of 16 GPUs were not held by a job; a (4 GPUs) and b (4 GPUs) held the others. "
        "0 jobs were waiting before it.",
        "00:01:40 kept waiting, to be looked at again at 00:21:40 (said 2 times): declined the offer of the whole "
        "cluster for a rack. 8 GPUs were free.",
        "00:05:00 a start was refused: n0 has no free GPU. (The policy's reason was: a mistake.)",
        "00:16:40 had waited 15.00 min, in which no other job started.",
        "00:16:40 started on n0 (GPU 0-3) and n2 (GPU 0-3), 2 hosts across the cluster: the narrowest place that "
        "fits. 12 GPUs free and 1 job waiting just before.",
        "00:25:00 was pre-empted: d is more urgent. d started there at that moment.",
        "00:26:40 had waited 1.67 min, in which 1 start of other jobs went before it; d had been submitted after it.",
        "00:26:40 started on n2 (GPU 0-3), within one host: room again.",
        "00:28:20 lost a host after 1.67 min, and went back to the queue.",
        "00:30:00 moved to n3 (GPU 0-3), within one host: n2 is down.",
        "00:41:40 finished, 40.00 min after it was submitted.",
        "In all: 40.00 min from submission, of which it waited 18.33 min and held GPUs for 21.67 min.",
        "15.17 min computing (70%), 5.00 min waiting for communication (23%), 1.00 min saving and loading "
        "checkpoints (5%), 30.00 s on work that was lost (2%).",
    ]
    at = [text.find(part) for part in told]
    assert -1 not in at, told[at.index(-1)]
    assert at == sorted(at)


def test_a_refused_job_says_why(tmp_path):
    text = story(tmp_path, staged(), "e")
    assert "was refused: it wants 99 GPUs, the cluster has 16." in text
    assert "had waited" not in text and "In all" not in text


def test_a_job_that_was_refused_before_the_first_arrival_has_times_below_zero(tmp_path):
    text = story(tmp_path, staged(origin_s=3650.0), "e")
    assert "-01:00:00 submitted." in text and "-01:00:00 was refused" in text


def test_of_a_job_that_was_to_arrive_after_the_end_only_that_is_said(tmp_path):
    text = story(tmp_path, staged(end_s=2000.0), "f")
    assert text.endswith(
        "00:33:20 had not arrived when the run was stopped; it was to be submitted at 00:40:00."
    )


def test_whoever_is_stopped_for_a_job_held_its_gpus_when_that_arrived(tmp_path):
    """b goes on when it comes; c waits behind it, and begins in the instant in which d comes."""
    work = (
        batch_job(id="a", submit_s=0.0, gpus=4, duration_s=9000.0), batch_job(id="b", submit_s=100.0, gpus=4, duration_s=100.0),
        batch_job(id="c", submit_s=150.0, gpus=4, duration_s=110.0), batch_job(id="d", submit_s=200.0, gpus=4, duration_s=120.0),
    )  # fmt: skip
    topology = cluster(1, 1)
    found = Comparison(topology, (simulate(topology, work, "srtf", 0),), "srtf", workloads={0: work})
    full = "0 of 4 GPUs were not held by a job; {} (4 GPUs) held the others. {} waiting before it."
    assert full.format("a", "0 jobs were") in story(tmp_path, found, "b")
    assert full.format("b", "1 job was") in story(tmp_path, found, "c"), "a waits"
    assert "submitted. 4 of 4 GPUs were not held by a job. 2 jobs were waiting" in story(tmp_path, found, "d")


def test_a_job_that_is_moved_while_another_waits_has_not_started_again(tmp_path):
    """a starts once and moves twice; b, stopped on n1, is told who took what it had, not what it was refused."""
    work = [
        batch_job(id=name, submit_s=0.0, gpus=gpus, duration_s=600.0)
        for name, gpus in zip("abc", (4, 4, 16), strict=True)
    ]
    lines = {
        0.0: [start("a", (0, 15)), start("b", (1, 15))],
        100.0: [Move("a", at((2, 15)), ""), Move("b", at((2, 15)), "")],
        200.0: [Stop("b", "it is time"), Move("a", at((1, 15)), "")],
        900.0: [start("b", (0, 15))],
        2000.0: [start("c", (0, 15), (1, 15), (2, 15), (3, 15))],
    }
    run = replay(work, cluster(), Script(lines))
    found = Comparison(cluster(), (run,), "script", workloads={0: tuple(work)})
    assert "in which 3 starts of other jobs went before it" in story(tmp_path, found, "c")
    assert "was pre-empted: it is time. a started there at that moment." in story(tmp_path, found, "b")


def test_a_timer_that_was_set_while_it_ran_is_no_reason_to_wait(tmp_path):
    """At 3250 s a's timer is due, the next is set, and b takes its GPU."""
    topology = cluster(1, 1, 1)
    work = tuple(
        batch_job(id=name, submit_s=submit_s, gpus=1, duration_s=duration_s)
        for name, submit_s, duration_s in (("a", 0.0, 10000.0), ("b", 100.0, 2000.0))
    )
    run = replay(work, topology, "tiresias:promote=0")
    text = story(tmp_path, Comparison(topology, (run,), run.policy, workloads={0: work}), "a")
    assert "00:54:10 was pre-empted" in text and "crosses a threshold" not in text
    assert "The policy recorded no other reason for this wait." in text


def test_a_job_that_still_waits_says_so(tmp_path):
    text = story(tmp_path, staged(), "f")
    assert "was still waiting: the simulation was stopped." in text
    assert "The policy recorded no other reason for this wait." in text


def test_each_policy_tells_its_own_story(tmp_path):
    found = comparison(seeds=(0, 1))
    assert story(tmp_path, found, "job-010").count("Job job-010 under") == 3
    assert story(tmp_path, found, "job-010", policy="sjf", seed=1).startswith(
        "Job job-010 under sjf (seed 1)"
    )


def test_every_job_of_a_run_can_be_explained(tmp_path):
    found = comparison(policies=("srtf",), stop_s=9000.0)
    for job in found.runs[0].records:
        assert "In all:" in story(tmp_path, found, job.id)


def test_overtakers_are_named_and_the_rest_counted(tmp_path):
    text = story(tmp_path, comparison(policies=("sjf",)), "job-013")
    assert re.search(r"job-\d+, job-\d+, job-\d+ and \d+ more had been submitted after it", text)


def test_names_cannot_move_the_cursor(tmp_path):
    found = staged()
    records = tuple(
        msgspec.structs.replace(record, user="\x1b[31mevil", model="m\x1b]0;t\x07", why="\x1b[2J", id=f"{record.id}\x1b")
        for record in found.runs[0].records
    )  # fmt: skip
    path = tmp_path / "decisions.jsonl"
    write_decisions(staged(records=records), path)
    for job in records:
        text = explain(path, job.id)
        assert "of user ?[31mevil" in text and all(line.isprintable() for line in text.split("\n"))
    with pytest.raises(InputError, match="no job 'a'") as caught:
        explain(path, "a")
    assert caught.value.remedy.isprintable()


def test_an_unknown_job_names_the_closest(tmp_path):
    with pytest.raises(InputError, match=r"no job 'job-01O'") as caught:
        story(tmp_path, comparison(policies=("fifo",)), "job-01O")
    assert "job-01" in caught.value.remedy


def test_an_unknown_policy_or_seed_names_those_that_are(tmp_path):
    found = comparison(policies=("fifo",))
    with pytest.raises(InputError, match="policy 'lifo'") as caught:
        story(tmp_path, found, "job-001", policy="lifo")
    assert caught.value.remedy == "its runs are fifo (seed 0)"
    with pytest.raises(InputError, match="no run of seed 7"):
        story(tmp_path, found, "job-001", seed=7)
