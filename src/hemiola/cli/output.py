"""What every verb of the command line says in the same way."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["fail", "writable"]

_ELSEWHERE = "name a path that you may write to"


def fail(what: str, remedy: str) -> int:
    """Print an error and its hint; return the exit status for bad input."""
    print(f"error: {what}\n  hint: {remedy}", file=sys.stderr)
    return 2


def writable(path: Path) -> None:
    """Refuse a path that cannot be written before the work, not after it."""
    from hemiola.core.errors import InputError

    try:
        folder = (path.resolve() if path.is_symlink() else path.absolute()).parent
        is_folder, has_folder, is_there = path.is_dir(), folder.is_dir(), path.exists()
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}", _ELSEWHERE) from error
    if is_folder:
        raise InputError(f"{path} is a folder", "give the path of a file")
    if not has_folder:
        raise InputError(f"there is no folder {folder}", f"create it, or write {path.name} elsewhere")
    if is_there and not os.access(path, os.W_OK):
        raise InputError(f"{path} is there and cannot be written", _ELSEWHERE)
    replaced = not is_there or path.is_file()
    if replaced and not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path} cannot be written: the folder {folder} cannot be changed", _ELSEWHERE)
