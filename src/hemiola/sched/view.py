"""What a policy sees of the cluster: read-only, built once, updated in place by the state machine.

A policy's `decide` is usually a generator: each decision it yields is carried out before the
generator goes on, so the view is always current. Reading costs nothing; nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol

from hemiola.core.decisions import Placement
from hemiola.core.errors import InputError, PolicyError
from hemiola.core.events import LinkFeedback
from hemiola.core.job import Configuration
from hemiola.core.resources import ResourceRequest
from hemiola.core.topology import Topology
from hemiola.core.virtual_cluster import Loan, VirtualCluster
from hemiola.sched.index import Index
from hemiola.sched.inventory import Inventory
from hemiola.sched.job_state import JobState, ServiceState
from hemiola.sched.queues import Order, Queue
from hemiola.sched.reach import Reaches

__all__ = ["ClusterView", "Estimates", "Index", "IndexSpec"]


class Estimates(Protocol):
    """What the cost model tells a policy about a job."""

    def slowdown(self, job: JobState, tier: int) -> float:
        """Iteration time at this tier over that at the job's narrowest tier: s_j(tier), at least 1."""

    def switch_s(self, job: JobState) -> float:
        """Time to save and load the job once: what a pre-emption costs it."""

    def demand(self, job: JobState) -> tuple[float, float, float]:
        """(compute_s, traffic_bytes, hidden_s) of one iteration on the job's GPUs."""

    def speed_at(self, job: JobState, gpus: int) -> float:
        """Work per second of a job on its best place of so many GPUs; 1 at the size it asked for, where it was recorded."""

    def goodput(
        self, job: JobState, gpus: int, tier: int, gpu_type: str = ""
    ) -> tuple[float, Configuration | None]:
        """(work per second of a job alone on so many GPUs of a type within this tier, how it splits its batch for that).

        None where it cannot be told how, or has no model of other batches: each GPU then keeps its batch. 0 where it
        cannot run so.
        """


class IndexSpec(Protocol):
    """A value that says which index a policy needs; the view builds it once."""

    def build(self, view: ClusterView) -> Index:
        """An empty index; every job is then entered."""


class ClusterView:
    """The cluster as it stands.

    Attributes:
        now: seconds of the workload.
        topology: hosts, racks, links.
        inventory: free GPUs, by host and wider.
        jobs: every job that ever arrived, by id.
        waiting, running: jobs by id, in the order in which they got that status.
        estimates: what the cost model knows of each job.
        reaches: where jobs of a kind could ever run.
        timers: jobs whose `WakeAt` is due at this moment.
        returned: jobs that a failing host or the engine itself put into the queue, or onto GPUs, at this moment, those that
            were held and are released among them.
        sizes: how many jobs wait, by the GPUs they want.
        wanted_gpus: GPUs that all waiting jobs want together.
        ended, ended_work_s: how many jobs finished, and their work in sum.
        failed: how many ended otherwise.
        services: every service that is there, by id.
        clusters: virtual clusters by name; none where the cluster is one.
        loans: by host, whom it is lent to.
        feedback: by link, what the network said of it last.
        cannot: kinds of decision that were refused because the engine has no way to carry them out, with why: asking
            again is of no use.
    """

    def __init__(
        self,
        topology: Topology,
        estimates: Estimates,
        now: float = 0.0,
        *,
        clusters: Iterable[VirtualCluster] = (),
    ) -> None:
        self.now = now
        self.topology = topology
        self.inventory = Inventory(topology)
        self.jobs: dict[str, JobState] = {}
        self.waiting: dict[str, JobState] = {}
        self.running: dict[str, JobState] = {}
        self.estimates = estimates
        self.reaches = Reaches(topology, self.inventory)
        self.timers: list[JobState] = []
        self.returned: list[JobState] = []
        self.indexes: dict[Any, Any] = {}
        self._asked: Order | None = None  # the last order asked for: most policies have but one
        self._answer: Queue
        self.hopeless: dict[Any, bool] = {}
        self.sizes: dict[int, int] = {}
        self.wanted_gpus = 0
        self.ended = 0
        self.ended_work_s = 0.0
        self.failed = 0
        self.cannot: dict[type, str] = {}
        self.services: dict[str, ServiceState] = {}
        self.clusters = _by_name(clusters, len(topology.hosts))
        self.loans: dict[int, Loan] = {}
        self.feedback: dict[int, LinkFeedback] = {}

    @property
    def free(self) -> int:
        """Free GPUs."""
        return self.inventory.free

    @cached_property
    def empty(self) -> Inventory:
        """The cluster as it would be with nothing running, every host up, and all GPUs ours."""
        return Inventory(self.topology)

    @property
    def mean_work_s(self) -> float:
        """Mean work of the jobs that finished so far; 0 before the first."""
        return self.ended_work_s / self.ended if self.ended else 0.0

    def job(self, job_id: str) -> JobState:
        """A job by its id."""
        if job_id not in self.jobs:
            raise PolicyError(f"no job is called {job_id!r}", "use the ids of view.jobs")
        return self.jobs[job_id]

    def sizes_of(self, job: JobState) -> tuple[int, ...]:
        """The numbers of GPUs that a job may have and could have here, ascending; one for most jobs."""
        return self.reaches.sizes(job) if job.elastic else (job.gpus,)

    def at_size(self, job: JobState, gpus: int) -> JobState:
        """A copy of an elastic job as it would be with so many GPUs, to find a place for."""
        sized = self.reaches.at(job, gpus)
        if isinstance(sized, str):
            raise PolicyError(
                f"job {job.id!r} cannot have {gpus} GPUs: {sized}", "choose one of `view.sizes_of(job)`"
            )
        return sized

    def queue(self, order: Order) -> Queue:
        """The jobs in this order; kept up to date from the first call on."""
        if order is self._asked:
            return self._answer
        queue = self.indexes.get(order)
        if queue is None:
            queue = self.indexes[order] = Queue(order, self.inventory, self.running)
            self._enter_all(queue)
        self._asked, self._answer = order, queue
        return self._answer

    def index(self, spec: IndexSpec) -> Any:
        """A policy's own index, built by its spec (a hashable value) at the first call."""
        index = self.indexes.get(spec)
        if index is None:
            index = self.indexes[spec] = spec.build(self)
            self._enter_all(index)
        return index

    def _enter_all(self, index: Index) -> None:
        for job in self.jobs.values():
            index.enter(job, self.now)

    @contextmanager
    def supposing(self) -> Iterator[Supposition]:
        """Ask what would fit if some running jobs were gone; all is put back at the end."""
        trial = Supposition(self.inventory)
        try:
            yield trial
        finally:
            trial.undo()


