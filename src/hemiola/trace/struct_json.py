"""One value as a small JSON file that says its schema: hardware, plans. Unknown fields are refused by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hemiola.core.errors import DAMAGED, HardwareError, InputError

if TYPE_CHECKING:
    from hemiola.core.collective.schedule import CollectiveSchedule
    from hemiola.core.hardware import Hardware
    from hemiola.core.plan import Acceleration, Plan

__all__ = [
    "as_text",
    "read_acceleration",
    "read_hardware",
    "read_plan",
    "read_schedule",
    "write_acceleration",
    "write_hardware",
    "write_plan",
    "write_schedule",
]


Value = TypeVar("Value", bound=msgspec.Struct)


def write_struct(value: msgspec.Struct, schema: str, path: Path) -> None:
    """Write a value.

    Raises:
        InputError: if the path cannot be written.
    """
    from hemiola.trace.atomic import replacing

    content = {"schema": schema, **msgspec.to_builtins(value)}
    text = msgspec.json.format(msgspec.json.encode(content), indent=1)
    with replacing(path) as stream:
        stream.write(text + b"\n")


def read_struct(path: Path, kind: type[Value], schema: str, what: str, remedy: str) -> Value:
    """Read a value; whether it makes sense is for the reader's caller to check.

    Args:
        what: what the file ought to be, such as "a hardware file".
        remedy: which file to name instead.

    Raises:
        InputError: if it is missing, no such file, or has a field that is unknown or of another type.
    """
    from hemiola.trace.results import read_bytes

    content = read_bytes(path)
    try:
        value: Any = msgspec.json.decode(content)
    except DAMAGED as error:
        raise InputError(f"{str(path)!r} is not {what}: {error}", remedy) from error
    found = value.pop("schema", None) if isinstance(value, dict) else None
    if found != schema:
        raise InputError(f"{str(path)!r} is not {what}: its schema is {found!r}, not {schema!r}", remedy)
    strange = sorted(set(value) - set(kind.__struct_fields__))
    if strange:
        known = ", ".join(kind.__struct_fields__)
        raise InputError(f"{str(path)!r}: unknown fields {', '.join(strange)}", f"known are {known}")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{str(path)!r}: {error}", "correct the file, or write it anew") from error


def as_text(word: str | Path) -> str:
    """A path or a word of a command line, which need not be text, as it can be written."""
    return os.fsencode(word).decode(errors="replace")


# Files that say how far a job's acceleration is (schema "hemiola.acceleration/1"): replaced whole, again
# and again.


def write_acceleration(state: Acceleration, path: Path) -> None:
    """Write where a job's acceleration stands, in place of what was said before.

    Raises:
        InputError: if the path cannot be written.
    """
    from hemiola.core.plan import ACCELERATION_SCHEMA

    write_struct(state, ACCELERATION_SCHEMA, path)


def read_acceleration(path: Path) -> Acceleration:
    """Read where a job's acceleration stands.

    Raises:
        InputError: if it is missing, or not such a file; names the field.
    """
    from hemiola.core.plan import ACCELERATION_SCHEMA, Acceleration

    return read_struct(
        path,
        Acceleration,
        ACCELERATION_SCHEMA,
        "an acceleration's state",
        "name a file that `hemiola.accelerate` wrote",
    )


# Plan files (schema "hemiola.plan/1"): written by `hemiola plan`, or by hand.


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan file.

    Raises:
        InputError: if the path cannot be written.
    """
    from hemiola.core.plan import PLAN_SCHEMA

    write_struct(plan, PLAN_SCHEMA, path)


def read_plan(path: Path) -> Plan:
    """Read a plan file; whether it fits a graph is for `Plan.verify` to say.

    Raises:
        InputError: if it is missing, or not a plan file; names the field.
    """
    from hemiola.core.plan import PLAN_SCHEMA, Plan

    return read_struct(path, Plan, PLAN_SCHEMA, "a plan", "name a file that `hemiola plan` wrote")


# Schedule files (schema "hemiola.strategy/1"): synthesised, or written by hand.


def write_schedule(schedule: CollectiveSchedule, path: Path) -> None:
    """Write a schedule file.

    Raises:
        InputError: if the path cannot be written.
    """
    from hemiola.core.collective.schedule import SCHEDULE_SCHEMA

    write_struct(schedule, SCHEDULE_SCHEMA, path)


def read_schedule(path: Path) -> CollectiveSchedule:
    """Read a schedule file; whether it gives every rank its result is for `CollectiveSchedule.verify` to say.

    Raises:
        InputError: if it is missing, or not a schedule file; names the field.
    """
    from hemiola.core.collective.schedule import SCHEDULE_SCHEMA, CollectiveSchedule

    return read_struct(
        path, CollectiveSchedule, SCHEDULE_SCHEMA, "a schedule", "name a schedule file, or make one anew"
    )


# Hardware files (schema "hemiola.hardware/1"): written by `hemiola calibrate`, or by hand from a
# datasheet.

_REMEDY = "name a file that `hemiola calibrate` wrote, or one of the known devices (A100, H100, ...)"


def write_hardware(hardware: Hardware, path: Path) -> None:
    """Write a hardware file.

    Raises:
        HardwareError: if the hardware cannot be.
        InputError: if the path cannot be written.
    """
    from hemiola.core.hardware import HARDWARE_SCHEMA

    write_struct(hardware.check(), HARDWARE_SCHEMA, path)


def read_hardware(path: Path) -> Hardware:
    """Read a hardware file.

    Raises:
        InputError: if it is missing, not a hardware file, or says something impossible; names the field.
    """
    from hemiola.core.hardware import HARDWARE_SCHEMA, Hardware

    try:
        return read_struct(path, Hardware, HARDWARE_SCHEMA, "a hardware file", _REMEDY).check()
    except HardwareError as error:
        raise InputError(f"{str(path)!r}: {error.what}", error.remedy) from error
