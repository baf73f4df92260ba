"""Seconds or milliseconds: the invariants that a format has give a wrong unit away."""

from __future__ import annotations

from pathlib import Path

import pytest
import workload_samples as samples

from hemiola.core.errors import FormatError, RowError
from hemiola.trace.workloads import read_workload


def scaled(text: str, columns: tuple[str, ...], factor: float) -> str:
    header, *rows = text.strip().split("\n")
    names = header.split(",")
    lines = [header]
    for row in rows:
        cells = row.split(",")
        for column in columns:
            i = names.index(column)
            cells[i] = f"{float(cells[i]) * factor:.12g}"
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


def read(folder: Path, text: str, **options: str) -> None:
    path = folder / "jobs.csv"
    path.write_text(text)
    read_workload(path, **options)  # type: ignore[arg-type]


ALL = ("submit_time", "duration", "interval")


def test_tiresias_with_arrivals_in_milliseconds_only(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="1000 times as fast as interval"):
        read(tmp_path, scaled(samples.TIRESIAS, ("submit_time",), 1000))


def test_tiresias_with_intervals_in_milliseconds_only(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"0\.001 times as fast as interval"):
        read(tmp_path, scaled(samples.TIRESIAS, ("interval",), 1000), format="tiresias")


def test_tiresias_in_milliseconds_throughout_is_refused_unless_named(tmp_path: Path) -> None:
    text = scaled(samples.TIRESIAS, ALL, 1000)
    with pytest.raises(FormatError, match="may be milliseconds") as caught:
        read(tmp_path, text)
    assert "tiresias:FILE" in caught.value.remedy
    read(tmp_path, text, format="tiresias")


def test_muri_with_durations_in_seconds(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="times the duration: two units are mixed"):
        read(tmp_path, scaled(samples.MURI, ("duration",), 0.001))


def test_muri_in_seconds_throughout(tmp_path: Path) -> None:
    stages = ("iteration_time", "resource_time_0", "resource_time_1", "resource_time_2")
    with pytest.raises(FormatError, match="seems to be in seconds"):
        read(tmp_path, scaled(samples.MURI, (*ALL, *stages), 0.001))


def test_philly_with_durations_in_minutes(tmp_path: Path) -> None:
    with pytest.raises(RowError, match="is not duration"):
        read(tmp_path, scaled(samples.PHILLY_CSV, ("duration",), 1 / 60))


def test_helios_with_durations_in_milliseconds(tmp_path: Path) -> None:
    with pytest.raises(RowError, match="is not end_time - start_time"):
        read(tmp_path, scaled(samples.HELIOS, ("duration",), 1000))


def test_native_in_milliseconds_since_1970(tmp_path: Path) -> None:
    text = "id,submit_s,gpus,duration_s\na,1700000000000,1,1\n"
    with pytest.raises(RowError, match="300 years") as caught:
        read(tmp_path, text)
    assert "unit" in caught.value.remedy
