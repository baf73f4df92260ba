"""`hemiola jobs`, `nodes`, `explain` and `top` on journals that the real loop has filled."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

import msgspec
import pytest
from filled_journal import BEGAN_S, RACKS, fill, job, uuid_of
from patience import patience

from hemiola.cli.explain import explain_live
from hemiola.cli.live import jobs, nodes
from hemiola.cli.serve import _check_engine
from hemiola.cli.simulate import explain
from hemiola.cli.top import _Engine, _look, frame, top
from hemiola.core.errors import InputError
from hemiola.core.events import Adopted, Blocked, Event, Finished, Held, NodeLost, Released, Requeued
from hemiola.core.job import Demand, Job, Profile
from hemiola.live.engines.base import EngineConnection
from hemiola.live.journal import Journal, JournaledJob
from hemiola.live.query.cluster import Following, LiveCluster, read_cluster
from hemiola.live.query.forecast import forecast, predicted_loads
from hemiola.report.columns import ago, clock, columns, elapsed
from hemiola.trace.topologies.read import read_topology

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-")
SENDS = Profile(name="sends", demands=(Demand(16, 1.0, 1.25e9),), overlap=0.5)
"""On 16 GPUs it computes for 1 s and sends 1.25 GB, of which it hides 0.5 s: at 10 Gbit/s, 1.5 s an iteration."""
Lines = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("PATH", "/nowhere")  # no Slurm is asked here
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the wall clock to so many seconds after the beginning."""
    return lambda after_s: monkeypatch.setattr(time, "time", lambda: BEGAN_S + after_s)


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Lines:
    def printed(verb: Callable[..., None], *arguments: object, **options: object) -> list[str]:
        verb(*arguments, **options)
        out = capsys.readouterr().out
        assert not UUID.search(re.sub(r'"uuid": "[^"]*"', "", out)), "a job is called by its UUID"
        return out.splitlines()

    return printed


