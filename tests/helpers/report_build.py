"""A tiny honest cluster: a FIFO or shortest-first loop over an event list, for tests of reports.

A job on one host runs at full speed, across hosts of a rack at 0.8 and wider at 0.6 of it; the
rest of that time is exposed communication. All that the loop writes down is consistent.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from hemiola.core.decisions import Placement, Start, Stop, WakeAt
from hemiola.core.job import Demand, Job, Profile, batch_job
from hemiola.core.result import Comparison, GpuSeconds, JobRecord, LoggedDecision, Run
from hemiola.core.timeline import Timeline, TrafficLog
from hemiola.core.topology import Level, Topology, equal_hosts

SPEED = (1.0, 0.8, 0.6)
RESTORE_S = 30.0
PROFILES = (
    Profile(name="resnet50", demands=(Demand(1, 0.1, 0.0), Demand(8, 0.11, 1e8)), source="a test"),
    Profile(name="gpt2-xl", demands=(Demand(1, 0.4, 0.0), Demand(8, 0.4, 6e9)), overlap=0.5, source="a test"),
)


def cluster(racks: int = 2, hosts_per_rack: int = 2, gpus_per_host: int = 4) -> Topology:
    """Racks of equal hosts under one core switch."""
    count = racks * hosts_per_rack
    level = Level(
        name="rack",
        domains=tuple(f"r{i}" for i in range(racks)),
        domain_of_host=np.repeat(np.arange(racks), hosts_per_rack),
        uplink_bytes_per_s=np.full(racks, 2.5e9),
    )
    return Topology(
        name="test-cluster", hosts=equal_hosts(count, gpus_per_host, gpu_type="A100"), levels=(level,)
    ).check()


def jobs(count: int, seed: int, *, load_s: float = 300.0) -> tuple[Job, ...]:
    """Jobs of 1 to 8 GPUs that arrive at random."""
    rng = random.Random(seed)
    made, now = [], 1000.0
    for i in range(count):
        profile = PROFILES[rng.randrange(2)]
        made.append(
            batch_job(
                id=f"job-{i:03d}", submit_s=now, gpus=rng.choice((1, 1, 2, 4, 8)),
                duration_s=rng.uniform(100, 6000), profile=profile, model=profile.name,
                user=rng.choice(("ada", "grace")),
            )
        )  # fmt: skip
        now += rng.expovariate(1 / load_s)
    return tuple(made)


@dataclass
class _State:
    job: Job
    index: int
    left_s: float
    wait_from_s: float
    first_s: float | None = None
    end_s: float | None = None
    wait_s: float = 0.0
    useful_s: float = 0.0
    exposed_s: float = 0.0
    checkpoint_s: float = 0.0
    preemptions: int = 0
    tiers_s: list[float] = field(default_factory=lambda: [0.0] * 3)
    place: Placement | None = None
    start_s: float = 0.0
    resume_s: float = 0.0
    tier: int = 0

    def done_s(self) -> float:
        return self.resume_s + self.left_s / SPEED[self.tier]


class TinyCluster:
    """The loop. `shortest` orders the queue by what is left; `preempt` also stops longer jobs."""

    def __init__(self, topology: Topology, work: tuple[Job, ...], *, shortest: bool, preempt: bool) -> None:
        self.topology, self.shortest, self.preempt = topology, shortest, preempt
        self.states = [_State(job, i, job.duration_s, job.submit_s) for i, job in enumerate(work)]
        self.free = [(1 << int(n)) - 1 for n in topology.hosts.gpus]
        self.waiting: list[_State] = []
        self.running: list[_State] = []
        self.spans: list[tuple[int, int, int, float, float, float, int, int]] = []
        self.traffic: list[tuple[int, float, float, float, float, tuple[int, ...]]] = []
        self.log: list[LoggedDecision] = []
        self.queue: list[tuple[float, int, int, int]] = []
        self.idle = {"idle_waiting": 0.0, "idle_fragmentation": 0.0, "idle_no_demand": 0.0}

    def free_gpus(self) -> int:
        return sum(mask.bit_count() for mask in self.free)

    def run(self, stop_s: float = float("inf")) -> float:
        """Run to the end or to `stop_s`; returns when that was."""
        arrivals = list(self.states)
        now = arrivals[0].job.submit_s
        while arrivals or self.running:
            coming = [s.done_s() for s in self.running] + [s.job.submit_s for s in arrivals[:1]]
            then = min(*coming, stop_s) if len(coming) > 1 else min(coming[0], stop_s)
            self._account(then - now)
            now = then
            if now == stop_s:
                break
            for state in [s for s in self.running if s.done_s() <= now]:
                self._end(state, now, 0)
            while arrivals and arrivals[0].job.submit_s <= now:
                self.waiting.append(arrivals.pop(0))
            self._decide(now)
            wanted = sum(s.job.gpus for s in self.waiting)
            self.queue.append((now, len(self.waiting), wanted, self.topology.gpus - self.free_gpus()))
        for state in list(self.running):
            self._end(state, now, 5)
        for state in self.waiting:
            state.wait_s += now - state.wait_from_s
        self.states = [s for s in self.states if s.job.submit_s <= now]
        return now

    def _account(self, span_s: float) -> None:
        free = self.free_gpus()
        fits = [s.job.gpus <= free for s in self.waiting]
        kind = "idle_waiting" if any(fits) else "idle_fragmentation" if fits else "idle_no_demand"
        self.idle[kind] += free * span_s

    def _decide(self, now: float) -> None:
        if self.shortest:
            self.waiting.sort(key=lambda s: (s.left_s, s.index))
        if self.preempt and self.waiting:
            self._make_room(self.waiting[0], now)
        while self.waiting and self.waiting[0].job.gpus <= self.free_gpus():
            self._start(self.waiting[0], now)
        if self.waiting and self.free_gpus():
            head = self.waiting[0].job
            self._note(now, WakeAt(now + 60, head.id, "too few GPUs are free, look again in a minute"))

    def _make_room(self, head: _State, now: float) -> None:
        for victim in sorted(self.running, key=lambda s: -s.done_s()):
            if head.job.gpus <= self.free_gpus() or victim.done_s() - now < 3 * head.left_s:
                return
            self._note(now, Stop(victim.job.id, f"job {head.job.id} has less work left"))
            self._end(victim, now, 1)
            victim.preemptions += 1
            victim.wait_from_s = now
            self.waiting.append(victim)

    def _start(self, state: _State, now: float) -> None:
        hosts, masks, need = [], [], state.job.gpus
        for host, mask in enumerate(self.free):
            taken = 0
            for gpu in range(mask.bit_length()):
                if mask >> gpu & 1 and need:
                    taken, need = taken | 1 << gpu, need - 1
            if taken:
                hosts.append(host)
                masks.append(taken)
        state.place = Placement(tuple(hosts), tuple(masks))
        state.tier = self.topology.span(state.place.hosts)
        self._note(now, Start(state.job.id, state.place, "it is at the head of the queue and fits"))
        for host, taken in zip(hosts, masks, strict=True):
            self.free[host] &= ~taken
        self.waiting.remove(state)
        self.running.append(state)
        state.wait_s += now - state.wait_from_s
        state.resume_s = now + (RESTORE_S if state.first_s is not None else 0.0)
        state.start_s, state.first_s = now, now if state.first_s is None else state.first_s

    def _end(self, state: _State, now: float, outcome: int) -> None:
        place = state.place
        assert place is not None
        worked = max(0.0, now - state.resume_s)
        resume = min(state.resume_s, now)
        speed = SPEED[state.tier]
        state.useful_s += worked * speed
        state.exposed_s += worked * (1 - speed)
        state.checkpoint_s += resume - state.start_s
        state.left_s = max(0.0, state.left_s - worked * speed)
        state.tiers_s[state.tier] += now - state.start_s
        for host, mask in zip(place.hosts, place.masks, strict=True):
            self.free[host] |= mask
            self.spans.append((state.index, host, mask, state.start_s, now, resume, state.tier, outcome))
        if len(place.hosts) > 1 and worked > 0:
            self.traffic.append((state.index, resume, now, 0.2, 0.1e9 * state.job.gpus, place.hosts))
        self.running.remove(state)
        if outcome == 0:
            state.end_s = now

    def _note(self, now: float, decision: Start | Stop | WakeAt) -> None:
        self.log.append(LoggedDecision(now, decision, self.free_gpus(), len(self.waiting)))


def simulate(
    topology: Topology, work: tuple[Job, ...], policy: str, seed: int, stop_s: float = float("inf")
) -> Run:
    """A run of "fifo", "sjf" or "srtf"."""
    return simulate_with_queue(topology, work, policy, seed, stop_s)[0]


def simulate_with_queue(
    topology: Topology, work: tuple[Job, ...], policy: str, seed: int, stop_s: float = float("inf")
) -> tuple[Run, list[tuple[float, int, int, int]]]:
    """The same, and after each change (time_s, jobs waiting, GPUs they want, GPUs busy)."""
    loop = TinyCluster(topology, work, shortest=policy != "fifo", preempt=policy == "srtf")
    end_s = loop.run(stop_s)
    records = tuple(_record(state, end_s) for state in loop.states)
    spent = dict.fromkeys(("useful", "exposed_communication", "checkpoint"), 0.0)
    for state in loop.states:
        spent["useful"] += state.useful_s * state.job.gpus
        spent["exposed_communication"] += state.exposed_s * state.job.gpus
        spent["checkpoint"] += state.checkpoint_s * state.job.gpus
    columns = list(zip(*loop.traffic, strict=True)) or [()] * 6
    run = Run(
        policy=policy, seed=seed, semantics={"order": policy, "restore": "30 s after a pre-emption"},
        origin_s=work[0].submit_s, end_s=end_s,
        gpu_seconds=GpuSeconds(**spent, lost=0.0, **loop.idle, down=0.0),
        records=records, decisions_made=len(loop.log), decisions_refused=0, events=len(loop.queue),
        wall_s=0.01, cpu_s=0.01, interrupted=stop_s < float("inf"), timeline=Timeline.from_rows(loop.spans),
        traffic=TrafficLog(*(np.array(c) for c in columns[:5]), columns[5]),
        decisions=tuple(loop.log),
    )  # fmt: skip
    return run, loop.queue


def _record(state: _State, end_s: float) -> JobRecord:
    job, ended = state.job, state.end_s
    running = any(x > 0 for x in state.tiers_s) and state.place is not None and ended is None
    status = "finished" if ended is not None else "running" if running else "waiting"
    return JobRecord(
        id=job.id, status=status, why="" if ended is not None else "the simulation was stopped",
        submit_s=job.submit_s, first_start_s=state.first_s, finish_s=ended, gpus=job.gpus,
        jct_s=None if ended is None else ended - job.submit_s, queueing_s=state.wait_s,
        run_s=sum(state.tiers_s), useful_s=state.useful_s, exposed_communication_s=state.exposed_s,
        checkpoint_s=state.checkpoint_s, lost_s=0.0, ideal_s=job.duration_s,
        preemptions=state.preemptions, migrations=0, tiers_s=tuple(state.tiers_s),
        model=job.model, user=job.user, queue=job.queue,
    )  # fmt: skip


def comparison(
    *, count: int = 40, seeds: tuple[int, ...] = (0,), policies: tuple[str, ...] = ("fifo", "sjf", "srtf"),
    stop_s: float = float("inf"), topology: Topology | None = None, load_s: float = 300.0,
) -> Comparison:  # fmt: skip
    """Runs of these policies on the same jobs."""
    topology = topology or cluster()
    work = {seed: jobs(count, seed, load_s=load_s) for seed in seeds}
    runs = tuple(simulate(topology, work[seed], name, seed, stop_s) for name in policies for seed in seeds)
    return Comparison(
        topology=topology, runs=runs, baseline="fifo", workload_name="test jobs", workload_format="generated",
        notes=("arrivals are exponential",), workloads=work,
    )  # fmt: skip
