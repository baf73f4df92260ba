"""Hosts that fail and return, from a table: in order of time, and named by line where a row cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from hemiola.core.errors import InputError, RowError
from hemiola.core.events import NodeBack, NodeLost
from hemiola.trace.failures import read_failures
from hemiola.trace.topologies import read_topology

TWO = read_topology("flat:hosts=2,gpus_per_host=1")
HEADER = "time_s,host,event\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "failures.csv"
    path.write_text(text)
    return path


def test_failures_ascend_by_time(tmp_path: Path) -> None:
    first, second = TWO.hosts.names
    path = write(tmp_path, f"{HEADER}90,{second},up\n5,{second},down\n7.5,{first},down\n")
    assert read_failures(path, TWO, origin_s=100.0) == (
        NodeLost(105.0, 1), NodeLost(107.5, 0), NodeBack(190.0, 1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("row", "column"),
    [("soon,n0,down", "time_s"), ("inf,n0,down", "time_s"), ("0,n9,down", "host"), ("0,n0,gone", "event"), ("0", "host")],
)  # fmt: skip
def test_rows_that_cannot_be(row: str, column: str, tmp_path: Path) -> None:
    with pytest.raises(RowError) as caught:
        read_failures(write(tmp_path, f"{HEADER}{row.replace('n0', TWO.hosts.names[0])}\n"), TWO)
    assert (caught.value.line, caught.value.column) == (2, column)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "columns are None"),
        ("time,host,event\n", "columns are"),
        (f'{HEADER}0,"{"x" * 140_000}', "field larger than field limit"),
        (f'"{"x" * 140_000}', "field larger than field limit"),
    ],
    ids=["empty", "columns", "row", "header"],
)  # fmt: skip
def test_files_that_are_no_table(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        read_failures(write(tmp_path, text), TWO)
    assert caught.value.remedy
