"""SimulatedReplay a workload under several policies: the function behind `hemiola simulate`."""

from __future__ import annotations

import dataclasses
import gc
import signal
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite

import msgspec

from hemiola.core.decisions import Decision
from hemiola.core.errors import InputError, PolicyError
from hemiola.core.events import NodeBack, NodeLost
from hemiola.core.job import Batch, Service, Workload
from hemiola.core.result import Comparison, LoggedDecision, Run, baseline_among
from hemiola.core.topology import Topology
from hemiola.core.virtual_cluster import VirtualCluster
from hemiola.cost.iteration import IterationModel, goes_by_schedules, recorded_as
from hemiola.kernels.fluid import warm_up
from hemiola.sched.loop import run_loop
from hemiola.sched.machine import StateMachine
from hemiola.sched.placement import Rule
from hemiola.sched.policies import parameters, policy_from_text, policy_text
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView
from hemiola.simulator.records import ServingRules, SimulatedReplay, build_run
from hemiola.simulator.rules import Rules, Semantics

__all__ = ["Progress", "Recording", "in_order", "policies_by_text", "simulate"]

Progress = Callable[[str, int, int, int], None]


@dataclass(frozen=True)
class Recording:
    """What a simulation keeps beside its metrics.

    Attributes:
        timeline: spans and the queue's length, for pictures.
        decisions: every decision with its reason, for `hemiola explain`.
        traffic: what each job sent when, for the heat map of links.
    """

    timeline: bool = True
    decisions: bool = False
    traffic: bool = False


