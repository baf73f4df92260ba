"""What the verbs that start ranks on hosts read alike."""

from __future__ import annotations

import pytest

from hemiola.cli.collective import probe
from hemiola.cli.output import hosts_of, passed_on
from hemiola.core.errors import InputError


def test_hosts_are_named_once_and_are_enough() -> None:
    assert hosts_of("n[0-2],m") == ("n0", "n1", "n2", "m")
    assert hosts_of("") == ()
    with pytest.raises(InputError, match="names a host twice"):
        hosts_of("a,b,a")
    with pytest.raises(InputError, match=r"--hosts a\n.*name 2 hosts or more"):
        probe(hosts="a")


def test_secrets_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    told = passed_on()
    assert told["NCCL_DEBUG"] == "INFO" and "AWS_SECRET_ACCESS_KEY" not in told
