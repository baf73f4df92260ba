"""Which address an interface has, which interface an address, and what a rank was not told."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist

from hemiola.comm.transport.home import home_address, home_interface, interface_of, missing_variables
from hemiola.core.errors import InputError


def addresses() -> Iterator[str]:
    """Of this host."""
    for _, name in socket.if_nameindex():
        try:
            yield home_address(name)
        except InputError:  # it has no address
            continue


def test_the_loopback_is_found_both_ways() -> None:
    assert home_address("lo") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    for address in addresses():
        assert home_address(interface_of(address)) == address


def test_ranks_talk_from_where_the_job_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEMIOLA_INTERFACE", "GLOO_SOCKET_IFNAME", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for address in addresses():
        store = dist.TCPStore(
            address, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20)
        )
        assert home_interface(dist.PrefixStore("a", dist.PrefixStore("b", store))) == address
    own = home_interface(dist.HashStore())
    assert own in addresses() and own == home_interface()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert home_interface(store) == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth0")
    assert home_interface(store) == "lo"
    monkeypatch.setenv("HEMIOLA_INTERFACE", "eth1")
    assert home_interface(store) == "eth1"


@pytest.mark.parametrize("ranks_here", ["1", ""])
@pytest.mark.parametrize("master", ["n0", ""])
def test_a_host_that_is_loopback_to_itself_is_reached_by_the_default_route(
    master: str, ranks_here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /etc/hosts of Debian and Ubuntu has it."""
    looked_up = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda name, *more: looked_up("127.0.1.1" if name == "n0" else name, *more)
    )
    monkeypatch.setattr(socket, "gethostname", lambda: "n0")
    for name in ("HEMIOLA_INTERFACE", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"MASTER_ADDR": master, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": ranks_here}.items():
        monkeypatch.setenv(name, value)
    for address in addresses():
        monkeypatch.setattr("hemiola.comm.transport.home._FAR", address)
        assert home_interface() == address
    monkeypatch.setattr("hemiola.comm.transport.home._FAR", "255.255.255.255")  # there is no way to everybody
    assert home_interface() == "127.0.0.1"
    monkeypatch.setattr("hemiola.comm.transport.home._FAR", address)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert home_interface() == "127.0.0.1", "all ranks are there"
    for name in ("localhost", "127.0.0.1"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks_here)
        monkeypatch.setenv("MASTER_ADDR", name)
        assert home_interface() == "127.0.0.1", "as it was told"


@pytest.mark.parametrize("address", ["", "10.0.0.7", "fe80::1"])
def test_an_address_stays(address: str) -> None:
    assert home_address(address) == address


def test_what_is_not_there_is_named() -> None:
    assert interface_of("203.0.113.1") == ""
    with pytest.raises(InputError, match=r"'nosuch0' has no address.*\n.*there are .*lo"):
        home_address("nosuch0")


def test_a_ranks_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    assert missing_variables() == ["WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