def five() -> list[Job]:
    return [
        job(1, 0, 16, 600.0, hosts=2, profile=SENDS),
        job(2, 1, 16, 900.0, hosts=2, estimate_s=900.0),
        job(3, 2, 8, 300.0),
        job(4, 3, 8, 86400.0),
        job(5, 4, 1, 60.0),
    ]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both racks are full, two jobs wait, one is held; 100 s after the beginning."""
    path = tmp_path_factory.mktemp("full") / "j.db"
    fill(path, five(), BEGAN_S + 100, others=[Held(BEGAN_S + 4, uuid_of(4), "a user holds it")])
    return path


def test_jobs_looks_like_squeue(full: Path, lines: Lines, at: Callable[[float], None]) -> None:
    at(101)
    assert lines(jobs, journal=str(full)) == [
        "JOBID  NAME    USER  ST  GPUS  NODES  TIME    EST  WAITED  NODELIST(REASON)",
        "  103  train3  ada   PD     8      -  0:00   5:00    1:39  (needs 8 GPUs, 0 are free)",
        "  105  train5  ada   PD     1      -  0:00   1:00    1:37  (needs 1 GPU, 0 are free)",
        "  104  train4  bo    PD     8      -  0:00      -    1:38  (a user holds it)",
        "  101  train1  ada   R     16      2  1:41  10:00    0:00  n[0-1]",
        "  102  train2  bo    R     16      2  1:40  15:00    0:00  n[2-3]",
    ]
    assert [line.split()[0] for line in lines(jobs, journal=str(full), user="bo")] == ["JOBID", "104", "102"]
    assert [line.split()[0] for line in lines(jobs, journal=str(full), state="held")] == ["JOBID", "104"]


def test_nodes_stand_by_rack_and_alike_ones_share_a_line(
    lines: Lines, at: Callable[[float], None], tmp_path: Path
) -> None:
    work = [job(1, 0, 16, 600.0, hosts=2), job(2, 1, 3, 900.0)]
    others: list[Event] = [Blocked(BEGAN_S + 1, 2, 2)]
    fill(tmp_path / "j.db", work, BEGAN_S + 9, others=others, nodes=[NodeLost(BEGAN_S + 2, 3)])
    at(10)
    assert lines(nodes, journal=str(tmp_path / "j.db")) == [
        "RACK   NODES  STATE  GPUS  USED  FREE  BLOCKED  NODELIST  JOBS(GPUS)",
        "r0         2  full     16    16     0        0  n[0-1]    101(16)",
        "r1         1  mixed     8     3     3        2  n2        102(3)",
        "r1         1  down      8     0     0        0  n3        -",
        "total      4           32    19     3        2            2 jobs",
    ]


def test_json_has_a_schema_and_all_that_is_known(
    full: Path, lines: Lines, at: Callable[[float], None]
) -> None:
    at(101)
    told = json.loads("\n".join(lines(jobs, journal=str(full), json=True)))
    assert (told["schema"], told["policy"], told["mode"]) == ("hemiola.jobs/1", "dally", "enforce")
    assert told["daemon"]["state"] == "leads" and told["as_of_s"] == BEGAN_S + 101
    by_id = {row["id"]: row for row in told["jobs"]}
    assert by_id["101"] == {
        "id": "101", "uuid": uuid_of(1), "name": "train1", "user": "ada", "model": "sends", "state": "running",
        "gpus": 16, "hosts": 2, "where": [["n0", 8], ["n1", 8]], "submitted_s": BEGAN_S, "started_s": BEGAN_S,
        "ended_s": None, "run_s": 101.0, "span_s": 101.0, "waited_s": 0.0, "predicted_s": 600.0, "predicted_iteration_s": pytest.approx(1.5, rel=1e-3), "iteration_s": None, "speed": None,
        "estimate_s": 600.0, "estimate_from": "user", "preemptions": 0, "until_s": None,
        "reason": "least attained service first; its narrowest tier (rack) is free",
    }  # fmt: skip
    assert [by_id[str(n)]["estimate_from"] for n in (101, 102, 104)] == ["user", "limit", "default"]
    told = json.loads("\n".join(lines(nodes, journal=str(full), json=True)))
    assert told["schema"] == "hemiola.nodes/1"
    assert told["nodes"][0] == {
        "name": "n0", "rack": "r0", "state": "full", "gpus": 8, "used": 8, "free": 0, "blocked": 0,
        "jobs": {"101": 8}, "cells": ["101"] * 8,
    }  # fmt: skip


def test_explain_tells_the_story_the_holders_and_the_start(
    full: Path, lines: Lines, at: Callable[[float], None]
) -> None:
    at(101)
    assert lines(explain, "103", journal=str(full)) == [
        "Job 103 (train3) of user ada: waiting (PD)",
        "  It wants 8 GPUs. Policy dally, enforce mode; n0 (process 77) leads, heard 1 s ago.",
        "  08:00:02  submitted: wants 8 GPUs.",
        "  now  waits: needs 8 GPUs, 0 are free.",
        "  What it waits for is held by job 101 (to be pre-empted about 08:03).",
        "  Expected start: about 08:03 (in 2 min), on n0 (8 GPUs): least attained service first, in place",
        "  of 1 other.",
        "  This is an estimate: the present state, played on in the simulator under dally. Running jobs",
        "  end by what users said (1), time limits (1); nobody submits a job, and no host fails.",
        "  In all it waited 1.65 min and has had GPUs for 0 s.",
    ]
    assert lines(explain, str(full), "104") == lines(explain, "104", journal=str(full))
    held = lines(explain, str(full), "104")
    assert "  08:00:04  may not start for now: a user holds it." in held
    assert not any("Expected start" in line for line in held)
    told = json.loads("\n".join(lines(explain, "103", journal=str(full), json=True)))
    assert told["schema"] == "hemiola.explanation/1"
    assert told["forecast"]["holders"] == [
        {"job": "101", "until_s": told["forecast"]["start_s"], "how": "is pre-empted", "overrun": False}
    ]


def test_a_forecast_is_what_then_happens(tmp_path: Path) -> None:
    """With run times as estimated and nobody else, in the middle of a policy's delays: to the microsecond."""
    topology = read_topology(
        "leaf-spine:hosts=6,gpus_per_host=4,hosts_per_rack=2,nic=10gbit,oversubscription=4"
    )
    work = [
        job(i, 7.0 * i, gpus, 200.0 + 61.0 * (i % 5), profile=SENDS)
        for i, gpus in enumerate([8, 4, 8, 2, 8, 4, 8, 1, 6, 8, 4, 12, 8, 2, 8, 16, 3, 8], start=1)
    ]
    now_s = BEGAN_S + 300.0
    fill(tmp_path / "now.db", work, now_s, topology=topology, policy="dally:timer=manual")
    fill(
        tmp_path / "end.db", work, float("inf"), topology=topology, policy="dally:timer=manual", leads_s=None
    )
    later: dict[str, float] = {}
    with Journal.open(tmp_path / "end.db", read_only=True) as journal:
        for instant in journal.instants(1):
            for decision, _ in instant.decisions or ():
                if type(decision).__name__ == "Start" and instant.events[0].time_s > now_s:
                    later.setdefault(decision.job_id, instant.events[0].time_s)
    with Journal.open(tmp_path / "now.db", read_only=True) as journal:
        records = journal.open_jobs()
        waiting = [record.uuid for record in records if record.status == "waiting"]
        assert len(waiting) > 3
        for uuid in waiting:
            found = forecast(journal, journal.run(1), records, uuid, now_s)
            assert found.remembers and found.start_s == pytest.approx(later[uuid], abs=1e-6)


