"""What a policy sees of one job, or of one service. Written by the state machine alone."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from hemiola.core.decisions import Placement
from hemiola.core.events import Load
from hemiola.core.job import Batch, Configuration, JobHistory, Service, history_of
from hemiola.core.resources import ResourceRequest

__all__ = ["ENDED", "HELD", "RUNNING", "WAITING", "JobState", "ServiceState"]

WAITING, RUNNING, ENDED, HELD = 0, 1, 2, 3


class JobState(msgspec.Struct, eq=False, gc=False):
    """One job as it stands now.

    Attributes:
        job: what was submitted; of an elastic job that runs, at the size it has.
        id, index, gpus, submit_s: from the job; `index` is its order of arrival.
        asked_gpus: GPUs that were submitted for, for which `work_s` holds.
        elastic: whether it may run on more or fewer.
        status: WAITING, RUNNING, ENDED or HELD (may not start for now).
        since_s: since when it has that status.
        placement: where it runs; None unless RUNNING.
        tier: narrowest tier that holds its placement; -1 unless RUNNING.
        work_s: run time on its best placement, alone (`Batch.duration_s`).
        done_s: of it, what is done as of `settled_s`.
        speed: work done per second at present.
        resume_s: until then it saves or loads and makes no progress.
        finish_s: when it will end at its present speed.
        served_s: seconds it has held GPUs before its present span.
        other_gpu_s: GPU-seconds of that beyond `gpus * served_s`, held at other sizes.
        queued_s: seconds it waited before its present wait.
        withheld_s: seconds it was held before it last was not: its user waited, but no policy let it wait.
        wait_s: length of its last wait that ended.
        preemptions, migrations: how often; stopped and started by one decision is a migration.
        stopped_in: the state machine's count of instants when a policy last stopped it.
        narrowest: narrowest tier that could ever hold it.
        widest: widest tier it may span (its `required` constraint).
        preferred: tier to try first.
        pools: GPU pools it accepts, in order.
        shape: a number for all that decides whether it fits: jobs of equal shape fit or fail alike.
        mark: an order's own note on the job (Tiresias: service at its last promotion).
        wake_s: when an order's own timer about the job is due; earlier ones are out of date.
        note: a policy's own note on the job (Dally: its delay).
        claim: what it takes of its hosts beside GPUs; None for nothing that is known.
        shunned: (host, how often) the engine would not start it there since it ran last, the most often last: it is put
            there again where no others have room.
        configuration: how it splits its batch while it runs; None where it decides that by itself.
        gradient_noise_scale: as last measured; None where it never was.
        declined: why a policy that chooses among jobs would not take it, with payoff and price (the policy writes it); "" if none.
    """

    job: Batch
    id: str
    index: int
    gpus: int
    submit_s: float
    work_s: float
    since_s: float
    settled_s: float
    resume_s: float
    narrowest: int
    widest: int
    preferred: int
    pools: tuple[Any, ...]
    shape: int
    status: int = WAITING
    placement: Placement | None = None
    tier: int = -1
    done_s: float = 0.0
    speed: float = 0.0
    finish_s: float = math.inf
    served_s: float = 0.0
    queued_s: float = 0.0
    withheld_s: float = 0.0
    wait_s: float = 0.0
    stopped_in: int = -1
    preemptions: int = 0
    migrations: int = 0
    mark: float = 0.0
    wake_s: float = 0.0
    note: Any = None
    asked_gpus: int = 0
    elastic: bool = False
    other_gpu_s: float = 0.0
    claim: ResourceRequest | None = None
    shunned: tuple[tuple[int, int], ...] = ()
    configuration: Configuration | None = None
    gradient_noise_scale: float | None = None
    declined: str = ""

    def done_at(self, now: float) -> float:
        """Work done by `now`, in seconds at ideal speed."""
        if self.status != RUNNING:
            return self.done_s
        since = self.resume_s if self.resume_s > self.settled_s else self.settled_s
        return self.done_s + (now - since) * self.speed if now > since else self.done_s

    def history(self, now: float) -> JobHistory:
        """What it has had before its present status, and what it has done by `now`."""
        return JobHistory(
            done_s=self.done_at(now), served_s=self.served_s, queued_s=self.queued_s, withheld_s=self.withheld_s,
            preemptions=self.preemptions, migrations=self.migrations,
        )  # fmt: skip

    def remember(self, history: JobHistory) -> None:
        """Take over what it has had elsewhere."""
        for name, value in history_of(history).items():
            setattr(self, name, value)

    def remaining_s(self, now: float) -> float:
        """Work left at `now`, in seconds at ideal speed."""
        left = self.work_s - self.done_s
        if self.status == RUNNING:
            since = self.resume_s if self.resume_s > self.settled_s else self.settled_s
            if now > since:
                left -= (now - since) * self.speed
        return left if left > 0.0 else 0.0

    def held_s(self, now: float) -> float:
        """Seconds it has held GPUs by `now`."""
        return self.served_s + (now - self.since_s if self.status == RUNNING else 0.0)

    def service_gpu_s(self, now: float) -> float:
        """Attained service: GPUs times seconds held (Tiresias, section 3.1)."""
        if self.status == RUNNING:
            return self.gpus * (self.served_s + now - self.since_s) + self.other_gpu_s
        return self.gpus * self.served_s + self.other_gpu_s

    def waited_s(self, now: float) -> float:
        """Seconds without GPUs since arrival."""
        return self.queued_s + (now - self.since_s if self.status == WAITING else 0.0)


class ServiceState(msgspec.Struct, eq=False):
    """One service as it stands now.

    Attributes:
        replicas: where each runs, and whether it takes requests yet; in the order in which they were started.
        load: what it had to do last; None before the first word of it.
        losses, lost_s: how often a replica was lost, and when last.
    """

    service: Service
    replicas: dict[Placement, bool] = msgspec.field(default_factory=dict)
    load: Load | None = None
    losses: int = 0
    lost_s: float = -math.inf

    def key(self, place: Placement) -> str:
        """Under which one of its replicas has what it has beside GPUs."""
        return f"replica of {self.service.id} at {place}"

    @property
    def ready(self) -> int:
        """Replicas that take requests."""
        return sum(self.replicas.values())
