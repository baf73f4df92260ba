"""What Ray is asked for."""

from __future__ import annotations

import msgspec

from hemiola.live.engines.ray.kv_store import PLACE, JobPlace
from hemiola.live.engines.ray.tracked_job import RayTrackedJob
from hemiola.core.decisions import Placement
from hemiola.core.topology import Topology

__all__ = ["bundles_of", "no_place", "nodes_of", "place_of", "shown_group", "shown_place"]


def bundles_of(known: RayTrackedJob, gpus: int) -> list[dict[str, int]]:
    """One for each rank."""
    return [{"CPU": known.cpus, "GPU": 1} if known.cpus else {"GPU": 1}] * gpus


def nodes_of(placement: Placement, ids: list[str]) -> list[str]:
    """The node of each rank; `ids` are those of hosts."""
    return [ids[host] for host, _ in placement.ranks()]


def no_place(known: RayTrackedJob) -> JobPlace:
    """What its wrapper is told that is to wait."""
    return JobPlace(token=known.token, number=known.number)


def place_of(known: RayTrackedJob, group_id: str, topology: Topology) -> JobPlace:
    """What its wrapper is told that is to run."""
    assert known.wanted is not None
    names = tuple(topology.hosts.names[host] for host, _ in known.wanted.ranks())
    return JobPlace(token=known.token, number=known.number, group=known.group, group_id=group_id, nodes=names)


def shown_group(known: RayTrackedJob, placement: Placement, name: str, ids: list[str]) -> str:
    """The request that makes a group, in Python."""
    (bundle, *_), gpus = bundles_of(known, 1), placement.gpus
    selectors = " + ".join(
        f"[{{'ray.io/node-id': '{ids[host]}'}}] * {mask.bit_count()}"
        for host, mask in zip(placement.hosts, placement.masks, strict=True)
    )
    return (
        f"placement_group([{bundle}] * {gpus}, strategy='PACK', name='{name}', lifetime='detached', "
        f"bundle_label_selector={selectors})"
    )


def shown_place(known: RayTrackedJob, place: JobPlace) -> str:
    """The note to its wrapper, in Python."""
    value = msgspec.json.encode(place).decode()
    return f"internal_kv_put('{PLACE}{known.row.id}', '{value}', namespace='hemiola')"