def _by_name(clusters: Iterable[VirtualCluster], hosts: int) -> dict[str, VirtualCluster]:
    named: dict[str, VirtualCluster] = {}
    owner: dict[int, str] = {}
    for cluster in clusters:
        if cluster.name in named:
            raise InputError(
                f"two virtual clusters are called {cluster.name!r}", "give each a name of its own"
            )
        named[cluster.name] = cluster
        for host in cluster.hosts:
            if not 0 <= host < hosts:
                raise InputError(
                    f"virtual cluster {cluster.name!r}: there is no host {host}", "name its hosts"
                )
            if owner.setdefault(host, cluster.name) != cluster.name:
                raise InputError(
                    f"host {host} belongs to {owner[host]!r} and {cluster.name!r}", "give it to one"
                )
    return named


class Supposition:
    """GPUs taken as free or as occupied for the moment.

    Attributes:
        gone: the running jobs supposed to be stopped.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._before = inventory.releases, inventory.released_gpus
        self._undo: list[tuple[Callable[[Placement], None], Placement]] = []
        self._moved_in: list[str] = []
        self._given_up: list[tuple[str, ResourceRequest | None, Placement]] = []
        self.gone: list[JobState] = []

    def without(self, jobs: Iterable[JobState]) -> None:
        """Suppose that these running jobs were stopped; what is owed of their GPUs is blocked, as it would be."""
        inventory = self._inventory
        for job in jobs:
            assert job.placement is not None
            take = inventory.retake if inventory.owed else inventory.take
            inventory.release(job.placement)
            if job.claim is not None:
                inventory.spare.give(job.id)
            self._undo.append((take, job.placement))
            self.gone.append(job)

    def release(self, placement: Placement, key: str, claim: ResourceRequest | None) -> None:
        """Suppose that who has these GPUs gave them back, with what it has beside them under this key."""
        inventory = self._inventory
        take = inventory.retake if inventory.owed else inventory.take
        inventory.release(placement)
        self._undo.append((take, placement))
        inventory.spare.give(key)
        self._given_up.append((key, claim, placement))

    def occupy(self, placement: Placement, job: JobState | None = None) -> None:
        """Suppose that these GPUs were taken; by this job, with what it takes beside them."""
        self.take(placement, None if job is None else job.claim)

    def take(self, placement: Placement, claim: ResourceRequest | None) -> None:
        """Suppose that somebody took these GPUs, and so much beside them."""
        self._inventory.take(placement)
        self._undo.append((self._inventory.release, placement))
        if claim is not None:
            self._moved_in.append(f"{len(self._moved_in)} of {id(self)}")
            self._inventory.spare.take(self._moved_in[-1], claim, placement)

    def undo(self) -> None:
        """Put everything back."""
        while self._undo:
            back, placement = self._undo.pop()
            back(placement)
        for job in self.gone:
            assert job.placement is not None
            self._inventory.spare.take(job.id, job.claim, job.placement)
        for gone in self._given_up:
            self._inventory.spare.take(*gone)
        for key in self._moved_in:
            self._inventory.spare.give(key)
        self.gone, self._moved_in, self._given_up = [], [], []
        self._inventory.releases, self._inventory.released_gpus = self._before
