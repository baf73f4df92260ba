"""Files that say how far a job's acceleration is (schema "hemiola.acceleration/1"): replaced whole, again and again."""

from __future__ import annotations

from pathlib import Path

from hemiola.core.acceleration import SCHEMA, Acceleration
from hemiola.trace.struct_json import read_struct, write_struct

__all__ = ["read_acceleration", "write_acceleration"]


def write_acceleration(state: Acceleration, path: Path) -> None:
    """Write where a job's acceleration stands, in place of what was said before.

    Raises:
        InputError: if the path cannot be written.
    """
    write_struct(state, SCHEMA, path)


def read_acceleration(path: Path) -> Acceleration:
    """Read where a job's acceleration stands.

    Raises:
        InputError: if it is missing, or not such a file; names the field.
    """
    return read_struct(
        path, Acceleration, SCHEMA, "an acceleration's state", "name a file that `hemiola.accelerate` wrote"
    )
