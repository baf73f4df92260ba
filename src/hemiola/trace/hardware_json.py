"""Hardware files (schema "hemiola.hardware/1"): written by `hemiola calibrate`, or by hand from a datasheet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from hemiola.core.errors import HardwareError, InputError
from hemiola.core.hardware import SCHEMA, Hardware
from hemiola.trace.atomic import replacing
from hemiola.trace.reading import read_bytes

__all__ = ["read_hardware", "write_hardware"]

_REMEDY = "name a file that `hemiola calibrate` wrote, or one of the known devices (A100, H100, ...)"


def write_hardware(hardware: Hardware, path: Path) -> None:
    """Write a hardware file.

    Raises:
        HardwareError: if the hardware cannot be.
        InputError: if the path cannot be written.
    """
    content = {"schema": SCHEMA, **msgspec.to_builtins(hardware.check())}
    text = msgspec.json.format(msgspec.json.encode(content), indent=1)
    with replacing(path) as stream:
        stream.write(text + b"\n")


def read_hardware(path: Path) -> Hardware:
    """Read a hardware file.

    Raises:
        InputError: if it is missing, not a hardware file, or says something impossible; names the field.
    """
    content = read_bytes(path)
    try:
        value: Any = msgspec.json.decode(content)
    except msgspec.DecodeError as error:
        raise InputError(f"{str(path)!r} is not a hardware file: {error}", _REMEDY) from error
    schema = value.pop("schema", None) if isinstance(value, dict) else None
    if schema != SCHEMA:
        raise InputError(
            f"{str(path)!r} is not a hardware file: its schema is {schema!r}, not {SCHEMA!r}", _REMEDY
        )
    strange = sorted(set(value) - set(Hardware.__struct_fields__))
    if strange:
        raise InputError(
            f"{str(path)!r}: unknown fields {', '.join(strange)}",
            f"known are {', '.join(Hardware.__struct_fields__)}",
        )
    try:
        return msgspec.convert(value, Hardware).check()
    except msgspec.ValidationError as error:
        raise InputError(f"{str(path)!r}: {error}", "correct the file, or write it anew") from error
    except HardwareError as error:
        raise InputError(f"{str(path)!r}: {error.what}", error.remedy) from error