def test_a_forecast_without_the_policy_s_memory_says_so(
    full: Path, monkeypatch: pytest.MonkeyPatch, at: Callable[[float], None], lines: Lines
) -> None:
    monkeypatch.setattr("hemiola.live.query.forecast.REPLAYED_MOST", 0)
    at(101)
    text = " ".join(lines(explain, "103", journal=str(full)))
    assert "Expected start: about 08:03" in text and "so far is not known" in text


def test_who_is_made_smaller_for_another_is_not_said_to_end(
    tmp_path: Path, lines: Lines, at: Callable[[float], None]
) -> None:
    work = [job(1, 0, 16, 9000.0, gpus_min=8, gpus_max=16), job(2, 0, 16, 600.0), job(3, 1, 24, 60.0)]
    fill(tmp_path / "j.db", work, BEGAN_S + 9, policy="elastic")
    at(10)
    text = " ".join(line.strip() for line in lines(explain, "103", journal=str(tmp_path / "j.db")))
    assert "held by job 101 (to be resized about 08:10) and job 102 (to end about 08:10)" in text


def test_a_story_has_preemptions_requeues_and_lost_hosts(
    tmp_path: Path, lines: Lines, at: Callable[[float], None]
) -> None:
    work = [job(1, 0, 16, 9000.0, hosts=2), job(2, 1, 16, 9000.0, hosts=2), job(3, 250, 8, 500.0)]
    fill(tmp_path / "j.db", work, BEGAN_S + 400, nodes=[NodeLost(BEGAN_S + 300, 2)])
    at(401)
    path = str(tmp_path / "j.db")
    told = " ".join(line.strip() for line in lines(explain, "102", journal=path))
    assert (
        "08:04:10  was pre-empted: job 103 has had less service and needs its GPUs; job 103 started there"
        in told
    )
    assert "waits: needs 16 GPUs, 0 are free; pre-empted: job 103 has had less service" in told
    assert "What it waits for is held by job 101 (to be pre-empted about 08:07)." in told
    assert told.endswith("and was pre-empted once.")
    assert "  08:05:00  lost host n2, and went back to the queue." in lines(explain, "103", journal=path)


def test_an_ended_job_loses_no_host(tmp_path: Path, lines: Lines, at: Callable[[float], None]) -> None:
    work = [job(1, 0, 8, 60.0), job(2, 0, 8, 9000.0)]
    fill(tmp_path / "j.db", work, BEGAN_S + 400, nodes=[NodeLost(BEGAN_S + 300, host) for host in range(4)])
    at(401)
    ended, lost = (lines(explain, name, journal=str(tmp_path / "j.db")) for name in ("101", "102"))
    assert any("finished" in line for line in ended) and not any("lost host" in line for line in ended)
    assert any("lost host" in line for line in lost)


def test_what_the_engine_said_is_told(tmp_path: Path, lines: Lines, at: Callable[[float], None]) -> None:
    work = [job(1, 0, 16, 9000.0, hosts=2), job(2, 50, 1, 60.0), job(3, 60, 1, 60.0)]
    fill(
        tmp_path / "j.db", work, BEGAN_S + 70,
        others=[
            Requeued(BEGAN_S + 50, uuid_of(1), "Slurm put it back: Prolog"), Held(BEGAN_S + 50, uuid_of(1), "it backs off"),
            Released(BEGAN_S + 60, uuid_of(1)),
        ],
    )  # fmt: skip
    at(71)
    told = lines(explain, "101", journal=str(tmp_path / "j.db"))
    for text in (
        "  08:00:50  went back to the queue: Slurm put it back: Prolog.",
        "  08:00:50  may not start for now: it backs off.",
        "  08:01:00  may start again.",
    ):
        assert text in told


