"""One cluster, two virtual ones: services scale in theirs, jobs train in theirs, and each lends the other idle hosts.

In the style of FaPES (SoCC'24, whose body is not at hand) and Lyra (EuroSys'23). Whenever something happened:

1. Each service's autoscaler says how many replicas it wants. Those too many end, on borrowed hosts first, then on the hosts
   that are emptied soonest.
2. What has no room gets own hosts back that are on loan: idle ones, then those where jobs only shrink, then those whose jobs
   lose least. If that is not enough, it borrows: idle hosts of training, then hosts taken from its jobs in the same order.
3. Replicas start. A service whose replicas crash waits twice as long each time before it starts another.
4. Borrowed hosts that serve nobody go home. Idle hosts are lent while training has a use for them and the prediction board
   says that they are hardly wanted back soon.
5. The training policy decides about the hosts that training has now; it sees no others.

Inference goes first, on at most a share of training's hosts. What this knows of the past stands in an index of the view, so
that policies stay values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hemiola.core.decisions import Decision, Lend, Placement, Reclaim, Resize, Scale, Stop, WakeAt
from hemiola.core.errors import PolicyError
from hemiola.core.job import Service
from hemiola.core.virtual_cluster import VirtualCluster, cluster_of
from hemiola.sched.autoscaling import Autoscaler, ServicePast, autoscaler_from_text
from hemiola.sched.board import Board
from hemiola.sched.index import Index
from hemiola.sched.inventory import pick
from hemiola.sched.job_state import JobState
from hemiola.sched.reclaim import Cost, reclaim_greedily
from hemiola.sched.service_state import ServiceState
from hemiola.sched.view import ClusterView

__all__ = ["LoanRules", "beside_services", "shared_decisions"]

BACK_OFF_S, MOST_BACK_OFF_S = 10.0, 300.0
"""A service whose replica crashed waits so long before it starts another, twice as long each time (as Kubernetes does)."""
NEW_S = 300.0
"""A service that nobody has asked anything yet keeps all its replicas for so long."""
CALM_S = 600.0
"""Without a crash for so long, the next one counts as the first."""


@dataclass(frozen=True)
class LoanRules:
    """Who lends whom what.

    Attributes:
        to_training, to_inference: whether hosts are lent so.
        risk: a host is lent to training if it is wanted back within `ahead_s` with at most this probability.
        ahead_s: one of `sched.board.HORIZONS_S`.
        most: share of training's hosts that inference may have.
        reclaim_s: until when a recalled host is to be back; what runs there then is stopped.
        protect_s: nothing is lent so soon after a host had to be taken back.
        cost: of stopping jobs; None for the work that they lose.
    """

    to_training: bool = True
    to_inference: bool = True
    risk: float = 0.2
    ahead_s: float = 900.0
    most: float = 0.5
    reclaim_s: float = 30.0
    protect_s: float = 120.0
    cost: Cost | None = None


class KnownService(msgspec.Struct, eq=False):
    """What is remembered of one service.

    Attributes:
        want: replicas that it should have; before the first word of its load all that it may have.
        losses: that were known when it last waited after one.
        wait_s: how long it waits after the next crash; `until_s`: until when it waits now.
    """

    past: ServicePast
    board: Board
    want: int = 0
    losses: int = 0
    wait_s: float = BACK_OFF_S
    until_s: float = -math.inf
    lost_s: float = -math.inf


class SharedPast(Index):
    """What the rules above remember of a view.

    Attributes:
        served: by service.
        names: the virtual clusters of services and of jobs, once both are known.
        trained: what the training policy saw last; it is not asked again before that changes.
        wake_s: when it is to be asked in any case.
        taken_s: when a host was last taken back.
        hidden: hosts that it did not see.
    """

    tracks = False

    def __init__(self) -> None:
        self.served: dict[str, KnownService] = {}
        self.names: tuple[str, str] | None = None
        self.trained: tuple[Any, ...] = ()
        self.taken_s = -math.inf
        self.wake_s = math.inf
        self.hidden: Set[int] = frozenset()

    def enter(self, job: JobState, now: float) -> None:
        """Of no interest here."""

    def leave(self, job: JobState) -> None:
        """Of no interest here."""

    def refresh(self, job: JobState, now: float) -> None:
        """Of no interest here."""


@dataclass(frozen=True)
class SharedPastOf:
    """Says that a policy needs a `SharedPast`."""

    def build(self, view: ClusterView) -> SharedPast:
        """An empty one."""
        return SharedPast()


PAST = SharedPastOf()


Training = Callable[[ClusterView], Iterable[Decision]]
"""What decides about training's hosts."""


