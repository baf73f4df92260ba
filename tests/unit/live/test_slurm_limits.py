"""What is learnt of Slurm's limits from jobs that were bound and do not start."""

from __future__ import annotations

import msgspec
import pytest

from hemiola.core.job import batch_job
from hemiola.live.engines.slurm.diff import (
    AGAIN_MOST_S,
    ARRAY,
    LACKING_S,
    RAISED_S,
    StartLimits,
    is_limited,
    patience_s,
)
from hemiola.live.engines.slurm.tracked_job import SlurmTrackedJob
from hemiola.live.engines.slurm.wire import job_rows
from hemiola.live.tracked_job import BACK_OFF_MOST_S, PATIENCE_S, back_off_s

LINE = (
    "7_1|PENDING|Priority|1|1||gres:gpu:1|N/A|N/A|1|1795399342|1000|4294901757|1795399343|7||0|UNLIMITED|hemiola|0|(null)|"
    "1|(null)|0|1|OK|N/A|1|N/A|N/A|N/A|0|(null)|"
)


def array(*ran: bool, number: int = 7) -> list[SlurmTrackedJob]:
    """Its elements 1, 2, ...; those that run."""
    (row,) = job_rows(LINE, (22, 5))
    return [
        SlurmTrackedJob(
            batch_job(id=f"{number}-{i}", submit_s=0.0, gpus=1, duration_s=1.0),
            msgspec.structs.replace(row, id=f"{number}_{i}", array=str(number), reason=ARRAY),
            ran=runs,
            bound_s=0.0 if runs else None,
        )
        for i, runs in enumerate(ran, start=1)
    ]


def startable(jobs: list[SlurmTrackedJob]) -> list[str]:
    return [one.row.id for one in jobs if not (one.ran or one.behind)]


def test_of_an_array_no_more_elements_are_bound_than_could_run():
    limits, jobs, others = (
        StartLimits(),
        array(True, True, False, *[False] * 9),
        array(False, False, number=8),
    )
    limits.line_up([*jobs, *others], 0.0)
    assert len(startable(jobs)) == 10, "nobody knows yet"
    assert limits.met(jobs[2], [*jobs, *others], 0.0) == "of its array no more may run at once"
    limits.line_up([*jobs, *others], 0.1)
    assert startable(jobs) == [] and len(startable(others)) == 2
    limits.line_up(jobs[1:], 0.2)  # one has ended: the next may come
    assert startable(jobs[1:]) == ["7_4"], "the one that met the limit is left alone for a while"
    jobs[4].bound_s = 0.3  # another one was bound already, and counts first
    limits.line_up(jobs[1:], 0.3)
    assert startable(jobs[1:]) == ["7_5"]


def test_now_and_then_one_more_is_tried():
    limits, jobs = StartLimits(), array(True, False, False, False)
    limits.met(jobs[1], jobs, 0.0)
    limits.line_up(jobs, RAISED_S - 1)
    assert startable(jobs) == []
    limits.line_up(jobs, RAISED_S)
    assert startable(jobs) == ["7_2"], "its user may have raised the limit"
    limits.met(jobs[1], jobs, RAISED_S + 1)
    limits.line_up(jobs, RAISED_S + 2)
    assert startable(jobs) == []


def test_what_was_seen_to_run_together_counts_also_where_some_have_just_ended():
    limits, jobs = StartLimits(), array(True, False, False, False)
    limits.met(jobs[1], jobs, 0.0)  # another one had just ended
    jobs[2].ran = True
    limits.line_up(jobs, 1.0)
    assert startable(jobs) == [], "two run together"
    jobs[0].ran = False
    limits.met(jobs[3], jobs, 2.0)
    limits.line_up(jobs[1:], 3.0)
    assert startable(jobs[1:]) == ["7_2"], "and two may"


def test_a_limit_under_which_nothing_runs_does_not_stop_an_array_for_ever():
    limits, jobs = StartLimits(), array(False, False)
    limits.met(jobs[0], jobs, 0.0)
    limits.line_up(jobs, 0.1)
    assert startable(jobs) == ["7_2"]


def test_who_has_run_is_behind_nobody_when_it_waits_again():
    limits, jobs = StartLimits(), array(True, True, False, False)
    limits.met(jobs[2], jobs, 0.0)
    jobs[3].bound_s = 0.0
    limits.line_up(jobs, 0.1)
    assert jobs[3].behind, "it is bound, and the limit is reached"
    jobs = jobs[1:]  # one has ended, and Slurm starts the two others
    jobs[1].ran = jobs[2].ran = True
    limits.line_up(jobs, 1.0)
    jobs[2].ran, jobs[2].bound_s = False, None  # it is pre-empted
    limits.line_up(jobs, 2.0)
    assert startable(jobs) == ["7_4"]


def test_who_meets_a_limit_again_and_again_is_tried_less_often():
    limits, (one,) = StartLimits(), array(False)
    one.row = msgspec.structs.replace(one.row, reason="Licenses")
    pauses = []
    for _ in range(6):
        assert limits.met(one, [one], 0.0) == "Slurm says that a limit is reached: Licenses"
        pauses.append(one.not_before_s)
    assert pauses == [5.0, 10.0, 20.0, 40.0, AGAIN_MOST_S, AGAIN_MOST_S]
    for _ in range(1100):
        limits.met(one, [one], 0.0)
    assert one.not_before_s == AGAIN_MOST_S, "it waits for a day"
    assert back_off_s(1100, 0.0) == BACK_OFF_MOST_S


@pytest.mark.parametrize(
    ("reason", "wanted"),
    [
        ("None", False), ("Priority", False), ("Resources", False), ("BeginTime", False), ("Licenses", True),
        ("AssocGrpGRES", True), ("QOSMaxJobsPerUserLimit", True), ("MaxGRESPerAccount", True), (ARRAY, True),
        ("PartitionNodeLimit", True),
    ],
)  # fmt: skip
def test_reasons_that_are_limits(reason: str, wanted: bool):
    (row,) = job_rows(LINE, (22, 5))
    assert is_limited(msgspec.structs.replace(row, reason=reason)) is wanted


@pytest.mark.parametrize(
    ("reason", "wanted_s"),
    [
        ("None", PATIENCE_S), ("Priority", PATIENCE_S), ("BeginTime", PATIENCE_S), ("Resources", LACKING_S),
        ("ReqNodeNotAvail, UnavailableNodes:h3", LACKING_S),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", LACKING_S),
    ],
)  # fmt: skip
def test_how_long_a_bound_job_may_wait(reason: str, wanted_s: float):
    (row,) = job_rows(LINE, (22, 5))
    assert patience_s(msgspec.structs.replace(row, reason=reason)) == wanted_s
    assert patience_s(msgspec.structs.replace(row, reason=reason, priority=0)) == 0.0, "it is held again"