def test_nothing_is_expected_where_nobody_said_anything(
    tmp_path: Path, lines: Lines, at: Callable[[float], None]
) -> None:
    """Its model is known, and so how its place is predicted to slow down a run time that is none."""
    fill(tmp_path / "j.db", [job(1, 0, 16, 86400.0, hosts=2, profile=SENDS)], BEGAN_S + 9)
    at(10)
    (row,) = lines(jobs, journal=str(tmp_path / "j.db"))[1:]
    assert row.split()[3:9] == ["R", "16", "2", "0:10", "-", "0:00"]


def test_what_a_user_of_ray_says_is_no_limit(
    tmp_path: Path, lines: Lines, at: Callable[[float], None]
) -> None:
    work = [job(1, 0, 8, 7200.0, estimate_s=7200.0)]
    fill(tmp_path / "j.db", work, BEGAN_S + 9, engine="ray 2.51.1")
    at(10)
    told = "\n".join(lines(explain, "101", journal=str(tmp_path / "j.db")))
    assert "about 2.0 h left, by what its user said." in told


def test_a_journal_is_that_of_one_engine(tmp_path: Path) -> None:
    fill(tmp_path / "j.db", [job(1, 0, 8, 7200.0)], BEGAN_S + 9, engine="ray 2.51.1")
    with Journal.open(tmp_path / "j.db") as journal:
        _check_engine(journal, "ray 2.60.0")
        with pytest.raises(InputError, match=r"is the journal of ray 2\.51\.1, and this is slurm"):
            _check_engine(journal, "slurm-wlm 22.05.8")
    with Journal.open(tmp_path / "new.db") as journal:
        _check_engine(journal, "slurm-wlm 22.05.8")


def test_why_a_job_runs_there_outlives_a_restart(
    tmp_path: Path, lines: Lines, at: Callable[[float], None]
) -> None:
    path = tmp_path / "j.db"
    run = fill(path, [job(1, 0, 8, 600.0), job(2, 0, 8, 600.0)], BEGAN_S + 9, leads_s=None)
    with Journal.open(path) as journal:
        ours, theirs = journal.open_jobs()
        assert ours.note
        epoch = journal.lead("n0/1234-5/78/1/ab", BEGAN_S + 20, 10.0)
        assert epoch is not None
        after = journal.begin_run(epoch, journal.run(run).opening, BEGAN_S + 20)
        there = [Adopted(BEGAN_S + 20, its.job, its.placement, its.since_s) for its in (ours, theirs)]
        journal.record_events(after, 1, there, [msgspec.structs.replace(theirs, note="")])
    at(21)
    told = json.loads("\n".join(lines(jobs, journal=str(path), json=True)))
    assert [row["reason"] for row in told["jobs"]] == [ours.note, "the engine chose"]


def test_an_observing_run_tells_what_would_have_been(
    tmp_path: Path, lines: Lines, at: Callable[[float], None]
) -> None:
    fill(tmp_path / "j.db", [job(1, 0, 16, 600.0, hosts=2), job(2, 5, 1, 60.0)], BEGAN_S + 9, observes=True)
    at(10)
    assert (
        "(the engine decides: Hemiola changes nothing in this mode)"
        in lines(jobs, journal=str(tmp_path / "j.db"))[1]
    )
    text = " ".join(line.strip() for line in lines(explain, "101", journal=str(tmp_path / "j.db")))
    assert "dally, which only looks on, would have started on n[0-1]" in text
    assert "(which only looks on: the engine itself decides)" in text


def test_whoever_would_have_been_started_is_not_told_to_have_been_kept_waiting(
    tmp_path: Path, lines: Lines, at: Callable[[float], None]
) -> None:
    fill(tmp_path / "j.db", [job(1, 0, 8, 600.0)], BEGAN_S + 9, policy="tiresias", observes=True)
    at(10)
    text = " ".join(line.strip() for line in lines(explain, "101", journal=str(tmp_path / "j.db")))
    assert "would have started on n0" in text and "kept waiting" not in text


