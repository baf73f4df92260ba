"""Strategy files (schema "hemiola.strategy/1"): synthesised, or written by hand."""

from __future__ import annotations

from pathlib import Path

from hemiola.core.collective.schedule import SCHEMA, CollectiveSchedule
from hemiola.trace.struct_json import read_struct, write_struct

__all__ = ["read_strategy", "write_strategy"]


def write_strategy(strategy: CollectiveSchedule, path: Path) -> None:
    """Write a strategy file.

    Raises:
        InputError: if the path cannot be written.
    """
    write_struct(strategy, SCHEMA, path)


def read_strategy(path: Path) -> CollectiveSchedule:
    """Read a strategy file; whether it gives every rank its result is for `CollectiveSchedule.verify` to say.

    Raises:
        InputError: if it is missing, or not a strategy file; names the field.
    """
    return read_struct(path, CollectiveSchedule, SCHEMA, "a strategy", "name a strategy file, or make one anew")
