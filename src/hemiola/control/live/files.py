"""Files that the daemon writes or watches for as long as it runs: they may come and go, their folders have to be there."""

from __future__ import annotations

import os
from pathlib import Path

from hemiola.core.errors import InputError

__all__ = ["check_folder", "is_thrown"]


def check_folder(path: Path | None, option: str) -> None:
    """Refuse at once what would never work, and be noticed when it is needed.

    Args:
        path: of a file; None where there is to be none.
        option: that names it.

    Raises:
        InputError: it can be in no such folder.
    """
    # Only of a folder is there a `/.`; unlike Path.is_dir this never raises.
    if path is not None and not os.access(f"{path.parent}/.", os.X_OK, effective_ids=True):
        raise InputError(
            f"{option} {path}: the folder {str(path.parent)!r} is not there, or this user may not look into it",
            f"make it: install -d {path.parent}",
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
