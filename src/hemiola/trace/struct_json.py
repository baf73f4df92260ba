"""One value as a small JSON file that says its schema: hardware, plans. Unknown fields are refused by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hemiola.core.errors import DAMAGED, InputError
from hemiola.trace.atomic import replacing
from hemiola.trace.reading import read_bytes

__all__ = ["as_text", "read_struct", "write_struct"]

Value = TypeVar("Value", bound=msgspec.Struct)


def write_struct(value: msgspec.Struct, schema: str, path: Path) -> None:
    """Write a value.

    Raises:
        InputError: if the path cannot be written.
    """
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
