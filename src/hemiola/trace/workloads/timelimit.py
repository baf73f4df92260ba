"""Slurm's time limits as seconds."""

from __future__ import annotations

import re

__all__ = ["limit_seconds"]

_LIMIT = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_ABSENT = ("", "UNLIMITED", "Partition_Limit", "NOT_SET")
_MOST_DIGITS = 6


def limit_seconds(text: str) -> float | None:
    """Seconds of a time limit such as 1-02:03:04, 30:00 or 90 (minutes); None for no limit.

    Raises ValueError where it cannot be read.

    >>> limit_seconds("1-02:03:04")
    93784.0
    """
    if text in _ABSENT:
        return None
    found = _LIMIT.fullmatch(text)
    if found is None or any(part and len(part) > _MOST_DIGITS for part in found.groups()):
        raise ValueError("is not a time limit")
    days, *parts = found.groups()
    values = [int(part) for part in parts if part is not None]
    if days is not None:
        hours, minutes, seconds = [*values, 0, 0][:3]
    else:
        hours, minutes, seconds = {1: [0, *values, 0], 2: [0, *values], 3: values}[len(values)]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)
