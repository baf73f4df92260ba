"""What each format's sample says, and that its content alone tells which format it is."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import workload_samples as samples

from hemiola.core.errors import FormatError
from hemiola.core.job import Batch, Elastic, Workload, batch_job
from hemiola.trace.workloads import FORMATS, read_workload
from hemiola.trace.workloads.source import Source


def read(folder: Path, text: str, **options: object) -> Workload:
    path = folder / "jobs.txt"
    path.write_bytes(text.encode())
    return read_workload(path, **options)  # type: ignore[arg-type]


def brief(workload: Workload) -> list[tuple[str, float, int, float]]:
    return [(job.id, job.submit_s, job.gpus, job.duration_s) for job in workload.jobs]


@pytest.mark.parametrize("name", samples.SAMPLES)
def test_the_content_tells_the_format_and_only_one(name: str, tmp_path: Path) -> None:
    expected, text = samples.SAMPLES[name]
    assert [found.name for found in FORMATS if found.match(Source("x", text))] == [expected]
    workload = read(tmp_path, text)
    assert workload.format == expected
    assert workload.why
    assert workload.name == "jobs"


@pytest.mark.parametrize("name", samples.SAMPLES)
@pytest.mark.parametrize("change", ["gzip", "windows", "mark", "no newline", "blank lines"])
def test_how_the_file_is_stored_does_not_matter(name: str, change: str, tmp_path: Path) -> None:
    _, text = samples.SAMPLES[name]
    plain = read(tmp_path, text)
    stored = {
        "gzip": gzip.compress(text.encode(), mtime=0),
        "windows": text.replace("\n", "\r\n").encode(),
        "mark": b"\xef\xbb\xbf" + text.encode(),
        "no newline": text.rstrip("\n").encode(),
        "blank lines": (text.replace("\n", "\n\n") + "\n").encode(),
    }[change]
    path = tmp_path / "jobs.other"
    path.write_bytes(stored)
    assert read_workload(path) == plain


@pytest.mark.parametrize("name", samples.SAMPLES)
def test_naming_the_format_reads_the_same_jobs(name: str, tmp_path: Path) -> None:
    expected, text = samples.SAMPLES[name]
    named = read(tmp_path, text, format=expected)
    assert named.jobs == read(tmp_path, text).jobs
    assert "named so" in named.why


@pytest.mark.parametrize("name", samples.SAMPLES)
def test_jobs_ascend_and_the_limit_keeps_the_first(name: str, tmp_path: Path) -> None:
    workload = read(tmp_path, samples.SAMPLES[name][1])
    arrivals = [job.submit_s for job in workload.jobs]
    assert arrivals == sorted(arrivals)
    assert min(arrivals) >= 0
    assert read(tmp_path, samples.SAMPLES[name][1], limit=1).jobs == workload.jobs[:1]


def test_philly_table(tmp_path: Path) -> None:
    workload = read(tmp_path, samples.PHILLY_CSV)
    assert brief(workload) == [("2", 0.0, 2, 2951.0), ("1", 2932.0, 1, 66.0)]
    assert [job.queue for job in workload.jobs] == ["6214e9", "11cb48"]
    assert any("2017-10-09 06:13:03" in note for note in workload.notes)


def test_philly_slice(tmp_path: Path) -> None:
    assert brief(read(tmp_path, samples.PHILLY_SLICE)) == [("1", 0.0, 1, 66.0), ("2", 601.0, 8, 66.0)]


def test_philly_log(tmp_path: Path) -> None:
    workload = read(tmp_path, samples.PHILLY_JSON)
    assert workload.jobs == (
        batch_job(
            id="application_2", submit_s=0.0, gpus=1, duration_s=0.0, user="ce2f4c", queue="ee9e8c",
            recorded_start_s=60.0, recorded_state="Killed", recorded_hosts=("m1",),
        ),
        batch_job(
            id="application_1", submit_s=39.0, gpus=3, duration_s=3674.0, user="ce2f4c", queue="ee9e8c",
            recorded_start_s=69.0, recorded_state="Pass", recorded_hosts=("m47", "m48"),
        ),
    )  # fmt: skip
    assert workload.skipped == {
        "never started": 1,
        "still running when the log was taken": 1,
        "an attempt has no start or no end": 1,
        "no GPU": 1,
    }


def test_helios(tmp_path: Path) -> None:
    workload = read(tmp_path, samples.HELIOS)
    assert brief(workload) == [("1425511", 0.0, 1, 36848.0), ("1425512", 26.0, 4, 249.0)]
    assert workload.skipped == {"CPU job": 1}
    assert workload.jobs[1].recorded_start_s == 36.0
    assert (workload.jobs[1].user, workload.jobs[1].queue) == ("uVMrF", "vchbv")
    assert workload.jobs[1].recorded_state == "FAILED"


def test_acme_counts_from_start_to_end_and_says_so(tmp_path: Path) -> None:
    seren = read(tmp_path, samples.ACME_SEREN)
    assert brief(seren) == [("5778432", 0.0, 8, 117.0), ("5778469", 336.0, 8, 2693.0)]
    assert seren.jobs[1].model == "Pretrain"
    kalos = read(tmp_path, samples.ACME_KALOS)
    assert brief(kalos) == [("dlc1", 0.0, 64, 8.0)]
    said = "duration counts from submission in some rows; end_time - start_time is used"
    assert said in kalos.notes
    assert said not in seren.notes
    assert any("UTC" in note for note in kalos.notes)


def test_pai_tasks_of_one_name_are_one_job(tmp_path: Path) -> None:
    workload = read(tmp_path, samples.PAI_TASKS)
    assert brief(workload) == [("a1", 0.0, 3, 300.0), ("4f05", 62.0, 1, 38.0)]
    assert [job.recorded_state for job in workload.jobs] == ["Failed", "Terminated"]
    assert workload.skipped == {
        "still running when the log was taken": 1,
        "never started": 1,
        "CPU job": 1,
    }
    assert "1 jobs ask for part of a GPU and were rounded up to whole GPUs" in workload.notes


@pytest.mark.parametrize(
    "row",
    [
        b"a1,evaluator,1.0,Failed,1739110.0,1739300.0,600.0,29.3,100.0",
        b"a1,evaluator,1.0,Failed,1739110.0,1739300.0,600.0,29.3,100.0,V100,",
        b'a1,"evaluator,1.0,Failed,1739110.0,1739300.0,600.0,29.3,100.0,V100',
        b'"a1","evalu"ator,1.0,Failed,1739110.0,1739300.0,600.0,29.3,100.0,V100',
        b"a1,\xe9valuator,1.0,Failed,1739110.0,1739300.0,600.0,29.3,100.0,V100",
    ],
)
def test_a_pai_job_of_which_a_row_is_no_row_is_skipped_whole(row: bytes, tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_bytes(samples.PAI_TASKS.encode() + row + b"\n")
    workload = read_workload(path, skip_bad_rows=True)
    assert brief(workload) == [("4f05", 0.0, 1, 38.0)]
    assert sum(workload.skipped.values()) == 4


def test_pai_tasks_may_have_their_published_header(tmp_path: Path) -> None:
    header = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    assert read(tmp_path, header + samples.PAI_TASKS).jobs == read(tmp_path, samples.PAI_TASKS).jobs


def test_pai_job_table_alone_is_no_workload(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="does not say how many GPUs"):
        read(tmp_path, samples.PAI_JOBS)


def test_pai_simulator_input(tmp_path: Path) -> None:
    workload = read(tmp_path, samples.PAI_SIMULATOR)
    assert brief(workload) == [("7", 0.0, 1, 38.0), ("8", 60.0, 16, 600.0)]
    assert [job.recorded_start_s for job in workload.jobs] == [2.0, None]
    assert workload.skipped == {"CPU job": 1}


def test_pai_simulator_counts_gpus_per_instance(tmp_path: Path) -> None:
    header = "job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user\n"
    rows = "1,300,0,6,0.5,T4,100,u\n2,10,1,6,1.1,T4,100,u\n3,3,2,6,0.5,T4,100,u\n4,,3,6,2,T4,100,u\n5,0,4,6,2,T4,9,u\n"
    workload = read(tmp_path, header + rows)
    assert [job.gpus for job in workload.jobs] == [150, 11, 2, 2]
    assert workload.skipped == {"CPU job": 1}
    assert "1 jobs ask for part of a GPU and were rounded up to whole GPUs" in workload.notes
    bare = header.replace(",num_inst", "") + "1,0,6,0.5,T4,100,u\n"
    assert [job.gpus for job in read(tmp_path, bare).jobs] == [1]


def test_gavel_derives_durations_from_measured_speeds(tmp_path: Path) -> None:
    workload = read(tmp_path, samples.GAVEL)
    assert brief(workload) == [
        ("0", 0.0, 1, pytest.approx(2931 / 4.39477)),
        ("1", 30.0, 2, pytest.approx(163129 / 163.12902)),
    ]
    assert workload.jobs[0].model == "ResNet-50 (batch size 64)"
    assert any("consolidated V100s" in note for note in workload.notes)


def test_gavel_old(tmp_path: Path) -> None:
    assert brief(read(tmp_path, samples.GAVEL_OLD)) == [
        ("0", 0.0, 1, pytest.approx(1e5)),
        ("1", 3.5, 1, pytest.approx(1e5)),
    ]


def test_shockwave_gives_durations(tmp_path: Path) -> None:
    assert brief(read(tmp_path, samples.SHOCKWAVE)) == [("0", 0.0, 1, 1418.0), ("1", 55.0, 2, 3338.0)]


def test_pollux_keeps_the_simulators_own_time(tmp_path: Path) -> None:
    workload = read(tmp_path, samples.POLLUX)
    assert brief(workload) == [("cifar10-0", 107.0, 6, 910.0), ("ncf-2", 135.0, 1, 47.0)]
    assert "time 0 is the file's own" in workload.notes


def test_muri_counts_milliseconds(tmp_path: Path) -> None:
    workload = read(tmp_path, samples.MURI)
    assert brief(workload) == [("0", 0.0, 8, 4788.0), ("1", 1534.0, 8, 313.0)]
    assert [job.model for job in workload.jobs] == ["gpt2", "vgg16"]


def test_tiresias_counts_seconds_and_keeps_empty_jobs(tmp_path: Path) -> None:
    workload = read(tmp_path, samples.TIRESIAS)
    assert brief(workload)[:2] == [("0", 0.0, 1, 164.0), ("1", 30.0, 8, 147.0)]
    assert workload.jobs[3].duration_s == 0.0


def test_swf_reads_processors_as_gpus(tmp_path: Path) -> None:
    workload = read(tmp_path, samples.SWF)
    assert workload.jobs == (
        batch_job(
            id="1", submit_s=0.0, gpus=8, duration_s=3600.0, user="3", queue="2", estimate_s=7200.0,
            recorded_start_s=10.0, recorded_state="COMPLETED",
        ),
        batch_job(id="2", submit_s=5.0, gpus=4, duration_s=60.0, user="4", recorded_state="FAILED"),
    )  # fmt: skip
    assert workload.skipped == {
        "never started or run time unknown": 1,
        "part of a job that has a line of its own": 1,
    }
    assert "processors are read as GPUs; seconds throughout" in workload.notes


def test_native_keeps_its_own_time(tmp_path: Path) -> None:
    expected = [("b", 2.5, 1, 0.0), ("a", 10.0, 8, 3600.0)]
    assert brief(read(tmp_path, samples.NATIVE_CSV)) == expected
    workload = read(tmp_path, samples.NATIVE_JSON)
    assert brief(workload) == expected
    assert "made by hand" in workload.notes


@pytest.mark.parametrize("text", [samples.NATIVE_CSV, samples.NATIVE_JSON])
def test_native_says_on_how_many_hosts_and_at_which_sizes_a_job_runs(text: str, tmp_path: Path) -> None:
    plain, elastic = read(tmp_path, text).jobs
    assert (plain.hosts, type(plain), type(elastic)) == (0, Batch, Elastic)
    assert (elastic.hosts, list(elastic.sizes)) == (2, [4, 8, 12, 16])


def test_jobs_that_arrive_together_keep_the_files_order(tmp_path: Path) -> None:
    text = "id,submit_s,gpus,duration_s\nz,5,1,1\ny,0,1,1\nx,5,1,1\nw,5,1,1\n"
    assert [job.id for job in read(tmp_path, text).jobs] == ["y", "z", "x", "w"]
