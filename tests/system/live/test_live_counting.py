"""A host's own counters: read from the kernel, told as rates."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from live_slurm import until

from hemiola.cli.on_hosts import counters
from hemiola.core.errors import InputError
from hemiola.live.nic_counters import cards, host_reports
from hemiola.trace.reports import HostReport, Reports

COUNTERS = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: {lo} 8 0 0 0 0 0 0 {lo} 8 0 0 0 0 0 0
  eth0: {eth} 8 0 0 0 0 0 0 7 8 0 0 0 0 0 0
 bond0: {eth} 8 0 0 0 0 0 0 7 8 0 0 0 0 0 0
"""


def test_cards_of_hardware_are_counted_and_what_is_made_of_them_is_not(tmp_path: Path) -> None:
    counters = tmp_path / "dev"
    counters.write_text(COUNTERS.format(lo=1, eth=2))
    assert cards(counters=counters, folder=tmp_path) == ["bond0", "eth0"]
    (tmp_path / "eth0" / "device").mkdir(parents=True)
    assert cards(counters=counters, folder=tmp_path) == ["eth0"]
    assert cards(["lo"], counters=counters, folder=tmp_path) == ["lo"]
    with pytest.raises(InputError, match="no network card 'eth7'"):
        cards(["eth7"], counters=counters, folder=tmp_path)


def test_rates_are_of_the_time_between(tmp_path: Path) -> None:
    counters = tmp_path / "dev"
    counters.write_text(COUNTERS.format(lo=0, eth=1000))
    reports = host_reports("n1", ["eth0"], 0.05, counters)
    first = next(reports)
    assert (first.host, first.sent_bytes_per_s, first.received_bytes_per_s) == ("n1", 0.0, 0.0)
    counters.write_text(COUNTERS.format(lo=0, eth=500))  # the card began anew
    assert next(reports).received_bytes_per_s == 0.0
    counters.write_text(COUNTERS.format(lo=0, eth=1500))
    assert 0 < next(reports).received_bytes_per_s <= 1000 / 0.05


def test_a_name_that_no_host_can_have_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no report can be of a host 'node 1'"):
        counters(reports=tmp_path, host="node 1", card=("lo",))


def test_a_host_reports_what_really_went_through(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from hemiola.cli import main; main()", "counters"]
    options = ["--reports", str(tmp_path), "--host", "n7", "--card", "lo", "--every", "0.2s"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    reports, sender = Reports(tmp_path), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    found: list[HostReport] = []

    def counted() -> bool:
        for _ in range(50):
            sender.sendto(b"x" * 60_000, ("127.0.0.1", 9))
        found.extend(one.report for one in reports.fresh() if isinstance(one.report, HostReport))
        return any(report.sent_bytes_per_s > 3e6 for report in found)

    with sender, process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("reporting lo of n7 to")
        try:
            until(counted, "the host reports what was sent")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
    assert {report.host for report in found} == {"n7"}
