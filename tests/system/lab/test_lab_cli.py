"""`hemiola lab` as it is typed."""

from __future__ import annotations

import errno
import io
import subprocess
from pathlib import Path

import pytest
from lab_helpers import hemiola, left_of
from pyroute2 import IPRoute
from pyroute2.ethtool.ioctl import IoctlEthtool

from hemiola.cli import lab as cli_lab
from hemiola.core.errors import LabError
from hemiola.lab import Lab, namespaces, network, state


def lab(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(hemiola("lab", *words), capture_output=True, text=True)


def test_from_up_to_down(name: str) -> None:
    rates = ("--rate", "1gbit", "--host-rate", "h3=250mbit", "--host-rate", "h2=100mbit")
    up = lab("up", "--hosts", "4", *rates, "--racks", "2", "--uplink", "500mbit", "--name", name)
    assert up.returncode == 0, up.stderr
    assert "250 Mbit/s" in up.stdout and "100 Mbit/s" in up.stdout and "rack0-rack1" in up.stdout

    again = lab("up", "--hosts", "4", "--name", name)
    assert again.returncode == 2 and "stands already" in again.stderr

    status = lab("status", "--name", name)
    assert f"{name}: up\n" in status.stdout and "tcp_ecn" in status.stdout

    words = ["--", "sh", "-c", 'echo "$@"', "sh", "--name", "x", "--", "-h"]
    run = lab("run", "--name", name, "--hosts", "h1,h3", *words)
    assert run.returncode == 0
    assert sorted(run.stdout.splitlines()) == ["h1 | --name x -- -h", "h3 | --name x -- -h"]
    assert "gso_max_size 6250" in run.stderr

    failed = lab("run", "--name", name, "--", "sh", "-c", "exit $((RANK + 7))")
    assert failed.returncode in (7, 8, 9, 10)
    assert f"failed first, with status {failed.returncode}" in failed.stderr

    down = lab("down", "--name", name)
    assert (down.returncode, down.stdout) == (0, f"removed {name}\n")
    assert left_of(name) == []
    twice = lab("down", "--name", name)
    assert twice.returncode == 2 and f"no lab '{name}'" in twice.stderr


def test_mistakes_are_named(name: str) -> None:
    wrong = lab("run", "--name", f"{name}-not", "--", "true")
    assert wrong.returncode == 2 and f"{name}-not" in wrong.stderr
    pair = lab("up", "--hosts", "2", "--host-rate", "h1", "--name", name)
    assert pair.returncode == 2 and "HOST=RATE" in pair.stderr


def test_all_leaves_the_labs_of_programs_that_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(state, "FOLDER", tmp_path)  # so that "all" means the two of this test
    with Lab(1, name=f"{name}-mine"):
        Lab(1, name=f"{name}-free").up(stays=True)
        cli_lab.down(all=True)
        assert capsys.readouterr().out == f"removed {name}-free\n"
        assert [one.spec.name for one in state.load_all()] == [f"{name}-mine"]
        cli_lab.status()
        assert f"{name}-mine: up, until process" in capsys.readouterr().out


def test_without_a_name_a_running_programs_lab_is_not_meant(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "FOLDER", tmp_path)  # so that no lab but this test's stands
    with Lab(1, name=name) as mine:
        with pytest.raises(LabError, match="no lab stands"):
            cli_lab.down()
        assert mine.run(["true"], err=io.StringIO()).status == 0


def test_status_beside_a_removal_says_so(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of the kernel's objects can go between any two looks of `status`: here each goes at one of them."""
    mine = Lab(2, name=name).up()
    try:
        one = state.load(name)
        taken = one.namespace("h1")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(network, "missing", lambda lab: ())  # as they stood a moment ago
            namespaces.remove(taken, one.mark)
            cli_lab.status(name=name)
            assert "it is being taken down" in capsys.readouterr().out
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(namespaces, "_is_namespace", lambda path: True)
            assert network.missing(one) == (taken,)
        cli_lab.status(name=name)
        assert f"missing: {taken}" in capsys.readouterr().out
    finally:
        mine.down()


def test_a_cable_that_is_gone_is_a_lab_error(name: str) -> None:
    with Lab(2, name=name) as mine:
        one = state.load(name)
        network.entered(one.switch, lambda ip: ip.link("del", ifname="h1"))
        with pytest.raises(LabError, match="has no device"):
            mine.settings()


def test_a_cable_that_goes_while_it_is_looked_at_is_a_lab_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal beside `status` may take a cable between the list of devices and a look at one of them."""
    flags_of = IoctlEthtool.get_offload_flags

    def gone(tool: IoctlEthtool) -> dict[str, bool]:
        if tool.ifname.startswith(b"h1"):
            with IPRoute() as ip:
                ip.link("del", ifname="h1")
        return flags_of(tool)

    with Lab(2, name=name) as mine:
        monkeypatch.setattr(IoctlEthtool, "get_offload_flags", gone)
        with pytest.raises(LabError, match="has no device"):
            mine.settings()


def test_a_program_whose_lab_was_removed_gets_a_lab_error(name: str) -> None:
    with Lab(2, name=name) as mine:
        network.tear_down(state.load(name))
        for work in (
            lambda: mine.run(["true"], err=io.StringIO()),
            lambda: mine.start("h0", ["true"]),
            mine.settings,
            lambda: mine.set_rate("h0", "1gbit"),
        ):
            with pytest.raises(LabError):
                work()


def test_an_empty_list_of_hosts_is_refused() -> None:
    for hosts in (",", "h0,,h1", " "):
        with pytest.raises(LabError, match="names an empty host"):
            cli_lab.run("true", hosts=hosts)


def test_a_netlink_refusal_for_want_of_rights_names_the_capability() -> None:
    from pyroute2.netlink.exceptions import NetlinkError

    with pytest.raises(LabError) as refused, network._explained():
        raise NetlinkError(errno.EPERM, "Operation not permitted")
    assert "CAP_NET_ADMIN" in refused.value.remedy