@contextmanager
def without_collection() -> Iterator[None]:
    """Keep Python's cycle collector still: a replay makes few cycles, and many objects that live on."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@without_collection()
def simulate(
    jobs: Workload | Sequence[Batch] | Callable[[int], Workload],
    topology: Topology,
    policies: Sequence[Policy | str],
    *,
    baseline: str | None = None,
    semantics: Rules | None = None,
    seeds: Sequence[int] = (0,),
    node_events: Sequence[NodeLost | NodeBack] = (),
    recorded_on: Topology | None = None,
    recording: Recording | None = None,
    progress: Progress | None = None,
    clusters: Sequence[VirtualCluster] = (),
    serving: ServingRules | None = None,
) -> Comparison:
    """Run every policy on the same jobs, cluster and seeds.

    Args:
        jobs: a workload, or a function of the seed that makes one (models drawn, arrivals drawn);
            policies are compared pairwise on equal seeds.
        topology: the cluster; checked.
        policies: policies, or their names with parameters ("dally:timer=break-even").
        baseline: the policy that differences refer to, as written in `policies`; the first unless given.
        semantics: the rules of time, cost and contention.
        seeds: one run per policy and seed.
        node_events: hosts that fail and return.
        recorded_on: the cluster on which the run times were measured; `topology` unless given.
            Give the same one to comparisons on several fabrics.
        recording: what to keep.
        progress: called now and then with (policy, seed, jobs ended, jobs).
        clusters: virtual clusters, by whose names jobs and services say where they belong (`queue`); those that name none
            belong to "training" and "inference".
        serving: how services are simulated; as a fluid unless given.

    Returns:
        All runs. After Ctrl-C those done so far, the last one marked as interrupted; if the baseline has none of
        them, the first one's policy is in its place.

    Raises:
        InputError, TopologyError, PolicyError: before anything runs.
    """
    topology.check()
    _check_node_events(node_events, topology)
    semantics = semantics or Semantics()
    if recorded_on is not None and not semantics.uses_profiles:
        raise InputError(
            f"{semantics.name} has its own fixed rules; recorded_on cannot be set",
            "leave the option out, or use --semantics event-driven",
        )
    named = policies_by_text(policies, semantics, baseline=baseline)
    if not seeds:
        raise InputError("no seed was given", "give at least one")
    runs: list[Run] = []
    workloads: dict[int, tuple[Batch, ...]] = {}
    notes = list(topology.left_out)
    first: Workload | None = None
    for seed in seeds:
        workload = _workload(jobs, seed)
        _check_services(workload, named, semantics)
        first = first or workload
        notes += [note for note in workload.notes if note not in notes]
        if semantics.uses_profiles and (told := _on_types(workload.jobs, topology)) and told not in notes:
            notes.append(told)
        if semantics.fitted and (told := _as_rings(workload.jobs)) not in notes:
            notes.append(told)
        workloads[seed] = workload.jobs
        _check_jobs(workload)
        wanted, told = _by_types(workload.jobs, topology)
        if told and told not in notes:
            notes.append(told)
        if recorded_on is not None:
            _check_recorded(wanted, topology, recorded_on)
        if len(topology.hosts) > 1 and any(job.gpus > 1 and job.profile is not None for job in wanted):
            warm_up()  # the network's kernel: before the clock starts
        for name, policy in named.items():
            run = run_one(
                wanted, topology, policy, name=name, seed=seed, semantics=semantics,
                node_events=node_events, recorded_on=recorded_on, recording=recording or Recording(),
                progress=progress, services=workload.services, clusters=clusters, serving=serving or ServingRules(),
            )  # fmt: skip
            runs.append(run)
            if run.interrupted:
                return _comparison(topology, runs, baseline or next(iter(named)), first, notes, workloads)
    assert first is not None
    return _comparison(topology, runs, baseline or next(iter(named)), first, notes, workloads)


def _comparison(
    topology: Topology,
    runs: list[Run],
    baseline: str,
    workload: Workload,
    notes: list[str],
    workloads: dict[int, tuple[Batch, ...]],
) -> Comparison:
    return Comparison(
        topology=topology,
        runs=tuple(runs),
        baseline=baseline_among(runs, baseline),
        workload_name=workload.name,
        workload_format=workload.format,
        notes=tuple(notes),
        workloads=workloads,
    )


def policies_by_text(
    policies: Sequence[Policy | str], semantics: Rules, *, baseline: str | None = None
) -> dict[str, Policy]:
    """The policies of a comparison, each by what it was asked for as.

    Raises:
        InputError, PolicyError: none, an unknown one, one twice, or a baseline that is not among them.
    """
    named: dict[str, Policy] = {}
    for item in policies:
        policy = policy_from_text(item, semantics.policies) if isinstance(item, str) else item
        name = item if isinstance(item, str) else policy_text(policy)
        if name in named:
            raise InputError(f"the policy {name!r} was given twice", "name each once; parameters may differ")
        named[name] = policy
    if not named:
        raise InputError("no policy was given", "name at least one, such as fifo")
    if baseline is not None and baseline not in named:
        raise InputError(
            f"the baseline {baseline!r} is not among the policies", f"choose one of {', '.join(named)}"
        )
    return named


def _workload(jobs: Workload | Sequence[Batch] | Callable[[int], Workload], seed: int) -> Workload:
    """The jobs of this seed in order of arrival, ties as they were given."""
    if callable(jobs):
        jobs = jobs(seed)
    if not isinstance(jobs, Workload):
        jobs = Workload(jobs=tuple(jobs), format="python")
    return in_order(jobs)


def _check_services(workload: Workload, policies: Mapping[str, Policy], semantics: Rules) -> None:
    """Whoever knows nothing of services would leave them out in silence."""
    if not workload.services:
        return
    which = f"the workload has {len(workload.services)}, {workload.services[0].id!r} among them"
    for name, policy in policies.items():
        if Service not in policy.job_kinds:
            raise PolicyError(
                f"the policy {name!r} knows no services, and {which}",
                "leave services out of the workload, or name a policy that places them: fapes, lyra, static-split, elastic",
            )
    if not semantics.runs_services:
        raise InputError(
            f"{semantics.name} runs no services, and {which}", "leave services out of the workload"
        )
    for service in workload.services:
        if flaw := service.flaw() or (
            "" if service.latency else "nobody says how long a replica takes (latency)"
        ):
            raise InputError(f"service {service.id!r} cannot be simulated: {flaw}", "correct it")
        if not (service.arrivals or service.requests):
            raise InputError(f"service {service.id!r} has no requests", "give it arrivals or requests")


def in_order(workload: Workload) -> Workload:
    """The same jobs in order of arrival, ties as they were given."""
    ordered = tuple(sorted(workload.jobs, key=lambda job: job.submit_s))
    if len(workload.services) > 1:
        services = tuple(sorted(workload.services, key=lambda service: service.submit_s))
        workload = msgspec.structs.replace(workload, services=services)
    return workload if ordered == workload.jobs else msgspec.structs.replace(workload, jobs=ordered)


def _on_types(jobs: tuple[Batch, ...], topology: Topology) -> str:
    """On which of several GPU types jobs' profiles do not say how fast they are, in words; "" where they do."""
    kinds = [kind for kind in topology.gpu_types if kind]
    if len(kinds) < 2:
        return ""
    asked = {
        (id(job.profile), job.gpu_type): (job.profile, job.gpu_type)
        for job in jobs
        if job.profile is not None
    }
    silent = [
        kind for kind in kinds
        if any(wanted in ("", kind) and not profile.knows(kind) for profile, wanted in asked.values())
    ]  # fmt: skip
    if not silent:
        return ""
    return (
        f"GPU types: the profiles of some jobs have no gpu_speed of {', '.join(silent)}; these jobs compute there as on "
        "the type that was measured"
    )