@pytest.mark.parametrize(
    ("leads_s", "after_s", "says"),
    [
        (10.0, 105, ""),
        (10.0, 200, "warning: Hemiola is silent: n0 (process 77) was last heard 100 s ago; this is as of 08:01:40"),
        (None, 160, "warning: Hemiola does not run: it ended 60 s ago (it was asked to stop); this is as of 08:01:40"),
    ],
)  # fmt: skip
def test_what_is_old_is_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], at: Callable[[float], None], leads_s: float | None,
    after_s: float, says: str,
) -> None:  # fmt: skip
    fill(tmp_path / "j.db", five(), BEGAN_S + 100, leads_s=leads_s)
    at(after_s)
    jobs(journal=str(tmp_path / "j.db"))
    printed = capsys.readouterr()
    assert printed.err.strip().replace("2 min", "100 s") == says
    running = next(line for line in printed.out.splitlines() if " 101 " in line)
    assert ("1:45" if not says else "1:40") in running


def test_an_empty_journal_and_none_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Journal.open(tmp_path / "j.db").close()
    for verb in (jobs, nodes, top):
        verb(journal=str(tmp_path / "j.db"), **({"once": True} if verb is top else {}))
    assert "Hemiola has never run on this journal" in capsys.readouterr().err
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with pytest.raises(InputError, match=r"there is no journal at .*nobody\.db"):
        jobs(partition="nobody")
    with pytest.raises(InputError, match="has no job '7'"):
        explain("7", journal=str(tmp_path / "j.db"))
    decisions = tmp_path / "d.jsonl"
    decisions.write_text("{}")
    with pytest.raises(InputError, match="of which job"):
        explain(str(decisions))
    (tmp_path / "state/hemiola").mkdir(parents=True)
    Journal.open(tmp_path / "state/hemiola/mine.db").close()
    jobs(partition="mine")
    assert capsys.readouterr().out.startswith("JOBID")


def test_names_cannot_move_the_cursor(tmp_path: Path, lines: Lines, at: Callable[[float], None]) -> None:
    fill(tmp_path / "j.db", [job(1, 0, 1, 60.0, model="\x1b[2Jwipe\nout")], BEGAN_S + 9)
    at(10)
    for verb, more in ((jobs, {}), (explain_live, {"partition": "", "json": False}), (top, {"once": True})):
        first = ("101",) if verb is explain_live else ()
        text = "\n".join(lines(verb, *first, journal=str(tmp_path / "j.db"), **more))
        assert "\x1b" not in text and "?[2Jwipe?out" in text
    profile = Profile(name="learnt/ada/\x1b[2Jwipe", demands=(Demand(1, 1.0, 0.0),))
    fill(tmp_path / "learnt.db", [job(1, 0, 1, 60.0, profile=profile)], BEGAN_S + 9)
    text = "\n".join(lines(explain, "101", journal=str(tmp_path / "learnt.db")))
    assert "\x1b" not in text and "for learnt/ada/?[2Jwipe." in text


def test_ended_jobs_are_listed_when_asked_for(
    tmp_path: Path, lines: Lines, at: Callable[[float], None]
) -> None:
    fill(tmp_path / "j.db", [job(1, 0, 8, 60.0), job(2, 0, 8, 600.0), job(3, 61, 1, 9.0)], BEGAN_S + 90)
    at(91)
    path = str(tmp_path / "j.db")
    assert [line.split()[0] for line in lines(jobs, journal=path)] == ["JOBID", "102"]
    ended = lines(jobs, journal=path, state="ended")
    assert ended[-1].split() == [
        "103",
        "train3",
        "ada",
        "CD",
        "1",
        "1",
        "0:09",
        "0:09",
        "0:00",
        "n0",
        "(finished)",
    ]
    everything = [line.split()[0] for line in lines(jobs, journal=path, all=True)]
    assert everything == ["JOBID", "102", "101", "103"]
    assert "  08:01:00  finished." in lines(explain, "101", journal=path)


