"""Files that the daemon writes or watches for as long as it runs: they may come and go, their folders have to be there."""

from __future__ import annotations

import os
from pathlib import Path

from hemiola.core.errors import InputError

__all__ = ["check_folder", "is_thrown"]


def check_folder(path: Path | None, option: str, *, writes: bool = False) -> None:
    """Refuse at once what would never work, and be noticed when it is needed.

    Args:
        path: of a file; None where there is to be none.
        option: that names it.
        writes: whether it is this process that makes the file, anew each time.

    Raises:
        InputError: it can be in no such folder.
    """
    if path is None:
        return
    may, make = ("write", "install -d -o USER") if writes else ("look", "install -d")
    # Only of a folder is there a `/.`; unlike Path.is_dir this never raises.
    if not os.access(f"{path.parent}/.", os.X_OK | (os.W_OK if writes else 0), effective_ids=True):
        raise InputError(
            f"{option} {path}: the folder {str(path.parent)!r} is not there, or this user may not {may} into it",
            f"make it: {make} {path.parent}",
        )


def is_thrown(switch: Path) -> bool:
    """Whether a kill switch is thrown: its file is there, or nobody can tell."""
    try:
        switch.stat()  # Path.exists says of all errors, since Python 3.14, that it is not there
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
