"""Hemiola's own formats hold whatever a job holds, and give it back unchanged."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from workload_samples import PHILLY_JSON

from hemiola.core.errors import FormatError, InputError, RowError
from hemiola.core.job import (
    Batch,
    Configuration,
    Demand,
    Objective,
    Profile,
    RequestRate,
    Service,
    Workload,
    batch_job,
)
from hemiola.core.latency import BatchTime, LatencyProfile, Request
from hemiola.trace.workloads import read_workload, write_workload

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
HOST = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=";"), min_size=1, max_size=6)
TIME = st.floats(0, 1e10, allow_nan=False)
PROFILE = st.builds(
    Profile,
    name=TEXT,
    demands=st.just((Demand(1, 0.1, 0.0), Demand(8, 0.11, 2e8))),
    overlap=st.floats(0, 1),
    gpu_speed=st.dictionaries(TEXT, st.floats(0.1, 10), max_size=2),
)


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, int]:
    """The GPUs of a job, the hosts that it says or not, and the sizes that it may have."""
    hosts, each = draw(st.integers(1, 1000)), draw(st.integers(1, 1000))
    gpus, says_hosts = hosts * each, draw(st.booleans())
    unit = each if says_hosts else 1
    return {
        "gpus": gpus,
        "hosts": hosts if says_hosts else 0,
        "gpus_min": unit * draw(st.integers(0, gpus // unit)),
        "gpus_max": unit * draw(st.just(0) | st.integers(gpus // unit, 1_000_000 // unit)),
    }


def jobs(profile: st.SearchStrategy[Profile | None]) -> st.SearchStrategy[Batch]:
    whole = st.builds(
        Batch,
        id=TEXT.filter(bool),
        submit_s=TIME,
        gpus=st.just(1),
        duration_s=TIME,
        profile=profile,
        model=TEXT,
        user=TEXT,
        queue=TEXT,
        gpu_type=TEXT,
        required=TEXT,
        preferred=TEXT,
        pinned=st.booleans(),
        estimate_s=st.none() | TIME,
        recorded_start_s=st.none() | TIME,
        recorded_state=TEXT,
        recorded_hosts=st.lists(HOST, max_size=3).map(tuple),
    )
    return st.builds(lambda job, shape: batch_job(**msgspec.structs.asdict(job) | shape), whole, shapes())


def workloads(profile: st.SearchStrategy[Profile | None]) -> st.SearchStrategy[Workload]:
    several = st.lists(jobs(profile), min_size=1, max_size=5, unique_by=lambda job: job.id)
    return several.map(lambda found: Workload(jobs=tuple(sorted(found, key=lambda job: job.submit_s))))


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
@given(workload=workloads(st.none()))
def test_a_table_gives_back_the_jobs(
    ending: str, workload: Workload, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"round-trip.{ending}"
    write_workload(workload, path)
    assert read_workload(path).jobs == workload.jobs


@pytest.mark.parametrize("ending", ["json", "json.gz"])
@given(workload=workloads(st.none() | PROFILE))
def test_json_gives_back_the_jobs(
    ending: str, workload: Workload, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"round-trip.{ending}"
    write_workload(workload, path)
    assert read_workload(path).jobs == workload.jobs


JOB = batch_job(id="a", submit_s=0.0, gpus=1, duration_s=1.0)


def test_columns_that_no_job_fills_are_left_out(tmp_path: Path) -> None:
    write_workload(Workload(jobs=(JOB,)), tmp_path / "w.csv")
    assert (tmp_path / "w.csv").read_text() == "id,submit_s,gpus,duration_s\na,0.0,1,1.0\n"


def test_a_job_that_leaves_a_column_open_has_an_empty_cell(tmp_path: Path) -> None:
    elastic = batch_job(id="b", submit_s=0.0, gpus=8, duration_s=1.0, hosts=2, gpus_max=16)
    write_workload(Workload(jobs=(JOB, elastic)), tmp_path / "w.csv")
    assert (tmp_path / "w.csv").read_text().splitlines() == [
        "id,submit_s,gpus,duration_s,hosts,gpus_max", "a,0.0,1,1.0,,", "b,0.0,8,1.0,2,16",
    ]  # fmt: skip


def test_a_job_that_may_not_be_stopped_says_yes(tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text(
        "id,submit_s,gpus,duration_s,pinned\na,0.0,1,1.0,yes\nb,0.0,1,1.0,no\nc,0.0,1,1.0,\n"
    )
    read = read_workload(tmp_path / "w.csv")
    assert [job.pinned for job in read.jobs] == [True, False, False]
    (tmp_path / "w.csv").write_text("id,submit_s,gpus,duration_s,pinned\na,0.0,1,1.0,1\n")
    with pytest.raises(RowError, match="neither yes nor no") as caught:
        read_workload(tmp_path / "w.csv")
    assert (caught.value.line, caught.value.column) == (2, "pinned")


def test_equal_workloads_give_equal_files(tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        write_workload(Workload(jobs=(JOB,), notes=("n",)), tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_json_keeps_the_notes(tmp_path: Path) -> None:
    write_workload(Workload(jobs=(JOB,), notes=("from Philly",)), tmp_path / "w.json")
    assert "from Philly" in read_workload(tmp_path / "w.json").notes


def test_what_a_table_cannot_hold_is_refused(tmp_path: Path) -> None:
    profile = Profile(name="p", demands=(Demand(1, 0.1, 0.0),))
    with_profile = batch_job(id="a", submit_s=0.0, gpus=1, duration_s=1.0, profile=profile)
    with_hosts = batch_job(id="a", submit_s=0.0, gpus=1, duration_s=1.0, recorded_hosts=("n;1",))
    for job in (with_profile, with_hosts):
        with pytest.raises(InputError) as caught:
            write_workload(Workload(jobs=(job,)), tmp_path / "w.csv")
        assert caught.value.remedy == "write JSON instead"
    endless = batch_job(id="a", submit_s=0.0, gpus=1, duration_s=float("inf"))
    with pytest.raises(InputError, match="not finite"):
        write_workload(Workload(jobs=(endless,)), tmp_path / "w.json")


def test_the_ending_decides(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="ending"):
        write_workload(Workload(jobs=(JOB,)), tmp_path / "w.xlsx")
    with pytest.raises(InputError):
        write_workload(Workload(jobs=(JOB,)), tmp_path / "no such folder" / "w.csv")


def test_a_log_in_which_a_job_starts_before_it_is_submitted(tmp_path: Path) -> None:
    """Philly's log is in local time, and clocks are put back in it."""
    text = PHILLY_JSON.replace('"2017-10-07 01:12:00", "end', '"2017-10-07 01:10:59", "end')
    assert text != PHILLY_JSON
    (tmp_path / "log").write_text(text)
    workload = read_workload(tmp_path / "log")
    assert workload.jobs[0].recorded_start_s is None
    assert "jobs that start before they are submitted keep no recorded start" in workload.notes
    write_workload(workload, tmp_path / "w.json")
    assert read_workload(tmp_path / "w.json").jobs == workload.jobs