def shared_decisions(
    view: ClusterView, training: Training, autoscaler: Autoscaler, rules: LoanRules
) -> Iterator[Decision]:
    """The steps of the module's head, in order.

    Raises:
        PolicyError: there are not two virtual clusters, one for all services and one for all jobs.
    """
    memory: SharedPast = view.index(PAST)
    if not view.services:
        yield from _train(view, memory, training)
        return
    here = _Inference(view, memory, rules)
    if here.listen(autoscaler):
        yield from here.shrink()
        yield from here.make_room()
        yield from here.grow()
        yield from here.lend()
    yield from _train(view, memory, training)


NO_LOANS = LoanRules(to_training=False, to_inference=False)


def beside_services(view: ClusterView, training: Training, autoscaler: str) -> Iterator[Decision]:
    """Services and jobs each on the hosts of their own virtual cluster."""
    return shared_decisions(view, training, autoscaler_from_text(autoscaler), NO_LOANS)


def _train(view: ClusterView, memory: SharedPast, training: Training) -> Iterator[Decision]:
    """Let the training policy decide about training's hosts, if anything changed there."""
    hidden = _not_training(view, memory)
    inventory = view.inventory
    if memory.hidden - hidden:  # what did not fit may fit now
        inventory.releases += 1
        inventory.released_gpus += sum(inventory.counts[host] for host in memory.hidden - hidden)
    memory.hidden = hidden
    state = inventory.releases, len(view.jobs), len(view.waiting), view.ended
    if state == memory.trained and not view.timers and not view.returned and view.now < memory.wake_s:
        return
    memory.wake_s = math.inf if view.now >= memory.wake_s else memory.wake_s
    with inventory.hiding(hidden):
        for decision in training(view):
            yield decision
            if isinstance(decision, WakeAt) and not decision.job_id:
                memory.wake_s = min(memory.wake_s, decision.time_s)
    memory.trained = inventory.releases, len(view.jobs), len(view.waiting), view.ended


def _not_training(view: ClusterView, memory: SharedPast) -> Set[int]:
    """Hosts that training has not: all that are not its own, but for loans to it; its own that are lent, or wanted back."""
    if not view.clusters:
        return frozenset()
    _, name = _names(view, memory)
    own = set(view.clusters[name].hosts)
    for host, loan in view.loans.items():
        if loan.borrower == name and not loan.recalled:
            own.add(host)
        else:
            own.discard(host)
    return frozenset(range(len(view.inventory.masks))) - own


def _names(view: ClusterView, memory: SharedPast) -> tuple[str, str]:
    """The virtual clusters of services and of jobs."""
    if memory.names is None:
        services = {cluster_of(state.service, view.clusters) for state in view.services.values()}
        jobs = {cluster_of(job.job, view.clusters) for job in view.jobs.values()} or {"training"}
        services = services or view.clusters.keys() - jobs
        wrong = (services | jobs) - view.clusters.keys()
        if wrong or len(services) != 1 or len(jobs) != 1 or services == jobs:
            raise PolicyError(
                f"services are of {', '.join(sorted(services))}, jobs of {', '.join(sorted(jobs))}; virtual clusters are "
                f"{', '.join(view.clusters) or 'none'}",
                "give one virtual cluster for services and one for jobs, as the scenario's [clusters]",
            )
        found = services.pop(), jobs.pop()
        if not view.jobs:
            return found
        memory.names = found
    return memory.names


