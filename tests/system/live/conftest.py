"""What is slow to start is started once, and ended as soon as nobody needs it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from live_ray import NODES
from live_slurm import Live, need_slurm
from ray_cluster import RayCluster, need_ray, ray_cluster

from hemiola.lab.slurm import SlurmLab

USERS = ("test_conformance.py", "test_ray_live.py")
_open = ExitStack()
_cluster: list[RayCluster] = []


@pytest.fixture
def ray_nodes() -> RayCluster:
    """Four nodes of eight GPUs, the same ones for all tests that follow each other; whoever kills one brings it back."""
    need_ray()
    if not _cluster:
        _cluster.append(_open.enter_context(ray_cluster(*NODES, dashboard=True)))
    return _cluster[0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """A Ray that nobody uses any more takes a third of a processor."""
    if _cluster and (nextitem is None or nextitem.path.name not in USERS):
        _cluster.clear()
        _open.close()


@pytest.fixture(scope="session")
def lab() -> Iterator[SlurmLab]:
    """A Slurm of four nodes, for all tests that need no other."""
    need_slurm()
    settings = {"SlurmdTimeout": "2", "MessageTimeout": "2"}  # a node that dies is noticed within seconds
    with SlurmLab(4, gpus=8, racks=2, name=f"live-{secrets.token_hex(4)}", settings=settings) as slurm:
        yield slurm


@pytest.fixture
def live(lab: SlurmLab, tmp_path: Path) -> Iterator[Live]:
    one = Live(lab, tmp_path / "journal.db")
    yield one
    one.clear()
