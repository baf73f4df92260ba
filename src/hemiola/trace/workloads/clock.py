"""Dates and times as seconds since 1970, and back for a note.

A file's times either all carry a zone or none does: mixing them would shift jobs by hours unseen.
Times without zone are taken as they stand, on a clock that never changes for summer.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

__all__ = ["Timestamps", "limit_seconds", "origin_note"]


_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_SHORTEST = len("2017-10-09 07:01")


class Timestamps:
    """Reads the timestamps of one file."""

    __slots__ = ("zoned",)

    def __init__(self) -> None:
        self.zoned: bool | None = None

    def seconds(self, text: str) -> float:
        """Seconds since 1970. Raises ValueError, saying what is wrong with `text`."""
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError("is not a date and time") from None
        if len(text) < _SHORTEST:
            raise ValueError("is not a date and time")
        zoned = moment.tzinfo is not None
        if zoned is not self.zoned:
            if self.zoned is not None:
                raise ValueError(
                    "has a time zone, others have none" if zoned else "has no time zone, others have"
                )
            self.zoned = zoned
        return (moment - (_EPOCH_UTC if zoned else _EPOCH)).total_seconds()


def origin_note(clock: Timestamps, origin_s: float) -> str:
    """A note that says when the workload's time 0 was, in the file's own time."""
    if clock.zoned is None:
        return f"time 0 is the first arrival, {origin_s:g} s in the file's own time"
    moment = (_EPOCH + timedelta(seconds=origin_s)).isoformat(sep=" ")
    zone = "UTC" if clock.zoned else "wall clock, no time zone given"
    return f"time 0 is the first arrival, {moment} ({zone})"


# Slurm's time limits as seconds.

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
