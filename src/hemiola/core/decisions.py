"""What a policy can ask for. A closed union; every decision carries its reason.

A reason is one plain sentence without the job's name, as `hemiola explain` prints it.
"""

from __future__ import annotations

from typing import assert_never, get_args

import msgspec

from hemiola.core.job import Configuration

__all__ = [
    "EVERY_ABILITY", "EVERY_KIND", "JOB_KINDS", "Align", "Change", "Decision", "Lend", "Move", "Pace", "Placement", "Reallocate", "Reclaim",
    "Resize", "Scale", "Start", "Stop", "WakeAt", "asks_engine", "configuration_of", "needs", "parts", "placement_of",
]  # fmt: skip


class Placement(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Which GPUs of which hosts, in the order of the ranks.

    Attributes:
        hosts: host indices in rank order, each once.
        masks: for each of them the GPUs taken, bit i for GPU i.
        servers: (host, parameter servers) of a job that has such roles; these take no GPUs.

    Example:
        >>> list(Placement((3, 5), (0b11, 0b1)).ranks())
        [(3, 0), (3, 1), (5, 0)]
    """

    hosts: tuple[int, ...]
    masks: tuple[int, ...]
    servers: tuple[tuple[int, int], ...] = ()

    @property
    def everywhere(self) -> tuple[int, ...]:
        """The hosts of all its members, those of servers alone last."""
        if not self.servers:
            return self.hosts
        return tuple(dict.fromkeys((*self.hosts, *(host for host, _ in self.servers))))

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


class Start(msgspec.Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Run a waiting job there, all its ranks at once.

    Attributes:
        configuration: how an elastic job splits its batch there; None leaves that to the job.
    """

    job_id: str
    placement: Placement
    reason: str
    configuration: Configuration | None = None


class Stop(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Checkpoint a running job and put it back in the queue."""

    job_id: str
    reason: str


class Move(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Checkpoint a running job and resume it there at once."""

    job_id: str
    placement: Placement
    reason: str


class Resize(msgspec.Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Change the GPUs of a running elastic job, or how it splits its batch over them.

    Attributes:
        configuration: how it splits its batch from then on; None leaves that to the job.
    """

    job_id: str
    placement: Placement
    reason: str
    configuration: Configuration | None = None


class Pace(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Change a running job's share of the links it contends for (1 is neutral)."""

    job_id: str
    weight: float
    reason: str


class Align(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Shift a running job's communication on a link, so that it sends while others compute.

    Attributes:
        link: the topology's number of the link.
        offset_s: from a clock that all jobs of the link share to the begin of its transfers.
    """

    job_id: str
    link: int
    offset_s: float
    reason: str


class Scale(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Have a service run these replicas, and no others: those that are there already go on.

    Attributes:
        job_id: the service's id.
        replicas: where each runs.
    """

    job_id: str
    replicas: tuple[Placement, ...]
    reason: str


class Lend(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Give hosts on which nothing runs to another virtual cluster for a while.

    Attributes:
        hosts: host indices, each once.
        lender, borrower: names of virtual clusters.
        due_s: when the hosts are to be back at the latest; infinite until they are reclaimed.
    """

    hosts: tuple[int, ...]
    lender: str
    borrower: str
    due_s: float
    reason: str

    @property
    def job_id(self) -> str:
        """It is about no job."""
        return ""


class Reclaim(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Want hosts back that are on loan: each returns once nothing runs there, and until the deadline.

    Attributes:
        hosts: host indices, each once.
        lender: the virtual cluster that they belong to.
        deadline_s: when they are to be back at the latest.
    """

    hosts: tuple[int, ...]
    lender: str
    deadline_s: float
    reason: str

    @property
    def job_id(self) -> str:
        """It is about no job."""
        return ""


Change = Start | Stop | Move | Resize


class Reallocate(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Several changes that only make sense together, as when two jobs swap places: all or none.

    Attributes:
        changes: each of another job. GPUs that any of them gives up are free to all of them.
    """

    changes: tuple[Change, ...]
    reason: str

    @property
    def job_id(self) -> str:
        """It is about several jobs."""
        return ""


class WakeAt(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Deliver a `Timer` at that time, about a job or (with "") about nothing in particular."""

    time_s: float
    job_id: str
    reason: str


Decision = Change | Pace | Align | Scale | Lend | Reclaim | Reallocate | WakeAt
EVERY_KIND: frozenset[type[Decision]] = frozenset(get_args(Decision))
EVERY_ABILITY: frozenset[type] = EVERY_KIND | {Configuration}
"""What engines may support: the kinds, and jobs that are told how to split their batch."""
JOB_KINDS: frozenset[type] = frozenset({Start, Stop, Move, Resize, Pace, WakeAt})
"""What is about one training job, or about nothing in particular: all that there was at first."""


def parts(decision: Decision) -> tuple[Decision, ...]:
    """Its changes, where there are several; else itself."""
    return decision.changes if isinstance(decision, Reallocate) else (decision,)


def placement_of(decision: Decision) -> Placement | None:
    """Where its job is to run; None if it says nothing of that."""
    match decision:
        case Start() | Move() | Resize():
            return decision.placement
        case Stop() | Pace() | Align() | Scale() | Lend() | Reclaim() | Reallocate() | WakeAt():
            return None
        case _:
            assert_never(decision)


def configuration_of(decision: Decision) -> Configuration | None:
    """How its job is to split its batch; None if it says nothing of that."""
    return decision.configuration if isinstance(decision, Start | Resize) else None


def needs(decision: Decision) -> tuple[type, ...]:
    """What an engine has to support for it: its kind, that of its parts, and `Configuration` where it names one."""
    kinds: list[type] = [type(decision)]
    for part in parts(decision):
        kinds.append(type(part))
        if configuration_of(part) is not None:
            kinds.append(Configuration)
    return tuple(dict.fromkeys(kinds))


def asks_engine(decision: Decision) -> bool:
    """Whether an engine carries it out, and not the loop's own clock."""
    return not isinstance(decision, WakeAt)
