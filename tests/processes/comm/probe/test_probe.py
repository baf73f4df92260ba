"""Probing real connections: known rates are found again, and the verb says so."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import TextIO

import msgspec
import numpy as np
import pytest
import torch.distributed as dist
from endpoints import connected, together
from patience import patience
from ranks import SOURCE, Rank

from hemiola.cli.collective import probe as probe_verb
from hemiola.comm.probe.measure import (
    AT_ONCE,
    Arrivals,
    Homes,
    Probed,
    ProbeMeasurement,
    Prober,
    exchange,
    measured_topology,
    own_affinity,
    probe,
)
from hemiola.comm.transport import Endpoint
from hemiola.comm.transport.endpoint import Peer
from hemiola.core.errors import InputError, TransportError
from hemiola.core.topology import Topology
from hemiola.cost.network_fit import ProbedFlow, matchings
from hemiola.lab import Lab
from hemiola.trace.topologies import read_topology
from hemiola.trace.topologies.native import read_native, topology_text

MB = 1e6


def test_a_rate_is_that_of_what_came_between_two_moments() -> None:
    stream = Arrivals(1_000_000)
    stream.at_s += [
        10.0,
        10.1,
        10.2,
        10.3,
        10.8,
    ]  # 10 MB/s after a first message that came at once, then 2 MB/s
    assert stream.rate(9.99, 10.1, 10.3) == pytest.approx(10 * MB)
    assert stream.rate(9.99, 10.3, 10.8) == pytest.approx(2 * MB)
    assert stream.rate(9.99, 10.25, 10.55) == pytest.approx(1 * MB / 0.3)
    slow = Arrivals(1_000_000)
    slow.at_s.append(11.0)
    assert slow.rate(10.0, 10.2, 10.4) == pytest.approx(1 * MB), "half a message is something"


def test_a_round_ends_when_its_time_is_over_and_leaves_nothing_behind() -> None:
    with connected(3) as ends:
        everyone_is_here = threading.Barrier(3)
        found: dict[int, dict[int, Arrivals]] = {}

        def begin() -> float:
            everyone_is_here.wait()
            return time.monotonic()

        def one(end: Endpoint) -> None:
            to = {0: {1: 4096, 2: 1}, 1: {0: 4096}, 2: {}}[end.rank]
            since = {0: {1: 4096}, 1: {0: 4096}, 2: {0: 1}}[end.rank]
            for _ in range(2):
                _, found[end.rank] = exchange(end, 7, to, since, begin, 0.02, 10.0)
            after = bytearray(1)
            if end.rank == 0:
                end.send(1, 7, b"x").wait(10.0)
            elif end.rank == 1:
                end.receive(0, 7, after).wait(10.0)
                assert after == b"x"

        assert together(one, ends) == [None] * 3
    assert found[2][0].at_s and not found[1].keys() - {0}
    assert all(len(came.at_s) > 2 * AT_ONCE for came in (found[0][1], found[1][0]))


def test_a_round_with_a_lost_rank_fails() -> None:
    with connected(2) as ends:
        ends[1].close()
        with pytest.raises(TransportError, match=r"rank 1"):
            exchange(ends[0], 7, {1: 4096}, {1: 4096}, time.monotonic, 0.01, 10.0)


def test_all_ranks_of_a_process_measure_each_other() -> None:
    with connected(3) as ends:
        found: dict[int, ProbeMeasurement] = {}
        later: dict[int, ProbeMeasurement] = {}

        def one(end: Endpoint) -> None:
            found[end.rank] = Prober(end, [0, 1, 2], 10.0).measure(passes_most=1, round_s=5e-3)
            later[end.rank] = Prober(end, [0, 1, 2], 10.0).measure_again(found[end.rank], 5e-3)

        assert together(one, ends) == [None] * 3
    assert (later[0].latency_s == found[0].latency_s).all()
    assert len(later[0].rounds) >= 3 and later[0].fit().rate(2).bytes_per_s > 0
    latency_s = found[0].latency_s
    assert (latency_s[~np.eye(3, dtype=bool)] > 0).all() and (latency_s == latency_s.T).all()
    assert not found[1].rounds and found[0].sent_bytes > 0
    topology = measured_topology(found[0], Homes(("a", "b", "c"), (0, 1, 1, 2)))
    assert topology.hosts.gpus.tolist() == [1, 2, 1]
    more = measured_topology(found[0], Homes(("a", "b", "c"), (0, 1, 1, 2)), gpus=(8, 0, 0)).hosts
    assert more.gpus.tolist() == more.island_gpus.tolist() == [8, 2, 1], "what a rank sees, or ranks"
    again = read_native(topology_text(topology), "the text")
    assert again == topology and again.measured == topology.measured
    assert {link.name for link in topology.measured} >= {"a out", "b in"}
    assert all(link.low <= link.bytes_per_s <= link.high for link in topology.measured)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_slow_host_of_a_lab_is_found(tmp_path: Path) -> None:
    """Rates of data are up to 5 % below those of the links, for headers; a busy machine slows them further, so what has to
    hold is which host is slow, and that none is faster than it can be."""
    file = tmp_path / "network.toml"
    with Lab(hosts=3, rate="100mbit", host_rates={"h2": "25mbit"}) as lab:
        places = lab.rendezvous()
        command = [
            sys.executable,
            "-c",
            "from hemiola.cli import main; main()",
            "probe",
            "-o",
            str(file),
            "--seconds",
            "0.1",
        ]
        ranks = [
            lab.start(host, command, env=places[host], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for host in lab.hosts
        ]  # fmt: skip
        said = [rank.communicate(timeout=patience(100))[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0, 0], said
        truth = lab.topology().hosts.nic_bytes_per_s
    found = read_topology(str(file))
    assert found.hosts.names == ("h0", "h1", "h2")
    ratio = found.hosts.nic_bytes_per_s / truth
    assert (ratio < 1.15).all(), ratio
    assert found.hosts.nic_bytes_per_s[2] < 0.6 * found.hosts.nic_bytes_per_s[:2].min()
    assert "h2" in said[0] and "all-reduce of 16 MB" in said[0]


def test_hosts_of_one_name_are_told_apart_by_address() -> None:
    def peers(*hosts: tuple[str, ...]) -> list[Peer]:
        return [Peer(address, 1, names) for address, *names in hosts]  # type: ignore[arg-type]

    several = Homes.of(peers(("10.0.0.1", "a", "x"), ("10.0.0.2", "b"), ("10.0.0.1", "a", "x")))
    assert several == Homes(("a", "b"), (0, 1, 0))
    assert several.firsts == (0, 1) and several.counts == (2, 1)
    assert Homes.of(peers(("10.0.0.1", "a"), ("10.0.0.2", "a"))).names == ("10.0.0.1", "10.0.0.2")


def test_without_a_job_it_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="RANK, WORLD_SIZE") as caught:
        probe(1.0)
    assert "--hosts" in caught.value.remedy


def test_a_rank_that_does_not_come_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(TransportError, match=f"did not meet at 127.0.0.1:{port} within 0.5 s"):
        probe(1.0, interface="lo", timeout_s=0.5)


def test_what_was_measured_is_written_whoever_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unread: TextIO
) -> None:
    topology = Topology.flat(hosts=2, gpus_per_host=1)
    monkeypatch.setattr(
        "hemiola.comm.probe.measure.probe", lambda *given: Probed(topology_text(topology), {})
    )
    with redirect_stdout(unread), pytest.raises(SystemExit):
        probe_verb(output=tmp_path / "network.toml")
    assert read_topology(str(tmp_path / "network.toml")).hosts.names == topology.hosts.names


@pytest.mark.parametrize(("rank", "refused"), [("", True), ("0", True), ("1", False)])
def test_only_the_rank_that_writes_needs_the_outputs_folder(
    rank: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(InputError, match="there is no folder" if refused else "WORLD_SIZE, .* not set"):
        probe_verb(output=tmp_path / "none" / "network.toml")


@pytest.mark.slow
def test_hosts_that_do_not_know_the_first_ones_name_meet_at_its_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As pods do."""
    shell = "sh -c 'HEMIOLA_INTERFACE=127.0.0.${0#pod-} exec sh -c \"$1\"' {host} {command}"
    probe_verb(
        hosts="pod-1,pod-2", remote_shell=shell, master_addr="127.0.0.1", seconds=0.01, output=tmp_path / "n.toml"
    )  # fmt: skip
    assert read_topology(str(tmp_path / "n.toml")).hosts.names == ("127.0.0.1", "127.0.0.2")
    assert "2 hosts, 2 GPUs" in capsys.readouterr().out


