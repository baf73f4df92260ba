"""The lab's network in the kernel: rates, addresses, settings, and what it leaves alone."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lab_helpers import PYTHON, SEND, left_of, median_mbit_per_s
from patience import until

from hemiola.core.errors import LabError
from hemiola.lab import Lab, attach
from hemiola.lab.network import _explained, apply_rates, tear_down
from hemiola.lab.state import load


def machine() -> tuple[object, ...]:
    """The root namespace's devices, addresses, routes, forwarding and rules."""
    from pyroute2 import IPRoute

    with IPRoute() as ip:
        links = {
            (link["index"], link.get("ifname"), link.get("mtu"), link.get("master"))
            for link in ip.get_links()
        }
        addresses = {(a["index"], a.get("address"), a["prefixlen"]) for a in ip.get_addr()}
        routes = {(r.get("dst"), r["dst_len"], r.get("gateway"), r.get("oif")) for r in ip.get_routes()}
        queues = {(q["index"], q.get_attr("TCA_KIND")) for q in ip.get_qdiscs()}
    ipv4 = Path("/proc/sys/net/ipv4")
    sysctls = tuple((ipv4 / n).read_text() for n in ("ip_forward", "tcp_congestion_control", "tcp_ecn"))
    return links, addresses, routes, queues, sysctls


def test_a_host_sends_at_its_rate(name: str) -> None:
    with Lab(2, "100mbit", name=name) as lab:
        assert median_mbit_per_s(lab, ("h0", "h1"), size_bytes=2_000_000) == pytest.approx(100, rel=0.15)


def test_hosts_may_differ_and_degrade_while_they_run(name: str) -> None:
    with Lab(2, "200mbit", host_rates={"h1": "50mbit"}, name=name) as lab:
        assert median_mbit_per_s(lab, ("h0", "h1"), size_bytes=1_000_000) == pytest.approx(50, rel=0.15)
        assert median_mbit_per_s(lab, ("h1", "h0"), size_bytes=1_000_000) == pytest.approx(50, rel=0.15)
        lab.set_rate("h1", "100mbit")
        assert median_mbit_per_s(lab, ("h0", "h1"), size_bytes=2_000_000) == pytest.approx(100, rel=0.15)
        assert lab.topology().hosts.nic_bytes_per_s.tolist() == [25e6, 12.5e6]
        lab.set_rate("h1", "unlimited")
        assert median_mbit_per_s(lab, ("h1", "h0"), size_bytes=4_000_000) == pytest.approx(200, rel=0.15)


def test_a_link_that_becomes_slower_passes_what_waits_before_it(name: str) -> None:
    receive = """
import socket, time
server = socket.create_server(("0.0.0.0", 7000))
print("ready", flush=True)
connection, _ = server.accept()
connection.settimeout(1.0)
begun = time.monotonic()
while time.monotonic() - begun < 1.0:
    connection.recv(1 << 18)
"""
    with Lab(2, "400mbit", name=name) as lab:
        receiver = lab.start("h1", [*PYTHON, receive], stdout=subprocess.PIPE)
        assert receiver.stdout is not None and receiver.stdout.readline() == b"ready\n"
        lab.start("h0", [*PYTHON, SEND, "h1", "7000", "100000000"], stderr=subprocess.DEVNULL)
        time.sleep(0.3)
        lab.set_rate("h0", "40mbit")  # packets of half the old burst wait, and the new one is smaller
        assert receiver.communicate() and receiver.returncode == 0, "nothing came for a second"


def test_hosts_of_a_rack_share_its_uplink(name: str) -> None:
    with Lab(4, "200mbit", racks=2, uplink="50mbit", name=name) as lab:
        assert median_mbit_per_s(lab, ("h0", "h1"), size_bytes=4_000_000) == pytest.approx(200, rel=0.15)
        across = median_mbit_per_s(lab, ("h0", "h2"), ("h1", "h3"), size_bytes=600_000)
        assert across == pytest.approx(50, rel=0.15)
        lab.set_rate("rack1", "20mbit")
        assert median_mbit_per_s(lab, ("h0", "h2"), size_bytes=500_000) == pytest.approx(20, rel=0.15)


