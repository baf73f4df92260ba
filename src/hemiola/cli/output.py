"""What every verb of the command line says in the same way."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["fail", "writable"]


def fail(what: str, remedy: str) -> int:
    """Print an error and its hint; return the exit status for bad input."""
    print(f"error: {what}\n  hint: {remedy}", file=sys.stderr)
    return 2


def writable(path: Path) -> None:
    """Refuse a path that cannot be written before the work, not after it."""
    from hemiola.core.errors import InputError

    if path.is_dir():
        raise InputError(f"{path} is a folder", "give the path of a file")
    if not path.absolute().parent.is_dir():
        raise InputError(
            f"there is no folder {path.absolute().parent}", f"create it, or write {path.name} elsewhere"
        )
