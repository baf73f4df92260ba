"""Plan files (schema "hemiola.plan/1"): written by `hemiola plan`, or by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from hemiola.core.errors import InputError
from hemiola.core.plan import SCHEMA, Plan
from hemiola.trace.atomic import replacing
from hemiola.trace.reading import read_bytes

__all__ = ["read_plan", "write_plan"]

_REMEDY = "name a file that `hemiola plan` wrote"


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan file.

    Raises:
        InputError: if the path cannot be written.
    """
    content = {"schema": SCHEMA, **msgspec.to_builtins(plan)}
    with replacing(path) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


def read_plan(path: Path) -> Plan:
    """Read a plan file; whether it fits a graph is for `Plan.verify` to say.

    Raises:
        InputError: if it is missing, or not a plan file; names the field.
    """
    try:
        value: Any = msgspec.json.decode(read_bytes(path))
    except msgspec.DecodeError as error:
        raise InputError(f"{str(path)!r} is not a plan: {error}", _REMEDY) from error
    schema = value.pop("schema", None) if isinstance(value, dict) else None
    if schema != SCHEMA:
        raise InputError(f"{str(path)!r} is not a plan: its schema is {schema!r}, not {SCHEMA!r}", _REMEDY)
    strange = sorted(set(value) - set(Plan.__struct_fields__))
    if strange:
        raise InputError(
            f"{str(path)!r}: unknown fields {', '.join(strange)}",
            f"known are {', '.join(Plan.__struct_fields__)}",
        )
    try:
        return msgspec.convert(value, Plan)
    except msgspec.ValidationError as error:
        raise InputError(f"{str(path)!r}: {error}", "correct the file, or make it anew") from error
