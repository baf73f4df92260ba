"""The cluster's state machine: events and decisions in, a consistent view out.

Pure: it waits for nothing and knows no engine. Every change of a job's status stands in one
table. A decision that cannot be is refused with the reason and changes nothing.

    Arrived            -> WAITING
    WAITING  --Start-->  RUNNING
    RUNNING  --Stop--->  WAITING     --Move/Resize--> RUNNING
    RUNNING  --Finished/Failed--> ENDED
    RUNNING  --NodeLost/Requeued--> WAITING
    WAITING/HELD --Finished/Failed--> ENDED
    WAITING  --Held--> HELD --Released--> WAITING
    WAITING/HELD --Started--> RUNNING
    Adopted            -> WAITING or RUNNING
    Undone             -> what it was before the decision

A `Reallocate` is several of these at once (`reallocation`); services (`service_state`) and loans (`lending`) have tables of
their own.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Never, assert_never

from hemiola.core.decisions import (
    EVERY_KIND,
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
    configuration_of,
)
from hemiola.core.errors import InputError, InternalError, PolicyError
from hemiola.core.events import (
    Adopted,
    Arrived,
    Blocked,
    Event,
    Failed,
    Finished,
    Held,
    LinkFeedback,
    Load,
    Measured,
    NodeBack,
    NodeLost,
    Profiled,
    Released,
    ReplicaLost,
    ReplicaReady,
    Requeued,
    ResourcesOffered,
    ResourcesRequested,
    Started,
    Timer,
    Undone,
)
from hemiola.core.job import Batch, Configuration, Elastic
from hemiola.sched.engine_events import Transitions, outside_handlers, started_elsewhere
from hemiola.sched.job_state import ENDED, HELD, RUNNING, WAITING, JobState
from hemiola.sched.lending import Lending
from hemiola.sched.reallocation import ChangeSteps, reallocate
from hemiola.sched.service_state import ServiceHandlers, service_handlers
from hemiola.sched.view import ClusterView

__all__ = ["StateMachine", "no_decision"]


class StateMachine:
    """Owns a view and is the only one to change it.

    Args:
        view: the view to keep.
    """

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self._reaches = view.reaches
        self._instant = 0
        self._span_cache: dict[tuple[int, ...], int] = {}
        self._lending = Lending(view)
        self._services = ServiceHandlers(view, self._lending.vacated)
        self._transitions = Transitions(
            view, self._reaches, self._enter, self._wait, self._unwait, self._run, self._halt, self._requeue, self._measured,
        )  # fmt: skip
        self._outside = outside_handlers(self._transitions) | service_handlers(self._services)
        self._steps = ChangeSteps(
            view, self._standing, self._misplaced, self._start, self._stop, self._leave, self._take_up
        )
        self._handlers: dict[type, Callable[[Any], None]] = {}
        self._executors: dict[type, Callable[[Any], str]] = {}

    def apply(self, *events: Event) -> None:
        """Take note of what happened, in this order."""
        view, handlers = self.view, self._handlers
        self._instant += 1
        for event in events:
            if event.time_s > view.now:
                view.now = event.time_s
                if view.timers:
                    view.timers.clear()
                if view.returned:
                    view.returned.clear()
            handler = handlers.get(type(event))
            if handler is None:
                handler = handlers[type(event)] = self._handler(event)
            handler(event)

    def execute(self, decision: Decision) -> str:
        """Carry out a decision; return "" or why it was refused."""
        executor = self._executors.get(type(decision))
        if executor is None:
            executor = self._executors[type(decision)] = self._executor(decision)
        return executor(decision)

    def refuse(self, decision: Decision, kind: type, why: str) -> str:
        """The engine has no way to carry such a decision out: nothing changes, but policies see it. Return why.

        Args:
            kind: what the engine lacks, as `sched.loop.missing` says.
        """
        self.view.cannot[kind] = why
        return why

    def _handler(self, event: Event) -> Callable[[Any], None]:
        """What takes note of such an event; found once for each kind."""
        match event:
            case Arrived():
                return self._arrived
            case Finished() | Failed():
                return self._finished
            case Measured():
                return self._measured
            case Timer():
                return self._timer
            case NodeLost():
                return self._node_lost
            case NodeBack():
                return self._node_back
            case Started():
                return self._started
            case (
                Undone() | Adopted() | Requeued() | Held() | Released() | Blocked() | ResourcesOffered() | ResourcesRequested()
                | Profiled() | ReplicaReady() | ReplicaLost() | Load()
            ):  # fmt: skip
                return self._outside[type(event)]
            case LinkFeedback():
                return self._link_feedback
            case _:
                assert_never(event)

    def _executor(self, decision: Decision) -> Callable[[Any], str]:
        """What carries such a decision out; found once for each kind."""
        match decision:
            case Start():
                return self._start
            case Stop():
                return self._stop
            case Move():
                return self._move
            case Resize():
                return self._resize
            case Pace():
                return self._pace
            case WakeAt():
                return self._wake_at
            case Align():
                return self._align
            case Reallocate():
                return self._reallocate
            case Scale():
                return self._services.scale
            case Lend():
                return self._lending.lend
            case Reclaim():
                return self._lending.reclaim
            case _:
                raise no_decision(decision)

    def _arrived(self, event: Arrived) -> None:
        job = event.job
        if isinstance(job, Batch):
            self._wait(self._enter(job, event.time_s))
        else:
            self._services.arrived(job)

    def _enter(self, job: Batch, now: float) -> JobState:
        """A job that was not known."""
        view = self.view
        if job.id in view.jobs or job.id in view.services:
            raise InputError(f"the job {job.id!r} arrived twice", "give every job an id of its own")
        gpus = job.gpus
        reach = self._reaches.known.get((gpus, job.gpu_type, job.required, job.preferred, job.hosts))
        if reach is None:
            reach = self._reaches.of(gpus, job.gpu_type, job.required, job.preferred, job.hosts)
        if type(reach) is str:
            raise InputError(f"job {job.id!r}: {reach}", "ask admission() before it arrives")
        narrowest, widest, preferred, pools, shape = reach
        state = view.jobs[job.id] = JobState(
            job, job.id, len(view.jobs), gpus, job.submit_s, job.duration_s, now, now, now,
            narrowest, widest, preferred, pools, shape, asked_gpus=gpus,
        )  # fmt: skip
        if isinstance(job, Elastic):
            state.elastic = True
        if job.resources is not None:
            self._reaches.claim(state, job.resources)
        return state

    def admission(self, job: Batch) -> str:
        """Why no policy could ever run such a job here, or ""."""
        reach = self._reaches.of(job.gpus, job.gpu_type, job.required, job.preferred, job.hosts)
        if isinstance(reach, str):
            return reach
        return self._lack(job) if job.resources is not None else ""

    def _lack(self, job: Batch) -> str:
        """What not even the empty cluster has beside GPUs for such a job; "" for nothing."""
        narrowest, widest, preferred, pools, shape = self._reaches.of(
            job.gpus, job.gpu_type, job.required, job.preferred, job.hosts
        )
        state = JobState(
            job, job.id, 0, job.gpus, job.submit_s, job.duration_s, 0.0, 0.0, 0.0,
            narrowest, widest, preferred, pools, shape, claim=job.resources,
        )  # fmt: skip
        empty = self.view.empty
        return empty.spare.shortage(state, empty.counts)

    def _wait(self, job: JobState) -> None:
        view = self.view
        view.waiting[job.id] = job
        gpus = job.gpus
        sizes = view.sizes
        sizes[gpus] = sizes.get(gpus, 0) + 1
        view.wanted_gpus += gpus
        for index in view.indexes.values():
            index.enter(job, view.now)

    def _unwait(self, job: JobState) -> None:
        view = self.view
        del view.waiting[job.id]
        gpus = job.gpus
        sizes = view.sizes
        if sizes[gpus] == 1:
            del sizes[gpus]
        else:
            sizes[gpus] -= 1
        view.wanted_gpus -= gpus
        for index in view.indexes.values():
            index.leave(job)

    def _start(self, decision: Start) -> str:
        view = self.view
        job = view.jobs.get(decision.job_id)
        placement = decision.placement
        if job is None or job.status != WAITING:
            return "it is not waiting" if job is not None else f"no job is called {decision.job_id!r}"
        problem = self._problem(job, placement)
        if not problem and decision.configuration is not None:
            problem = _misconfigured(job, decision.configuration, placement)
        if problem:
            return problem
        job.configuration = decision.configuration
        self._unwait(job)
        if job.stopped_in == self._instant:
            job.stopped_in = -1
            job.preemptions -= 1
            job.migrations += 1
        waited_s = job.wait_s = view.now - job.since_s
        if waited_s:
            job.queued_s += waited_s
        self._run(job, placement)
        return ""

    def _run(self, job: JobState, placement: Placement, since_s: float | None = None) -> None:
        """Occupy the GPUs and count the job as running, from now on if not since before; its speed is measured later."""
        view = self.view
        now = view.now
        view.inventory.take(placement)
        if job.claim is not None:
            view.inventory.spare.take(job.id, job.claim, placement)
        if job.elastic and (gpus := placement.gpus) != job.gpus:
            self._reaches.resize(job, gpus)
        job.status = RUNNING
        job.since_s = now if since_s is None else since_s
        job.settled_s = job.resume_s = now
        job.placement = placement
        hosts = placement.everywhere if placement.servers else placement.hosts
        job.tier = 0 if len(hosts) == 1 else self._span(hosts)
        job.speed = 1.0
        job.finish_s = now + job.work_s - job.done_s
        if job.gpus != job.asked_gpus:
            job.speed = job.gpus / job.asked_gpus
            job.finish_s = now + (job.work_s - job.done_s) / job.speed
        view.running[job.id] = job
        for index in view.indexes.values():
            if index.tracks:
                index.enter(job, now)

    def _span(self, hosts: tuple[int, ...]) -> int:
        tier = self._span_cache.get(hosts)
        if tier is None:
            tier = self._span_cache[hosts] = self.view.topology.span(hosts)
        return tier

    def _problem(self, job: JobState, placement: Placement) -> str:
        """Why this job cannot run there, or ""."""
        hosts, masks = placement.hosts, placement.masks
        inventory = self.view.inventory
        if len(hosts) == 1 and len(masks) == 1:
            host, mask = hosts[0], masks[0]
            count = mask.bit_count()
            if (
                count == job.gpus
                and len(job.pools) == len(inventory.pools)
                and 0 <= host < len(inventory.masks)
                and inventory.masks[host] & mask == mask
                and not inventory.down[host]
                and job.job.hosts < 2
                and job.claim is None
                and not placement.servers
            ):
                return ""  # the common case, asked first
        else:
            count = sum(mask.bit_count() for mask in masks)
            if len(hosts) != len(masks) or len(set(hosts)) != len(hosts) or 0 in masks:
                return "the placement names a host twice, or without GPUs"
        if count != job.gpus:
            sized = self._reaches.at(job, count)
            return sized if isinstance(sized, str) else self._problem(sized, placement)
        wanted = job.job.hosts
        if wanted and (len(hosts) != wanted or any(m.bit_count() * wanted != job.gpus for m in masks)):
            return f"it wants {job.gpus // wanted} GPUs on each of {wanted} hosts"
        if not inventory.is_free(placement):
            return "some of these GPUs are occupied, down or not there"
        pools = job.pools
        if len(inventory.pools) > 1:
            used = {inventory.pool_of[host].gpu_type for host in hosts}
            if len(used) > 1 or not used <= {pool.gpu_type for pool in pools}:
                return f"the GPUs are of type {' and '.join(sorted(used))}, which it cannot use together"
        if (
            len(hosts) > 1
            and job.widest < len(self.view.topology.tiers) - 1
            and self._span(hosts) > job.widest
        ):
            return f"it must stay within one {self.view.topology.tiers[job.widest]}"
        return self._without_servers(job, placement) or inventory.spare.lack(job, placement)

    def _without_servers(self, job: JobState, placement: Placement) -> str:
        """What is wrong with its parameter servers there, or ""."""
        roles = job.job.roles
        wanted = 0 if roles is None else roles.servers(placement.gpus)
        given = sum(count for _, count in placement.servers)
        if given != wanted:
            return f"it wants {wanted} parameter servers, the placement has {given}"
        down = self.view.inventory.down
        if any(not 0 <= host < len(down) or down[host] or count < 1 for host, count in placement.servers):
            return "a host of its parameter servers is down, or not there"
        across = len(placement.everywhere) > len(placement.hosts)
        if across and self._span(placement.everywhere) > job.widest:
            return f"it must stay within one {self.view.topology.tiers[job.widest]}"
        return ""

    def _stop(self, decision: Stop) -> str:
        view = self.view
        job = view.jobs.get(decision.job_id)
        if job is None or job.status != RUNNING:
            return "it is not running"
        if job.job.pinned:
            return "it may not be stopped"
        job.done_s = job.done_at(view.now)
        self._halt(job)
        job.preemptions += 1
        job.stopped_in = self._instant
        self._requeue(job)
        return ""

    def _halt(self, job: JobState) -> None:
        """Free a running job's GPUs; the caller has settled what it has done, or knows it."""
        view, now = self.view, self.view.now
        for index in view.indexes.values():
            if index.tracks:
                index.leave(job)
        del view.running[job.id]
        job.served_s += now - job.since_s
        assert job.placement is not None
        view.inventory.release(job.placement)
        if job.claim is not None:
            view.inventory.spare.give(job.id)
        if view.loans:
            self._lending.vacated(job.placement)
        job.placement = None
        job.tier = -1
        job.settled_s = now

    def _requeue(self, job: JobState, since_s: float | None = None) -> None:
        if job.gpus != job.asked_gpus:
            self._reaches.resize(job, job.asked_gpus)
        job.status = WAITING
        job.since_s = self.view.now if since_s is None else since_s
        job.speed = 0.0
        job.configuration = None
        self._wait(job)

    def _move(self, decision: Move) -> str:
        return self._take_elsewhere(decision, "moved")

    def _resize(self, decision: Resize) -> str:
        job = self.view.jobs.get(decision.job_id)
        if job is not None and not job.elastic:
            return "it is not elastic"
        return self._take_elsewhere(decision, "resized")

    def _take_elsewhere(self, decision: Move | Resize, what: str) -> str:
        """Stop it and run it there at once."""
        job = self.view.jobs.get(decision.job_id)
        if job is None or job.status != RUNNING:
            return "it is not running"
        if job.job.pinned:
            return f"it may not be {what}"
        with self.view.supposing() as trial:
            trial.without((job,))
            problem = self._misplaced(job, decision)
        if problem:
            return problem
        self._leave(job)
        self._take_up(job, decision)
        return ""

    def _standing(self, change: Start | Stop | Move | Resize) -> str:
        """Why a job cannot be changed so as it stands, wherever it is to run; "" if it can."""
        job = self.view.jobs.get(change.job_id)
        if job is None:
            return "no job is called so"
        if isinstance(change, Start):
            return "" if job.status == WAITING else "it is not waiting"
        if job.status != RUNNING:
            return "it is not running"
        if job.job.pinned:
            return "it may not be stopped"
        return "it is not elastic" if isinstance(change, Resize) and not job.elastic else ""

    def _misplaced(self, job: JobState, change: Start | Move | Resize) -> str:
        """Why it cannot run where that says, or not so; "" if it can."""
        configuration = configuration_of(change)
        problem = self._problem(job, change.placement)
        if problem or configuration is None:
            return problem
        return _misconfigured(job, configuration, change.placement)

    def _leave(self, job: JobState) -> None:
        """A running job gives its GPUs up, and keeps what it has done."""
        job.done_s = job.done_at(self.view.now)
        self._halt(job)

    def _take_up(self, job: JobState, decision: Move | Resize) -> None:
        """A job that has just left its GPUs runs there."""
        job.migrations += 1
        if isinstance(decision, Resize):
            job.configuration = decision.configuration
        elif job.configuration is not None and job.configuration.gpus != decision.placement.gpus:
            job.configuration = None
        self._run(job, decision.placement)

    def _reallocate(self, decision: Reallocate) -> str:
        return reallocate(self._steps, decision)

    def _align(self, decision: Align) -> str:
        job = self.view.jobs.get(decision.job_id)
        if job is None or job.status != RUNNING:
            return "it is not running"
        if not 0 <= decision.link < _links(self.view):
            return f"there is no link {decision.link}"
        if not 0 <= decision.offset_s < inf:
            return f"an offset must be 0 or more and finite, not {decision.offset_s}"
        return ""

    def _link_feedback(self, event: LinkFeedback) -> None:
        self.view.feedback[event.link] = event

    def _pace(self, decision: Pace) -> str:
        job = self.view.jobs.get(decision.job_id)
        if job is None or job.status != RUNNING:
            return "it is not running"
        if not 0 < decision.weight < inf:
            return f"a weight must be above 0 and finite, not {decision.weight}"
        return ""

    def _wake_at(self, decision: WakeAt) -> str:
        if decision.job_id and decision.job_id not in self.view.jobs:
            return f"no job is called {decision.job_id!r}"
        if decision.time_s < self.view.now:
            return f"{decision.time_s} s is in the past"
        if not decision.time_s < inf:
            return f"{decision.time_s} s is no time"
        return ""

    def _finished(self, event: Finished | Failed) -> None:
        view = self.view
        job = view.jobs.get(event.job_id)
        if job is None:
            self._services.withdrawn(event)
            return
        finished = type(event) is Finished
        if job.status == RUNNING:
            if not finished:
                job.done_s = job.done_at(view.now)
            self._halt(job)
        elif job.status == WAITING:
            self._unwait(job)
            job.queued_s += event.time_s - job.since_s
        elif job.status == HELD:
            job.withheld_s += event.time_s - job.since_s
        if finished:
            job.done_s = job.work_s
            view.ended += 1
            view.ended_work_s += job.work_s
        else:
            view.failed += 1
        job.status = ENDED
        job.since_s = event.time_s

    def _started(self, event: Started) -> None:
        """The engine confirms what `Start` assumed, or has done otherwise."""
        job = self.view.jobs[event.job_id]
        if job.shunned:
            self._reaches.shun(job, ())
        if event.placement is not None:
            started_elsewhere(self._transitions, event, event.placement)

    def _measured(self, event: Measured) -> None:
        view, job = self.view, self.view.jobs[event.job_id]
        if job.status != RUNNING:
            return
        now = view.now
        speed = event.speed
        if event.gradient_noise_scale is not None:
            job.gradient_noise_scale = event.gradient_noise_scale
        if event.resume_s is None and speed == job.speed:
            return
        if now > job.settled_s:
            job.done_s = job.done_at(now)
            job.settled_s = now
        if event.resume_s is not None:
            job.resume_s = event.resume_s
        job.speed = speed
        resume_s = job.resume_s
        begin = resume_s if resume_s > now else now
        job.finish_s = begin + (job.work_s - job.done_s) / speed if speed > 0 else inf
        for index in view.indexes.values():
            if index.tracks:
                index.measured(job, now)

    def _timer(self, event: Timer) -> None:
        if not event.job_id:
            return
        view, job = self.view, self.view.jobs[event.job_id]
        if job.status == ENDED:
            return
        view.timers.append(job)
        for index in view.indexes.values():
            index.refresh(job, view.now)

    def _node_lost(self, event: NodeLost) -> None:
        view = self.view
        if view.inventory.down[event.host]:
            return
        victims = [
            job for job in view.running.values() if job.placement and event.host in job.placement.everywhere
        ]
        for job in victims:
            job.done_s = job.done_at(view.now)
            self._halt(job)
            job.done_s = max(0.0, job.done_s - event.lost_work_s.get(job.id, 0.0))
            self._requeue(job)
            view.returned.append(job)
        self._services.node_lost(event)
        view.inventory.lose(event.host)

    def _node_back(self, event: NodeBack) -> None:
        if self.view.inventory.down[event.host]:
            self.view.inventory.regain(event.host)

    def validate(self) -> None:
        """Check every invariant; for tests.

        Raises:
            InternalError: naming the first that is broken.
        """
        view, inventory = self.view, self.view.inventory
        free = [mask & ~inventory.blocked.get(host, 0) for host, mask in enumerate(inventory.all_masks)]
        for job in view.running.values():
            assert job.placement is not None
            if job.placement.gpus != job.gpus:
                raise InternalError(f"{job.id} holds {job.placement.gpus} of {job.gpus} GPUs")
            for host, mask in zip(job.placement.hosts, job.placement.masks, strict=True):
                if free[host] & mask != mask:
                    raise InternalError(f"{job.id} shares GPUs of host {host}")
                free[host] ^= mask
        for service in view.services.values():
            for place in service.replicas:
                for host, mask in zip(place.hosts, place.masks, strict=True):
                    if free[host] & mask != mask:
                        raise InternalError(f"a replica of {service.service.id} shares GPUs of host {host}")
                    free[host] ^= mask
        for host, mask in inventory.hidden.items():
            free[host] ^= mask
        if free != inventory.masks:
            raise InternalError("free GPUs do not match the running jobs")
        up = [0 if inventory.down[h] else mask.bit_count() for h, mask in enumerate(free)]
        if sum(up) != inventory.free or up != inventory.counts:
            raise InternalError("counts of free GPUs do not match their masks")
        replicas = {
            state.key(place)
            for state in view.services.values()
            if state.service.resources is not None
            for place in state.replicas
        }
        if inventory.spare.holders - replicas != {
            job.id for job in view.running.values() if job.claim is not None
        }:
            raise InternalError("what jobs have beside GPUs does not match the running jobs")
        apart = sum(job.status in (ENDED, HELD) for job in view.jobs.values())
        if len(view.waiting) + len(view.running) + apart != len(view.jobs):
            raise InternalError("a job is lost")