SERVICE = Service(
    id="chat", submit_s=5.0, gpus=2, objective=Objective(0.5, 0.99), replicas_min=1, replicas_max=4, cold_start_s=30.0,
    arrivals=(RequestRate(0.0, 10.0), RequestRate(3600.0, 2.5)), queue="inference", required="rack",
)  # fmt: skip
SPLITS = (Configuration(2, 32), Configuration(4, 16, 2))


def test_every_kind_of_job_is_read_back(tmp_path: Path) -> None:
    jobs = (
        batch_job(id="a", submit_s=0.0, gpus=2, duration_s=60.0),
        batch_job(id="b", submit_s=1.0, gpus=2, duration_s=60.0, gpus_max=4, configurations=SPLITS),
    )
    written = Workload(jobs=jobs, services=(SERVICE,))
    write_workload(written, tmp_path / "w.json")
    read = read_workload(tmp_path / "w.json")
    assert (read.jobs, read.services) == (written.jobs, written.services)
    assert [type(job).__name__ for job in (*read.jobs, *read.services)] == ["Batch", "Elastic", "Service"]


def test_services_are_rows_of_a_table(tmp_path: Path) -> None:
    answered = msgspec.structs.replace(
        SERVICE, latency=LatencyProfile((BatchTime(1, 0.2), BatchTime(8, 0.4))), timeout_s=30.0, burst_cv=0.5
    )
    jobs = (batch_job(id="a", submit_s=0.0, gpus=2, duration_s=60.0, gpus_max=4),)
    written = Workload(jobs=jobs, services=(answered, msgspec.structs.replace(SERVICE, id="other")))
    write_workload(written, tmp_path / "w.csv")
    read = read_workload(tmp_path / "w.csv")
    assert (read.jobs, read.services) == (written.jobs, written.services)


