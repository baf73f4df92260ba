"""A Slurm and a Ray for all tests that need no other: started once in a run, by the worker that has these tests.

They are marked by their group, so that `--dist loadgroup` gives all of one engine to one worker.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from live_slurm import Live
    from ray_cluster import RayCluster

    from hemiola.lab.slurm import SlurmLab

GROUPS = {"lab": "slurm", "ray_nodes": "ray"}
_open = ExitStack()
_cluster: list[RayCluster] = []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those of one engine are one group, unless their module has a group of its own."""
    for item in items:
        groups = [GROUPS[name] for name in GROUPS if name in getattr(item, "fixturenames", ())]
        if groups and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(groups[0]))


@pytest.fixture
def ray_nodes() -> RayCluster:
    """Four nodes of eight GPUs, the same ones for all tests that follow each other; whoever kills one brings it back."""
    from live_ray import NODES
    from ray_cluster import need_ray, ray_cluster

    need_ray()
    if not _cluster:
        _cluster.append(_open.enter_context(ray_cluster(*NODES, dashboard=True)))
    return _cluster[0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """A Ray that nobody uses any more takes a third of a processor."""
    if _cluster and (nextitem is None or _group(nextitem) != "ray"):
        _cluster.clear()
        _open.close()


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    return str([*mark.args, *mark.kwargs.values()][0]) if mark is not None else ""


@pytest.fixture(scope="session")
def lab() -> Iterator[SlurmLab]:
    """A Slurm of four nodes, with its REST interface where that is installed."""
    from live_slurm import need_slurm
    from patience import slowly

    from hemiola.lab.slurm import SlurmLab, config

    need_slurm()
    soon_s = str(
        math.ceil(slowly(2.0))
    )  # a node that dies is noticed within seconds, one that is slow is not dead
    quick = {"SlurmdTimeout": soon_s, "MessageTimeout": soon_s}
    name, rest = f"live-{secrets.token_hex(4)}", config.rest_version() != (0, 0)
    with SlurmLab(4, gpus=8, racks=2, name=name, rest=rest, settings=quick) as slurm:
        yield slurm


@pytest.fixture
def live(lab: SlurmLab, tmp_path: Path) -> Iterator[Live]:
    from live_slurm import Live

    one = Live(lab, tmp_path / "journal.db")
    yield one
    one.clear()