@pytest.mark.slow
def test_under_torchrun_ranks_meet_in_the_store_that_it_keeps(tmp_path: Path) -> None:
    """They make no other one beside it, and leave nothing there that they take for theirs when they are started again."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    places = {
        "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "PYTHONPATH": SOURCE,
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "1",
        "HEMIOLA_RUN_REPORT": str(tmp_path / "found"),
    }  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "hemiola.comm.probe", "0.01", f"127.0.0.{rank + 1}"],
            env={**os.environ, **places, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [rank.communicate(timeout=patience(100))[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert "failed to bind" not in said[0] and not store.check(["done 0"])
    found = msgspec.json.decode((tmp_path / "found").read_bytes(), type=Probed)
    assert list(found.affinities) == ["127.0.0.1", "127.0.0.2"]


@pytest.mark.slow
def test_a_host_has_the_gpus_that_its_rank_sees(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(
        "import torch\nfrom hemiola.comm.probe.__main__ import main\ntorch.cuda.device_count = lambda: 8\nmain()\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    places = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    places["HEMIOLA_RUN_REPORT"] = str(tmp_path / "found")
    ranks = [Rank(script, "0.01", f"127.0.0.{n + 1}", RANK=str(n), **places) for n in range(2)]
    assert [rank.wait(100) for rank in ranks] == [0, 0], [rank.communicate() for rank in ranks]
    found = msgspec.json.decode((tmp_path / "found").read_bytes(), type=Probed)
    assert read_native(found.topology, "the text").hosts.gpus.tolist() == [8, 8]


def test_where_not_all_pairs_meet_latency_is_of_those_that_did() -> None:
    hosts = 23
    latency_s = np.zeros((hosts, hosts))
    rounds = list(matchings(hosts))
    for pairs in rounds:
        for a, b in pairs:
            latency_s[a, b] = latency_s[b, a] = 1e-4
    assert (latency_s == 0).sum() > hosts, "all pairs meet"
    flows = [[ProbedFlow(*ends, 1e9) for a, b in pairs for ends in ((a, b), (b, a))] for pairs in rounds]
    found = ProbeMeasurement(tuple(range(hosts)), rounds=flows, latency_s=latency_s)
    homes = Homes(tuple(f"h{n}" for n in range(hosts)), tuple(range(hosts)))
    assert (measured_topology(found, homes).hosts.nic_latency_s == 1e-4).all()


def test_affinity_is_what_the_system_says(tmp_path: Path) -> None:
    (tmp_path / "net/lo/device").mkdir(parents=True)
    (tmp_path / "node/node1").mkdir(parents=True)
    (tmp_path / "net/lo/speed").write_text("25000\n")
    (tmp_path / "net/lo/device/numa_node").write_text("1\n")
    (tmp_path / "node/node1/cpulist").write_text("16-31\n")
    found = own_affinity("127.0.0.1", tmp_path / "net", tmp_path / "node")
    assert str(found) == "lo, 25 Gbit/s by its own account, NUMA node 1, processors 16-31"
    assert str(own_affinity("127.0.0.1")) == "lo", "loopback has no speed"
    assert str(own_affinity("192.0.2.1")) == "no interface of that address"