def _by_types(jobs: tuple[Batch, ...], topology: Topology) -> tuple[tuple[Batch, ...], str]:
    """The jobs as this cluster can place them, and what was left aside, in words.

    A cluster that says no GPU type of any host cannot refuse a job for its type.
    """
    asked = Counter(job.gpu_type for job in jobs if job.gpu_type)
    if not asked or any(topology.gpu_types):
        return jobs, ""
    told = (
        f"GPU types: {asked.total():,} of {len(jobs):,} jobs ask for one ({', '.join(sorted(asked))}), and the cluster "
        "does not say which it has: types are left aside; gpu_type=... says what hosts have"
    )
    free = (msgspec.structs.replace(job, gpu_type="") if job.gpu_type else job for job in jobs)
    return tuple(free), told


def _as_rings(jobs: tuple[Batch, ...]) -> str:
    """How many jobs cannot be priced by schedules, in words."""
    several = [job for job in jobs if job.gpus > 1]
    others = sum(not goes_by_schedules(job) for job in several)
    return (
        f"collectives: fitted to the links; {others:,} of {len(several):,} jobs on several GPUs have no profile, or one "
        "without all-reduces, and are priced as usual"
    )


def _check_node_events(events: Sequence[NodeLost | NodeBack], topology: Topology) -> None:
    for event in events:
        if not 0 <= event.host < len(topology.hosts):
            raise InputError(
                f"{type(event).__name__} names host {event.host}", f"hosts are 0 to {len(topology.hosts) - 1}"
            )
        if not isfinite(event.time_s):
            raise InputError(f"{type(event).__name__} is at {event.time_s} s", "give a finite time")


class _Stopper:
    """Turns Ctrl-C into a clean stop between two instants; a second one stops at once."""

    def __init__(self, driver: SimulatedReplay) -> None:
        self._driver = driver
        self._mine = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> None:
        if self._mine:
            self._before = signal.signal(signal.SIGINT, self._stop)

    def __exit__(self, *_: object) -> None:
        if self._mine:
            signal.signal(signal.SIGINT, self._before)

    def _stop(self, *_: object) -> None:
        if self._driver.stop:
            raise KeyboardInterrupt
        self._driver.stop = True


def _check_jobs(workload: Workload) -> None:
    jobs = workload.jobs
    if not jobs and not workload.services:
        raise InputError("the workload has no jobs", "look at what its reader left out, and why")
    seen: set[str] = {service.id for service in workload.services}
    for job in jobs:
        if job.id in seen:
            raise InputError(f"two jobs are called {job.id!r}", "give every job an id of its own")
        seen.add(job.id)
        if not 0 <= job.duration_s < float("inf"):
            raise InputError(f"job {job.id!r}: duration_s is {job.duration_s}", "give seconds, 0 or more")
        if not -float("inf") < job.submit_s < float("inf"):
            raise InputError(f"job {job.id!r}: submit_s is {job.submit_s}", "give a finite time in seconds")
        if job.estimate_s is not None and not 0 <= job.estimate_s < float("inf"):
            raise InputError(f"job {job.id!r}: estimate_s is {job.estimate_s}", "give seconds, or None")
        if job.gpus < 1:
            raise InputError(f"job {job.id!r} wants {job.gpus} GPUs", "give 1 or more")
        if flaw := job.flaw():
            raise InputError(f"job {job.id!r}: {flaw}", "give sizes that hold the one it asks for")


def _check_recorded(jobs: tuple[Batch, ...], topology: Topology, recorded_on: Topology) -> None:
    """Whether those that can run here can have been recorded there."""
    seen: set[tuple[int, str, int]] = set()
    for job in jobs:
        shape = job.gpus, job.gpu_type, job.hosts
        if job.profile is not None and shape not in seen:
            seen.add(shape)
            if topology.narrowest(*shape) is not None:
                recorded_as(job, recorded_on)


