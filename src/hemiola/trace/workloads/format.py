"""What a format is: a value that recognises a file's content and reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hemiola.trace.workloads.ledger import ReadLedger
from hemiola.trace.workloads.source import Source

__all__ = ["WorkloadFormat"]


@dataclass(frozen=True)
class WorkloadFormat:
    """One workload format.

    Attributes:
        name: as in `FORMAT:FILE`.
        about: what it is, in half a line.
        match: how the content shows that it is this format, in words; "" where it is not.
        read: puts the file's jobs, in the file's own time, into the ledger.
        from_first: its times are counted from the first arrival; False keeps the file's origin.
    """

    name: str
    about: str
    match: Callable[[Source], str]
    read: Callable[[Source, ReadLedger], None]
    from_first: bool = True
