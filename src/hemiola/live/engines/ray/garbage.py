"""Groups and notes that are nobody's any more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hemiola.live.engines.ray.kv_store import ADVICE, ALONE, PLACE, WRAPPER, Wrapper
from hemiola.live.engines.ray.tracked_job import RayTrackedJob
from hemiola.live.engines.ray.snapshot import RaySnapshot
from hemiola.live.engines.ray.wire import ENDED, GroupRow

__all__ = ["LEAVES_S", "is_late", "stray_groups", "stray_notes"]

LEAVES_S = 10.0
"""So much longer than its grace a command may take to end before its group is taken away from under it."""


def stray_groups(look: RaySnapshot, known: Mapping[str, RayTrackedJob], now_s: float) -> Iterator[str]:
    """Names of groups of jobs that have ended, and of those that their jobs have left.

    Args:
        known: jobs by submission id.
    """
    for group in look.groups.values():
        row = look.jobs.get(group.job)
        if (
            group.state == "REMOVED"
            or row is None
            or row.status in ENDED
            or (group.job in known and _is_left(group, look, known[group.job], now_s))
        ):
            yield group.name


def _is_left(group: GroupRow, look: RaySnapshot, known: RayTrackedJob, now_s: float) -> bool:
    if group.name == known.group or group.number == ALONE:
        return False
    wrapper = look.wrappers.get(group.job)
    if wrapper is None or wrapper.state == "waits" or wrapper.number != group.number:
        return True
    return is_late(known, wrapper, now_s)


def is_late(known: RayTrackedJob, wrapper: Wrapper, now_s: float) -> bool:
    """Whether a command that was told to leave should have left long ago."""
    return known.left_s is not None and now_s - known.left_s > wrapper.grace_s + LEAVES_S


def stray_notes(look: RaySnapshot) -> Iterator[str]:
    """Keys of notes for jobs that have ended."""
    live = {row.id for row in look.jobs.values() if row.status not in ENDED}
    for job in look.wrappers.keys() - live:
        yield from (ADVICE + job, WRAPPER + job)
    yield from (PLACE + job for job in look.places.keys() - live)
