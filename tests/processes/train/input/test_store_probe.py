"""The probe on a store whose latency and rates are known; limits are wide, for the machine may be busy."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from hemiola.cli import app
from hemiola.core.errors import InputError
from hemiola.cost.io import StoreProbe
from hemiola.lab.store import StoreServer
from hemiola.train.input.probe import ProbeBudget, measure_stream, probe_store
from hemiola.train.input.source import HttpSource

KNOWN = {"latency_s": 0.03, "stream_bytes_per_s": 8e6, "share_bytes_per_s": 24e6}


def test_it_finds_what_the_store_was_given(server: StoreServer) -> None:
    server.change(**KNOWN)
    said: list[str] = []
    found = probe_store(f"{server.url}/big", ProbeBudget(bytes_=2**25, seconds=8.0), say=said.append)
    assert "writes nothing" in said[0]
    assert 0.03 <= found.latency_s.value < 0.05
    assert found.stream_bytes_per_s.value == pytest.approx(8e6, rel=0.3)
    assert found.share_bytes_per_s.value == pytest.approx(24e6, rel=0.35)
    assert found.read_bytes_total <= 2**25 and found.saturated and not found.cached
    for interval in (found.latency_s, found.stream_bytes_per_s, found.share_bytes_per_s):
        assert interval.low <= interval.value <= interval.high


def test_a_hiccup_does_not_move_it(server: StoreServer) -> None:
    server.change(**KNOWN)
    source = HttpSource(f"{server.url}/big")
    source.size()
    server.change(hiccup_s=0.6)  # at the first request, which is left out, or one of the others
    found = measure_stream(source, seconds=3.0)
    assert found.latency_s == pytest.approx(0.03, rel=0.5)
    assert found.stream_bytes_per_s == pytest.approx(8e6, rel=0.4)


def test_small_objects_are_refused(server: StoreServer, folder: Path) -> None:
    (folder / "small").write_bytes(b"x" * 100)
    with pytest.raises(InputError, match="has 100 bytes"):
        probe_store(f"{server.url}/small")


def test_the_command_prints_writes_and_draws(
    server: StoreServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.change(**KNOWN)
    out, picture = tmp_path / "store.json", tmp_path / "store.svg"
    with pytest.raises(SystemExit) as ended:
        app(
            ["io", "probe", f"{server.url}/big", "--budget", "20MB", "--seconds", "6", "-o", str(out),
             "--picture", str(picture)]
        )  # fmt: skip
    assert ended.value.code in (0, None)
    printed = capsys.readouterr()
    assert (
        "requests of" in printed.out and "num_workers=" in printed.out and "s3torchconnector" in printed.out
    )
    assert msgspec.json.decode(out.read_bytes(), type=StoreProbe).size_bytes == 1 << 22
    assert json.loads(out.read_text())["schema"] == "hemiola.io-probe/1"
    assert picture.read_text().startswith("<svg") and "circle" in picture.read_text()
