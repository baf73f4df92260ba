"""Sweeps on a real Ray cluster of two nodes: equal results, whatever dies."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patience, until
from ray_cluster import RayCluster, RayNode, need_ray, ray_cluster
from sweep_helpers import (
    JOBS,
    OWN,
    RACKS,
    command,
    ended,
    figures,
    kept,
    results,
    small,
)

from hemiola.core.errors import InputError, PolicyError
from hemiola.simulator.sweep import Here
from hemiola.simulator.sweep.on_ray import OnRay

pytestmark = pytest.mark.xdist_group("sweep")  # its servers are started once

POLICIES = ("fifo", "tiresias", "gandiva", "dally")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    need_ray()
    with ray_cluster(RayNode("head"), RayNode("other")) as started:
        yield started


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Policies of a user's own, whose file no worker can see."""
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    import own  # noqa: F401

    (tmp_path / "own.py").unlink()
    yield tmp_path
    sys.modules.pop("own", None)


@pytest.fixture(scope="module")
def scenarios() -> list:  # type: ignore[type-arg]
    return [
        small(policies=POLICIES),
        small(workload="generated:jobs=80,load=0.9,mix=muri", policies=POLICIES, seeds=1),
    ]


@pytest.mark.parametrize("by", ["address", "client_address"])
def test_a_cluster_gives_the_same_bytes_as_this_process(
    cluster: RayCluster, scenarios: list, by: str
) -> None:  # type: ignore[type-arg]
    here = results(Here(), scenarios)
    assert len(here) == 3 * len(POLICIES)
    try:
        found = results(OnRay(getattr(cluster, by)), scenarios)
    except InputError as error:
        error.add_note(cluster.said("ray_client_server*"))
        raise
    assert found == here


def test_a_cluster_that_cannot_serve_a_client_says_so_and_serves_others(
    scenarios: list,  # type: ignore[type-arg]
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray's proxy is given no time to reach the server that it starts, and its client none to wait for another one."""
    monkeypatch.setenv("RAY_CLIENT_RECONNECT_GRACE_PERIOD", "0")
    with ray_cluster(RayNode("head"), environ={"RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "0"}) as hasty:
        with pytest.raises(InputError, match=r"no Ray cluster at 'ray://.*': .*(Proxy|[Cc]lient)"):
            results(OnRay(hasty.client_address), scenarios)
        assert results(OnRay(hasty.address), scenarios) == results(Here(), scenarios)


def test_a_worker_that_is_killed_is_replaced(cluster: RayCluster, own: Path) -> None:
    killer = f"own:KillsItsProcess,memory={own / 'killed'}"
    scenarios = [small(policies=("fifo", killer))]
    found = results(OnRay(cluster.address), scenarios)
    assert (own / "killed").exists()
    assert found == results(Here(), scenarios)


@pytest.mark.parametrize(("policy", "kind"), [("own:Refuses", PolicyError), ("own:Fails", IndexError)])
def test_a_run_that_fails_fails_as_without_ray(
    cluster: RayCluster, own: Path, policy: str, kind: type[Exception]
) -> None:
    said = []
    for executor in (Here(), OnRay(cluster.address)):
        with pytest.raises(kind) as caught:
            results(executor, [small(policies=("fifo", policy), seeds=1)])
        said.append((str(caught.value), getattr(caught.value, "remedy", "")))
    assert said[0] == said[1]


def asked(cluster: RayCluster, folder: Path) -> list[object]:
    policies = ("--policy", "fifo", f"own:Waits,folder={folder}")
    return [JOBS, "--cluster", RACKS, "--seeds", 4, *policies, "--resume", folder, "--ray", cluster.address]


def test_a_driver_that_is_killed_goes_on_where_it_was(cluster: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    folder, output = tmp_path / "kept", tmp_path / "figures.json"
    driver = command(*asked(cluster, folder), folder=tmp_path)
    until(lambda: kept(folder) >= 2, "two runs before the workers wait")
    driver.kill()
    driver.communicate()
    done = kept(folder)
    assert done < 8
    (folder / "go").touch()
    code, _, err = ended(command(*asked(cluster, folder), "--json", output, folder=tmp_path))
    assert code == 0, err
    assert f"kept runs: {done} of 8 are in {folder}" in err.replace("\n", " ")
    here = command(*asked(cluster, folder)[:-4], "--json", tmp_path / "here.json", folder=tmp_path)
    assert ended(here)[0] == 0
    assert figures(output) == figures(tmp_path / "here.json")


def test_ctrl_c_keeps_what_is_finished(cluster: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    folder, output = tmp_path / "kept", tmp_path / "figures.json"
    driver = command(*asked(cluster, folder), "--json", output, folder=tmp_path)
    until(lambda: kept(folder) >= 2, "two runs before the workers wait")
    driver.send_signal(signal.SIGINT)
    began_s = time.monotonic()
    code, _, err = ended(driver)
    assert code == 130, err
    assert time.monotonic() - began_s < patience(30)
    assert "Traceback" not in err
    assert f"{8 - kept(folder)} runs are not done; the same command goes on" in err
    runs = figures(output)["runs"]
    assert len(runs) == kept(folder) < 8
    assert not any(run["interrupted"] for run in runs)


def test_a_node_that_loses_its_power_is_done_without(cluster: RayCluster, tmp_path: Path) -> None:
    """The last test here: the cluster has one node from now on."""
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    folder = tmp_path / "kept"
    driver = command(*asked(cluster, folder), folder=tmp_path)
    until(lambda: kept(folder) >= 2, "two runs before the workers wait")
    cluster.kill("other")
    (folder / "go").touch()
    code, _, err = ended(driver)
    assert code == 0, err
    assert kept(folder) == 8
