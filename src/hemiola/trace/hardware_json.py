"""Hardware files (schema "hemiola.hardware/1"): written by `hemiola calibrate`, or by hand from a datasheet."""

from __future__ import annotations

from pathlib import Path

from hemiola.core.errors import HardwareError, InputError
from hemiola.core.hardware import SCHEMA, Hardware
from hemiola.trace.struct_json import read_struct, write_struct

__all__ = ["read_hardware", "write_hardware"]

_REMEDY = "name a file that `hemiola calibrate` wrote, or one of the known devices (A100, H100, ...)"


def write_hardware(hardware: Hardware, path: Path) -> None:
    """Write a hardware file.

    Raises:
        HardwareError: if the hardware cannot be.
        InputError: if the path cannot be written.
    """
    write_struct(hardware.check(), SCHEMA, path)


def read_hardware(path: Path) -> Hardware:
    """Read a hardware file.

    Raises:
        InputError: if it is missing, not a hardware file, or says something impossible; names the field.
    """
    try:
        return read_struct(path, Hardware, SCHEMA, "a hardware file", _REMEDY).check()
    except HardwareError as error:
        raise InputError(f"{str(path)!r}: {error.what}", error.remedy) from error
