"""What is slow to start is started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from live_ray import NODES

from ray_cluster import RayCluster, need_ray, ray_cluster


@pytest.fixture(scope="session")
def ray_nodes() -> Iterator[RayCluster]:
    """Four nodes of eight GPUs; whoever kills one brings it back."""
    need_ray()
    with ray_cluster(*NODES, dashboard=True) as started:
        yield started
