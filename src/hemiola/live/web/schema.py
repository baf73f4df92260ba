"""What the API answers, as values; its schema is made from these. Times are Unix seconds, rates bytes/s."""

from __future__ import annotations

from importlib.metadata import version
from typing import Literal

import msgspec

__all__ = [
    "VERSION",
    "Cluster",
    "Decided",
    "Decisions",
    "GpuCounts",
    "Group",
    "Host",
    "JobCounts",
    "JobDetail",
    "JobOnHost",
    "JobOnLink",
    "JobPart",
    "JobView",
    "Jobs",
    "KillSwitch",
    "Link",
    "Links",
    "Nodes",
    "PolicyFigures",
    "Problem",
    "RunView",
    "Runs",
    "ShadowView",
    "State",
    "StatusView",
]  # fmt: skip

VERSION = version("hemiola")
State = Literal["waiting", "held", "running", "ended"]


class Problem(msgspec.Struct, frozen=True):
    """Why there is no answer, and what to do about it."""

    what: str
    remedy: str


class GpuCounts(msgspec.Struct, frozen=True):
    """GPUs by what they do; `blocked`: not Hemiola's to give. Of hosts that are down all GPUs are down."""

    free: int
    used: int
    blocked: int
    down: int


class JobCounts(msgspec.Struct, frozen=True):
    """Jobs that have not ended."""

    waiting: int
    held: int
    running: int


class StatusView(msgspec.Struct, frozen=True, kw_only=True):
    """How the service stands.

    Attributes:
        version: of Hemiola.
        now_s: the server's clock.
        snapshot: a number that changes whenever something else than time did.
        taken_s: when the loop was last looked at; null: never yet.
        turned_s: when the loop last came around, or this instance began to lead; null where it does not.
        leads: whether this instance decides; if not, all that is shown comes from the journal.
        leader, leader_until_s: who took the lease, and until when it holds.
        engine_away: why the engine cannot be asked; "" if it can, or is not asked by this instance.
        mode: "enforce" carries decisions out, "observe" does not.
        broken_policy: why the fallback decides; "" if it does not.
        kill_switch: whether it is thrown; null where there is none.
        run: the journal's number of the run that goes on, or was last.
        wanted_gpus: what all waiting jobs want.
    """

    version: str
    now_s: float
    snapshot: int
    taken_s: float | None
    turned_s: float | None
    leads: bool
    leader: str
    leader_until_s: float | None
    engine: str
    engine_away: str
    mode: str
    policy: str
    fallback: str
    broken_policy: str
    kill_switch: bool | None
    run: int | None
    run_began_s: float | None
    topology: str
    jobs: JobCounts
    gpus: GpuCounts
    wanted_gpus: int


class JobOnHost(msgspec.Struct, frozen=True):
    """A job's GPUs of one host, by number."""

    job: str
    engine_id: str
    gpus: tuple[int, ...]


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A host; `blocked` are GPUs by number that are not Hemiola's to give, of a host that is down none can be used."""

    name: str
    gpu_type: str
    gpus: int
    free: tuple[int, ...]
    blocked: tuple[int, ...]
    down: bool
    jobs: tuple[JobOnHost, ...]
    group: str


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts below one switch.

    Attributes:
        level: "rack", or as the topology calls it; "cluster" if it has no levels.
        within: the wider domains that it is in, narrow to wide.
    """

    name: str
    level: str
    within: tuple[str, ...]
    hosts: tuple[Host, ...]


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """All hosts, by the narrowest switch above them."""

    snapshot: int
    name: str
    groups: tuple[Group, ...]


class Nodes(msgspec.Struct, frozen=True):
    """Hosts in the topology's order. Give `next` as `after` for the following ones."""

    items: tuple[Host, ...]
    next: str | None
    total: int


