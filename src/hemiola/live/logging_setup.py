"""What the daemon says: one line per thing, for people or for machines."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec

__all__ = ["set_up"]


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