def test_a_service_takes_its_requests_from_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text("time_s,requests_per_s\n0,3\n600,5\n")
    (tmp_path / "w.json").write_text(
        '{"schema":"hemiola.workload/1","services":[{"id":"a","gpus":1,"submit_s":10,"objective":{"latency_s":1},'
        '"requests_from":{"path":"rates.csv","scale":2,"span_s":1200}}]}'
    )
    (service,) = read_workload(tmp_path / "w.json").services
    assert service.arrivals == (RequestRate(10.0, 6.0), RequestRate(610.0, 10.0), RequestRate(1210.0, 0.0))


@pytest.mark.parametrize(
    ("cell", "why"),
    [("kind", "is no kind"), ("latency_s", "no list of pairs"), ("arrivals", "no list of pairs")],
)
def test_a_row_of_a_service_that_cannot_be_read_is_named(cell: str, why: str, tmp_path: Path) -> None:
    row = {"kind": "service", "objective_latency_s": "1", "latency_s": "1:0.5", "arrivals": "0:3"} | {
        cell: "x"
    }
    text = "id,submit_s,gpus,duration_s," + ",".join(row) + "\na,0,1,," + ",".join(row.values()) + "\n"
    (tmp_path / "w.csv").write_text(text)
    with pytest.raises(RowError, match=why):
        read_workload(tmp_path / "w.csv")


def test_services_alone_are_a_workload(tmp_path: Path) -> None:
    write_workload(Workload(jobs=(), services=(SERVICE,)), tmp_path / "w.json")
    assert read_workload(tmp_path / "w.json").services == (SERVICE,)


@pytest.mark.parametrize(
    ("workload", "what"),
    [
        (
            Workload(
                jobs=(), services=(msgspec.structs.replace(SERVICE, arrivals=(), requests=(Request(1.0),)),)
            ),
            "'chat' has single requests",
        ),
        (
            Workload(
                jobs=(
                    batch_job(
                        id="b", submit_s=1.0, gpus=2, duration_s=60.0, gpus_max=4, configurations=SPLITS
                    ),
                )
            ),
            "'b' has configurations",
        ),
    ],
)
def test_a_table_says_what_it_cannot_hold(workload: Workload, what: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{what}.*table has no column"):
        write_workload(workload, tmp_path / "w.csv")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ('"jobs":[{"id":"a","submit_s":0,"gpus":2,"duration_s":1,"configurations":[{"gpus":2,"per_gpu_batch":0}]}]', "configurations"),
        ('"jobs":[{"id":"a","submit_s":0,"gpus":2,"duration_s":1,"gpus_max":4,"configurations":[{"gpus":8,"per_gpu_batch":1}]}]', "configurations"),
        ('"services":[{"id":"a","submit_s":0,"gpus":2,"objective":{"latency_s":0}}]', "latency must be above 0"),
        ('"services":[{"id":"a","submit_s":0,"gpus":0,"objective":{"latency_s":1}}]', "gpus"),
        ('"services":[{"id":"a","submit_s":0,"gpus":2,"objective":{"latency_s":1},"replicas_min":3}]', "3 to 1 replicas"),
        ('"services":[{"id":"a","submit_s":0,"gpus":2}]', "objective"),
        ('"jobs":[{"id":"a","submit_s":0,"gpus":2,"duration_s":1}],"services":[{"id":"a","submit_s":0,"gpus":2,"objective":{"latency_s":1}}]', "second job"),
    ],
)  # fmt: skip
def test_a_kind_of_job_that_cannot_be_is_refused_with_its_line(entry: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    path.write_text(f'{{"schema": "hemiola.workload/1",\n{entry}}}')
    with pytest.raises(RowError) as caught:
        read_workload(path)
    assert why in str(caught.value) and ":2" in str(caught.value)
