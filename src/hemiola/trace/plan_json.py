"""Plan files (schema "hemiola.plan/1"): written by `hemiola plan`, or by hand."""

from __future__ import annotations

from pathlib import Path

from hemiola.core.plan import SCHEMA, Plan
from hemiola.trace.struct_json import read_struct, write_struct

__all__ = ["read_plan", "write_plan"]


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan file.

    Raises:
        InputError: if the path cannot be written.
    """
    write_struct(plan, SCHEMA, path)


def read_plan(path: Path) -> Plan:
    """Read a plan file; whether it fits a graph is for `Plan.verify` to say.

    Raises:
        InputError: if it is missing, or not a plan file; names the field.
    """
    return read_struct(path, Plan, SCHEMA, "a plan", "name a file that `hemiola plan` wrote")
