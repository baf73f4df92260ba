"""What the daemon says: one line per thing, for people or for machines."""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from hemiola.core.errors import InputError

__all__ = ["check_folder", "is_thrown", "set_up"]


_USUAL = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})
"""What every record has; anything else was given as `extra`."""


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created).strftime("%Y-%m-%d %H:%M:%S")
        text = f"{when} {record.levelname.lower():7} {record.getMessage()}"
        return text + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


class _Objects(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(), "level": record.levelname.lower(),
            "from": record.name, "message": record.getMessage(),
        }  # fmt: skip
        given = {name: str(value) for name, value in vars(record).items() if name not in _USUAL}
        line |= {name: value for name, value in given.items() if not name.startswith("_")}  # libraries' own
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def set_up(*, as_json: bool) -> None:
    """To stderr, from `info` on, Hemiola's own alone."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Objects() if as_json else _Lines())
    logger = logging.getLogger("hemiola")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


# Files that the daemon writes or watches for as long as it runs: they may come and go, their folders have
# to be there.


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