def run_one(
    jobs: tuple[Batch, ...],
    topology: Topology,
    policy: Policy,
    *,
    name: str,
    seed: int,
    semantics: Rules,
    node_events: Sequence[NodeLost | NodeBack],
    recorded_on: Topology | None,
    recording: Recording,
    progress: Progress | None,
    services: tuple[Service, ...] = (),
    clusters: Sequence[VirtualCluster] = (),
    serving: ServingRules | None = None,
) -> Run:
    """One policy on one workload; ends early, marked as interrupted, on Ctrl-C."""
    policy = _seeded(policy, seed)
    model = IterationModel(topology, recorded_on, fitted=semantics.fitted)
    began_s = min([one.submit_s for one in (*jobs[:1], *services[:1])])
    view = ClusterView(topology, semantics.estimates(model), now=began_s, clusters=clusters)
    machine = StateMachine(view)
    admitted, refused = _admit(jobs, machine, lambda job: semantics.refusal(job, policy, topology))
    report = None
    if progress is not None:
        report = _throttled(progress, name, seed, len(jobs))
    driver = semantics.driver(
        view, admitted, model, node_events=node_events, record=recording.timeline,
        record_traffic=recording.traffic, progress=report,
    )  # fmt: skip
    for service in services:
        _check_fits(service, view)
    rules = msgspec.structs.replace(serving or ServingRules(), seed=seed)
    driver.serve(services, rules)
    card = semantics.card(policy, seed)
    if services:
        card["services"] = f"{rules.fidelity}; load is told each {rules.interval_s:g} s"
    if recorded_on is not None:
        card["recorded on"] = f"run times are those of {recorded_on.name}: equally many iterations here"
    log: list[LoggedDecision] = []
    wall, cpu = time.perf_counter(), time.process_time()
    timed = _Timed(policy)
    with _Stopper(driver):
        made, declined = run_loop(driver, machine, timed, _noter(log, view) if recording.decisions else None)
    if driver.stop:
        driver.close()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return build_run(
        driver, view, jobs, refused, policy=name, seed=seed, semantics=card,
        decisions=tuple(log), decisions_made=made, decisions_refused=declined, wall_s=wall, cpu_s=cpu,
        interrupted=driver.stop, decision_s=timed.seconds,
        certificate=_certificate(view, admitted, driver),
    )  # fmt: skip


def _certificate(view: ClusterView, jobs: Sequence[Batch], driver: SimulatedReplay) -> float | None:
    """A bound on the utility of these jobs; None where none has one, or the run was stopped."""
    if driver.stop or all(job.utility is None for job in jobs):
        return None
    from hemiola.simulator.certified import certificate_of

    return certificate_of(view, jobs, driver)


def _check_fits(service: Service, view: ClusterView) -> None:
    """Whether a replica could run anywhere here."""
    why = view.reaches.of(service.gpus, service.gpu_type, service.required, service.preferred, service.hosts)
    if isinstance(why, str):
        raise InputError(
            f"a replica of service {service.id!r} could never run here: {why}", "give it what there is"
        )


ALL_TIMED, TIMED_OF = 1000, 16
"""So many instants are all timed; then one of so many, as to read the clock at each takes a tenth of a run."""


class _Timed(Policy):
    """A policy, and what it takes to decide; instants at which it decided nothing are not counted.

    Attributes:
        seconds: of instants, without what carrying the decisions out took.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.name = policy.name or type(policy).__name__  # type: ignore[misc]
        self.seconds = array("d")
        self._instants = 0

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        """What the policy decides."""
        self._instants += 1
        if self._instants > ALL_TIMED and self._instants % TIMED_OF:
            return self._policy.decide(view)
        return self._timed(view)

    def _timed(self, view: ClusterView) -> Iterator[Decision]:
        clock, spent, decided = time.perf_counter, 0.0, False
        begin = clock()
        for decision in self._policy.decide(view):
            spent += clock() - begin
            decided = True
            yield decision
            begin = clock()
        if decided:
            self.seconds.append(spent + clock() - begin)


def _seeded(policy: Policy, seed: int) -> Policy:
    """The same policy; what its rules of placement draw, they draw by this seed."""
    rules = {
        name: seeded
        for name in parameters(type(policy))
        if isinstance(rule := getattr(policy, name), Rule) and (seeded := rule.seeded(seed)) is not rule
    }
    return dataclasses.replace(policy, **rules) if rules else policy  # type: ignore[type-var]


def _admit(
    jobs: tuple[Batch, ...], machine: StateMachine, refusal: Callable[[Batch], str]
) -> tuple[list[Batch], dict[str, str]]:
    """The jobs that could run at all, and why each other one could not."""
    admitted: list[Batch] = []
    refused: dict[str, str] = {}
    for job in jobs:
        why = machine.admission(job) or refusal(job)
        if why:
            refused[job.id] = why
        else:
            admitted.append(job)
    return admitted, refused


def _noter(log: list[LoggedDecision], view: ClusterView) -> Callable[[Decision, str], None]:
    def note(decision: Decision, refused: str) -> None:
        if refused:
            log[-1] = LoggedDecision(view.now, decision, log[-1].free_gpus, log[-1].waiting, refused)
        else:
            log.append(LoggedDecision(view.now, decision, view.inventory.free, len(view.waiting)))

    return note


def _throttled(progress: Progress, name: str, seed: int, total: int) -> Callable[[int], None]:
    """Pass on every hundredth of the way."""
    step = max(1, total // 100)

    def report(ended: int) -> None:
        if ended % step == 0 or ended == total:
            progress(name, seed, ended, total)

    return report
