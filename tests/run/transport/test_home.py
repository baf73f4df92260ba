"""Which address an interface has, which interface an address, and what a rank was not told."""

from __future__ import annotations

import socket

import pytest

from hemiola.core.errors import InputError
from hemiola.run.transport.home import home_address, interface_of, missing_variables


def test_the_loopback_is_found_both_ways() -> None:
    assert home_address("lo") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    for _, name in socket.if_nameindex():
        try:
            address = home_address(name)
        except InputError:  # it has no address
            continue
        assert home_address(interface_of(address)) == address


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
