"""Jobs that end badly leave what they had, and end as they would have ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patience, until
from record_jobs import TRACE, TRAIN, ranks, run, start

from hemiola.cli.trace import alone, merged, trace
from hemiola.core.errors import InputError
from hemiola.profiler.trace import collect, record
from hemiola.profiler.trace.api import options_for
from hemiola.profiler.trace.parts import PartWriter, read_parts
from hemiola.profiler.trace.values import End, PartHead, TraceOptions
from hemiola.trace.jobs.timeline_json import read_timeline


@pytest.fixture(scope="module")
def broken(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, tuple[Path, subprocess.Popen[str], str]]]:
    """Two jobs at once: one whose only rank raises, one of two whose rank 1 is killed."""
    jobs = {}
    for name, number in (("raise", 1), ("kill", 2)):
        folder = tmp_path_factory.mktemp(name)
        command = [
            *TRACE,
            "-o",
            str(folder / "run.json"),
            "--",
            *ranks(folder, TRAIN, number),
            f"--{name}-at",
            "4",
        ]
        attempt = {"TORCHELASTIC_RUN_ID": "a job", "TORCHELASTIC_RESTART_COUNT": "3"}
        jobs[name] = (folder, start(command, **attempt))
    yield {
        name: (folder, process, process.communicate(timeout=patience(300))[1])
        for name, (folder, process) in jobs.items()
    }


def test_a_script_that_raises_leaves_its_trace_up_to_there(
    broken: dict[str, tuple[Path, subprocess.Popen[str], str]],
) -> None:
    folder, process, said = broken["raise"]
    timeline = read_timeline(folder / "run.json")
    assert process.returncode == 1
    assert timeline.iterations.number.tolist() == [0, 1, 2, 3, 4]
    assert "rank 0: crashed: ValueError: something of the script's own" in timeline.facts["partial"]
    assert "partial: rank 0: crashed: ValueError" in said


def test_a_killed_rank_leaves_its_iterations_and_the_others_theirs(
    broken: dict[str, tuple[Path, subprocess.Popen[str], str]],
) -> None:
    folder, process, said = broken["kill"]
    timeline = read_timeline(folder / "run.json")
    assert process.returncode == 9
    for rank in (0, 1):
        assert timeline.iterations.number[timeline.iterations.rank == rank].tolist() == [0, 1, 2, 3, 4]
    assert "rank 1 ended without saying so (killed?)" in timeline.facts["partial"]
    assert "partial: rank 1 ended without saying so" in said
    parts = read_parts(folder / "run.json.parts")  # are kept
    assert [part.head.attempt for part in parts] == ["a job 3"] * 2


def test_parts_that_cannot_be_put_together_are_kept_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = tmp_path / "parts"
    leave_a_part(parts, "rank00000-1")
    (tmp_path / "run.json").mkdir()
    assert merged(TraceOptions(path=str(tmp_path / "run.json"), parts=str(parts))) is None
    said = capsys.readouterr().err
    assert "nothing was recorded" not in said
    assert "Is a directory\n  hint: name a file" in said
    assert f"are kept in {parts}: python -m hemiola.profiler.trace {parts} {tmp_path / 'run.json'}\n" in said
    assert read_parts(parts)


def test_parts_that_cannot_be_read_are_kept_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = tmp_path / "parts"
    (parts / "rank00000-1.a.jsonl").mkdir(parents=True)
    assert merged(TraceOptions(path=str(tmp_path / "run.json"), parts=str(parts))) is None
    assert f"are kept in {parts}: python -m hemiola.profiler.trace" in capsys.readouterr().err


def leave_a_part(parts: Path, stem: str, host: str = "h") -> None:
    writer = PartWriter(parts / stem, 10)
    writer.write(
        PartHead(
            rank=0, world_size=1, host=host, device="cpu", pid=1, mode="light", monotonic_ns=0, unix_ns=0
        )
    )
    writer.write(End(why="", iterations=0, cost_ns=0))
    writer.close()


def test_parts_stay_until_a_later_recording_has_left_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = options_for(tmp_path / "run.json")
    parts = Path(options.parts)
    leave_a_part(parts, "rank00000-1-1", "earlier")
    for part in parts.iterdir():
        os.utime(part, (time.time() - 60, time.time() - 60))
    with pytest.raises(InputError, match="cannot run 'no-such-command'"):
        trace("no-such-command", output=tmp_path / "run.json")
    with pytest.raises(SystemExit, match="0"):
        trace("true", output=tmp_path / "run.json")
    assert "nothing was recorded" in capsys.readouterr().err
    assert [part.head.host for part in read_parts(parts)] == ["earlier"]
    with alone(options) as claim:
        leave_a_part(parts, "rank00000-2-1", "later")
        timeline = merged(options, claim.since_ns)
    assert timeline is not None
    assert [rank.host for rank in timeline.ranks] == ["later"]
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_two_do_not_record_into_one_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with (
        alone(options_for(path)),
        pytest.raises(InputError, match=rf"run\.json is being recorded by process {os.getpid()} on"),
    ):
        trace("true", output=path)
    with pytest.raises(SystemExit, match="0"):
        trace("true", output=path)


TWO_HOSTS = """
import os, socket, sys, time
from pathlib import Path
from hemiola.profiler.trace import parts, values

def part(rank, host):
    writer = parts.PartWriter(Path(sys.argv[1], f"rank{rank:05d}-1-1"), 10)
    writer.write(values.PartHead(
        rank=rank, world_size=2, host=host, device="cpu", pid=1, mode="light", monotonic_ns=0, unix_ns=0
    ))
    return writer

