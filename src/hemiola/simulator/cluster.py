"""The simulated cluster as a driver: event-driven, one contention law for every policy.

Between two instants nothing changes but time. An instant is an arrival, a finish, a timer, or a
host that fails or returns. After each, the jobs whose share of the network changed get a new
speed, and with it a new finish.
"""

from __future__ import annotations

import copy
import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, assert_never

import msgspec
import numpy as np

from hemiola.core.decisions import (
    JOB_KINDS,
    Align,
    Decision,
    Lend,
    Move,
    Pace,
    Placement,
    Reallocate,
    Reclaim,
    Resize,
    Scale,
    Start,
    Stop,
    WakeAt,
)
from hemiola.core.errors import InputError, InternalError, PolicyError
from hemiola.core.events import Arrived, Event, Finished, Measured, NodeBack, NodeLost, Timer
from hemiola.core.goodput import GoodputModel
from hemiola.core.job import Batch, Configuration, Elastic, Service
from hemiola.core.result import ServingFigures
from hemiola.core.timeline import Timeline, TrafficLog
from hemiola.cost.iteration import IterationModel, roles_iteration_s, speed_at
from hemiola.kernels.fluid import SharedNetwork, Sharing
from hemiola.sched.job_state import JobState
from hemiola.sched.loop import why_not
from hemiola.sched.view import ClusterView
from hemiola.simulator.records import Account, IdleLedger, ServingRules, SimulatedReplay
from hemiola.simulator.task import ElasticTask, Task

if TYPE_CHECKING:
    from hemiola.cost.goodput import TrainingStep
    from hemiola.simulator.serving.cluster import Serving

__all__ = ["Costs", "SimulatedDriver", "SimulatedEstimates"]