def test_settings_are_the_kernels_own(name: str) -> None:
    with Lab(4, "1gbit", host_rates={"h3": "250mbit"}, racks=2, uplink="500mbit", name=name) as lab:
        settings = lab.settings()
        h0, _, _, h3, rack0, _ = settings.links
        assert (h0.outward.kind, h0.outward.rate_bytes_per_s, h0.outward.limit_bytes) == (
            "tbf",
            125e6,
            2_625_000,
        )
        assert h0.outward.burst_bytes == pytest.approx(125_000, rel=1e-3)
        assert h3.inward.rate_bytes_per_s == h3.outward.rate_bytes_per_s == 31.25e6
        assert rack0.inward.rate_bytes_per_s == rack0.outward.rate_bytes_per_s == 62.5e6
        assert {link.gso_max_bytes for link in settings.links} == {15625}
        assert {link.mtu_bytes for link in settings.links} == {1500}
        assert settings.kernel == os.uname().release
        assert settings.congestion_control == lab_reads(lab, "tcp_congestion_control")
        assert settings.ecn == lab_reads(lab, "tcp_ecn")
        assert "h0-h2" in str(settings) and "250 Mbit/s each way" in str(settings)
        switch = subprocess.run(
            ["ip", "netns", "exec", f"hemiola-{name}-h3", "tc", "qdisc", "show", "dev", "eth0"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert "tbf" in switch and "rate 250Mbit" in switch


def lab_reads(lab: Lab, setting: str) -> str:
    process = lab.start("h0", ["cat", f"/proc/sys/net/ipv4/{setting}"], stdout=subprocess.PIPE, text=True)
    return str(process.communicate()[0].strip())


def test_hosts_know_each_other_by_name(name: str) -> None:
    with Lab(3, name=name) as lab:
        code = "import socket; print(socket.gethostname(), *map(socket.gethostbyname, ('h0', 'h1', 'h2')))"
        asked = lab.start("h1", [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert asked.communicate()[0].split() == ["h1", *lab.addresses.values()]


def test_the_machine_is_left_as_it_was(name: str) -> None:
    before = machine()
    with Lab(4, racks=2, uplink="500mbit", name=name):
        assert machine() == before
        assert len(left_of(name)) == 7  # five namespaces, the state, the hosts file
    assert machine() == before
    assert left_of(name) == []


def _children() -> set[str]:
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


def _handles() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_nothing_leaks(name: str) -> None:
    with Lab(2, name=name):  # what the first use loads and opens for good
        pass
    handles, threads = _handles(), threading.active_count()
    before = _children()
    for _ in range(2):
        with Lab(2, name=name) as lab:
            assert lab.run(["true"]).statuses == {"h0": 0, "h1": 0}
            lab.start("h0", ["sleep", "60"])
            lab.settings()
    gc.collect()
    until(
        lambda: _handles() <= handles, "what was opened is closed: what other tests left may open files, too"
    )
    assert threading.active_count() == threads
    assert _children() == before


def test_labs_stand_side_by_side_and_apart(name: str) -> None:
    with Lab(2, name=f"{name}-a") as one:
        with Lab(2, name=f"{name}-b") as other:
            assert not set(one.addresses.values()) & set(other.addresses.values())
            code = f"import socket; socket.create_connection(({other.addresses['h0']!r}, 1), 5)"
            failed = one.start("h0", [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
            assert "Network is unreachable" in failed.communicate()[1]
        assert one.run(["true"]).status == 0


def test_down_is_for_ever_and_up_only_once(name: str) -> None:
    lab = Lab(2, name=name)
    with pytest.raises(LabError, match="is not up"):
        lab.run(["true"])
    lab.up()
    with pytest.raises(LabError, match="is up already"):
        lab.up()
    with pytest.raises(LabError, match="stands already"):
        Lab(2, name=name).up()
    assert lab.down() == ()
    assert lab.down() == ()
    with pytest.raises(LabError, match=f"no lab '{name}'"):
        attach(name)


def test_a_namespace_of_someone_else_is_in_the_way_and_stays(name: str) -> None:
    from pyroute2 import netns

    foreign = f"hemiola-{name}-h1"
    netns.create(foreign)
    try:
        with pytest.raises(LabError, match=foreign):
            Lab(2, name=name).up()
        assert left_of(name) == [f"/run/netns/{foreign}"]
    finally:
        netns.remove(foreign)


def test_a_namespace_that_someone_else_put_in_the_place_of_ours_stays(name: str) -> None:
    from pyroute2 import netns

    taken, alike = f"hemiola-{name}-h1", f"hemiola-{name}-h10"
    lab = Lab(2, name=name).up()
    netns.remove(taken)
    netns.create(taken)
    netns.create(alike)
    try:
        assert lab.down() == (taken,)
        assert sorted(left_of(name)) == [f"/run/netns/{taken}", f"/run/netns/{alike}"]
    finally:
        netns.remove(taken)
        netns.remove(alike)


def test_a_lab_is_found_by_another_and_changed(name: str) -> None:
    with Lab(2, "1gbit", name=name) as lab:
        attach(name).set_rate("h1", "10mbit")
        assert load(name).spec.host_rates == (125e6, 1.25e6)
        assert lab.topology().hosts.nic_bytes_per_s.tolist() == [125e6, 1.25e6]
        assert lab.settings().links[1].inward.rate_bytes_per_s == 1.25e6
        with pytest.raises(LabError, match="'h2'"):
            lab.set_rate("h2", "10mbit")
        with pytest.raises(LabError, match="'h9'"):
            lab.start("h9", ["true"])


def test_a_lab_that_was_taken_down_leaves_the_next_of_its_name_alone(name: str) -> None:
    before = Lab(2, "1gbit", name=name).up()
    tear_down(load(name))
    uses: list[Callable[[], object]] = [
        lambda: before.set_rate("h1", "10mbit"),
        lambda: before.start("h0", ["true"]),
        lambda: before.run(["true"]),
        lambda: before.addresses,
        before.rendezvous,
        before.settings,
        before.topology,
    ]
    for use in uses:
        with pytest.raises(LabError, match=f"no lab '{name}'"):
            use()
    with Lab(2, "1gbit", name=name) as lab:
        for use in uses:
            with pytest.raises(LabError, match="is another one by now"):
                use()
        before.down()
        assert load(name).spec.host_rates == (125e6, 125e6)
        assert lab.run(["true"]).status == 0


def test_a_kernel_without_the_parts_is_named() -> None:
    """This kernel lacks netem as others may lack tbf: both are refused with the same number."""
    errors = pytest.importorskip("pyroute2.netlink.exceptions")
    for number, part in ((2, "tbf"), (95, "veth or bridge")):
        with pytest.raises(LabError, match=f"lack {part}"), _explained():
            raise errors.NetlinkError(number)
    with pytest.raises(LabError, match="not allowed"), _explained():
        raise PermissionError(1, "Operation not permitted")


def test_a_half_built_lab_is_taken_down_by_the_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise LabError("no", "none")

    monkeypatch.setattr(f"{apply_rates.__module__}.apply_rates", fail)
    with pytest.raises(LabError, match="no"):
        Lab(2, name=name).up()
    assert left_of(name) == []
