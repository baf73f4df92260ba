"""A job of any kind, and what one iteration of it computes and sends.

Nothing here knows where a job runs or how fast: that is `cost`'s answer for a placement.
"""

from __future__ import annotations

import math
import re
import warnings
from bisect import bisect_left
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from hemiola.core.errors import InputError
from hemiola.core.goodput import GoodputModel
from hemiola.core.latency import LatencyProfile, Request
from hemiola.core.resources import ResourceRequest, Roles

__all__ = [
    "Batch", "Configuration", "Demand", "Elastic", "Job", "JobHistory", "Objective", "Pattern", "Profile", "RequestRate", "Service",
    "Submission", "Utility", "Workload", "batch_job", "history_of", "same_type",
]  # fmt: skip

Pattern = Literal["ring", "all-to-all"]

_WORD = r"(?<![^\W_]){}(?![^\W_])"


class Demand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one iteration needs on a given number of GPUs.

    Attributes:
        gpus: number of ranks.
        compute_s: time in which nothing is sent, or behind which sending hides.
        traffic_bytes: bytes that each rank's link carries per iteration and direction
            (a ring all-reduce of S bytes over K ranks carries 2 (K-1)/K S).
    """

    gpus: int
    compute_s: float
    traffic_bytes: float


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model's training iteration computes and sends, by number of GPUs.

    Attributes:
        name: the model, as published.
        demands: at least one `Demand`, by ascending number of GPUs. Between two of them the
            values are interpolated over log2(GPUs); outside them the nearest one holds, except
            that one GPU alone sends nothing.
        overlap: share of `compute_s` behind which communication can hide (o_j = overlap * C_j).
        pattern: "ring" crosses each domain once; "all-to-all" loads a domain's uplink with all
            that its ranks send to the others.
        all_reduced: share of the traffic that all-reduces send, which schedules can fit to unequal links; the rest
            is gathered or scattered (sharded parameters), and nothing is gained there. Of pattern "ring" only.
        checkpoint_s: time to save the job's state before it is stopped.
        restore_s: time to load it again, with start-up.
        gpu_speed: compute speed by GPU type, relative to the type that was measured.
        gpu_type: the type that was measured.
        source: where the numbers come from.
        goodput: how fast it trains at other batches; None where only that with which it was measured is known.
    """

    name: str
    demands: tuple[Demand, ...]
    overlap: float = 0.0
    pattern: Pattern = "ring"
    all_reduced: float = 1.0
    checkpoint_s: float = 0.0
    restore_s: float = 0.0
    gpu_speed: dict[str, float] = {}
    gpu_type: str = ""
    source: str = ""
    goodput: GoodputModel | None = None

    def __post_init__(self) -> None:
        where = f"profile {self.name!r}"
        if not self.demands:
            raise InputError(f"{where} has no demands", "give at least one (gpus, compute_s, traffic_bytes)")
        if [d.gpus for d in self.demands] != sorted({d.gpus for d in self.demands}):
            raise InputError(f"{where}: demands must ascend by gpus, each once", "sort them")
        for demand in self.demands:
            if demand.gpus < 1 or not 0 < demand.compute_s < math.inf:
                raise InputError(f"{where}: {demand} needs gpus >= 1 and compute_s > 0", "measure it again")
            if demand.gpus == 1 and demand.traffic_bytes:
                raise InputError(f"{where}: {demand} sends, but one GPU alone sends nothing", "give it 0")
            if not 0 <= demand.traffic_bytes < math.inf:
                raise InputError(f"{where}: {demand} needs traffic_bytes >= 0", "measure it again")
        if not 0 <= self.overlap <= 1:
            raise InputError(f"{where}: overlap {self.overlap} is not a share", "give a number from 0 to 1")
        if not 0 <= self.all_reduced <= 1:
            raise InputError(
                f"{where}: all_reduced {self.all_reduced} is not a share", "give a number from 0 to 1"
            )
        for kind, speed in self.gpu_speed.items():
            if not 0 < speed < math.inf:
                raise InputError(f"{where}: gpu_speed of {kind!r} is {speed}", "give a factor above 0")
        for field in ("checkpoint_s", "restore_s"):
            if not 0 <= getattr(self, field) < math.inf:
                raise InputError(
                    f"{where}: {field} {getattr(self, field)} is not a duration", "give seconds >= 0"
                )

    def demand(self, gpus: int) -> Demand:
        """What one iteration needs on `gpus` GPUs (interpolated over log2 of their number)."""
        known = self.demands
        i = bisect_left(known, gpus, key=lambda d: d.gpus)
        if i < len(known) and known[i].gpus == gpus:
            return known[i]
        if i == 0 or i == len(known):
            nearest = known[0] if i == 0 else known[-1]
            return Demand(gpus, nearest.compute_s, nearest.traffic_bytes if gpus > 1 else 0.0)
        low, high = known[i - 1], known[i]
        t = math.log2(gpus / low.gpus) / math.log2(high.gpus / low.gpus)
        return Demand(
            gpus,
            low.compute_s + t * (high.compute_s - low.compute_s),
            low.traffic_bytes + t * (high.traffic_bytes - low.traffic_bytes),
        )

    def speed(self, gpu_type: str) -> float:
        """How fast it computes on GPUs of a type, relative to the measured one; 1 where `gpu_speed` does not say."""
        if not gpu_type:
            return 1.0
        speed = self.gpu_speed.get(gpu_type)
        if speed is None:
            name = same_type(gpu_type, tuple(self.gpu_speed))
            speed = self.gpu_speed[name] if name else 1.0
        return speed

    def knows(self, gpu_type: str) -> bool:
        """Whether it says how fast GPUs of this type are, or was measured on them."""
        return any(same_type(gpu_type, names) for names in (tuple(self.gpu_speed), (self.gpu_type,)))


