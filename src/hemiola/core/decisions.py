"""What a policy can ask for. A closed union; every decision carries its reason.

A reason is one plain sentence without the job's name, as `hemiola explain` prints it.
"""

from __future__ import annotations

from typing import assert_never, get_args

import msgspec

__all__ = [
    "EVERY_KIND", "Decision", "Move", "Pace", "Placement", "Resize", "Start", "Stop", "WakeAt", "asks_engine",
    "placement_of",
]  # fmt: skip


class Placement(msgspec.Struct, frozen=True, gc=False):
    """Which GPUs of which hosts, in the order of the ranks.

    Attributes:
        hosts: host indices in rank order, each once.
        masks: for each of them the GPUs taken, bit i for GPU i.

    Example:
        >>> list(Placement((3, 5), (0b11, 0b1)).ranks())
        [(3, 0), (3, 1), (5, 0)]
    """

    hosts: tuple[int, ...]
    masks: tuple[int, ...]

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return sum(mask.bit_count() for mask in self.masks)

    def ranks(self) -> list[tuple[int, int]]:
        """(host, GPU) of each rank in order."""
        return [
            (host, gpu)
            for host, mask in zip(self.hosts, self.masks, strict=True)
            for gpu in range(mask.bit_length())
            if mask >> gpu & 1
        ]


class Start(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Run a waiting job there, all its ranks at once."""

    job_id: str
    placement: Placement
    reason: str


class Stop(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Checkpoint a running job and put it back in the queue."""

    job_id: str
    reason: str


class Move(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Checkpoint a running job and resume it there at once."""

    job_id: str
    placement: Placement
    reason: str


class Resize(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Change the GPUs of a running elastic job."""

    job_id: str
    placement: Placement
    reason: str


class Pace(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Change a running job's share of the links it contends for (1 is neutral)."""

    job_id: str
    weight: float
    reason: str


class WakeAt(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Deliver a `Timer` at that time, about a job or (with "") about nothing in particular."""

    time_s: float
    job_id: str
    reason: str


Decision = Start | Stop | Move | Resize | Pace | WakeAt
EVERY_KIND: frozenset[type[Decision]] = frozenset(get_args(Decision))


def placement_of(decision: Decision) -> Placement | None:
    """Where its job is to run; None if it says nothing of that."""
    match decision:
        case Start() | Move() | Resize():
            return decision.placement
        case Stop() | Pace() | WakeAt():
            return None
        case _:
            assert_never(decision)


def asks_engine(decision: Decision) -> bool:
    """Whether an engine carries it out, and not the loop's own clock."""
    match decision:
        case Start() | Stop() | Move() | Resize() | Pace():
            return True
        case WakeAt():
            return False
        case _:
            assert_never(decision)