@dataclass
class _Inference:
    """The services' part, at one instant.

    Attributes:
        own, borrowed: hosts that it may use: of its own those that are not lent, and those that are lent to it.
    """

    view: ClusterView
    memory: SharedPast
    rules: LoanRules
    own: list[int] = field(default_factory=list)
    borrowed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name, self.training = _names(self.view, self.memory)
        self.cluster: VirtualCluster = self.view.clusters[self.name]
        self.look()

    def look(self) -> None:
        """Which hosts there are now."""
        loans, down = self.view.loans, self.view.inventory.down
        self.own = [host for host in self.cluster.hosts if host not in loans and not down[host]]
        self.borrowed = [
            h for h, loan in loans.items() if loan.borrower == self.name and not loan.recalled and not down[h]
        ]

    # ---- 1. what is wanted

    def listen(self, autoscaler: Autoscaler) -> bool:
        """Take note of new loads and losses; whether there is anything to do."""
        changed = False
        for state in self.view.services.values():
            served = self.memory.served.get(state.service.id)
            if served is None:
                past = ServicePast(state.service)
                served = self.memory.served[state.service.id] = KnownService(past, Board(past))
                served.want, changed = self._at_first(state.service), True
            load = state.load
            if load is not None and load.time_s > served.past.now:
                served.past.add(load, len(state.replicas), state.ready)
                served.board.look()
                service = state.service
                if not served.past.is_new(NEW_S):
                    served.want = min(
                        max(autoscaler.replicas(served.past), service.replicas_min), service.replicas_max
                    )
                changed = True
            changed |= self._back_off(state, served)
        return changed or any(loan.recalled for loan in self.view.loans.values())

    def _at_first(self, service: Service) -> int:
        """Replicas before anything is known of the load: all that there may be on its own hosts."""
        gpus = sum(self.view.inventory.all_masks[host].bit_count() for host in self.cluster.hosts)
        return max(service.replicas_min, min(service.replicas_max, gpus // service.gpus))

    def _back_off(self, state: ServiceState, served: KnownService) -> bool:
        """After a crash wait before the next start, twice as long each time."""
        if state.losses == served.losses:
            return False
        if state.lost_s - served.lost_s > CALM_S:
            served.wait_s = BACK_OFF_S
        served.losses, served.lost_s = state.losses, state.lost_s
        served.until_s = state.lost_s + served.wait_s
        served.wait_s = min(2 * served.wait_s, MOST_BACK_OFF_S)
        return True

    def shrink(self) -> Iterator[Decision]:
        """End the replicas that are too many."""
        for state in self.view.services.values():
            want = self.memory.served[state.service.id].want
            excess = len(state.replicas) - want
            if excess > 0:
                leaving = sorted(state.replicas, key=lambda place: self._ends_first(state, place))[:excess]
                kept = tuple(place for place in state.replicas if place not in leaving)
                yield Scale(state.service.id, kept, f"{want} replicas are enough for its load")

    def _ends_first(self, state: ServiceState, place: Placement) -> tuple[bool, bool, int, int]:
        """Borrowed hosts first, then replicas that only start, then the emptiest host."""
        host = place.hosts[0]
        return host not in self.borrowed, state.replicas[place], -self.view.inventory.counts[host], -host

    # ---- 2. room

    def make_room(self) -> Iterator[Decision]:
        """Take hosts back, or borrow them, for the replicas that have none."""
        yield from self._enforce()
        hosts = self._lacking()
        if hosts <= 0:
            return
        lent = [h for h, loan in self.view.loans.items() if loan.lender == self.name and not loan.recalled]
        if lent:
            for host in self._cheapest(lent, hosts):
                yield from self._take_back(host)
            self.look()
            hosts = self._lacking()
        if hosts > 0 and self.rules.to_inference and not lent:
            yield from self._borrow(hosts)
            self.look()

    def _lacking(self) -> int:
        """Whole hosts for the replicas that are wanted and have no room."""
        room = {host: self.view.inventory.counts[host] for host in (*self.own, *self.borrowed)}
        gpus = 0
        for state in self._in_need():
            short = self.memory.served[state.service.id].want - len(state.replicas)
            for host, free in room.items():
                fits = min(short, free // state.service.gpus)
                room[host] -= fits * state.service.gpus
                short -= fits
            gpus += short * state.service.gpus
        largest = max(
            (self.view.inventory.all_masks[host].bit_count() for host in self.cluster.hosts), default=1
        )
        return math.ceil(gpus / largest)

    def _in_need(self) -> list[ServiceState]:
        """Services that want more replicas, and may start some; those furthest from their objective first."""
        now, served = self.view.now, self.memory.served
        short = [
            state for state in self.view.services.values()
            if served[state.service.id].want > len(state.replicas) and served[state.service.id].until_s <= now
        ]  # fmt: skip
        return sorted(short, key=_pressure, reverse=True)

    def _cheapest(self, hosts: list[int], count: int) -> list[int]:
        """Which of these hosts are emptied at the least cost."""
        jobs_on = {host: frozenset(job.id for job in self._jobs_on(host)) for host in hosts}
        keeping = {
            host: {job.id for job in self._jobs_on(host) if self._kept(job, host) is not None}
            for host in hosts
        }
        stopping = {host: jobs - keeping[host] for host, jobs in jobs_on.items()}
        only_shrink = {host for host in hosts if jobs_on[host] and not stopping[host]}
        cost = self.rules.cost or (lambda jobs, _: sum(self._lost_gpu_s(job) for job in sorted(jobs)))
        taken, _ = reclaim_greedily(stopping, count, cost, shrinking=only_shrink)
        return taken

    def _lost_gpu_s(self, job_id: str) -> float:
        """GPU-seconds that a job loses when it is stopped and loaded again."""
        job = self.view.jobs[job_id]
        return job.gpus * self.view.estimates.switch_s(job)

    def _jobs_on(self, host: int) -> list[JobState]:
        return [
            job
            for job in self.view.running.values()
            if job.placement is not None and host in job.placement.hosts
        ]

    def _kept(self, job: JobState, host: int) -> Placement | None:
        """What an elastic job can go on with if it leaves a host; None if it has to stop."""
        assert job.placement is not None
        if not job.elastic or job.job.pinned or len(job.placement.hosts) < 2:
            return None
        left = [(h, m) for h, m in zip(job.placement.hosts, job.placement.masks, strict=True) if h != host]
        total = sum(mask.bit_count() for _, mask in left)
        if job.job.hosts or total not in self.view.sizes_of(job):
            return None
        return Placement(tuple(h for h, _ in left), tuple(m for _, m in left))

    def _take_back(self, host: int) -> Iterator[Decision]:
        """Recall a host and have its jobs leave it: shrink where they can, else stop."""
        self.memory.taken_s = self.view.now
        until_s = self.view.now + self.rules.reclaim_s
        yield Reclaim((host,), self.name, until_s, f"{self.name} needs it for its objective")
        yield from self._empty(host, f"{self.name} needs host {host} back")

    def _empty(self, host: int, why: str) -> Iterator[Decision]:
        for job in self._jobs_on(host):
            kept = self._kept(job, host)
            if kept is not None:
                yield Resize(job.id, kept, why)
            if job.placement is not None and host in job.placement.hosts and not job.job.pinned:
                yield Stop(job.id, why)

    def _enforce(self) -> Iterator[Decision]:
        """Whatever still runs on a host that should be back is stopped."""
        for host, loan in list(self.view.loans.items()):
            if self.view.inventory.down[host] and not loan.recalled:
                yield Reclaim((host,), loan.lender, self.view.now, "it is down: its owner sees to it")
            elif loan.recalled and loan.due_s <= self.view.now:
                self.memory.taken_s = self.view.now
                for job in self._jobs_on(host):
                    if not job.job.pinned:
                        yield Stop(job.id, f"host {host} was to be back with {loan.lender} by now")

    def _borrow(self, count: int) -> Iterator[Decision]:
        """Have training lend hosts: idle ones, then those that its jobs give up at the least cost."""
        view = self.view
        own = [h for h in view.clusters[self.training].hosts if not view.inventory.down[h]]
        there = [h for h in own if h not in view.loans]
        count = min(count, math.floor(self.rules.most * len(own)) - (len(own) - len(there)))
        if count <= 0:
            return
        for host in self._cheapest(there, count):
            yield from self._empty(host, f"{self.name} borrows host {host} for its objective")
            if not self._jobs_on(host):
                yield Lend(
                    (host,), self.training, self.name, math.inf, "its own hosts are not enough for its load"
                )

    # ---- 3. replicas

    def grow(self) -> Iterator[Decision]:
        """Start replicas where there is room, one of each service in turn."""
        planned: dict[str, list[Placement]] = {}
        free = {host: self.view.inventory.masks[host] for host in (*self.own, *self.borrowed)}
        wanting = self._in_need()
        while wanting:
            for state in list(wanting):
                mine = planned.setdefault(state.service.id, [])
                short = self.memory.served[state.service.id].want - len(state.replicas) - len(mine)
                place = self._place(state.service, free) if short > 0 else None
                if place is None:
                    wanting.remove(state)
                    continue
                mine.append(place)
                for host, mask in zip(place.hosts, place.masks, strict=True):
                    free[host] &= ~mask
        for name, places in planned.items():
            if places:
                want = self.memory.served[name].want
                replicas = (*self.view.services[name].replicas, *places)
                yield Scale(name, replicas, f"its load needs {want} replica{'s' * (want != 1)}")

    def _place(self, service: Service, free: dict[int, int]) -> Placement | None:
        """The fullest own host that has room, then the fullest borrowed one; whole hosts for replicas that need several."""
        inventory = self.view.inventory
        kinds = [
            host
            for host in free
            if not service.gpu_type or inventory.pool_of[host].gpu_type == service.gpu_type
        ]
        fitting = [host for host in kinds if free[host].bit_count() >= service.gpus]
        if fitting:
            host = min(fitting, key=lambda h: (h in self.borrowed, free[h].bit_count(), h))
            return Placement((host,), (pick(free[host], service.gpus, inventory.island_masks[host]),))
        whole = [
            h
            for h in kinds
            if free[h] == inventory.all_masks[h] and service.gpus % max(1, free[h].bit_count()) == 0
        ]
        each = free[whole[0]].bit_count() if whole else 0
        whole = [h for h in whole if free[h].bit_count() == each][: service.gpus // each if each else 0]
        if not whole or each * len(whole) != service.gpus:
            return None
        return Placement(tuple(whole), tuple(free[h] for h in whole))

    # ---- 4. loans

    def lend(self) -> Iterator[Decision]:
        """Send borrowed hosts home that serve nobody, and lend idle own ones."""
        inventory = self.view.inventory
        for host in self.borrowed:
            if inventory.masks[host] == inventory.all_masks[host]:
                yield Reclaim((host,), self.training, self.view.now, "inference has no use for it any more")
        protected = self.view.now < self.memory.taken_s + self.rules.protect_s
        if not self.rules.to_training or protected or not self._training_wants() or self._lacking() > 0:
            return
        self.look()
        idle = [host for host in self.own if inventory.masks[host] == inventory.all_masks[host]]
        while idle and self._risk(len(self.own) - 1) <= self.rules.risk:
            host = idle.pop()
            self.own.remove(host)
            risk, stays = self._risk(len(self.own)), self._stays(len(self.own))
            yield Lend(
                (host,), self.name, self.training, math.inf,
                f"idle; wanted back within {self.rules.ahead_s:g} s with a probability of {risk:.0%}, and there for {stays:.0%} of it",
            )  # fmt: skip

    def _training_wants(self) -> bool:
        """Whether training would do anything with another host."""
        if self.view.waiting:
            return True
        return any(
            job.elastic and job.gpus < self.view.sizes_of(job)[-1] for job in self.view.running.values()
        )

    def _risk(self, hosts: int) -> float:
        """How likely inference needs more than so many of its own hosts soon: the worst of its services."""
        factor, boards = self._room(hosts)
        risk = 0.0 if factor >= 1 else 1.0
        return max([risk, *(board.outgrown(factor, self.rules.ahead_s) for board in boards)])

    def _stays(self, hosts: int) -> float:
        """Share of the time ahead for which so many of its own hosts likely suffice."""
        factor, boards = self._room(hosts)
        return min((board.availability(factor, self.rules.ahead_s) for board in boards), default=1.0)

    def _room(self, hosts: int) -> tuple[float, list[Board]]:
        """How many times what is wanted now has room on so many own hosts, and the boards of the services that want any.

        Services have shares of the hosts by the replicas that they want.
        """
        inventory, served = self.view.inventory, self.memory.served
        gpus = sum(inventory.all_masks[host].bit_count() for host in self.own[:hosts])
        services = [state.service for state in self.view.services.values()]
        wanted = sum(served[service.id].want * service.gpus for service in services)
        boards = [served[service.id].board for service in services if served[service.id].want]
        return (gpus / wanted if wanted else math.inf), boards


def _pressure(state: ServiceState) -> float:
    """How far a service is from its objective, in units of it."""
    load = state.load
    if load is None:
        return 0.0
    return max(load.latency_s, 1e-9 * load.queue) / state.service.objective.latency_s
