"""Lets jobs that wait be placed by Ray's own scheduler. Needs no daemon and no journal."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from hemiola.core.errors import DAMAGED
from hemiola.live.engines.ray.client import Ray
from hemiola.live.engines.ray.kv_store import ALONE, HOLDS, PLACE, WRAPPER, JobPlace, Wrapper
from hemiola.live.engines.ray.wire import ENDED, RayReply, read_answer

__all__ = ["hand_back"]

Note = TypeVar("Note")


def hand_back(ray: Ray) -> list[str]:
    """Take back that jobs are to wait, and remove groups in which nothing runs; the jobs that waited for that.

    A command that was told to leave has its grace: its wrapper removes the group then, for nobody says `HOLDS` any more.

    Raises:
        EngineError: Ray does not answer.
    """
    # first: whoever leaves while it is there leaves its group to us
    held = msgspec.json.decode(ray.ask("delete", HOLDS), type=bool)
    answer = read_answer(ray.ask("look", []))
    live = {row.id for row in answer.jobs if row.status not in ENDED}
    wrappers = {job: _note(answer, WRAPPER + job, Wrapper) for job in live}
    places = {job: _note(answer, PLACE + job, JobPlace) for job in live}
    told = {
        job: place.group for job, place in places.items()
        if place is not None and (wrapper := wrappers[job]) is not None and place.token == wrapper.token
    }  # fmt: skip
    for group in answer.groups:
        wrapper = wrappers.get(group.job)
        in_use = wrapper is not None and wrapper.state != "waits" and wrapper.number == group.number
        is_stray = group.number != ALONE and told.get(group.job) != group.name and not in_use
        if group.job not in live or is_stray:
            ray.ask("remove", group.name)
    return sorted(
        job for job, wrapper in wrappers.items()
        if held and wrapper is not None and wrapper.state == "waits" and not told.get(job)
    )  # fmt: skip


def _note(answer: RayReply, key: str, kind: type[Note]) -> Note | None:
    try:
        return msgspec.json.decode(answer.notes.get(key, ""), type=kind)
    except DAMAGED:
        return None
