"""A live cluster as people ask for it, as values. Jobs are called by the engine's ids."""

from __future__ import annotations

from typing import Literal

import msgspec

from hemiola.live.journal import RunRecord, Status
from hemiola.live.query.run_state import Made
from hemiola.core.topology import Topology

__all__ = ["LiveCluster", "Daemon", "LiveHost", "LiveJob"]


class Daemon(msgspec.Struct, frozen=True, kw_only=True):
    """Whether anybody serves this journal.

    Attributes:
        state: "leads"; "silent": its lease is over, and it did not give it back; "stopped": it ended by itself;
            "never": no run was ever written.
        holder: its host and process; "" where nobody is known.
        heard_s: when it last said anything, Unix time; None for never.
        gone: its process is known to have ended.
        why: how its last run ended; "" while it goes on.
    """

    state: Literal["leads", "silent", "stopped", "never"]
    holder: str = ""
    epoch: int = 0
    heard_s: float | None = None
    gone: bool = False
    why: str = ""


class LiveJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as people ask for it.

    Attributes:
        id: the engine's.
        state: "waiting", "held" (may not start for now), "running", "ended".
        hosts: how many it wants; 0 for any.
        where: by name, the hosts where it runs, or ran last, and how many GPUs of each.
        run_s: for how long it has had GPUs, all its spans together.
        span_s: for how long it has run since it last started; 0 unless running.
        waited_s: for how long it has not.
        predicted_s, predicted_iteration_s: run time and iteration time that were predicted on its last placement, alone.
        iteration_s: as it reported it last.
        estimate_s, estimate_from: run time that policies go by, and whose word it is: "user", "limit" or "default".
        reason: why it waits, runs there, or how it ended.
        until_s: when its policy looks at it again, Unix time.
    """

    id: str
    uuid: str
    name: str
    user: str
    model: str
    state: Status
    gpus: int
    hosts: int
    where: tuple[tuple[str, int], ...]
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    run_s: float
    span_s: float
    waited_s: float
    predicted_s: float | None
    predicted_iteration_s: float | None
    iteration_s: float | None
    speed: float | None
    estimate_s: float
    estimate_from: Literal["user", "limit", "default"]
    preemptions: int
    reason: str
    until_s: float | None = None


class LiveHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host and who has its GPUs.

    Attributes:
        rack: its domain of the narrowest level; "" where there is none.
        state: "idle", "mixed", "full", "blocked" (nothing of it is ours), "draining" (once its jobs have left), "down".
        gpus, used, free, blocked: of a host that is down, none is free.
        jobs: GPUs by the job that has them.
        cells: for each GPU its job's id, "" if it is free, "#" if it is not ours.
    """

    name: str
    rack: str
    state: Literal["idle", "mixed", "full", "blocked", "draining", "down"]
    gpus: int
    used: int
    free: int
    blocked: int
    jobs: dict[str, int]
    cells: tuple[str, ...]


class LiveCluster(msgspec.Struct, frozen=True, kw_only=True):
    """All of it.

    Attributes:
        now_s: when it was read.
        as_of_s: when what it says was so: now while a daemon leads, else when it was last heard.
        run: the last one; None if there was none.
        jobs: those that have not ended by submission, then those that were asked for beyond.
        decisions: the last ones, newest last, with jobs by the engine's ids.
    """

    now_s: float
    as_of_s: float
    daemon: Daemon
    run: RunRecord | None
    topology: Topology | None
    jobs: tuple[LiveJob, ...]
    hosts: tuple[LiveHost, ...]
    decisions: tuple[Made, ...]
