"""The durable memory of `hemiola serve`: what happened, what was decided, what was asked of the engine, who leads.

In SQLite or PostgreSQL. Needs the extra `serve`; without it, importing this package raises InputError.
"""

from hemiola.live.journal.journal import Journal
from hemiola.live.journal.records import (
    Deposed,
    Instant,
    Intent,
    IntentState,
    JournaledJob,
    JournalError,
    Leader,
    Mode,
    Opening,
    RunRecord,
    Status,
)

__all__ = [
    "Deposed",
    "Instant",
    "Intent",
    "IntentState",
    "Journal",
    "JournalError",
    "JournaledJob",
    "Leader",
    "Mode",
    "Opening",
    "RunRecord",
    "Status",
]  # fmt: skip
