"""Result files opened, or refused in words. Knows nothing of what is in them."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from hemiola.core.errors import FormatError, InputError

__all__ = ["read_bytes", "wrong_schema"]


def read_bytes(path: str | Path) -> bytes:
    """All of a file; one whose name ends in ".gz" unpacked.

    Raises:
        InputError: if it cannot be read.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {str(path)!r}: {reason}", "check the path") from error


def wrong_schema(path: str | Path, schema: str, found: str) -> FormatError:
    """The error for a file that is not of the schema."""
    return FormatError(
        f"{str(path)!r} is not a file of schema {schema!r}: {found}", "name a file that Hemiola wrote"
    )