end = values.End(why="", iterations=0, cost_ns=0)
part(0, socket.gethostname()).write(end)
elsewhere = part(1, "another")
if not os.fork():
    time.sleep(0.5)
    elsewhere.write(end)
"""


def test_the_first_host_waits_for_the_ranks_of_the_others(tmp_path: Path) -> None:
    output = tmp_path / "run.json"
    with pytest.raises(SystemExit, match="0"):
        trace(sys.executable, "-c", TWO_HOSTS, f"{output}.parts", output=output)
    timeline = read_timeline(output)
    assert [rank.host for rank in timeline.ranks] == [socket.gethostname(), "another"]
    assert "partial" not in timeline.facts


HANGS = """
import sys, time
from pathlib import Path
from hemiola.profiler.trace import keeper, values
from hemiola.profiler.trace.recorder import IterationRecorder

recorder = IterationRecorder()
head = values.PartHead(
    rank=0, world_size=1, host="h", device="cpu", pid=1, mode="light", monotonic_ns=recorder.now(), unix_ns=0
)
kept = keeper.Keeper(recorder, keeper.PartWriter(Path(sys.argv[1], "rank00000-1"), 10), lambda: head, patience_s=0.1)
kept.start()
recorder.transfer("all-reduce", 0, 4, recorder.now()).last = recorder.now()
recorder.transfer("broadcast", 0, 8, recorder.now())
print(flush=True)
time.sleep(60)
"""


def names_what_hangs(parts: Path) -> bool:
    """Whether a rank has told already; at first it has written nothing."""
    try:
        return bool(read_parts(parts)[0].under_way)
    except InputError:
        return False


def test_what_a_killed_rank_hung_on_is_named(tmp_path: Path) -> None:
    with start([sys.executable, "-c", HANGS, str(tmp_path)]) as process:
        until(lambda: process.poll() is not None or names_what_hangs(tmp_path), "the transfer is named")
        process.terminate()
        _, said = process.communicate()
    assert said == ""
    timeline = collect(tmp_path)
    assert timeline.facts["unfinished"] == [
        {"rank": 0, "name": "broadcast", "collective": "broadcast", "bytes": 8, "enqueue_s": 0.0}
    ]


def test_a_command_without_pytorch_runs_as_ever(tmp_path: Path) -> None:
    own = "import sys; print(sys.argv[1:]); raise SystemExit(7)"
    command = [*TRACE, "-o", str(tmp_path / "run.json"), "--", sys.executable, "-c", own, "--full", "-x"]
    process = run(command)
    assert process.returncode == 7
    assert process.stdout == "['--full', '-x']\n"
    assert "nothing was recorded" in process.stderr
    assert not (tmp_path / "run.json").exists()


def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    process = run([*TRACE, "-o", str(tmp_path / "run.json"), "--", "no-such-command"])
    assert process.returncode == 2
    assert "cannot run 'no-such-command'" in process.stderr


def test_nothing_to_run_is_an_error(tmp_path: Path) -> None:
    process = run([*TRACE, "-o", str(tmp_path / "run.json")])
    assert process.returncode == 2
    assert "nothing to run" in process.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "heavy"},
        {"listen": "here"},
        {"keep_iterations": -1},
        {"keep_iterations": 0},
        {"demand_iterations": 0},
    ],
)
def test_wrong_arguments_are_refused_before_training(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(InputError), record(tmp_path / "run.json", **wrong):  # type: ignore[arg-type]
        pytest.fail("it began")


def test_a_variable_that_is_no_number_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEMIOLA_RECORD_ITERATIONS", "five")
    with pytest.raises(InputError, match="HEMIOLA_RECORD_ITERATIONS=five"), record(tmp_path / "run.json"):
        pytest.fail("it began")


def test_a_folder_that_cannot_be_written_to_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)  # root may write anywhere
    with pytest.raises(InputError, match="cannot be written"), record(tmp_path / "run.json"):
        pytest.fail("it began")


def test_a_folder_without_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rank left anything"):
        collect(tmp_path)


def test_hosts_of_one_job_record_into_one_file_and_the_first_puts_it_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = options_for(tmp_path / "run.json")
    first = f"process {os.getpid()} on {socket.gethostname()}"
    with alone(options) as mine:
        assert not mine.other
        monkeypatch.setattr(socket, "gethostname", lambda: "another")
        with alone(options) as second:
            assert (second.since_ns, second.other) == (mine.since_ns, first)
            assert not second.is_left()
        leave_a_part(Path(options.parts), "rank00000-1-1")
        with pytest.raises(SystemExit, match="0"):
            trace("true", output=tmp_path / "run.json")
        assert capsys.readouterr().err == f"the recording is put together by {first}\n"
        assert merged(options, mine.since_ns) is not None
        lock = tmp_path / "run.json.lock"
        lock.write_text("")  # not said yet by whom
        with alone(options):
            assert lock.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("more", [True, False])
def test_who_outlives_the_first_puts_together_what_it_has_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: bool
) -> None:
    options = options_for(tmp_path / "run.json")
    first = alone(options)
    first.__enter__()
    monkeypatch.setattr(socket, "gethostname", lambda: "another")

    def run(command: tuple[str, ...], options: TraceOptions) -> int:
        first.__exit__(None, None, None)
        if more:
            leave_a_part(Path(options.parts), "rank00001-1-1")
        return 0

    monkeypatch.setattr(sys.modules["hemiola.cli.trace"], "_run", run)
    with pytest.raises(SystemExit, match="0"):
        trace("true", output=tmp_path / "run.json")
    assert (tmp_path / "run.json").exists() is more
    assert "nothing was recorded" not in capsys.readouterr().err
