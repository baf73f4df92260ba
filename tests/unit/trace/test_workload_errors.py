"""Rows and files that cannot be used: each is refused with its place, or skipped and counted."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import workload_samples as samples

from hemiola.core.errors import FormatError, InputError, RowError
from hemiola.trace.workloads import read_workload

HEAD = "id,submit_s,gpus,duration_s\n"
GOOD = "first,0,1,10\n"


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "jobs"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


BAD_ROWS = [
    ("x,nan,1,10", "submit_s", "nan", "is not a finite number"),
    ("x,0,1,inf", "duration_s", "inf", "is not a finite number"),
    ("x,0,1,1_0", "duration_s", "1_0", "is not a finite number"),
    ("x,-1,1,10", "submit_s", "-1", "is negative"),
    ("x,0,1,-0.5", "duration_s", "-0.5", "is negative"),
    ("x,soon,1,10", "submit_s", "soon", "is not a number"),
    ("x,0,,10", "gpus", "", "is not a number"),
    ("x,0,0,10", "gpus", "0", "is no GPU at all"),
    ("x,0,-4,10", "gpus", "-4", "is negative"),
    ("x,0,1.5,10", "gpus", "1.5", "is not a number of GPUs"),
    ("x,0,1e9,10", "gpus", "1e9", "is not a number of GPUs"),
    ("x,0,1e999,10", "gpus", "1e999", "is not a finite number"),
    ("x,1e12,1,10", "submit_s", "1e12", "is more than 300 years"),
    ("x,0,1", "duration_s", "1", "ends the row too early"),
    ("x,0,1,10,more", "duration_s", "more", "is a column too many"),
    ("first,0,1,10", "id", "first", "names a second job"),
    (",0,1,10", "id", "", "is empty"),
]


@pytest.mark.parametrize(("row", "column", "value", "problem"), BAD_ROWS)
def test_a_bad_row_is_refused_with_its_place(
    row: str, column: str, value: str, problem: str, tmp_path: Path
) -> None:
    path = write(tmp_path, f"{HEAD}{GOOD}{row}\nlast,1,1,1\n")
    with pytest.raises(RowError) as caught:
        read_workload(path)
    error = caught.value
    assert (error.path, error.line, error.column, error.value) == (str(path), 3, column, value)
    assert error.problem == problem
    assert error.remedy


@pytest.mark.parametrize(("row", "column", "value", "problem"), BAD_ROWS)
def test_a_bad_row_is_skipped_and_counted(
    row: str, column: str, value: str, problem: str, tmp_path: Path
) -> None:
    path = write(tmp_path, f"{HEAD}{GOOD}{row}\nlast,1,1,1\n")
    workload = read_workload(path, skip_bad_rows=True)
    assert [job.id for job in workload.jobs] == ["first", "last"]
    assert workload.skipped == {f"{column} {problem}": 1}


UNEVEN = "does not divide the job's GPUs"
UNFIT = "does not fit the job's GPUs and hosts"
BAD_SIZES = [
    ({"hosts": 1.5}, "hosts", ""),
    ({"hosts": -1}, "hosts", ""),
    ({"hosts": 10**30}, "hosts", "is not a number of hosts"),
    ({"hosts": "all"}, "hosts", ""),
    ({"hosts": 3}, "hosts", UNEVEN),
    ({"hosts": 16}, "hosts", UNEVEN),
    ({"gpus_min": 0.5}, "gpus_min", ""),
    ({"gpus_min": -4}, "gpus_min", ""),
    ({"gpus_min": 9}, "gpus_min", UNFIT),
    ({"gpus_min": 9, "gpus_max": 4}, "gpus_min", UNFIT),
    ({"gpus_min": 6, "hosts": 2}, "gpus_min", UNFIT),
    ({"gpus_max": -16}, "gpus_max", ""),
    ({"gpus_max": 1_000_001}, "gpus_max", "is not a number of GPUs"),
    ({"gpus_max": 7}, "gpus_max", UNFIT),
    ({"gpus_min": 4, "gpus_max": 18, "hosts": 2}, "gpus_max", UNFIT),
]
"""What a job of 8 GPUs says, the column that is wrong, and how where both formats say the same."""


def as_table(rows: list[dict[str, object]]) -> str:
    columns = list({column: None for row in rows for column in row})
    lines = [columns, *([str(row.get(column, "")) for column in columns] for row in rows)]
    return "\n".join(map(",".join, lines))


def as_json(rows: list[dict[str, object]]) -> str:
    return '{"schema": "hemiola.workload/1", "jobs": [\n' + ",\n".join(map(json.dumps, rows)) + "]}"


@pytest.mark.parametrize("written", [as_table, as_json])
@pytest.mark.parametrize(("said", "column", "problem"), BAD_SIZES)
def test_sizes_that_cannot_be_are_refused_or_skipped(
    said: dict[str, object], column: str, problem: str, tmp_path: Path,
    written: Callable[[list[dict[str, object]]], str],
) -> None:  # fmt: skip
    job: dict[str, object] = {"id": "x", "submit_s": 0, "gpus": 8, "duration_s": 10}
    rows = [job | {"id": "first"}, job | said, job | {"id": "last"}]
    path = write(tmp_path, written(rows))
    with pytest.raises(RowError) as caught:
        read_workload(path)
    error = caught.value
    assert (error.line, error.column) == (3, column)
    assert problem in error.problem
    assert error.remedy
    workload = read_workload(path, skip_bad_rows=True)
    assert [job.id for job in workload.jobs] == ["first", "last"]
    assert workload.skipped == {f"{column} {error.problem}": 1}


PROFILE: dict[str, object] = {"name": "m", "demands": [{"gpus": 2, "compute_s": 0.1, "traffic_bytes": 9}]}
BAD_PROFILES: list[tuple[dict[str, object], str, str]] = [
    ({"overlp": 0.5}, "profile", "unknown field `overlp`"),
    ({"demands": [{"gpus": 2, "compute_s": 0.1, "traffic_bytes": 9, "traffic": 9}]}, "profile.demands[0]",
     "unknown field `traffic`"),
    ({"demands": []}, "(entry)", "profile 'm' has no demands"),
    ({"overlap": 2}, "(entry)", "profile 'm': overlap 2.0 is not a share"),
    ({"demands": [{"gpus": 1, "compute_s": 0.1, "traffic_bytes": 9}]}, "(entry)", "one GPU alone sends nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "column", "problem"), BAD_PROFILES)
def test_profiles_that_cannot_be_are_refused_or_skipped(
    said: dict[str, object], column: str, problem: str, tmp_path: Path
) -> None:
    job: dict[str, object] = {"id": "x", "submit_s": 0, "gpus": 8, "duration_s": 10, "profile": PROFILE}
    rows = [job | {"id": "first"}, job | {"profile": PROFILE | said}, job | {"id": "last"}]
    path = write(tmp_path, as_json(rows))
    with pytest.raises(RowError) as caught:
        read_workload(path)
    error = caught.value
    assert (error.path, error.line, error.column) == (str(path), 3, column)
    assert problem in error.problem
    assert error.remedy
    workload = read_workload(path, skip_bad_rows=True)
    assert [job.id for job in workload.jobs] == ["first", "last"]
    assert workload.skipped == {f"{column} {error.problem}": 1}


def test_sizes_that_do_not_fit_are_told_with_what_they_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(RowError) as caught:
        read_workload(write(tmp_path, HEAD.replace("\n", ",gpus_max\n") + "a,0,8,10,4\n"))
    assert str(caught.value).endswith(
        ":2: column 'gpus_max': 4 does not fit the job's GPUs and hosts\n"
        "  hint: gpus_min to gpus_max is 8 to 4, which does not hold its 8 GPUs; correct it, or leave both out"
    )


@pytest.mark.parametrize(
    ("name", "old", "new", "column", "line"),
    [
        ("philly-csv", "2951.0,2,5902.0", "2951.0,2,5903.0", "gpu_time", 3),
        ("philly-csv", "2017-10-09 06:13:03", "2017-10-09", "timestamp", 3),
        ("philly-csv", "2017-10-09 06:13:03", "2017-02-30 06:13:03", "timestamp", 3),
        ("philly-csv", "2017-10-09 06:13:03", "2017-10-09 06:13:03+08:00", "timestamp", 3),
        ("philly-slice", ",601,", ",602.5,", "submit", 3),
        ("philly-json", '"end_time": "2017-10-07 02:13:30"', '"end_time": "2017-10-07 00:13:30"', "end_time", 2),
        ("philly-json", '"gpus": ["gpu0", "gpu1"]', '"gpus": 2', "attempts[0].detail[0].gpus", 2),
        ("philly-json", '"jobid": "application_2"', '"jobid": "application_1"', "jobid", 8),
        ("helios", "249,10", "250000,10", "duration", 3),
        ("helios", "2020-06-09 18:45:46", "2020-06-09 18:41:30", "end_time", 3),
        ("helios", "2020-06-09 18:41:37", "2020-06-09 18:41:00", "start_time", 3),
        ("acme-seren", "21544.0", "2693.0", "gpu_time", 3),
        ("pai-task-table", "1739110.0,1739300.0", "1739110.0,1739100.0", "end_time", 3),
        ("pai-simulator", "7,0.5", "7,-0.5", "num_gpu", 2),
        ("pai-simulator", "160,2,600", "160,1.5,600", "num_inst", 3),
        ("gavel", "\t163129\t2\t", "\t163129\t3\t", "job_type", 2),
        ("gavel", "\t163129\t2\t", "\t-1\t2\t", "total_steps", 2),
        ("pollux", "cifar10,6,2048", "cifar10,6,2049", "batch_size", 2),
        ("swf", "1 0 10 3600 8", "1 0 10 3600 8.5", "allocated_processors", 3),
        ("swf", " -1 1 3 1 -1 2", " -1 7 3 1 -1 2", "status", 3),
        ("swf", "-1 2 -1 -1 -1\n", "-1 2 -1 -1\n", "(row)", 3),
        ("tiresias", "1,8,30", "1,eight,30", "num_gpu", 3),
        ("muri", "1,8,1534000", "1,8,-1", "submit_time", 3),
        ("native-json", '"gpus": 8', '"gpus": 0', "gpus", 2),
        ("native-json", '"gpus": 8', '"gpus": 8.5', "gpus", 2),
        ("native-json", '"submit_s": 10', '"submit_s": -10', "submit_s", 2),
        ("native-json", '"model"', '"modle"', "(entry)", 2),
    ],
)  # fmt: skip
def test_each_format_names_what_is_wrong(
    name: str, old: str, new: str, column: str, line: int, tmp_path: Path
) -> None:
    text = samples.SAMPLES[name][1]
    assert old in text
    path = write(tmp_path, text.replace(old, new, 1))
    with pytest.raises(RowError) as caught:
        read_workload(path)
    assert (caught.value.column, caught.value.line) == (column, line)
    assert caught.value.remedy
    skipped = read_workload(path, skip_bad_rows=True)
    whole = read_workload(write(tmp_path, text))
    assert len(skipped.jobs) == len(whole.jobs) - 1
    assert sum(skipped.skipped.values()) == sum(whole.skipped.values()) + 1


def test_broken_utf8_is_named_by_line_and_skipped_by_line(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD.encode() + GOOD.encode() + b"\xff,0,1,1\nlast,1,1,1\n")
    with pytest.raises(RowError) as caught:
        read_workload(path)
    assert (caught.value.line, caught.value.value) == (3, b"\xff")
    workload = read_workload(path, skip_bad_rows=True)
    assert [job.id for job in workload.jobs] == ["first", "last"]
    assert workload.skipped == {"(text) is not UTF-8": 1}


@pytest.mark.parametrize("name", ["philly-csv", "gavel"])
@pytest.mark.parametrize("bad", [b"torn", b"not \xff UTF-8"])
def test_rows_that_are_skipped_keep_their_numbers(name: str, bad: bytes, tmp_path: Path) -> None:
    *before, last = samples.SAMPLES[name][1].encode().splitlines(keepends=True)
    whole = read_workload(write(tmp_path, b"".join((*before, last))))
    skipped = read_workload(write(tmp_path, b"".join((*before, bad + b"\n", last))), skip_bad_rows=True)
    (moved,) = {job.id for job in skipped.jobs} - {job.id for job in whole.jobs}
    assert int(moved) == max(int(job.id) for job in whole.jobs) + 1
    assert sum(skipped.skipped.values()) == 1


NOTED = "id,submit_s,gpus,duration_s,user\n"


@pytest.mark.parametrize(
    ("bad", "column", "problem"),
    [
        ('"x,0,1,1,ada', "id", "is not a row"),
        ('x,0,1,1,"ada', "id", "is not a row"),
        ('x,0,1,1,ada,"more', "id", "is not a row"),
        ('"x"y,0,1,1,ada', "id", "is not a row"),
    ],
)
@pytest.mark.parametrize("quoted_before", [False, True])
@pytest.mark.parametrize("quoted_after", [False, True])
def test_an_open_quote_takes_no_row_but_its_own(
    bad: str, column: str, problem: str, quoted_before: bool, quoted_after: bool, tmp_path: Path
) -> None:
    before = 'first,0,1,10,"two\nlines"\n' if quoted_before else "first,0,1,10,one\n"
    good = "".join(f"job{number},{number},1,1,eve\n" for number in range(50))
    after = 'last,99,1,1,"a ""b"", c"\n' if quoted_after else "last,99,1,1,eve\n"
    path = write(tmp_path, NOTED + before + bad + "\n" + good + after)
    with pytest.raises(RowError) as caught:
        read_workload(path)
    error = caught.value
    assert (error.line, error.column, problem in str(error)) == (3 + quoted_before, column, True)
    assert error.remedy
    workload = read_workload(path, skip_bad_rows=True)
    assert [job.id for job in workload.jobs] == ["first", *(f"job{number}" for number in range(50)), "last"]
    assert sum(workload.skipped.values()) == 1
    assert workload.jobs[0].user == ("two\nlines" if quoted_before else "one")
    assert workload.jobs[-1].user == ('a "b", c' if quoted_after else "eve")


def test_a_quote_that_a_later_one_closes_takes_no_row_but_its_own(tmp_path: Path) -> None:
    """Row z runs to the quote of y, as one cell of three lines, and is then too short."""
    path = write(tmp_path, NOTED + 'x,0,1,1"\nfirst,0,1,1,eve\n' + 'z,0,"1,1,a\nmid,1,1,1,b\ny,2,1,1,"\n')
    workload = read_workload(path, skip_bad_rows=True)
    assert [job.id for job in workload.jobs] == ["first", "mid"]
    assert sum(workload.skipped.values()) == 3
    swallowed = write(tmp_path, NOTED + 'first,0,1,1,a\nz,0,"1,1,a\nmid,1,1,1,b\n",2\nlast,2,1,1,c\n')
    with pytest.raises(RowError) as caught:
        read_workload(swallowed)
    assert (caught.value.line, caught.value.column) == (3, "user")
    assert "a quote may be open, for the row takes 3 lines" in caught.value.remedy
    workload = read_workload(swallowed, skip_bad_rows=True)
    assert [job.id for job in workload.jobs] == ["first", "mid", "last"]


def test_a_row_of_several_lines_is_named_by_its_first(tmp_path: Path) -> None:
    path = write(tmp_path, NOTED + 'first,0,1,1,"a\nb"\n' + 'x,0,0,1,"a\nb\nc"\nlast,1,1,1,"\n"\n')
    with pytest.raises(RowError) as caught:
        read_workload(path)
    assert (caught.value.line, caught.value.column) == (4, "gpus")
    workload = read_workload(path, skip_bad_rows=True)
    assert [(job.id, job.user) for job in workload.jobs] == [("first", "a\nb"), ("last", "\n")]
    assert workload.skipped == {"gpus is no GPU at all": 1}


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        (b"", FormatError, "is empty"),
        (b"\n \r\n", FormatError, "is empty"),
        (gzip.compress(b"", mtime=0), FormatError, "is empty"),
        (HEAD.encode(), InputError, "holds no GPU job"),
        (HEAD.replace("id", "submit_s").encode(), FormatError, "in no known format"),
        (b"id,submit_s,gpus,duration_s,id\na,0,1,1,a\n", FormatError, "more than once"),
        (b"id,submit_s,gpus,duration_s,prority\na,0,1,1,3\n", FormatError, "unknown column 'prority'"),
        (gzip.compress(samples.TIRESIAS.encode(), mtime=0)[:-12], InputError, "truncated gzip"),
        (b"\x1f\x8b\x08\x00" + b"\x00" * 30, InputError, "gzip"),
        (b"PK\x03\x04....", FormatError, "zip archive"),
        ("id,submit_s".encode("utf-16"), FormatError, "UTF-16"),
        (b"hello,world\n1,2\n", FormatError, "in no known format"),
        (b'[{"jobid": "a", "attempts": []}', InputError, "cannot be read as JSON"),
        (b'{"schema": "hemiola.workload/9", "jobs": []}', FormatError, "hemiola.workload/9"),
        (b'{"schema": "hemiola.workload/1", "jobs": 3}', InputError, "cannot be read as JSON"),
    ],
)
def test_files_that_hold_no_workload(
    content: bytes, kind: type[Exception], said: str, tmp_path: Path
) -> None:
    path = write(tmp_path, content)
    with pytest.raises(kind, match=said) as caught:
        read_workload(path)
    assert isinstance(caught.value, InputError)
    assert caught.value.remedy
    assert str(path) in caught.value.what


def test_a_file_of_cpu_jobs_says_why_nothing_is_left(tmp_path: Path) -> None:
    text = samples.HELIOS.replace("j1,1,", "j1,0,").replace("j2,4,", "j2,0,")
    with pytest.raises(InputError, match="3 x CPU job"):
        read_workload(write(tmp_path, text))


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_workload(tmp_path / "none.csv")
    with pytest.raises(InputError, match="is a folder"):
        read_workload(tmp_path)
    with pytest.raises(InputError, match="limit is 0"):
        read_workload(write(tmp_path, samples.MURI), limit=0)


def test_unknown_and_wrong_formats_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, samples.MURI)
    with pytest.raises(FormatError, match="'muru' is no known format") as caught:
        read_workload(path, format="muru")
    assert caught.value.remedy == "did you mean muri?"
    with pytest.raises(FormatError, match="is not tiresias") as caught:
        read_workload(path, format="tiresias")
    assert caught.value.remedy == "it looks like muri"


def test_an_ambiguous_file_lists_its_candidates(tmp_path: Path) -> None:
    both = "id,submit_s,gpus,duration_s,name,time,application,num_replicas,batch_size\n"
    path = write(tmp_path, both + "a,0,1,1,a,0,ncf,1,32768\n")
    with pytest.raises(FormatError, match=r"native-csv .* or pollux") as caught:
        read_workload(path)
    assert caught.value.remedy == f"say which: native-csv:{path} or pollux:{path}"
