"""What can happen to a cluster. A closed union; each event carries its time."""

from __future__ import annotations

from typing import assert_never

import msgspec

from hemiola.core.decisions import Placement
from hemiola.core.job import Batch, Configuration, Elastic, JobHistory, Profile, Service
from hemiola.core.resources import ResourceRequest, Resources

__all__ = [
    "Adopted",
    "Arrived",
    "Blocked",
    "Event",
    "Failed",
    "Finished",
    "Held",
    "LinkFeedback",
    "Load",
    "Measured",
    "NodeBack",
    "NodeLost",
    "Profiled",
    "Released",
    "ReplicaLost",
    "ReplicaReady",
    "Requeued",
    "ResourcesOffered",
    "ResourcesRequested",
    "Started",
    "Timer",
    "Undone",
    "job_of",
]  # fmt: skip


class Arrived(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A job was submitted."""

    time_s: float
    job: Batch | Elastic | Service


class Started(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A job's ranks run: the engine's word that a `Start` took effect.

    Attributes:
        placement: where, if it is not where it was to be, or nobody had decided it; of the masks the numbers count.
    """

    time_s: float
    job_id: str
    placement: Placement | None = None


class Finished(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A job did all its work."""

    time_s: float
    job_id: str


class Failed(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A job ended by itself without doing all its work."""

    time_s: float
    job_id: str
    reason: str


class NodeLost(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A host went down, and every job on it goes back to the queue.

    Attributes:
        lost_work_s: per job the work it must do again, in seconds at ideal speed.
    """

    time_s: float
    host: int
    lost_work_s: dict[str, float] = {}


class NodeBack(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A host was repaired."""

    time_s: float
    host: int


class Measured(msgspec.Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A running job's speed: seconds of work (at ideal speed) done per second.

    Attributes:
        resume_s: until then it saves, loads or waits and does no work; None if that did not change.
        gradient_noise_scale: samples in a batch from which on more hardly help (McCandlish et al., 2018); None where it is
            not known.
    """

    time_s: float
    job_id: str
    speed: float
    resume_s: float | None = None
    gradient_noise_scale: float | None = None


class Timer(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A `WakeAt` is due."""

    time_s: float
    job_id: str


class Adopted(JobHistory, frozen=True, gc=False, tag=True):
    """A job is known from before: it runs there, or waits. What live runs begin with.

    Attributes:
        placement: where it runs; None: it waits. Engines count GPUs: of the masks the numbers count.
        since_s: since when it does; its history is of before, but for the work, which is done by now.
        service_gpu_s: GPU-seconds that it had in `served_s`; None: the job's GPUs all the time.
    """

    time_s: float
    job: Batch | Elastic
    placement: Placement | None
    since_s: float
    service_gpu_s: float | None = None


class Requeued(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The engine put a running job back into the queue by itself.

    Attributes:
        ran: whether it ran where it was put; if not, it has waited since then, and done nothing.
        refused: whether the engine would not start it there: it is put on other hosts first, where others have room.
    """

    time_s: float
    job_id: str
    reason: str
    ran: bool = True
    refused: bool = False


class Held(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A waiting job may not start for now: somebody holds it, or it waits for something outside."""

    time_s: float
    job_id: str
    reason: str


class Released(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A held job may start again."""

    time_s: float
    job_id: str


class Blocked(msgspec.Struct, frozen=True, gc=False, tag=True):
    """So many GPUs of a host are not ours to give: somebody else's jobs, a reservation, or all as it is drained.

    What runs there goes on; of GPUs that are occupied now, as many are withheld once they are free.
    """

    time_s: float
    host: int
    gpus: int


class ResourcesOffered(msgspec.Struct, frozen=True, gc=False, tag=True):
    """What a host has beside GPUs, by the engine's word.

    Attributes:
        ours: what jobs of this view may have there together.
        total: that it has, whoever has it.
    """

    time_s: float
    host: int
    ours: Resources
    total: Resources


class ResourcesRequested(msgspec.Struct, frozen=True, gc=False, tag=True):
    """What a job takes of its hosts beside GPUs is known, or is another claim than before."""

    time_s: float
    job_id: str
    claim: ResourceRequest


class Profiled(msgspec.Struct, frozen=True, gc=False, tag=True):
    """What a job's iteration computes and sends is known now, from its own reports."""

    time_s: float
    job_id: str
    profile: Profile


class Undone(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A decision about this job was accepted, and nobody carries it out: it stands as before. Of observing runs.

    Attributes:
        placement: where it runs; None: it waits.
        since_s, served_s, queued_s, preemptions, migrations: as they were.
        done_s: of its work, by now.
        speed: of its work per second, where it runs; None: as if it began there.
        service_gpu_s: GPU-seconds that it had in `served_s`; None: a job of one size.
        configuration: that it had.
    """

    time_s: float
    job_id: str
    placement: Placement | None
    since_s: float
    done_s: float
    served_s: float
    queued_s: float
    preemptions: int
    migrations: int
    speed: float | None = None
    service_gpu_s: float | None = None
    configuration: Configuration | None = None


class ReplicaReady(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A service's replica has loaded its model and takes requests."""

    time_s: float
    job_id: str
    placement: Placement


class ReplicaLost(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A service's replica ended by itself: its GPUs are free."""

    time_s: float
    job_id: str
    placement: Placement
    reason: str


class Load(msgspec.Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """What a service had to do in the last control interval; single requests never leave the driver.

    Attributes:
        requests_per_s: that arrived.
        queue: requests that wait.
        latency_s: at the share of requests that the service's objective names.
        ongoing: requests that wait or are in hand, in the mean of the interval.
        first_token_s, per_token_s: of a language model, in the mean: from a request to its first token, and from one token to
            the next; 0 where not known.
    """

    time_s: float
    job_id: str
    requests_per_s: float
    queue: int
    latency_s: float
    ongoing: float = 0.0
    first_token_s: float = 0.0
    per_token_s: float = 0.0


class LinkFeedback(msgspec.Struct, frozen=True, gc=False, tag=True):
    """What the network says of a link over the last control interval.

    Attributes:
        link: the topology's number of the link.
        used: share of its bandwidth.
        marked: share of its packets that were marked for congestion.
        queue_bytes: that wait for it.
    """

    time_s: float
    link: int
    used: float
    marked: float = 0.0
    queue_bytes: float = 0.0


Event = (
    Arrived | Started | Finished | Failed | NodeLost | NodeBack | Measured | Timer
    | Adopted | Requeued | Held | Released | Blocked | ResourcesOffered | ResourcesRequested | Profiled | Undone
    | ReplicaReady | ReplicaLost | Load | LinkFeedback
)  # fmt: skip


def job_of(event: Event) -> str:
    """The id of the job that it is about; "" where it is about a host, or nothing in particular."""
    match event:
        case Arrived() | Adopted():
            return event.job.id
        case (
            Started() | Finished() | Failed() | Measured() | Timer() | Requeued() | Held() | Released() | Profiled()
            | ResourcesRequested() | Undone() | ReplicaReady() | ReplicaLost() | Load()
        ):  # fmt: skip
            return event.job_id
        case NodeLost() | NodeBack() | Blocked() | ResourcesOffered() | LinkFeedback():
            return ""
        case _:
            assert_never(event)