class JobPart(msgspec.Struct, frozen=True):
    """GPUs of one host, by number."""

    host: str
    gpus: tuple[int, ...]


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job.

    Attributes:
        id: Hemiola's own (UUID); `engine_id` may be used again for another job.
        why: why it waits or is held; for others what the last decision about it said.
        since_s: since when it has its state.
        placement: where it runs, or ran last.
        served_s, queued_s: seconds with and without GPUs up to now.
        declared_s: the run time that its user, or its time limit, says; null where neither does.
        predicted_iteration_s, predicted_slowdown: by the cost model, on its placement and beside the present
            others; over the best placement alone. Null where its profile is not known, or it does not run.
        measured_iteration_s: as the job reports it; null where it does not.
        preemptions, migrations: how often it was stopped, and moved.
        binds_failed: how often in a row the engine did not take a placement.
    """

    id: str
    engine_id: str
    user: str
    name: str
    model: str
    state: State
    gpus: int
    required: str
    submitted_s: float
    since_s: float
    first_started_s: float | None
    ended_s: float | None
    outcome: str
    why: str
    placement: tuple[JobPart, ...]
    served_s: float
    queued_s: float
    declared_s: float | None
    preemptions: int
    migrations: int
    binds_failed: int
    predicted_iteration_s: float | None
    predicted_slowdown: float | None
    measured_iteration_s: float | None


class Jobs(msgspec.Struct, frozen=True):
    """Jobs. Give `next` as `after` for the following ones; `total` is null where it was not counted."""

    items: tuple[JobView, ...]
    next: str | None
    total: int | None


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """A decision.

    Attributes:
        id: its run, and its number in it.
        kind: "start", "stop", "move", "resize" or "pace".
        job: UUID; with the engine's id and the name where they are known.
        placement: where to; empty for kinds without.
        refused: why it was not carried out; "" if nothing spoke against it.
    """

    id: str
    time_s: float
    kind: str
    job: str
    engine_id: str
    name: str
    placement: tuple[JobPart, ...]
    reason: str
    refused: str


class Decisions(msgspec.Struct, frozen=True):
    """Decisions, newest first. Give `next` as `before` for earlier ones."""

    items: tuple[Decided, ...]
    next: str | None


class JobDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A job, and the last decisions about it."""

    job: JobView
    decisions: tuple[Decided, ...]


class JobOnLink(msgspec.Struct, frozen=True):
    """What one job sends over a link."""

    job: str
    engine_id: str
    bytes_per_s: float


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of a link.

    Attributes:
        kind: "nic" of a host, or "uplink" of a switch.
        level: "host", "rack", ...
        of: the host's or the switch's name.
        capacity_bytes_per_s: null: it never limits.
        predicted_bytes_per_s: mean over the iterations of the jobs that run; not measured.
        measured_bytes_per_s: what the host's own counters say, the busier direction; null where they are not told, and for
            uplinks.
    """

    name: str
    kind: Literal["nic", "uplink"]
    level: str
    of: str
    capacity_bytes_per_s: float | None
    predicted_bytes_per_s: float
    measured_bytes_per_s: float | None
    jobs: tuple[JobOnLink, ...]


class Links(msgspec.Struct, frozen=True, kw_only=True):
    """All links: NICs in the topology's order, then the uplinks of each level.

    Attributes:
        predicted: always true: no counter of a switch was read.
        unknown_jobs: jobs over several hosts whose traffic is not known, as they name no model.
    """

    snapshot: int
    predicted: bool
    unknown_jobs: int
    items: tuple[Link, ...]


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the journal, from one beginning of the loop to its end."""

    id: int
    epoch: int
    policy: str
    fallback: str
    engine: str
    mode: str
    version: str
    began_s: float
    ended_s: float | None
    reason: str


class Runs(msgspec.Struct, frozen=True):
    """Runs, newest first. Give `next` as `before` for earlier ones."""

    items: tuple[RunView, ...]
    next: str | None


class PolicyFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on the journal's jobs. Null: nothing to compute it from.

    Attributes:
        policy: "" for what really happened.
    """

    policy: str
    jobs: int
    jct_mean_s: float | None
    jct_p50_s: float | None
    jct_p95_s: float | None
    queueing_mean_s: float | None
    makespan_s: float | None
    gpu_utilization: float | None
    preemptions: int


class ShadowView(msgspec.Struct, frozen=True, kw_only=True):
    """What other policies would have made of the same jobs, by simulation.

    Attributes:
        state: "off": not set up; "running": being computed, what is here is older; "ready"; "failed".
        problem: why there is nothing (new).
        made_s, took_s: when the figures were made, and the seconds it took.
        since_s, until_s: submissions that were looked at.
        figures: what really happened, then each policy's simulation.
        notes: what the comparison assumes.
    """

    state: Literal["off", "running", "ready", "failed"]
    problem: str = ""
    made_s: float | None = None
    took_s: float | None = None
    since_s: float | None = None
    until_s: float | None = None
    figures: tuple[PolicyFigures, ...] = ()
    notes: tuple[str, ...] = ()


class KillSwitch(msgspec.Struct, frozen=True):
    """Whether the kill switch is thrown: nothing is carried out then."""

    thrown: bool
