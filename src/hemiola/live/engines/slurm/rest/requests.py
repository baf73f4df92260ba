"""The orders of `orders.py`, which are written in scontrol's words, as what slurmrestd is sent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

__all__ = ["Requeue", "Update", "requests_of"]

_ID = r"\d{1,10}(?:_\d{1,9})?"
_IDS = rf"{_ID}(?:,{_ID})*"
_UPDATE = re.compile(rf"update jobid=({_IDS}) (\S+=\S*(?: \S+=\S*)*)", re.ASCII)
_SEVERAL = re.compile(rf"(release|requeuehold) ({_IDS})", re.ASCII)
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)
_NUMBERS = {"NumTasks": "tasks", "NumCPUs": "minimum_cpus"}
_TIME = re.compile(r"now(\+\d{1,10})?", re.ASCII)


@dataclass(frozen=True)
class Update:
    """Change a job.

    Attributes:
        fields: what, as in the body of the request.
        order: the same for scontrol.
    """

    job_id: str
    fields: dict[str, Any]
    order: str


@dataclass(frozen=True)
class Requeue:
    """Stop running jobs and hold them in the queue."""

    job_ids: tuple[str, ...]
    order: str


def requests_of(order: str) -> list[Update | Requeue | str]:
    """What to send, in this order; what REST has no words for stays as it is, for scontrol.

    Holding is such: over REST an operator's hold is an administrator's, which is not Hemiola's to lift.
    """
    if match := _UPDATE.fullmatch(order):
        fields: dict[str, Any] = {}
        for word in match[2].split(" "):
            field = _field(*word.split("=", 1))
            if field is None:
                return [order]
            fields |= field
        return [Update(job_id, fields, f"update jobid={job_id} {match[2]}") for job_id in match[1].split(",")]
    match = _SEVERAL.fullmatch(order)
    if match is None:
        return [order]
    ids = tuple(match[2].split(","))
    if match[1] == "requeuehold":
        return [Requeue(ids, order)]
    return [Update(job_id, {"hold": False}, f"release {job_id}") for job_id in ids]


def _field(key: str, value: str) -> dict[str, Any] | None:
    """Of an update's body; None where it has no such field."""
    if key in ("ReqNodeList", "NodeList"):
        return {"required_nodes": [value]}  # [] would change nothing
    if key == "AdminComment":
        return {"admin_comment": value}
    if key == "StartTime" and _TIME.fullmatch(value):
        return {"begin_time": value}
    if key in _NUMBERS and value.isdecimal():
        return {_NUMBERS[key]: int(value)}
    if key == "Priority" and value.isdecimal():
        return {"priority": {"set": True, "infinite": False, "number": int(value)}}
    if key == "NumNodes" and (counts := _RANGE.fullmatch(value)):
        return {"minimum_nodes": int(counts[1]), "maximum_nodes": int(counts[2])}
    return None