@pytest.mark.parametrize("ends_first", [True, False])
def test_a_job_that_ends_while_it_is_read_is_told_of_once(
    tmp_path: Path,
    lines: Lines,
    at: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
    ends_first: bool,
) -> None:
    path = tmp_path / "j.db"
    run = fill(path, [job(1, 0, 8, 600.0)], BEGAN_S + 90)
    at(91)
    read = Journal.open_jobs

    def open_jobs(journal: Journal) -> list[JournaledJob]:
        before = read(journal)
        end_s = BEGAN_S + 90.5
        ended = [
            msgspec.structs.replace(one, status="ended", ended_s=end_s, outcome="finished") for one in before
        ]
        if ended:
            with Journal.open(path) as writer:
                writer.record_events(run, 99, [Finished(end_s, uuid_of(1))], ended)
        return read(journal) if ends_first else before

    monkeypatch.setattr(Journal, "open_jobs", open_jobs)
    if ends_first:
        assert lines(explain, "101", journal=str(path))[0] == "Job 101 (train1) of user ada: ended (CD)"
    else:
        assert [line.split()[0] for line in lines(jobs, journal=str(path), all=True)] == ["JOBID", "101"]


def test_the_ended_jobs_of_a_day_are_those_that_ended_in_it(
    tmp_path: Path, lines: Lines, at: Callable[[float], None]
) -> None:
    fill(tmp_path / "j.db", [job(1, 0, 8, 100_000.0), job(2, 0, 8, 60.0)], BEGAN_S + 100_100)
    at(100_101)
    path = str(tmp_path / "j.db")
    assert [line.split()[0] for line in lines(jobs, journal=path, state="ended")] == ["JOBID", "101"]
    assert "(finished)" in lines(jobs, journal=path, all=True)[-1]
    for name in ("101", "102"):
        assert any("finished." in line for line in lines(explain, name, journal=path))


def test_links_carry_what_the_model_predicts(full: Path) -> None:
    with Journal.open(full, read_only=True) as journal:
        loads = predicted_loads(journal, journal.run(1), journal.open_jobs(), BEGAN_S + 100)
    assert [(load.link, load.jobs) for load in loads] == [
        ("n0 nic", (uuid_of(1),)),
        ("n1 nic", (uuid_of(1),)),
    ]
    assert loads[0].capacity_bytes_per_s == 1.25e9
    assert loads[0].bytes_per_s == pytest.approx(1.25e9 / 1.5, rel=1e-3)  # and some latency


def test_top_once(full: Path, lines: Lines, at: Callable[[float], None]) -> None:
    at(101)
    printed = lines(top, journal=str(full), once=True)
    rule = "─"
    assert [line.rstrip(f"{rule} ") for line in printed] == [
        "hemiola top  dally, enforce  on leaf-spine-4x8 (slurm-wlm 22.05.8)" + " " * 46 + "08:01:41",
        "n0 (process 77) leads, heard 1 s ago   Slurm is away: there is no squeue on this host",
        "████████████████████ 100% of 32 GPUs in use, 0 free",
        "─ GPUs by rack (· free   # not ours   x down)",
        "r0  n0 aaaaaaaa  n1 aaaaaaaa",
        "r1  n2 bbbbbbbb  n3 bbbbbbbb",
        "─ links (predicted from the jobs' models, not measured)",
        "  n0 nic █████████████▍░░░░░░  67% of 10 Gbit/s  job 101",
        "  n1 nic █████████████▍░░░░░░  67% of 10 Gbit/s  job 101",
        "─ queue: 3 waiting, 1 of them held",
        "  JOBID  NAME    USER  GPUS  NODES  WAITED  REASON",
        "    103  train3  ada      8      -    1:39  needs 8 GPUs, 0 are free",
        "    105  train5  ada      1      -    1:37  needs 1 GPU, 0 are free",
        "    104  train4  bo       8      -    1:38  held: a user holds it",
        "─ running: 2",
        "    JOBID  NAME    USER  GPUS  TIME    EST  WAITED  NODELIST",
        "  a   101  train1  ada     16  1:41  10:00    0:00  n[0-1]",
        "  b   102  train2  bo      16  1:40  15:00    0:00  n[2-3]",
        "─ last decisions",
        "  08:00:01  start 102 on n[2-3]: least attained service first; its narrowest tier (rack) is free",
        "  08:00:00  start 101 on n[0-1]: least attained service first; its narrowest tier (rack) is free",
    ]


