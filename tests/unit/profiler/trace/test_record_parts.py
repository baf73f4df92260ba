"""Parts on disk: bounded, and readable after any crash."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.core.errors import InputError
from hemiola.profiler.trace.keeper import Keeper
from hemiola.profiler.trace.parts import PartWriter, ended_parts, part_files, read_parts
from hemiola.profiler.trace.recorder import IterationRecorder
from hemiola.profiler.trace.values import (
    ClockSample,
    End,
    Iteration,
    LateTransfers,
    Line,
    PartFacts,
    PartHead,
    RankGroup,
)


def head(
    rank: int = 0, unix_ns: int = 1, run: str = "", number: int = -1, host: str = "h", attempt: str = ""
) -> PartHead:
    return PartHead(
        rank=rank, world_size=2, host=host, device="cpu", pid=5, mode="light", monotonic_ns=0, unix_ns=unix_ns, run=run,
        number=number, attempt=attempt,
    )  # fmt: skip


ROW = (3, "", "all-reduce", 0, 4, 5, None, None, None, None)


def iteration(number: int, complete: bool = True) -> Iteration:
    row = (number, "bucket 0", "all-reduce", 0, 4, 1, 2, 3, None, None)
    return Iteration(number, number, number + 1, complete, False, [("forward", "compute", 0, 1)], [row])


def write(stem: Path, lines: list[Line], keep: int = 100) -> PartWriter:
    writer = PartWriter(stem, keep)
    for line in lines:
        writer.write(line)
    writer.close()
    return writer


def test_what_is_written_is_read(tmp_path: Path) -> None:
    lines = [
        head(),
        RankGroup(0, "0", [0, 1], "gloo"),
        ClockSample(1, 2, 3),
        iteration(0),
        PartFacts({"a": 1}),
    ]
    write(tmp_path / "rank00000-5", [*lines, End(why="", iterations=1, cost_ns=9)])
    (part,) = read_parts(tmp_path)
    assert part.head == head()
    assert part.groups[0].ranks == [0, 1]
    assert part.clocks == [ClockSample(1, 2, 3)]
    assert part.iterations == [iteration(0)]
    assert part.facts == {"a": 1}
    assert part.end == End(why="", iterations=1, cost_ns=9)
    assert ended_parts(tmp_path, 0) == 1


def test_the_file_begun_last_has_the_last_word(tmp_path: Path) -> None:
    """Two files take turns, and the first is begun anew."""
    lines: list[Line] = [
        head(),
        iteration(0),
        LateTransfers([(9, "", "barrier", 0, 0, 4, *[None] * 4)]),
        iteration(1),
    ]
    write(tmp_path / "rank00000-5", [*lines, LateTransfers([]), iteration(2), LateTransfers([ROW])], 1)
    (part,) = read_parts(tmp_path)
    assert [entry.number for entry in part.iterations] == [1, 2]
    assert part.under_way == [ROW]


def test_ranks_keep_the_number_that_they_began_with(tmp_path: Path) -> None:
    """Rank 1 is lost; the next group numbers rank 2 anew."""
    write(tmp_path / "rank00001-5", [head(1, number=1), iteration(0)])
    write(tmp_path / "rank00002-6", [head(2, number=2), iteration(0), head(1, number=2), iteration(1)])
    assert [part.head.rank for part in read_parts(tmp_path)] == [1, 2]


def test_an_end_is_seen_whatever_a_rank_has_crashed_with(tmp_path: Path) -> None:
    keeper = Keeper(IterationRecorder(), PartWriter(tmp_path / "rank00000-5", 100), head)
    keeper.start()
    keeper.finish("crashed: ValueError: " + "\x1b[31m" * 2000, 60.0)
    assert ended_parts(tmp_path, 0) == 1


def test_ends_of_an_earlier_run_are_not_counted(tmp_path: Path) -> None:
    write(tmp_path / "rank00001-1", [head(1), End(why="", iterations=1, cost_ns=9)])
    old = tmp_path / "rank00001-1.a.jsonl"
    os.utime(old, ns=(old.stat().st_atime_ns, old.stat().st_mtime_ns - 10**9))
    writer = write(tmp_path / "rank00000-2", [head(), End(why="", iterations=1, cost_ns=9)])
    assert ended_parts(tmp_path, writer.began_ns) == 1


def test_a_line_that_does_not_fit_on_the_disk_leaves_no_half_before_the_next(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path / "rank00000-5-1", 100)
    writer.write(head())
    writer.write(iteration(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (writer._stream.tell() + 60, hard))
    try:
        with pytest.raises(OSError):
            writer.write(iteration(1))
        writer.write(End(why="recording failed", iterations=1, cost_ns=9))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        writer.close()
    (part,) = read_parts(tmp_path)
    assert part.iterations == [iteration(0)]
    assert part.end is not None and part.end.why == "recording failed"


def test_parts_that_ranks_have_begun_meanwhile_are_of_the_next_recording(tmp_path: Path) -> None:
    end = End(why="", iterations=1, cost_ns=9)
    write(tmp_path / "rank00001-7-8", [head(1, 1), iteration(7), end])
    stale = tmp_path / "rank00001-7-8.a.jsonl"
    os.utime(stale, ns=(0, stale.stat().st_mtime_ns - 10**9))
    own = write(tmp_path / "rank00000-5-9", [head(0, 2), iteration(0), end])
    write(tmp_path / "rank00001-7-9", [head(1, 2), iteration(1), end])
    write(tmp_path / "rank00001-7-10", [head(1, 3), iteration(2), end])
    first, second = read_parts(tmp_path, own.began_ns)
    assert (first.iterations, second.iterations) == ([iteration(0)], [iteration(1)])
    assert ended_parts(tmp_path, own.began_ns) == 2
    later = tmp_path / "rank00001-7-10.a.jsonl"
    assert set(tmp_path.iterdir()) - set(part_files(tmp_path, own.began_ns)) == {later}


@given(keep=st.integers(1, 6), count=st.integers(0, 40))
def test_the_last_iterations_are_kept_and_no_more(
    tmp_path_factory: pytest.TempPathFactory, keep: int, count: int
) -> None:
    folder = tmp_path_factory.mktemp("ring")
    writer = write(folder / "rank00000-5", [head(), *(iteration(k) for k in range(count))], keep)
    (part,) = read_parts(folder)
    numbers = [entry.number for entry in part.iterations]
    assert numbers == list(range(count))[-len(numbers) :] if numbers else count == 0
    assert min(count, keep) <= len(numbers) <= 2 * keep
    assert writer.forgotten_iterations == count - len(numbers)


def test_what_is_no_whole_iteration_is_none_that_is_forgotten(tmp_path: Path) -> None:
    lines = [iteration(-1, False), *map(iteration, range(4)), iteration(4, False)]
    assert write(tmp_path / "rank00000-5", [head(), *lines], 1).forgotten_iterations == 2
    assert [entry.number for entry in read_parts(tmp_path)[0].iterations] == [2, 3, 4]


@given(cut=st.integers(0, 400))
def test_a_file_cut_off_anywhere_is_read_up_to_there(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    write(folder / "rank00000-5", [head(), *(iteration(k) for k in range(3))])
    path = folder / "rank00000-5.a.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[: min(cut, len(content))])
    whole = content[:cut].count(b"\n") if cut < len(content) else 4
    if whole == 0 and cut < content.index(b"\n"):
        with pytest.raises(InputError):
            read_parts(folder)
    else:
        (part,) = read_parts(folder)
        assert len(part.iterations) >= whole - 1
        assert [entry.number for entry in part.iterations] == list(range(len(part.iterations)))


def test_of_a_rank_that_began_again_the_latest_counts_and_old_runs_do_not(tmp_path: Path) -> None:
    write(tmp_path / "rank00000-1", [head(unix_ns=1, run="old"), iteration(7)])
    write(tmp_path / "rank00001-1", [head(1, unix_ns=1, run="old"), iteration(7)])
    write(tmp_path / "rank00000-2", [head(unix_ns=2, run="new"), iteration(8)])
    write(tmp_path / "rank00000-3", [head(unix_ns=3, run="new"), iteration(9)])
    (part,) = read_parts(tmp_path)
    assert part.iterations[0].number == 9


def test_of_a_job_that_begins_anew_the_latest_attempt_counts_though_it_fell_before_it_had_a_word(
    tmp_path: Path,
) -> None:
    """Two attempts within a second; only the first one's ranks have met."""
    for rank in (0, 1):
        write(tmp_path / f"rank0000{rank}-{rank}", [head(rank, 1, "first", attempt="job 0"), iteration(7)])
    write(tmp_path / "rank00001-2", [head(1, 2, attempt="job 1"), iteration(8)])
    (part,) = read_parts(tmp_path)
    assert part.iterations[0].number == 8


def test_hosts_may_count_attempts_apart(tmp_path: Path) -> None:
    write(tmp_path / "rank00000-1", [head(0, 1, attempt="job 1", host="a"), iteration(8)])
    write(tmp_path / "rank00001-1", [head(1, 2, attempt="job 0", host="b"), iteration(8)])
    assert [part.head.rank for part in read_parts(tmp_path)] == [0, 1]
