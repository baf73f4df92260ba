"""What a journal raises.

HemiolaError
└── JournalError     the journal cannot be read or written: the disk, the database, the file
    └── Deposed      somebody else leads by now
"""

from __future__ import annotations

from hemiola.core.errors import HemiolaError

__all__ = ["Deposed", "JournalError"]


class JournalError(HemiolaError):
    """The journal cannot be read or written. What was committed before is untouched; try again once the cause is gone."""


class Deposed(JournalError):  # noqa: N818 - what happened, not what failed
    """Who wrote this leads no more. Nothing was written."""

    def __init__(self, epoch: int, holder: str, now: int) -> None:
        who = f"{holder!r} leads, with epoch {now}" if holder else "nobody leads"
        super().__init__(
            f"epoch {epoch} of the journal's lease no longer leads: {who}",
            "decide nothing more; lead anew, and begin with what the engine and the journal say",
        )