def _misconfigured(job: JobState, configuration: Configuration, placement: Placement) -> str:
    """Why a job cannot split its batch so there; "" if it can."""
    if configuration.gpus != placement.gpus:
        return f"the configuration is for {configuration.gpus} GPUs, not for {placement.gpus}"
    if not isinstance(job.job, Elastic) or not _may_split(job.job, configuration):
        return f"it cannot split its batch so: {configuration} is none of its configurations"
    return ""


def _may_split(job: Elastic, configuration: Configuration) -> bool:
    """Whether the job names it, or names none and has a model that covers it."""
    if job.configurations or job.profile is None or job.profile.goodput is None:
        return configuration in job.configurations
    model, one = job.profile.goodput, configuration
    return model.admits(one.gpus, one.per_gpu_batch, one.accumulation)


def _links(view: ClusterView) -> int:
    """How many links there are: of each host, and of each domain to the level above."""
    return len(view.topology.hosts) + sum(len(level.domains) for level in view.topology.levels)


def no_decision(what: Never) -> PolicyError:
    """What to raise where a policy yielded something else; mypy sees that no kind of decision comes so far."""
    return PolicyError(
        f"the policy decided {what!r}, which is no decision",
        f"yield {', '.join(sorted(kind.__name__ for kind in EVERY_KIND))}",
    )
