"""Links between real processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hemiola.core.errors import InputError
from hemiola.lab import Lab
from hemiola.run.calibrate import calibrate_links
from hemiola.run.calibrate.launching import _run_here
from hemiola.run.calibrate.links import read_links

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
from hemiola.run.calibrate import links
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
    with pytest.raises(InputError, match="rank 0 failed"):
        calibrate_links(2, backend="gloo", sizes_bytes=(-4,), seconds_per_size=-1)


def test_the_launch_is_the_callers() -> None:
    """Whoever runs the command on other hosts (a lab) gets it whole; without a result that is an error."""
    commands: list[list[str]] = []
    with pytest.raises(InputError, match="wrote no result"):
        calibrate_links(launch=commands.append)
    assert commands[0][1:3] == ["-m", "hemiola.run.calibrate.links"]


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
    command = [sys.executable, "-m", "hemiola.run.calibrate.links", "--output", str(tmp_path / "x.json")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert "RANK" in ran.stderr
