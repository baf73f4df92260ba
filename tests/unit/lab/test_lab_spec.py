"""What a lab may be, worked out without the kernel: no root needed."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from ipaddress import IPv4Network

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import patience

from hemiola.core.errors import HemiolaError, InputError, LabError
from hemiola.lab import Lab
from hemiola.lab.network import FRAME_BYTES, TokenBucket, gso_max_bytes, shape
from hemiola.lab.spec import RANGES, free_subnet
from hemiola.lab.state import LabState, Owner, check_rights, choose


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"hosts": 0}, "lab of 0 hosts"),
        ({"hosts": 251}, "lab of 251 hosts"),
        ({"hosts": 2, "rate": "0mbit"}, "'0mbit'"),
        ({"hosts": 2, "rate": "-1mbit"}, "'-1mbit'"),
        ({"hosts": 2, "rate": "100"}, "'100' has no unit"),
        ({"hosts": 2, "rate": "100gbit"}, "'100gbit'"),
        ({"hosts": 2, "host_rates": {"h2": "1gbit"}}, "'h2'"),
        ({"hosts": 2, "host_rates": {"h1": "0gbit"}}, "'0gbit'"),
        ({"hosts": 4, "uplink": "1gbit"}, "'1gbit' without racks"),
        ({"hosts": 4, "racks": 2}, "2 racks without"),
        ({"hosts": 4, "racks": 2, "uplink": "0bit"}, "'0bit'"),
        ({"hosts": 4, "racks": 1, "uplink": "1gbit"}, "1 racks"),
        ({"hosts": 4, "racks": 3, "uplink": "1gbit"}, "4 hosts do not divide into 3 racks"),
        ({"hosts": 4, "racks": 8, "uplink": "1gbit"}, "4 hosts do not divide into 8 racks"),
        ({"hosts": 2, "name": "../lab"}, "'../lab'"),
        ({"hosts": 2, "name": ""}, "''"),
    ],
)
def test_what_cannot_be_is_refused_with_its_value(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(HemiolaError) as caught:
        Lab(**arguments)  # type: ignore[arg-type]
    assert words in caught.value.what
    assert caught.value.remedy


def test_a_lab_is_a_topology() -> None:
    lab = Lab(4, "1gbit", host_rates={"h3": "unlimited"}, racks=2, uplink="500mbit")
    topology = lab.topology()
    assert topology.hosts.names == ("h0", "h1", "h2", "h3")
    assert topology.hosts.nic_bytes_per_s.tolist() == [125e6, 125e6, 125e6, math.inf]
    assert topology.levels[0].domain_of_host.tolist() == [0, 0, 1, 1]
    assert topology.levels[0].uplink_bytes_per_s.tolist() == [62.5e6, 62.5e6]
    assert topology.tiers == ("host", "rack", "cluster")


def test_a_rate_changes_for_one_link_only() -> None:
    spec = Lab(4, "1gbit", racks=2, uplink="500mbit", name="x")._spec
    assert spec.with_rate("h1", "100mbit").host_rates == (125e6, 12.5e6, 125e6, 125e6)
    assert spec.with_rate("rack1", "100mbit").uplinks == (62.5e6, 12.5e6)
    with pytest.raises(LabError, match="'rack2'"):
        spec.with_rate("rack2", "100mbit")


def test_the_bucket_of_a_rate() -> None:
    """By the formula in the guide: 1 ms of burst and 20 ms of waiting, but never less than a few frames."""
    assert shape(125e6) == TokenBucket(125_000_000, 125_000, 2_625_000)
    assert shape(12.5e6) == TokenBucket(12_500_000, 12_500, 262_500)
    assert shape(12.5e3) == TokenBucket(12_500, 6056, 6056 + 65536)
    assert gso_max_bytes([125e6, None]) == 62_500
    assert gso_max_bytes([None, None]) == gso_max_bytes([1.25e9]) == 65536


@given(st.floats(min_value=12.5e3, max_value=4e9))
def test_two_of_the_largest_packets_pass_any_bucket(rate: float) -> None:
    assert 2 * FRAME_BYTES <= gso_max_bytes([rate]) <= shape(rate).burst_bytes / 2


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 32)), max_size=20))
def test_addresses_never_collide(taken: list[tuple[int, int]]) -> None:
    networks = [IPv4Network((address, bits), strict=False) for address, bits in taken]
    try:
        subnet = free_subnet(networks)
    except LabError:
        assert all(any(other.overlaps(IPv4Network(range_)) for other in networks) for range_ in RANGES)
    else:
        assert subnet.prefixlen == 24
        assert not any(subnet.overlaps(other) for other in networks)


def test_addresses_run_out_with_a_clear_word() -> None:
    with pytest.raises(LabError, match="every range"):
        free_subnet([IPv4Network("0.0.0.0/0")])


def test_what_is_remembered_survives_the_file() -> None:
    spec = Lab(2, "unlimited", host_rates={"h1": "1gbit"}, name="x")._spec
    state = LabState(id="ab", spec=spec, owner=Owner(1, 2), built=True, subnet="10.213.7.0/24")
    assert msgspec.json.decode(msgspec.json.encode(state), type=LabState) == state
    assert state.address("h1") == "10.213.7.2"
    assert state.namespaces == ("hemiola-x-switch", "hemiola-x-h0", "hemiola-x-h1")


def test_which_lab_is_meant() -> None:
    assert choose("a", ("b", "c")) == "a"
    assert choose("", ("b",)) == "b"
    with pytest.raises(LabError, match="no lab stands"):
        choose("", ())
    with pytest.raises(LabError, match="2 labs stand: b, c"):
        choose("", ("b", "c"))


def test_a_process_is_told_from_a_later_one_of_its_number() -> None:
    me = Owner.me()
    assert me.lives
    assert not Owner(me.pid, me.began_ticks - 1).lives


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="needs root, and this is user 1000") as caught:
        check_rights()
    assert "sudo" in caught.value.remedy


def test_without_pyroute2_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setitem(__import__("sys").modules, "pyroute2", None)
    with pytest.raises(InputError) as caught:
        check_rights()
    assert "hemiola[lab]" in caught.value.remedy


INTERRUPTED = """
from hemiola.lab.namespaces import apart

def slow():
    print("begun", flush=True)
    input()
    print("done", flush=True)

try:
    apart(slow)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_interrupts_wait_for_what_is_half_made() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)  # two that are there at once are one
    out, _ = process.communicate("\n", timeout=patience(60))
    assert (out, process.returncode) == ("done\ninterrupted\n", 0)
