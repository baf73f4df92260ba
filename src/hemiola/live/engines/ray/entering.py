"""A job that is new to this run: what it has already."""

from __future__ import annotations

from hemiola.live.engines.ray.kv_store import ALONE, group_name
from hemiola.live.engines.ray.tracked_job import RayTrackedJob
from hemiola.live.engines.ray.snapshot import RaySnapshot

__all__ = ["take_up"]


def take_up(known: RayTrackedJob, look: RaySnapshot, now_s: float) -> None:
    """Note the place that its wrapper was told of, if that stands, or one that Ray gave it.

    Where either is outside the topology, its command goes on, and nobody tells it anything.
    """
    row, wrapper, place = known.row, look.wrappers[known.row.id], look.places.get(known.row.id)
    numbers = [group.number for group in look.groups.values() if group.job == row.id]
    told = place if place is not None and place.token == wrapper.token else None
    known.number = max([*numbers, wrapper.number, told.number if told else 0])
    alone = group_name(row.id, ALONE)
    if told is not None and told.group and (placement := look.placement(told.group)) is not None:
        known.group, known.wanted, known.bound_s = told.group, placement, now_s
        known.ran = wrapper.state == "runs" and wrapper.number == told.number
    elif wrapper.state == "runs" and wrapper.number == ALONE and (placement := look.placement(alone)):
        known.group, known.wanted, known.bound_s, known.ran = alone, placement, now_s, True
    else:
        is_there = (
            wrapper.state == "runs" and told is not None and wrapper.number == told.number
            and not look.is_lost(told.group)
        )  # fmt: skip
        known.untold = told is not None and bool(told.group) and not is_there
        # where Ray has put it, it goes on, and is taken up there once it is seen to stand
        stays = wrapper.state == "waits" or is_there or (wrapper.state == "runs" and wrapper.number == ALONE)
        known.left_s = None if stays else now_s
