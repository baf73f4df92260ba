"""Sources and the reader on a real range server that fails in every way it can be told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from patience import patience, until

from hemiola.core.errors import InputError, StoreError
from hemiola.cost.io import StoreModel
from hemiola.lab.store import StoreServer, change_at, serve
from hemiola.plan.io.tuner import ReadLimits
from hemiola.train.input.reader import RangeReader, ReadPatience
from hemiola.train.input.samples import RemoteFile
from hemiola.train.input.source import (
    FileSource,
    FsspecSource,
    HttpSource,
    StoreBusyError,
    StoreChangedError,
    open_source,
)

QUICK = ReadPatience(in_all_s=30.0, first_s=0.01, most_s=0.1, hedge_least_s=0.3)
STORE = StoreModel(0.001, 100e6)


def reader(**given: object) -> RangeReader:
    limits = ReadLimits(in_flight=8, read_least_bytes=1 << 16, read_most_bytes=1 << 16)
    return RangeReader(STORE, limits, tuner=False, patience=QUICK, **given)  # type: ignore[arg-type]


def whole(source, made: RangeReader) -> bytes:
    return bytes(made.submit(source, 0, source.size()).wait())


@pytest.mark.parametrize("fault", [{}, {"failing": 0.2}, {"truncated": 0.2}, {"reset": 0.2}])
def test_every_byte_arrives_whatever_fails(server: StoreServer, folder: Path, fault: dict) -> None:
    source = HttpSource(f"{server.url}/big")
    assert source.size() == 1 << 22
    server.change(**fault)
    made = reader()
    assert whole(source, made) == (folder / "big").read_bytes()
    assert bool(made.counts.failures) == bool(fault)
    made.close()


@pytest.mark.parametrize("kind", [FileSource, FsspecSource])
def test_local_files_and_fsspec(folder: Path, kind: type) -> None:
    made = reader()
    assert whole(kind(str(folder / "big")), made) == (folder / "big").read_bytes()
    made.close()


def test_an_empty_object_has_no_bytes(server: StoreServer) -> None:
    source = HttpSource(f"{server.url}/empty")
    assert source.size() == 0 and whole(source, reader()) == b""


def test_an_object_that_is_not_there(server: StoreServer) -> None:
    with pytest.raises(StoreError, match="/none: 404"):
        HttpSource(f"{server.url}/none").size()
    with pytest.raises(StoreError, match="No such file"):
        FileSource("/none").size()


def test_an_object_that_changes_is_named_and_not_mixed(server: StoreServer, folder: Path) -> None:
    path = folder / "changing"
    path.write_bytes(b"a" * 200_000)
    sources = [HttpSource(f"{server.url}/changing"), FileSource(str(path))]
    assert [source.size() for source in sources] == [200_000, 200_000]
    path.write_bytes(b"b" * 200_000)
    for source in sources:
        with pytest.raises(StoreChangedError, match="changing has changed"):
            whole(source, reader())


def test_a_server_without_ranges_is_named(server: StoreServer) -> None:
    server.change(ranges=False)
    source = HttpSource(f"{server.url}/big")
    with pytest.raises(StoreError, match="sends the whole object"):
        whole(source, reader())


def test_retry_after_is_honoured(server: StoreServer) -> None:
    source = HttpSource(f"{server.url}/big")
    source.size()
    server.change(failing=1.0, status=429, retry_after_s=0.4)
    made = reader()
    begun_s = time.monotonic()
    piece = made.submit(source, 0, 1000)
    until(lambda: made.counts.failures >= 1)
    server.change(failing=0.0)
    piece.wait()
    assert time.monotonic() - begun_s >= 0.4
    made.close()


def test_expired_credentials_are_renewed_once(server: StoreServer) -> None:
    source = HttpSource(f"{server.url}/big")
    source.size()
    server.change(failing=1.0, status=403)
    renewed: list[float] = []

    def renew() -> None:
        renewed.append(time.monotonic())
        server.change(failing=0.0)

    made = reader(refresh=renew)
    assert len(made.submit(source, 0, 1000).wait()) == 1000 and len(renewed) == 1
    server.change(failing=1.0, status=403)
    with pytest.raises(StoreError, match="access is denied"):
        reader().submit(source, 0, 1000).wait()


def test_a_trickle_is_asked_for_a_second_time_once(server: StoreServer) -> None:
    source = HttpSource(f"{server.url}/big")
    made = reader()
    for at in range(20):
        made.submit(source, at << 16, 1 << 16).wait()
    server.change(trickling=1.0)
    piece = made.submit(source, 0, 1 << 16)
    until(lambda: made.active == 1)
    time.sleep(0.05)  # the request is with the server, and comes at 1 KB/s
    server.change(trickling=0.0)
    begun_s = time.monotonic()
    assert len(piece.wait()) == 1 << 16
    assert time.monotonic() - begun_s < patience(10) and made.counts.hedges == 1  # 64 s without
    made.close()


def test_a_store_that_dies_and_returns_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(range(250)) * 64000)  # more than a socket holds of it
    first = serve(tmp_path, stream_bytes_per_s=4e6)
    source = HttpSource(f"{first.url}/x")
    made = reader()
    piece = made.submit(source, 0, source.size())
    until(lambda: made.counts.arrived_bytes > 0)
    first.down()
    until(lambda: made.counts.failures > 0)
    with serve(tmp_path, port=first.port):
        assert bytes(piece.wait()) == (tmp_path / "x").read_bytes()
    made.close()


def test_patience_ends(server: StoreServer) -> None:
    source = HttpSource(f"{server.url}/big")
    source.size()
    server.change(stopped=True)
    hasty = RangeReader(STORE, patience=ReadPatience(in_all_s=0.2, first_s=0.01, most_s=0.05))
    with pytest.raises(StoreBusyError):
        hasty.submit(source, 0, 1000).wait()


def test_a_forked_child_reads_with_threads_of_its_own(server: StoreServer, folder: Path) -> None:
    source = HttpSource(f"{server.url}/big")
    made = reader()
    whole(source, made)  # threads and connections are there
    child = os.fork()
    if child == 0:
        os._exit(0 if whole(source, made) == (folder / "big").read_bytes() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    made.close()


def test_interrupting_ends_within_a_second_or_so(server: StoreServer) -> None:
    server.change(trickling=1.0)
    script = (
        "import sys\nfrom hemiola.train.input.reader import RangeReader\nfrom hemiola.train.input.source import HttpSource\n"
        f"reader, source = RangeReader(), HttpSource({server.url + '/big'!r})\n"
        "piece = reader.submit(source, 0, 1 << 22)\n"
        "try:\n    print('reads', flush=True)\n    piece.wait()\nexcept KeyboardInterrupt:\n    sys.exit(7)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"reads\n"
    begun_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait() == 7 and time.monotonic() - begun_s < patience(1)
    process.stdout.close()


def test_rates_are_kept_by_a_bucket(server: StoreServer) -> None:
    source = HttpSource(f"{server.url}/big")
    made = reader()
    made.rate_bytes_per_s = 4e6
    begun_s = time.monotonic()
    made.submit(source, 0, 1 << 21).wait()
    assert time.monotonic() - begun_s > 0.8 * (1 << 21) / 4e6
    made.close()


def test_a_remote_file_reads_ahead_in_order(server: StoreServer, folder: Path) -> None:
    made = reader()
    with RemoteFile(f"{server.url}/big", made) as stream:
        stream.seek(100_000)
        assert stream.read(2_000_000) == (folder / "big").read_bytes()[100_000:2_100_000]
        stream.seek(5)
        assert stream.read(10) == (folder / "big").read_bytes()[5:15]
    made.close()


def test_settings_that_there_are_not(server: StoreServer, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no setting latency"):
        server.change(latency=3)
    with pytest.raises(Exception, match="no store listens"):
        change_at(tmp_path / "none", {})
    with pytest.raises(Exception, match="no folder"):
        serve(tmp_path / "none")


def test_urls_choose_their_source() -> None:
    assert isinstance(open_source("/a/b"), FileSource)
    assert isinstance(open_source("https://host/b"), HttpSource)
    assert isinstance(open_source("memory://b"), FsspecSource)
    with pytest.raises(InputError, match="nothing://b"):
        open_source("nothing://b")


def test_readers_share_no_lock_with_the_training(server: StoreServer) -> None:
    """Many threads ask at once, and each gets its own bytes."""
    source, made, wrong = HttpSource(f"{server.url}/big"), reader(), []
    data = bytes(made.submit(source, 0, 1 << 20).wait())

    def ask(k: int) -> None:
        if bytes(made.submit(source, 1000 * k, 500).wait()) != data[1000 * k : 1000 * k + 500]:
            wrong.append(k)

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    made.close()
