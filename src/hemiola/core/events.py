"""What can happen to a cluster. A closed union; each event carries its time."""

from __future__ import annotations

import msgspec

from hemiola.core.job import Job

__all__ = ["Arrived", "Event", "Failed", "Finished", "Measured", "NodeBack", "NodeLost", "Started", "Timer"]


class Arrived(msgspec.Struct, frozen=True, gc=False):
    """A job was submitted."""

    time_s: float
    job: Job


class Started(msgspec.Struct, frozen=True, gc=False):
    """A job's ranks run (the engine's word that a `Start` took effect)."""

    time_s: float
    job_id: str


class Finished(msgspec.Struct, frozen=True, gc=False):
    """A job did all its work."""

    time_s: float
    job_id: str


class Failed(msgspec.Struct, frozen=True, gc=False):
    """A job ended by itself without doing all its work."""

    time_s: float
    job_id: str
    reason: str


class NodeLost(msgspec.Struct, frozen=True, gc=False):
    """A host went down, and every job on it goes back to the queue.

    Attributes:
        lost_work_s: per job the work it must do again, in seconds at ideal speed.
    """

    time_s: float
    host: int
    lost_work_s: dict[str, float] = {}


class NodeBack(msgspec.Struct, frozen=True, gc=False):
    """A host was repaired."""

    time_s: float
    host: int


class Measured(msgspec.Struct, frozen=True, gc=False):
    """A running job's speed: seconds of work (at ideal speed) done per second.

    Attributes:
        resume_s: until then it saves, loads or waits and does no work; None if that did not change.
    """

    time_s: float
    job_id: str
    speed: float
    resume_s: float | None = None


class Timer(msgspec.Struct, frozen=True, gc=False):
    """A `WakeAt` is due."""

    time_s: float
    job_id: str


Event = Arrived | Started | Finished | Failed | NodeLost | NodeBack | Measured | Timer