@lru_cache(maxsize=1024)  # policies ask often, of few types
def same_type(gpu_type: str, names: tuple[str, ...]) -> str:
    """The one of these names that means this type of GPU: itself, but for case, or as a word of it; "" if none does.

    Engines write types in ways of their own: "a100" and "NVIDIA-A100-SXM4-80GB" are "A100".
    """
    if gpu_type in names:
        return gpu_type
    folded = gpu_type.casefold()
    alike = [name for name in names if name.casefold() == folded] or [
        name for name in names if name and re.search(_WORD.format(re.escape(name.casefold())), folded)
    ]
    return alike[0] if len(alike) == 1 else ""


class Configuration(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """How an elastic job splits its batch: on so many GPUs, so many samples each, so many times before they add up.

    Attributes:
        gpus: ranks.
        per_gpu_batch: samples that a GPU computes at once.
        accumulation: such steps before gradients are summed and applied.
    """

    gpus: int
    per_gpu_batch: int
    accumulation: int = 1

    @property
    def batch(self) -> int:
        """Samples of one step of the whole job."""
        return self.gpus * self.per_gpu_batch * self.accumulation


class Utility(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A value that falls as time passes: value / (1 + exp(urgency * (d - due))), d seconds after the job's arrival.

    The sigmoid of OASiS and PD-ORS (Bao et al., INFOCOM'18): theta_1, theta_2 and theta_3, in seconds.

    Attributes:
        value: theta_1, what it is worth at once, times 2 where it is due at once.
        urgency_per_s: theta_2; 0 for a job whose time does not matter.
        due_s: theta_3, seconds after its arrival.

    Example:
        >>> Utility(20.0, 1.0, 2.0).at(2.0)
        10.0
    """

    value: float
    urgency_per_s: float = 0.0
    due_s: float = 0.0

    def log_at(self, duration_s: float) -> float:
        """Its logarithm, which is finite where the utility itself underflows."""
        if self.value <= 0.0:
            return -math.inf
        x = self.urgency_per_s * (duration_s - self.due_s)
        return math.log(self.value) - (max(x, 0.0) + math.log1p(math.exp(-abs(x))))

    def at(self, duration_s: float) -> float:
        """What it is worth if it ends so long after its arrival."""
        return math.exp(self.log_at(duration_s)) if self.value > 0.0 else 0.0

    def flaw(self) -> str:
        """What is wrong with it, in words; "" if nothing is."""
        for name in ("value", "urgency_per_s", "due_s"):
            if not 0 <= getattr(self, name) < math.inf:
                return f"its utility has {name} {getattr(self, name)}"
        return ""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """What every kind of job says when it is submitted.

    Attributes:
        id: unique in its workload.
        submit_s: arrival, seconds since the workload's origin.
        gpus: GPUs wanted, all at once (a gang); of a service for each replica.
        profile: what an iteration computes and sends; None runs equally fast everywhere.
        model: the model's name, where the trace gives one.
        user: owner.
        queue: partition or virtual cluster.
        gpu_type: the only type it accepts; "" accepts any.
        required: widest tier it may span ("host", "rack", ...); "" for no limit.
        preferred: tier that is tried first; "" for none.
        pinned: may not be stopped or moved once it runs (of live jobs: their user said so).
        hosts: runs on exactly so many hosts, with equally many GPUs on each; 0 for any.
        estimate_s: run time as declared at submission; None where only the truth is known.
        recorded_start_s: when it really started, where the trace says so.
        recorded_state: how it really ended ("COMPLETED", "FAILED", ...).
        recorded_hosts: the hosts it really ran on.
        resources: what it takes of its hosts beside GPUs (a service each replica); None where nobody says.
        facts: numbers that the trace gives beyond these, by the trace's own column names and in its
            own units (Muri: iterations and iteration_time; Pollux: batch_size).
    """

    id: str
    submit_s: float
    gpus: int
    profile: Profile | None = None
    model: str = ""
    user: str = ""
    queue: str = ""
    gpu_type: str = ""
    required: str = ""
    preferred: str = ""
    hosts: int = 0
    pinned: bool = False
    estimate_s: float | None = None
    recorded_start_s: float | None = None
    recorded_state: str = ""
    recorded_hosts: tuple[str, ...] = ()
    resources: ResourceRequest | None = None
    facts: dict[str, float] = {}


class Batch(Submission, frozen=True, kw_only=True, tag_field="kind", tag="batch"):
    """A job that ends: it trains a model on its GPUs, and has a length.

    Attributes:
        duration_s: run time on its best placement in an otherwise idle cluster, on the GPU type
            its profile was measured on; of workers and parameter servers with all of them on one host.
        utility: what its end is worth; None where nobody says.
    """

    duration_s: float
    utility: Utility | None = None

    @property
    def roles(self) -> Roles | None:
        """Its workers and parameter servers; None for a job whose ranks are all alike."""
        return None if self.resources is None else self.resources.roles

    @property
    def is_elastic(self) -> bool:
        """Whether it may run on more or fewer GPUs than it asked for."""
        return False

    @property
    def _each(self) -> int:
        if self.hosts:
            return max(1, self.gpus // self.hosts)
        return self.roles.gpus_per_worker if self.roles is not None else 1

    @property
    def sizes(self) -> range:
        """The numbers of GPUs that it may have, ascending; the step is what each of its hosts has, where it names them."""
        return range(self.gpus, self.gpus + 1, self._each)

    def sized(self, gpus: int) -> Batch:
        """The same job on another of its `sizes`, of which it keeps the choice."""
        if gpus == self.gpus:
            return self
        return msgspec.structs.replace(self, gpus=gpus, hosts=self.hosts * gpus // self.gpus)

    def flaw(self) -> str:
        """What is wrong with its utility, its roles or the sizes that it may have, in words; "" if nothing is."""
        if self.utility is not None and (flaw := self.utility.flaw()):
            return flaw
        return "" if self.roles is None else self.roles.flaw(self.gpus)


class Elastic(Batch, frozen=True, kw_only=True, tag_field="kind", tag="elastic"):
    """A batch job that may run on more or fewer GPUs than it asked for; who knows nothing of that runs it as any other.

    Attributes:
        gpus_min, gpus_max: runs on as few and as many as these, with the same batch on each GPU unless it is told another
            of its configurations; one that says on how many hosts it runs gives up and gets whole hosts of its kind. 0
            for `gpus`.
        configurations: how it can split its batch; without any, policies leave that to it.
    """

    gpus_min: int = 0
    gpus_max: int = 0
    configurations: tuple[Configuration, ...] = ()

    @property
    def is_elastic(self) -> bool:
        """Whether it may run on more or fewer GPUs than it asked for."""
        return True

    @property
    def sizes(self) -> range:
        """The numbers of GPUs that it may have, ascending."""
        return range(self.gpus_min or self.gpus, (self.gpus_max or self.gpus) + 1, self._each)

    def sized(self, gpus: int) -> Elastic:
        """The same job on another of its `sizes`, of which it keeps the choice."""
        if gpus == self.gpus:
            return self
        sizes = self.sizes
        return msgspec.structs.replace(
            self, gpus=gpus, hosts=self.hosts * gpus // self.gpus, gpus_min=sizes[0], gpus_max=sizes[-1]
        )

    def flaw(self) -> str:
        """What is wrong with its utility, its roles or the sizes that it may have, in words; "" if nothing is."""
        if flaw := Batch.flaw(self):
            return flaw
        if self.roles is not None and (flaw := self.roles.flaw(self.gpus_min or self.gpus)):
            return flaw
        least, most = self.gpus_min or self.gpus, self.gpus_max or self.gpus
        if not 1 <= least <= self.gpus <= most:
            return f"gpus_min to gpus_max is {least} to {most}, which does not hold its {self.gpus} GPUs"
        if self.hosts and any(size * self.hosts % self.gpus for size in (least, most)):
            each = self.gpus // self.hosts
            return f"gpus_min to gpus_max is {least} to {most}, on whole hosts with {each} GPUs each"
        for one in self.configurations:
            if one.gpus not in self.sizes or one.per_gpu_batch < 1 or one.accumulation < 1:
                return f"{one} is for a size that it cannot have, or splits no batch"
        return ""


class RequestRate(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """So many requests arrive per second, from then until the next rate holds."""

    since_s: float
    requests_per_s: float


class Objective(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """That share of a service's requests is to be answered within that time.

    Attributes:
        first_token_s, per_token_s: of a language model, also to the first token, and from one to the next in the mean; None
            where only the whole answer counts.
    """

    latency_s: float
    share: float = 0.99
    first_token_s: float | None = None
    per_token_s: float | None = None


class Service(Submission, frozen=True, kw_only=True, tag_field="kind", tag="service"):
    """Answers requests for as long as anybody sends some: it has no length. `gpus` is what one replica has.

    Attributes:
        arrivals: rates of requests by ascending time; none arrive before the first.
        objective: what its users were promised.
        replicas_min, replicas_max: runs on as few and as many as these; 0 as long as nobody asks.
        cold_start_s: from a replica's start until it takes requests.
        latency: how long a replica takes; None where nobody knows, and then nothing can be simulated.
        requests: single requests by ascending time, in place of `arrivals`.
        burst_cv, burst_s: requests come in bursts: every `burst_s` seconds the rate is drawn anew, with this coefficient of
            variation. Of `arrivals` only.
        timeout_s: a request that has waited so long is refused.
        cold_start_spread: cold starts are log-normal with that standard deviation of the logarithm; 0 for all equal.
        replica_life_s: a replica that takes requests ends by itself after so long in the mean; None for never, 0 for at
            once (it crashes again and again).
    """

    objective: Objective
    arrivals: tuple[RequestRate, ...] = ()
    replicas_min: int = 0
    replicas_max: int = 1
    cold_start_s: float = 0.0
    latency: LatencyProfile | None = None
    requests: tuple[Request, ...] = ()
    burst_cv: float = 0.0
    burst_s: float = 5.0
    timeout_s: float = 60.0
    cold_start_spread: float = 0.0
    replica_life_s: float | None = None

    @property
    def settled_s(self) -> float:
        """From when on nothing about its requests changes any more: the last rate's begin, or the last request."""
        if self.requests:
            return max(self.submit_s, self.requests[-1].time_s)
        return max(self.submit_s, self.arrivals[-1].since_s) if self.arrivals else self.submit_s

    def flaw(self) -> str:
        """What is wrong with it, in words; "" if nothing is."""
        if self.gpus < 1:
            return f"it wants {self.gpus} GPUs for a replica"
        if self.latency is not None and (flaw := self.latency.flaw()):
            return flaw
        if self.requests and self.arrivals:
            return "it has both requests and rates of arrivals"
        if any(then.time_s > now.time_s for then, now in pairwise(self.requests)):
            return "its requests do not ascend by time_s"
        if not (0 <= self.burst_cv < 10 and self.burst_s > 0 and self.timeout_s > 0):
            return "burst_cv must be 0 or more and below 10, burst_s and timeout_s above 0"
        if not (0 <= self.cold_start_spread < 5 and (self.replica_life_s or 0) >= 0):
            return "cold_start_spread must be 0 or more and below 5, replica_life_s 0 or more"
        if not 0 <= self.replicas_min <= self.replicas_max or not self.replicas_max:
            return f"it is to run on {self.replicas_min} to {self.replicas_max} replicas"
        if not (0 < self.objective.latency_s < math.inf and 0 < self.objective.share <= 1):
            return (
                f"its {self.objective} is none: the latency must be above 0, the share above 0 and at most 1"
            )
        if not 0 <= self.cold_start_s < math.inf:
            return f"its cold_start_s is {self.cold_start_s}, which is no duration"
        times = [rate.since_s for rate in self.arrivals]
        if times != sorted(set(times)) or not all(math.isfinite(since_s) for since_s in times):
            return "its arrivals do not ascend by since_s, each once"
        if not all(0 <= rate.requests_per_s < math.inf for rate in self.arrivals):
            return "one of its arrivals is no rate: requests_per_s must be 0 or more"
        return ""


def batch_job(
    *, gpus_min: int = 0, gpus_max: int = 0, configurations: tuple[Configuration, ...] = (), **facts: Any
) -> Batch:
    """A job that ends: an `Elastic` one if it names sizes, else a `Batch` one; `facts` are the fields of either."""
    if gpus_min or gpus_max or configurations:
        return Elastic(gpus_min=gpus_min, gpus_max=gpus_max, configurations=configurations, **facts)
    return Batch(**facts)


class _EveryKind(type):
    """Of `Job`: whatever is of one of the kinds is one; and what `Job(...)` made when there was but one kind, it makes still."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Batch | Service)

    def __call__(cls, **facts: Any) -> Batch:
        warnings.warn(
            "hemiola.Job(...) is now hemiola.batch_job(...), which makes a Batch or an Elastic; the old name works until the "
            "next release",
            DeprecationWarning,
            stacklevel=2,
        )
        return batch_job(**facts)


if TYPE_CHECKING:
    Job = Batch | Elastic | Service
    """Every kind of job. Who can do with those that end alone says `Batch`, which an `Elastic` one is, too."""
else:

    class Job(metaclass=_EveryKind):
        """Every kind of job: `Batch | Elastic | Service` (values to decode spell it out)."""


class JobHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What a job has had up to some time; whatever tells of a job's past derives from it, and passes it on by `history_of`.

    A fact that is added has a default: files of before have none of it.

    Attributes:
        done_s: of its work, what was done, in seconds at ideal speed.
        served_s, queued_s, withheld_s: seconds with GPUs, waiting, and held.
        preemptions, migrations: how often it was stopped, and moved.
    """

    done_s: float = 0.0
    served_s: float = 0.0
    queued_s: float = 0.0
    withheld_s: float = 0.0
    preemptions: int = 0
    migrations: int = 0


def history_of(row: JobHistory) -> dict[str, Any]:
    """Its facts by name, to be given to another value that derives from `JobHistory`."""
    return {name: getattr(row, name) for name in JobHistory.__struct_fields__}


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs in order of arrival, and where they came from.

    Attributes:
        jobs: those that end, by ascending `submit_s`, ties in the order of the file.
        services: those that do not, in the same order.
        name: what to call it in a report.
        format: the reader that took it ("philly-csv", "slurm", "generated", ...).
        why: how the format was recognised, in words.
        skipped: rows left out, by reason.
        notes: what the reader assumed (units, origin of time, states kept).
    """

    jobs: tuple[Batch, ...]
    services: tuple[Service, ...] = ()
    name: str = ""
    format: str = ""
    why: str = ""
    skipped: dict[str, int] = {}
    notes: tuple[str, ...] = ()
