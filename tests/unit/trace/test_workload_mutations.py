"""However a file is damaged, it is read or refused: no other exception ever escapes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import workload_samples as samples
from hypothesis import given, settings
from hypothesis import strategies as st

from hemiola.core.errors import HemiolaError
from hemiola.trace.workloads import read_workload

SPLINTERS = st.sampled_from(
    [b"", b"\x00", b"\xff", b'"', b"\n", b"\r", b",", b"\t", b"|", b"-", b"nan", b"1e400", b"9" * 30, b"[", b"{",
     b"null", b"\\", b"2017-13-40", b"[[[[[[[[", b";", b"0001-01-01 00:00:00+14:00", b"-1", b"\xef\xbb\xbf"]
)  # fmt: skip
EDITS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 20), SPLINTERS), min_size=1, max_size=4)


def damaged(text: str, edits: list[tuple[float, int, bytes]]) -> bytes:
    data = text.encode()
    for place, length, splinter in edits:
        at = int(place * len(data))
        data = data[:at] + splinter + data[at + length :]
    return data


@pytest.mark.parametrize("name", samples.SAMPLES)
@settings(max_examples=60)
@given(edits=EDITS, skip=st.booleans(), named=st.booleans())
def test_damage_is_refused_or_harmless(
    name: str, edits: list[tuple[float, int, bytes]], skip: bool, named: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    format, text = samples.SAMPLES[name]
    path: Path = tmp_path_factory.getbasetemp() / f"damaged-{name}"
    path.write_bytes(damaged(text, edits))
    try:
        workload = read_workload(path, skip_bad_rows=skip, format=format if named else None)
    except HemiolaError as error:
        assert error.remedy
        return
    ids = [job.id for job in workload.jobs]
    assert len(set(ids)) == len(ids) > 0
    for job in workload.jobs:
        assert job.gpus >= 1
        assert job.submit_s >= 0
        assert 0 <= job.duration_s < math.inf
        assert job.recorded_start_s is None or job.recorded_start_s >= 0
        assert not (job.hosts and job.gpus % job.hosts)
        assert not job.flaw()


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_noise_is_refused(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "noise"
    path.write_bytes(noise)
    with pytest.raises(HemiolaError):
        read_workload(path)


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep"
    path.write_text('[{"jobid": "a", "attempts": ' + "[" * 100_000 + "]" * 100_000 + "}]")
    with pytest.raises(HemiolaError):
        read_workload(path)