def test_a_frame_fits_every_screen(full: Path, at: Callable[[float], None]) -> None:
    at(101)
    with Journal.open(full, read_only=True) as journal:
        seen = _look(journal, _Engine(None, EngineConnection()), Following())
    for width in range(20, 180, 9):
        for height in range(6, 60, 5):
            drawn = frame(seen, width, height)
            assert len(drawn) <= height
            assert max(line.cell_len for line in drawn) <= max(width, 20)


def test_top_on_a_terminal_ends_with_q_and_after_a_resize(full: Path) -> None:
    for key in (b"q", b"\x03"):
        assert _played(full, key) == (130 if key == b"\x03" else 0)


def _played(journal: Path, key: bytes) -> int:
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    code = (
        "import sys; from hemiola.cli.top import top\n"
        "try: top(journal=sys.argv[1], interval='100ms')\n"
        "except KeyboardInterrupt: sys.exit(130)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(journal)], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        env={**os.environ, "TERM": "xterm"}, preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(slave)
    _until(master, b"last decisions")
    ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    process.send_signal(signal.SIGWINCH)
    _until(master, b"last decisions")
    os.write(master, key)
    drained = threading.Thread(target=_drain, args=(master,), daemon=True)
    drained.start()
    code_of_end = process.wait(timeout=patience(20))
    drained.join(timeout=patience(5))
    return code_of_end


def _until(handle: int, words: bytes) -> None:
    seen = b""
    while words not in seen:
        assert select.select([handle], [], [], patience(20))[0], f"no {words!r} in {seen[-2000:]!r}"
        seen += os.read(handle, 65536)


def _drain(handle: int) -> None:
    try:
        while os.read(handle, 65536):
            pass
    except OSError:  # its other end is closed
        os.close(handle)


def test_a_reader_sees_whole_states_while_the_loop_writes(tmp_path: Path) -> None:
    path, seen = tmp_path / "j.db", set[int]()
    work = [job(i, float(i), 1 + i % 8, 20.0 + i % 7) for i in range(1, 120)]
    writer = threading.Thread(target=fill, args=(path, work, float("inf")), kwargs={"leads_s": 1e6})
    Journal.open(path).close()
    writer.start()
    with Journal.open(path, read_only=True) as journal:
        while writer.is_alive():
            cluster = read_cluster(journal, BEGAN_S)
            _check(cluster)
            seen.add(len(cluster.jobs))
    writer.join()
    assert len(seen) > 2


def _check(cluster: LiveCluster) -> None:
    """No GPU has two jobs, and each running job has all of its own."""
    held: dict[str, int] = {}
    for host in cluster.hosts:
        assert host.used + host.free + host.blocked == host.gpus == len(host.cells)
        for name, gpus in host.jobs.items():
            held[name] = held.get(name, 0) + gpus
    assert held == {found.id: found.gpus for found in cluster.jobs if found.state == "running"}


def test_times_and_columns() -> None:
    assert [elapsed(s) for s in (0, 59.9, 3599, 3600, 90061, -1)] == [
        "0:00", "0:59", "59:59", "1:00:00", "1-01:01:01", "0:00",
    ]  # fmt: skip
    assert [ago(s) for s in (0.4, 99, 150, 5900, 6000, 90000, 400000, 9e6)] == [
        "0 s", "99 s", "2 min", "98 min", "1.7 h", "25 h", "4.6 d", "104 d",
    ]  # fmt: skip
    now_s = BEGAN_S + 10
    assert clock(BEGAN_S, now_s) == "08:00" and clock(BEGAN_S, now_s, seconds=True) == "08:00:00"
    assert clock(BEGAN_S - 86400, now_s) == "Jan 14 08:00" and clock(0.0, now_s) == "1970-01-01 00:00"
    assert columns(("A", "B"), [("1", "long"), ("22", "x")], right=frozenset({"A"}), width=6) == [
        " A  B", " 1  l…", "22  x",
    ]  # fmt: skip


def test_every_value_survives_json(full: Path) -> None:
    with Journal.open(full, read_only=True) as journal:
        cluster = read_cluster(journal, BEGAN_S + 101)
    for values, kind in ((cluster.jobs, type(cluster.jobs)), (cluster.hosts, type(cluster.hosts))):
        element: Any = type(values[0])
        assert msgspec.json.decode(msgspec.json.encode(values), type=tuple[element, ...]) == values
        assert kind is tuple
    assert read_topology(RACKS) == cluster.topology