SERVICE_KINDS: frozenset[type] = frozenset({Scale, Lend, Reclaim})
"""What is carried out where there are services, too."""
GIVE_UP_S = 7200.0
"""So long after requests stopped changing and with no job running, those that wait are taken to wait for ever."""
NODE, FINISH, TIMER, READY, NOISE, SERVICE = 0, 1, 2, 3, 4, 5
IDLE_TIMERS = 100_000
MOST_GOODPUTS = 200_000
SHARE_SLACK = 1e-6


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What changing a running job costs.

    Attributes:
        checkpoint_s, restore_s: for jobs without a profile; a profile has its own.
        scale: multiplies every such cost; 0 makes pre-emption free.
        checkpoint_interval_s: a host failure loses the work since the last multiple of it.
    """

    checkpoint_s: float = 5.0
    restore_s: float = 25.0
    scale: float = 1.0
    checkpoint_interval_s: float = 1800.0

    def __post_init__(self) -> None:
        for name in ("checkpoint_s", "restore_s", "scale"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"the cost {name} is {getattr(self, name)}", "give 0 or more")
        if not 0 < self.checkpoint_interval_s < math.inf:
            raise InputError(
                f"checkpoint_interval_s is {self.checkpoint_interval_s}", "give seconds, more than 0"
            )

    def of(self, job: Batch) -> tuple[float, float]:
        """(save, load) seconds of a job."""
        profile = job.profile
        if profile is None:
            return self.checkpoint_s * self.scale, self.restore_s * self.scale
        return profile.checkpoint_s * self.scale, profile.restore_s * self.scale


class SimulatedEstimates:
    """What the cost model tells policies: the same model that the simulator runs on."""

    def __init__(self, model: IterationModel, costs: Costs) -> None:
        self._model = model
        self._costs = costs
        self._goodputs: dict[Any, tuple[float, Configuration | None]] = {}
        self._profiles: dict[int, Any] = {}  # keeps profiles alive while their ids are keys

    def slowdown(self, job: JobState, tier: int) -> float:
        """s_j(tier), at least 1."""
        return self._model.slowdown(job.job, tier, job.narrowest)

    def speed_at(self, job: JobState, gpus: int) -> float:
        """On its best place of so many GPUs; 1 at the size it asked for, where it was recorded."""
        return speed_at(self._model, job.job, job.asked_gpus, gpus)

    def goodput(
        self, job: JobState, gpus: int, tier: int, gpu_type: str = ""
    ) -> tuple[float, Configuration | None]:
        """(work per second alone on so many GPUs of a type within this tier, how it splits its batch for that)."""
        wish, noise = job.job, job.gradient_noise_scale
        splits = wish.configurations if isinstance(wish, Elastic) else None
        key = (id(wish.profile), wish.gpu_type, wish.hosts > 0, job.asked_gpus, splits, gpus, tier, gpu_type, noise)  # fmt: skip
        found = self._goodputs.get(key)
        if found is None:
            if len(self._goodputs) > MOST_GOODPUTS:
                self._goodputs.clear()
            self._profiles[id(wish.profile)] = wish.profile
            from hemiola.cost.goodput import training_speed

            found = self._goodputs[key] = training_speed(
                self._model, wish.sized(job.asked_gpus), gpus, tier, gpu_type, noise
            )
        return found

    def switch_s(self, job: JobState) -> float:
        """Seconds to save and load the job once."""
        return sum(self._costs.of(job.job))

    def demand(self, job: JobState) -> tuple[float, float, float]:
        """(compute_s, traffic_bytes, hidden_s) of one iteration."""
        if job.job.profile is None:
            return 1.0, 0.0, 0.0
        need = self._model.need(job.job.profile, job.gpus, job.job.gpu_type)
        return need.compute_s, need.traffic_bytes, need.hidden_s


class SimulatedDriver(SimulatedReplay):
    """Runs jobs on a topology that exists only in numbers.

    Args:
        view: the view that the state machine keeps; read, never written.
        jobs: in order of arrival; all must be admissible.
        model: iteration times.
        sharing: what links do to the jobs on them.
        costs: of checkpoints.
        node_events: failures and repairs, by time.
        record: keep the timeline's rows and the queue's log.
        record_traffic: keep what each job sent, too (grows with contention).
        progress: called now and then with the number of jobs that ended.
        supports: kinds of decision that are carried out, of those that it can; fewer where it stands in for an engine that can
            less.
    """

    supports: Set[type] = JOB_KINDS | {Reallocate, Configuration}

    def __init__(
        self,
        view: ClusterView,
        jobs: Sequence[Batch],
        model: IterationModel,
        sharing: Sharing,
        *,
        costs: Costs | None = None,
        node_events: Sequence[NodeLost | NodeBack] = (),
        record: bool = True,
        record_traffic: bool = False,
        progress: Callable[[int], None] | None = None,
        supports: Set[type] | None = None,
    ) -> None:
        self._of_services = SERVICE_KINDS
        if supports is not None:
            self.supports, self._of_services = self.supports & supports, SERVICE_KINDS & supports
        self.view = view
        self.tasks: dict[str, Task] = {}
        self.ledger = IdleLedger(view)
        self.events_seen = 0
        self.ended = 0
        self._jobs = jobs
        self._model = model
        self._costs = costs or Costs()
        self._capacities = model.capacities_bytes_per_s
        self._sharing = sharing
        self._network: SharedNetwork | None = None
        self._unsettled = False
        self._crossing: dict[int, Task] = {}
        self._heap: list[tuple[float, int, int, Any, int]] = []
        self._sequence = 0
        self._fresh: list[Task] = []
        self._handover: dict[int, list[tuple[int, float]]] = {}
        self._down: set[int] = set()
        self._down_gpus = 0
        self._node_events_left = 0
        self._interval_s = self._costs.checkpoint_interval_s if node_events else math.inf
        self._record = record
        self._rows: list[tuple[int, int, int, float, float, float, int, int]] = []
        self._traffic: list[tuple[Any, ...]] | None = [] if record_traffic else None
        self.origin_s = jobs[0].submit_s if jobs else view.now
        self.now = self.origin_s
        self._quiet: tuple[float, IdleLedger] | None = None  # since when nothing runs, and the ledger of then
        self.stop = False
        self._progress = progress
        self._tiers = len(view.topology.tiers)
        self._elsewhere = model.recorded_elsewhere
        self._serving: Serving | None = None
        self._idle_since_s = math.inf
        self._deadlines: dict[int, float] = {}
        for event in node_events:
            self._push(event.time_s, NODE, event, 0)
            self._node_events_left += 1

    def serve(self, services: Sequence[Service], rules: ServingRules) -> None:
        """Run services beside the jobs; before the first event."""
        if not services:
            return
        from hemiola.simulator.serving.cluster import Serving
        from hemiola.simulator.serving.loans import LoanLedger

        self._serving = Serving(
            services,
            rules,
            lambda time_s, what, version: self._push(time_s, SERVICE, what, version),
            record=self._record,
        )
        self.supports = self.supports | self._of_services
        self._loans = LoanLedger(self.view, self.tasks)
        for service in services:
            self._push(service.submit_s, SERVICE, service, 0)
        first_s = services[0].submit_s
        self.origin_s = self.now = min(self.origin_s, first_s) if self._jobs else first_s

    # ---- events -----------------------------------------------------------------------------

    def events(self) -> Iterator[list[Event]]:
        """One list per instant; in it failures, then finishes, timers and arrivals.

        Where jobs wait for ever, timers and failures may go on long after the last end. If nothing starts any more,
        `now` and the ledger go back to when nothing ran and all had arrived.
        """
        jobs, heap, view, tiers = self._jobs, self._heap, self.view, self._tiers
        pop, pass_time, tasks, inf = heapq.heappop, self.ledger.pass_time, self.tasks, math.inf
        total = len(jobs)
        arrived = idle_timers = 0
        arrival_s = jobs[0].submit_s if jobs else inf
        now = self.now
        serving = self._serving
        while not self.stop:
            if self._unsettled or self._fresh:
                changes = self._settle(now)
                if changes:
                    yield changes
            due_s = inf
            while heap:
                due_s, kind, _, what, version = heap[0]
                if kind == FINISH:
                    if what.version == version and what.due_s <= due_s:
                        break
                    self._renew(pop(heap))
                elif kind != READY or what.version == version:
                    break
                else:  # it gave its GPUs back before it was ready
                    pop(heap)
                due_s = inf
            next_s = due_s if due_s < arrival_s else arrival_s
            if arrived == total and serving is not None:
                if self._is_over(now, total):
                    return
            elif arrived == total:
                if not heap or self.ended >= total:
                    if self._quiet is not None:
                        self.now, self.ledger = self._quiet
                    return
                if view.running or self._node_events_left:
                    idle_timers = 0
                else:
                    idle_timers += 1
                    self._check_alive(idle_timers)
                if self._quiet is None and not view.running:
                    self._quiet = now, copy.copy(self.ledger)
            if next_s > now:
                pass_time(next_s - now, self._down_gpus)
                if serving is not None:
                    serving.pass_time(next_s - now)
                    self._loans.pass_time(now, next_s - now)
                now = self.now = next_s
            batch: list[Event] = []
            while due_s <= now:
                entry = pop(heap)
                _, kind, _, what, version = entry
                if kind == FINISH:
                    if what.version == version and what.due_s <= now:
                        batch.append(self._finish(what, now))
                    else:
                        self._renew(entry)
                elif kind == TIMER:
                    batch.append(Timer(now, what))
                elif kind == READY:
                    if what.version == version:
                        self._enter_network(what)
                elif kind == SERVICE:
                    if (event := self._serve(what, version, now)) is not None:
                        batch.append(event)
                elif kind == NOISE:
                    if what.watch == version and what.placement is not None:
                        batch.append(self._renoise(what, now))
                else:
                    batch.append(self._node(what))
                due_s = heap[0][0] if heap else inf
            while arrival_s <= now:
                job = jobs[arrived]
                make = ElasticTask if isinstance(job, Elastic) else Task
                tasks[job.id] = make(
                    job, arrived, job.duration_s, [0.0] * tiers, self.ideal_s(job), self._interval_s
                )
                batch.append(Arrived(now, job))
                arrived += 1
                arrival_s = jobs[arrived].submit_s if arrived < total else inf
                if serving is not None and arrived == total:
                    self._loans.note_work(now)
            if batch:
                self.events_seen += len(batch)
                yield batch

    def _serve(self, what: Any, version: int, now: float) -> Event | None:
        """Something of a service is due."""
        assert self._serving is not None
        if isinstance(what, Service):
            self._serving.arrive(what, now)
            return Arrived(now, what)
        return self._serving.due(what, version, now)

    def _is_over(self, now: float, total: int) -> bool:
        """Whether nothing new happens any more: requests come as they came, and no job is left, or none that ever starts."""
        assert self._serving is not None
        if now < self._serving.settled_s:
            return False
        if self.ended >= total:
            return True
        if self.view.running or self._node_events_left:
            self._idle_since_s = math.inf
            return False
        self._idle_since_s = min(self._idle_since_s, now)
        return now - self._idle_since_s > GIVE_UP_S

    def _check_alive(self, idle_timers: int) -> None:
        if idle_timers > IDLE_TIMERS:
            raise PolicyError(
                f"the policy asked for {idle_timers} timers in a row while nothing runs and jobs wait",
                "a policy that only wakes itself up never ends; start a job or stop asking",
            )

    def _renew(self, entry: tuple[float, int, int, Any, int]) -> None:
        """Drop a void finish; put one that came too early back where it is due."""
        task = entry[3]
        if task.version == entry[4]:
            task.entry_s = task.due_s
            self._push(task.due_s, FINISH, task, task.version)

    def _push(self, time_s: float, kind: int, what: Any, version: int) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (time_s, kind, self._sequence, what, version))

    def _finish(self, task: Task, now: float) -> Finished:
        if task.slot >= 0:
            self._leave_network(task, now)
        if self._record:
            self._note_span(task, now, 0)
        task.finish(now)
        self.ended += 1
        if self._progress is not None:
            try:
                self._progress(self.ended)
            except KeyboardInterrupt:
                self.stop = True
        return Finished(now, task.job.id)

    def _node(self, event: NodeLost | NodeBack) -> Event:
        self._node_events_left -= 1
        gpus = int(self.view.topology.hosts.gpus[event.host])
        down = event.host in self._down
        if isinstance(event, NodeBack):
            if down:
                self._down.remove(event.host)
                self._down_gpus -= gpus
            return event
        if down:
            return event
        self._down.add(event.host)
        self._down_gpus += gpus
        lost: dict[str, float] = {}
        for state in self.view.running.values():
            task = self.tasks[state.id]
            if task.placement is not None and event.host in task.placement.everywhere:
                self._log_traffic(task, event.time_s)
                task.settle(event.time_s)
                lost[state.id] = task.roll_back()
                self._leave(task, event.time_s, 4)
        if self._serving is not None:
            self._serving.lose_host(event.host, event.time_s)
        return NodeLost(event.time_s, event.host, lost)

    # ---- decisions --------------------------------------------------------------------------

    def execute(self, decision: Decision) -> None:
        """Carry out an accepted decision at the view's present time."""
        match decision:
            case Start():
                self._begin(self.tasks[decision.job_id], decision.placement)
            case WakeAt():
                self._push(decision.time_s, TIMER, decision.job_id, 0)
            case Stop():
                self._hand_over(self.tasks[decision.job_id], 1)
            case Move() | Resize():
                task = self.tasks[decision.job_id]
                self._hand_over(task, 2)
                self._begin(task, decision.placement)
            case Pace():
                task = self.tasks[decision.job_id]
                task.weight = decision.weight
                if task.slot >= 0 and self._network is not None:
                    self._network.set_weight(task.slot, decision.weight)
                    self._unsettled = True
            case Reallocate():
                self._reallocate(decision)
            case Scale() if self._serving is not None:
                now = self.view.now
                self._serving.scale(
                    decision, now, lambda place: self._wait_for_handover(place, now), self._keep_busy
                )
            case Lend() | Reclaim() if self._serving is not None:
                self._loans.note(decision)
                if isinstance(decision, Reclaim):
                    self._deadlines |= dict.fromkeys(decision.hosts, decision.deadline_s)
            case Align() | Scale() | Lend() | Reclaim():
                raise InternalError(f"{decision} was to be carried out", "please report it")
            case _:
                assert_never(decision)

    def _reallocate(self, decision: Reallocate) -> None:
        """Whoever leaves leaves before anybody comes."""
        for change in decision.changes:
            if not isinstance(change, Start):
                self._hand_over(self.tasks[change.job_id], 1 if isinstance(change, Stop) else 2)
        for change in decision.changes:
            if not isinstance(change, Stop):
                self._begin(self.tasks[change.job_id], change.placement)

    def render(self, decision: Decision) -> str:
        """The decision as one line."""
        return why_not(decision, self.supports) or str(decision)

    def _begin(self, task: Task, placement: Placement) -> None:
        now = self.view.now
        self._quiet = None
        job, hosts = task.job, placement.hosts
        elastic = job.is_elastic
        sized = job.sized(placement.gpus) if elastic else job
        training: TrainingStep | None = None
        delay_s = 0.0
        if self._handover:
            delay_s = self._wait_for_handover(placement, now)
        if task.ran:
            delay_s = max(delay_s, task.saved_s - now) + self._costs.of(job)[1]
        tier = 0 if len(hosts) == 1 and not placement.servers else self.view.jobs[job.id].tier
        task.begin(placement, tier, now, delay_s)
        assumed = sized.gpus / job.gpus  # by the view, until it is told otherwise
        if elastic and self.view.jobs[job.id].configuration is not None and _has_no_model(job):
            raise PolicyError(
                f"the job {job.id!r} was told how to split its batch, but its profile has no goodput model",
                "give it one, or leave configurations out",
            )
        if job.resources is not None and job.resources.roles is not None:
            best_s = roles_iteration_s(job, job.gpus, inside=True)[0]
            task.iteration_s, task.compute_s = roles_iteration_s(
                job, sized.gpus, inside=len(placement.everywhere) == 1
            )
            task.speed = best_s / task.iteration_s
        elif job.profile is None:
            task.speed = assumed
            task.iteration_s = task.compute_s = 1.0
        else:
            alone = task.alone
            if alone is None:
                alone = task.alone = self._model.alone(job)
                task.best_s = self._model.recorded_s(job)
            if elastic:
                task.best_s = self._model.recorded_s(job) * sized.gpus / job.gpus
                alone = self._model.alone(sized)
                if job.profile.goodput is not None:
                    training = self._training(task, job.profile.goodput, sized, placement)
            if len(hosts) > 1:
                self._cross(task, sized, placement, training)
                return
            iteration_s, task.compute_s = self._model.on_host(sized, hosts[0], placement.masks[0], alone)
            if training is not None:
                iteration_s, task.compute_s = training.iteration_s, training.compute_s
            task.iteration_s = iteration_s
            task.speed = task.best_s / iteration_s
            if elastic:
                self._await_noise(task)
        if task.predict():
            self._sequence += 1
            heapq.heappush(self._heap, (task.due_s, FINISH, self._sequence, task, task.version))
        if delay_s or task.speed != assumed:
            self._fresh.append(task)

    def _training(
        self, task: Task, model: GoodputModel, sized: Batch, placement: Placement
    ) -> TrainingStep | None:
        """How it trains there at the batch that it was told, None where it was told none; sets what an iteration is worth."""
        from hemiola.cost.goodput import TrainingStep, kept_worth, reference_goodput, reference_hosts

        assert isinstance(task, ElasticTask) and task.job.profile is not None
        told = task.configuration = self.view.jobs[task.job.id].configuration
        noise = model.noise_at(task.done_share + SHARE_SLACK)
        if told is None:
            task.best_s *= kept_worth(model, task.job.gpus, sized.gpus, noise)
            return None
        gpu_speed = task.job.profile.speed(self.view.topology.hosts.gpu_types[placement.hosts[0]])
        reference = reference_goodput(model, task.job, reference_hosts(self._model, task.job))
        training = TrainingStep.of(model, told, len(placement.hosts), noise, gpu_speed, reference)
        task.best_s = training.worth_s
        return training

    def _await_noise(self, task: Task) -> None:
        """Look at its gradients again when they are to have another noise."""
        profile = task.job.profile
        if not isinstance(task, ElasticTask) or profile is None or profile.goodput is None:
            return
        share = profile.goodput.next_noise(task.done_share + SHARE_SLACK)
        if share < 1.0 and (due_s := task.reaches_s(share)) < math.inf:
            task.watch += 1
            self._push(due_s, NOISE, task, task.watch)

    def _renoise(self, task: ElasticTask, now: float) -> Event:
        """Its gradients have another noise from now on, and so a sample is worth more, or less."""
        from hemiola.cost.goodput import efficiency, kept_worth

        model, placement = task.job.profile.goodput, task.placement  # type: ignore[union-attr]
        assert model is not None and placement is not None
        task.settle(now)
        told, gpus, share = task.configuration, placement.gpus, task.done_share
        before, noise = model.noise_at(share - SHARE_SLACK), model.noise_at(share + SHARE_SLACK)
        if told is None:
            asked = task.job.gpus
            change = kept_worth(model, asked, gpus, noise) / kept_worth(model, asked, gpus, before)
        else:
            change = efficiency(model, told.batch, noise) / efficiency(model, told.batch, before)
        task.best_s *= change
        task.speed = task.best_s / task.iteration_s
        if task.predict():
            self._push(task.due_s, FINISH, task, task.version)
        self._await_noise(task)
        return Measured(now, task.job.id, task.speed, None, noise)

    def _cross(self, task: Task, job: Batch, placement: Placement, training: TrainingStep | None) -> None:
        """Share the network from when it is ready; until then its speed is told as if nobody disturbed it."""
        crossing = self._model.crossing(job, placement)
        if training is not None:
            exposed_s = self._model.undisturbed_s(crossing) - crossing.need.compute_s
            need = training.need(crossing.need, exposed_s)
            crossing = self._model.crossing(job, placement, need)
        task.crossing = crossing
        task.compute_s = crossing.need.compute_s
        task.weight = 1.0
        if task.resume_s <= self.view.now:
            self._enter_network(task)
            return
        task.iteration_s = self._model.undisturbed_s(crossing)
        task.speed = task.best_s / task.iteration_s
        self._fresh.append(task)
        self._push(task.resume_s, READY, task, task.version)

    def _enter_network(self, task: Task) -> None:
        """Its speed follows when the instant's decisions are all in."""
        crossing = task.crossing
        assert crossing is not None
        if self._network is None:
            self._network = SharedNetwork(self._capacities, self._sharing)
        hidden_s = crossing.need.hidden_s - crossing.latency_s
        task.slot = self._network.add(
            compute_s=crossing.need.compute_s + max(0.0, -hidden_s),
            hidden_s=max(0.0, hidden_s),
            traffic_bytes=crossing.need.traffic_bytes,
            links=crossing.links,
            factors=crossing.factors,
            weight=task.weight,
        )
        self._crossing[task.slot] = task
        self._unsettled = True
        task.speed = 0.0

    def _settle(self, now: float) -> list[Event]:
        """Give every job whose share changed its new speed and finish."""
        changes: list[Event] = []
        for task in self._fresh:
            if task.placement is not None:
                changes.append(Measured(now, task.job.id, task.speed, task.resume_s))
        self._fresh.clear()
        if self._network is None or not self._unsettled:
            return changes
        self._unsettled = False
        crossing, logs = self._crossing, self._traffic is not None
        for slot, iteration_s, _ in self._network.settle():
            task = crossing[slot]
            fresh = task.speed == 0.0
            local_s = task.crossing.local_s  # type: ignore[union-attr]
            if local_s > iteration_s:
                iteration_s = local_s
            if not fresh:
                if iteration_s == task.iteration_s:
                    continue
                self.speed_changes += 1
                if logs:
                    self._log_traffic(task, now)
            task.settle(now)
            task.iteration_s = iteration_s
            speed = task.speed = task.best_s / iteration_s
            if task.predict():
                self._push(task.due_s, FINISH, task, task.version)
            self._await_noise(task)
            changes.append(Measured(now, task.job.id, speed, task.resume_s if fresh else None))
        return changes

    def _log_traffic(self, task: Task, now: float) -> None:
        """Note what it sent since its last change of speed (before the change is applied)."""
        log, crossing = self._traffic, task.crossing
        if log is None or task.slot < 0 or crossing is None or task.placement is None:
            return
        since = max(task.settled_s, task.resume_s)
        if now > since:
            bytes_per_s = crossing.need.traffic_bytes / task.iteration_s
            hosts, factors = task.placement.hosts, crossing.factors
            log.append((task.index, since, now, task.iteration_s, bytes_per_s, hosts, factors))

    def _leave(self, task: Task, now: float, outcome: int) -> None:
        """Give the GPUs back, leave the network, and note the span."""
        if task.slot >= 0:
            self._leave_network(task, now)
        if self._record:
            self._note_span(task, now, outcome)
        task.end(now)

    def _leave_network(self, task: Task, now: float) -> None:
        self._log_traffic(task, now)
        assert self._network is not None
        self._network.remove(task.slot)
        self._unsettled = True
        del self._crossing[task.slot]
        task.slot = -1
        task.crossing = None

    def _note_span(self, task: Task, now: float, outcome: int) -> None:
        placement = task.placement
        assert placement is not None
        if outcome and now <= task.start_s:  # changed again at the instant it began: no span of its own
            return
        start, resume = task.start_s, task.resume_s if task.resume_s < now else now
        for host, mask in zip(placement.hosts, placement.masks):  # noqa: B905 - as long by construction
            self._rows.append((task.index, host, mask, start, now, resume, task.tier, outcome))

    def _hand_over(self, task: Task, outcome: int) -> None:
        """Stop a job; whoever gets its GPUs waits until its state is saved."""
        now = self.view.now
        placement = task.placement
        assert placement is not None
        worked = now > task.resume_s
        self._leave(task, now, outcome)
        if not worked:  # what there is to save was saved, or is being saved, when it last stopped
            return
        save_s = self._costs.of(task.job)[0]
        task.saved_s = now + save_s
        if self._deadlines:
            self._cut_short(task, placement, now)
        if save_s:
            self._keep_busy(placement, task.saved_s)

    def _cut_short(self, task: Task, placement: Placement, now: float) -> None:
        """On a host that was recalled it is killed at the deadline: what it had not saved by then is lost."""
        deadlines = [self._deadlines.get(host, -math.inf) for host in placement.hosts]
        limit_s = min((one for one in deadlines if one >= now), default=math.inf)
        if task.saved_s > limit_s:
            task.roll_back()
            task.saved_s = limit_s

    def _keep_busy(self, placement: Placement, until_s: float) -> None:
        """Who had these GPUs still needs them until then."""
        for host, mask in zip(placement.hosts, placement.masks, strict=True):
            self._handover.setdefault(host, []).append((mask, until_s))

    def _wait_for_handover(self, placement: Placement, now: float) -> float:
        """Seconds until the GPUs' last holders have saved their state."""
        ready = now
        for host, mask in zip(placement.hosts, placement.masks, strict=True):
            pending = self._handover.get(host)
            if pending is None:
                continue
            left = [(m, t) for m, t in pending if t > now]
            ready = max([ready, *(t for m, t in left if m & mask)])
            if left:
                self._handover[host] = left
            else:
                del self._handover[host]
        return ready - now

    # ---- what is left behind ----------------------------------------------------------------

    def close(self) -> None:
        """Account for jobs that still run when a simulation is cut short."""
        now = self.now
        for task in self.tasks.values():
            if task.placement is not None:
                self._leave(task, now, 5)

    def serving(self) -> ServingFigures | None:
        """Of services and loans; None without services."""
        if self._serving is None:
            return None
        self._serving.close(self.now)
        return self._loans.figures(self._serving.records(), self.origin_s, self.now)

    @property
    def accounts(self) -> Mapping[str, Account]:
        """The jobs that arrived, by id."""
        return self.tasks

    def ideal_s(self, job: Batch) -> float:
        """Run time on its best placement here, alone."""
        if job.profile is None or not self._elsewhere:
            return job.duration_s
        return job.duration_s * self._model.alone(job).best_s / self._model.recorded_s(job)

    def resized(self) -> Iterable[tuple[float, float, float, float]]:
        """GPU-seconds (useful, exposed, checkpoint, lost) of each elastic job beyond its `gpus` times its seconds."""
        return [task.more_gpu_s for task in self.tasks.values() if isinstance(task, ElasticTask)]

    def timeline(self) -> Timeline:
        """Every span in which a job held GPUs."""
        return Timeline.from_rows(self._rows)

    def traffic(self) -> TrafficLog | None:
        """What jobs that cross hosts sent, if it was recorded."""
        if self._traffic is None:
            return None
        columns: list[Any] = [list(c) for c in zip(*self._traffic, strict=True)] or [[]] * 7
        return TrafficLog(
            job=np.array(columns[0], dtype=np.int64),
            start_s=np.array(columns[1], dtype=np.float64),
            end_s=np.array(columns[2], dtype=np.float64),
            iteration_s=np.array(columns[3], dtype=np.float64),
            bytes_per_s=np.array(columns[4], dtype=np.float64),
            hosts=tuple(columns[5]),
            factors=tuple(columns[6]),
        )


def _has_no_model(job: Batch) -> bool:
    return job.profile is None or job.profile.goodput is None
