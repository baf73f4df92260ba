"""Files that the daemon writes or watches for as long as it runs: they may come and go, their folders have to be there."""

from __future__ import annotations

from pathlib import Path

from hemiola.core.errors import InputError

__all__ = ["check_folder"]


def check_folder(path: Path | None, option: str) -> None:
    """Refuse at once what would never work, and be noticed when it is needed.

    Args:
        path: of a file; None where there is to be none.
        option: that names it.

    Raises:
        InputError: it can be in no such folder.
    """
    if path is not None and not path.parent.is_dir():
        raise InputError(
            f"{option} {path}: the folder {str(path.parent)!r} is not there",
            f"make it: install -d {path.parent}",
        )
