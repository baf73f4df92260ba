"""Links between real processes of this machine."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import patience
from ranks import Rank

from hemiola.core.errors import HardwareError, InputError
from hemiola.lab import Lab
from hemiola.profiler.calibrate import calibrate_links, links
from hemiola.profiler.calibrate.launching import _run_here
from hemiola.profiler.calibrate.links import read_links

SIZES = (4, 65_536, 33_554_432)  # the last so large that no disturbed small one takes as long


def test_two_processes_measure_gloo() -> None:
    found = calibrate_links(2, sizes_bytes=SIZES, seconds_per_size=0.02)
    assert [c.collective for c in found] == [
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "broadcast",
        "send",
    ]
    for collective in found:
        assert (collective.backend, collective.ranks, len(collective.hosts)) == ("gloo", 2, 2)
        assert 1e-7 <= collective.alpha_s < 1
        assert 1e6 < collective.bytes_per_s < 1e12
        assert 0 <= collective.cpu_s_per_byte < 1e-6
        sizes = [size for size, _, _ in collective.points]
        assert sizes[1:] == list(SIZES[1:])
        assert sizes[0] in (4, 8)  # a gathered tensor has at least one element of each rank
        assert collective.runs >= 5


def test_processor_time_is_that_of_a_rank_that_takes_part() -> None:
    """Rank 0 and the last work 2 ms for each call; the one between them stands by."""
    code = """
import time, torch, torch.distributed as dist
from hemiola.profiler.calibrate import links
def work():
    end = time.process_time() + 2e-3
    while time.process_time() < end:
        pass
torch.set_num_threads(1)
dist.init_process_group("gloo")
call = links._stand_by if dist.get_rank() == 1 else work
assert links._timed(call, 0.02, "cpu")[1] >= 2e-3
dist.destroy_process_group()
"""
    _run_here([sys.executable, "-c", code], 3)


def test_a_rank_that_fails_is_named() -> None:
    with pytest.raises(InputError, match=r"rank [01] failed: a tensor of -4 bytes"):
        calibrate_links(2, backend="gloo", sizes_bytes=(-4,), seconds_per_size=-1)


def test_the_others_do_not_wait_for_a_rank_that_has_failed() -> None:
    code = "import os, sys, time; sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(3600)"
    start = time.monotonic()
    with pytest.raises(InputError, match="rank 1 failed: it said nothing"):
        _run_here([sys.executable, "-c", code], 3)
    assert time.monotonic() - start < patience(30)


def test_a_rank_that_says_much_keeps_nobody_waiting(tmp_path: Path) -> None:
    """More than a pipe holds, while rank 0 waits for it."""
    said = tmp_path / "said"
    code = f"""
import os, sys, time
from pathlib import Path
if os.environ["RANK"] == "1":
    sys.stderr.write("x" * 1_000_000)
    Path({str(said)!r}).touch()
end = time.monotonic() + 300
while not Path({str(said)!r}).exists() and time.monotonic() < end:
    time.sleep(0.01)
sys.exit(not Path({str(said)!r}).exists())
"""
    _run_here([sys.executable, "-c", code], 2)


def measured_by(ranks: int, *words: str) -> list[tuple[int | None, str]]:
    """How each rank ended that ran the module, and its errors."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = [
        Rank(
            Path(links.__file__), *words, RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port
        )
        for rank in range(ranks)
    ]  # fmt: skip
    said = [rank.communicate(timeout=patience(120))[1] for rank in started]
    return [(rank.returncode, errors) for rank, errors in zip(started, said, strict=True)]


def test_a_path_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    for status, errors in measured_by(2, "--output", str(tmp_path / "no" / "links.json")):
        assert status == 2 and errors.startswith(f"error: there is no folder {tmp_path / 'no'}\n  hint: ")


def test_what_cannot_be_fitted_is_said(tmp_path: Path) -> None:
    first, other = measured_by(2, "--output", str(tmp_path / "x"), "--sizes", "4", "--seconds-per-size", "0")
    assert first[0] == 2 and first[1].startswith("error: all-reduce was measured at 1 sizes")
    assert other == (0, "") and not (tmp_path / "x").exists()


def test_what_can_be_fitted_is_written_all_the_same(tmp_path: Path) -> None:
    def points(last_s: float) -> tuple[list[tuple[float, float, float]], list[float], int]:
        return [(4.0, 1e-4, 0.0), (1e6, last_s, 0.0)], [0.0, 0.0], 5

    options = argparse.Namespace(backend="gloo", output=tmp_path / "links.json")
    measured = {"all-reduce": points(1e-2), "broadcast": points(1e-5)}
    with pytest.raises(
        HardwareError, match=r"links.json is without broadcast: broadcast of 2 ranks takes no longer"
    ):
        links._write(options, ["a", "b"], measured)
    assert [one.collective for one in read_links(options.output)] == ["all-reduce"]


def test_the_launch_is_the_callers() -> None:
    """Whoever runs the command on other hosts (a lab) gets it whole; without a result that is an error."""
    commands: list[list[str]] = []
    with pytest.raises(InputError, match="wrote no result"):
        calibrate_links(launch=commands.append)
    assert commands[0][2:4] == ["-m", "hemiola.profiler.calibrate.links"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_between_the_hosts_of_a_lab_the_link_decides() -> None:
    """On 200 Mbit/s no more than that gets through, whatever the machine; bursts of 125 kB come on top."""
    with Lab(hosts=2, rate="200mbit") as lab:
        found = calibrate_links(launch=lab.run, sizes_bytes=(4, 1_000_000, 4_000_000), seconds_per_size=0.02)
    reduce = next(collective for collective in found if collective.collective == "all-reduce")
    assert reduce.hosts == ("h0", "h1")
    assert reduce.bytes_per_s < 25e6 * 1.25


def test_one_rank_has_no_links() -> None:
    with pytest.raises(InputError, match="1 rank"):
        calibrate_links(1)
    ((status, errors),) = measured_by(1, "--output", "links.json")
    assert status == 2 and errors.startswith("error: 1 ranks have no links between them\n")


@pytest.mark.parametrize(
    "content", [b"", b'{"schema": "hemiola.links/2", "measured_on": "", "collectives": []}']
)
def test_a_wrong_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "links.json"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_links(path)


def test_without_a_rendezvous_it_says_so(tmp_path: Path) -> None:
    environment = {
        k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    }
    command = [sys.executable, "-m", "hemiola.profiler.calibrate.links", "--output", str(tmp_path / "x.json")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience(60))
    assert ran.returncode == 2
    assert "RANK" in ran.stderr
