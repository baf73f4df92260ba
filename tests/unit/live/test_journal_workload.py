"""What really happened, as jobs to simulate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import journal_helpers
import msgspec
import pytest
from journal_helpers import ended, record
from replays import cluster

from hemiola.cli import simulate as cli
from hemiola.core.errors import InputError
from hemiola.core.job import batch_job
from hemiola.live.journal import Journal, JournaledJob
from hemiola.live.journal.replay import workload
from hemiola.simulator.simulate import simulate


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.db") as opened:
        yield opened


def written(journal: Journal, *records: JournaledJob) -> None:
    epoch = journal.lead("one", 0.0, 1e9)
    assert epoch is not None
    journal.record_events(journal.begin_run(epoch, journal_helpers.OPENING, 0.0), 1, [], records)


FIVE = (
    ended("b", 1010.0, served_s=30.0, speed=0.5, preemptions=2, outcome="failed: exit code 1"),
    ended("a", 1000.0, served_s=40.0),
    ended("c", 1020.0, served_s=0.0, first_started_s=None, outcome="cancelled"),
    record("d", 1030.0, status="running", first_started_s=1031.0),
    record("e", 1040.0),
)


def test_run_times_are_those_that_were_had(journal: Journal) -> None:
    written(journal, *FIVE)
    found = workload(journal)
    a, b = found.jobs
    assert (a.id, a.submit_s, a.duration_s, a.recorded_start_s, a.recorded_state) == (
        "a",
        0.0,
        40.0,
        10.0,
        "finished",
    )
    assert (b.id, b.submit_s, b.duration_s, b.recorded_start_s) == ("b", 10.0, 15.0, 20.0), (
        "30 s at half speed"
    )
    assert b.recorded_state == "failed: exit code 1"
    assert found.skipped == {"never started": 1, "not ended yet": 1, "not started yet": 1}
    assert found.format == "journal" and found.name == journal.name
    told = "; ".join(found.notes)
    assert "1970-01-01 00:16:40 UTC" in told and "of 1 of 2 the speed was measured" in told
    assert "1 jobs that failed" in told and "1 jobs were stopped" in told


def test_what_policies_knew_stays(journal: Journal) -> None:
    job = msgspec.structs.replace(
        record("a").job, estimate_s=3600.0, user="ada", queue="gpu", required="host"
    )
    written(journal, ended("a", 1000.0, job=job))
    (found,) = workload(journal).jobs
    assert (
        msgspec.structs.replace(
            found, submit_s=job.submit_s, duration_s=job.duration_s, recorded_start_s=None, recorded_state=""
        )
        == job
    )


def test_an_elastic_job_had_as_much_work_as_its_gpus_did(journal: Journal) -> None:
    eight = batch_job(**msgspec.structs.asdict(record("a").job) | {"gpus": 8, "gpus_min": 4})
    four = {"job": eight, "served_s": 7200.0, "service_gpu_s": 4 * 7200.0}
    written(journal, ended("a", **four), ended("b", **four, speed=0.25))
    assert [job.duration_s for job in workload(journal).jobs] == [3600.0, 1800.0]


def test_for_how_long_a_job_ran_that_ended_while_nobody_watched_is_not_known(journal: Journal) -> None:
    written(journal, ended("a"), ended("b", unwatched=True))
    found = workload(journal)
    assert [job.id for job in found.jobs] == ["a"] and found.skipped == {"ended while nobody watched": 1}


def test_a_part_of_it(journal: Journal) -> None:
    written(journal, *FIVE)
    assert [job.id for job in workload(journal, 1005.0).jobs] == ["b"]
    assert [job.submit_s for job in workload(journal, 1005.0, 1040.0).jobs] == [0.0]
    assert workload(journal, until_s=1010.0).skipped == {}
    with pytest.raises(InputError, match="can be simulated: 1 not ended yet, 1 not started yet"):
        workload(journal, 1030.0)
    with pytest.raises(InputError, match="none at all"):
        workload(journal, 1e6)


def test_it_is_simulated(journal: Journal) -> None:
    written(journal, *FIVE)
    (run,) = simulate(workload(journal), cluster([2]), ["fifo"]).runs
    assert [(r.id, r.first_start_s, r.finish_s) for r in run.records] == [("a", 0.0, 40.0), ("b", 40.0, 55.0)]


def test_a_flag_goes_before_the_other_kind_of_workload_in_a_scenario(
    journal: Journal, tmp_path: Path
) -> None:
    written(journal, *FIVE)
    scenario, figures = tmp_path / "study.toml", tmp_path / "figures.json"
    served, jobs = str(tmp_path / "journal.db"), str(tmp_path / "jobs.csv")
    Path(jobs).write_text("id,submit_s,gpus,duration_s\na,0,2,60\n")
    more = "cluster = 'flat:hosts=1,gpus_per_host=2'\npolicies = ['fifo']\n"
    scenario.write_text(f"workload = 'jobs.csv'\n{more}")
    cli.simulate(journal=served, scenario=(scenario,), json=figures)
    assert json.loads(figures.read_bytes())["workload"]["format"] == "journal"
    scenario.write_text(f"journal = 'journal.db'\n{more}")
    cli.simulate(jobs, scenario=(scenario,), json=figures)
    assert json.loads(figures.read_bytes())["workload"]["format"] == "native-csv"
    with pytest.raises(InputError, match="a workload and a journal were given"):
        cli.simulate(jobs, journal=served, scenario=(scenario,))
