"""What every driver that looks at its engine remembers of a job between two looks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from hemiola.core.decisions import Placement
from hemiola.core.job import Job

__all__ = ["PATIENCE_S", "KnownJob", "back_off_s"]

PATIENCE_S = 60.0
"""So long a job may be bound to free GPUs without starting, before that is taken for a failure."""
BACK_OFF_S, BACK_OFF_MOST_S = 2.0, 3600.0
ELSEWHERE_S = 30.0
"""Nor is it left alone for longer, as long as there are other hosts to try."""


def back_off_s(failures: int, kept_s: float) -> float:
    """How long to leave a job alone after so many failed binds in a row, the last of which kept GPUs from others for
    `kept_s`."""
    doublings = min(failures - 1, 11)  # with more it is the most, too, until floats end
    return min(BACK_OFF_MOST_S, max(BACK_OFF_S, kept_s / 2) * 2.0**doublings)


@dataclass(kw_only=True)
class KnownJob:
    """What does not depend on the engine.

    Attributes:
        job: as policies see it; its id is ours.
        note: what of its user's words was not understood.
        wanted: where it is to run next; None if it is to wait.
        bound_s: when the engine was told so; None if it is still to be told.
        ran: whether it has been seen running since it was last bound.
        advised: where it was said that it should run.
        refused: why it could never run here; "" if it could.
        held: why policies may not start it, in words; "" if they may.
        binds_failed: in a row.
        not_before_s: it waits so long after a bind that failed.
        refusing: hosts on which the engine would not start it since it ran last.
        missed: looks at the engine in a row without it.
        missing_s: when the first of them was.
    """

    job: Job
    note: str = ""
    wanted: Placement | None = None
    bound_s: float | None = None
    ran: bool = False
    advised: Placement | None = None
    refused: str = ""
    held: str = ""
    binds_failed: int = 0
    not_before_s: float = 0.0
    refusing: set[int] = field(default_factory=set)
    missed: int = 0
    missing_s: float = 0.0

    @property
    def why_not(self) -> str:
        """Why it cannot be placed; "" if it can."""
        return self.refused or self.held

    def leave_alone(self, now_s: float, kept_s: float, hosts: Collection[int] = ()) -> float:
        """Its bind to these hosts has failed, which kept GPUs from others for `kept_s`; for how long it is left alone now."""
        self.binds_failed += 1
        pause_s = back_off_s(self.binds_failed, kept_s)
        if not self.refusing.issuperset(hosts):
            pause_s = min(pause_s, ELSEWHERE_S)
        self.refusing.update(hosts)
        self.not_before_s = now_s + pause_s
        return pause_s
