"""What every driver has to do, whatever its engine: the loop above it asks nobody which one it is.

A scripted policy decides; the state machine is checked after every event and decision.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from live_ray import LiveRay
from live_slurm import Live
from memory_engine import MemoryCluster, MemoryDriver
from patience import patience
from replays import CheckedMachine, cluster

from hemiola.core.decisions import Decision, Move, Placement, Resize, Start, Stop, WakeAt
from hemiola.core.events import Adopted, Arrived, Event, Finished, Timer
from hemiola.core.job import Job, Profile, batch_job
from hemiola.core.topology import Topology
from hemiola.cost.iteration import IterationModel
from hemiola.kernels.fluid import PRESENT
from hemiola.live.engines.ray.driver import RayDriver
from hemiola.live.engines.slurm.driver import SlurmDriver
from hemiola.live.polling_driver import Clock
from hemiola.sched.job_state import ENDED, RUNNING
from hemiola.sched.loop import Driver, run_loop
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import SimulatedDriver

SECONDS, LIVE_SECONDS = 2, 3
"""A job's. A real one is stopped after 1.6 s, and may take half a second to notice: it is not to have ended by itself."""
LIMIT_S = 40.0
ALL = 0xFF
ENGINES = (
    "simulated",
    "in-memory",
    *(pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("slurm", "ray")),
)


class Engine:
    """Four hosts in two racks with eight GPUs each, and jobs of two or three seconds, in one line.

    Attributes:
        live_seconds: of jobs on a real engine.
        hosts_of: after the run, by job, the hosts that it ran on last, as the engine says.
    """

    driver: Driver
    machine: CheckedMachine
    live_seconds = LIVE_SECONDS

    def submit(self, *hosts: int) -> None:
        """Jobs on whole hosts, so many each."""
        raise NotImplementedError

    def submit_elastic(self, least: int, most: int) -> None:
        """A job on whole hosts, on the fewest if nobody says otherwise."""
        raise NotImplementedError

    def hosts_of(self) -> list[tuple[int, ...]]:
        """By job, in the order of submission."""
        raise NotImplementedError


class Simulated(Engine):
    def submit(self, *hosts: int) -> None:
        self._submit([rigid(f"j{i}", count) for i, count in enumerate(hosts)])

    def submit_elastic(self, least: int, most: int) -> None:
        self._submit([batch_job(**msgspec.structs.asdict(rigid("j0", least)) | {"gpus_max": 8 * most})])

    def _submit(self, jobs: list[Job]) -> None:
        topology = cluster([8, 8], [8, 8])
        view = ClusterView(topology, estimates=None)  # type: ignore[arg-type]
        self.machine = CheckedMachine(view)
        self.driver = SimulatedDriver(view, jobs, IterationModel(topology), PRESENT)

    def hosts_of(self) -> list[tuple[int, ...]]:
        last: dict[str, tuple[int, ...]] = {}
        for event in self.driver.told:  # type: ignore[attr-defined]
            last[event.job_id] = event.placement.hosts
        return [last[name] for name in self.machine.view.jobs]


class Live4(Engine):
    """A real engine.

    Attributes:
        ids: of the jobs, the engine's.
    """

    ids: list[str]

    def __init__(self) -> None:
        self.clock = Clock()
        topology = named_h(cluster([8, 8], [8, 8]))
        self.machine = CheckedMachine(ClusterView(topology, estimates=None, now=self.clock.now_s()))  # type: ignore[arg-type]
        self.ids = []


class OnSlurm(Live4):
    def __init__(self, live: Live) -> None:
        super().__init__()
        self.live = live
        self.driver = SlurmDriver(live.slurm, self.machine, "hemiola", clock=self.clock, profile=no_profile)

    def submit(self, *hosts: int) -> None:
        self.ids = [
            self.live.submit(f"-N{count} --gpus-per-node=8", f"sleep {self.live_seconds}") for count in hosts
        ]

    def submit_elastic(self, least: int, most: int) -> None:
        self.ids = [self.live.submit(f"-N{least}-{most} --gpus-per-node=8", f"sleep {self.live_seconds}")]

    def hosts_of(self) -> list[tuple[int, ...]]:
        rows = self.live.rows(ended=True)
        names = self.machine.view.topology.hosts.names
        from hemiola.core.hostlist import expand

        return [tuple(names.index(name) for name in expand(rows[job].host_list)) for job in self.ids]


class OnRay(Live4):
    """Each job leaves behind where its last start was, by rank."""

    def __init__(self, live: LiveRay, folder: Path) -> None:
        super().__init__()
        self.live, self.folder = live, folder
        self.driver = RayDriver(live.ray, self.machine, clock=self.clock, profile=no_profile)
        live.board.put("holds", b"0")  # jobs wait, though Hemiola has not begun

    def submit(self, *hosts: int) -> None:
        for index, count in enumerate(hosts):
            self._submit(index, f"gpus={8 * count} hosts={count}")

    def submit_elastic(self, least: int, most: int) -> None:
        self._submit(0, f"gpus={8 * least} hosts={least} max_gpus={8 * most}")

    def _submit(self, index: int, words: str) -> None:
        command = f"echo $HEMIOLA_NODES > {self.folder}/{index}; sleep {self.live_seconds}"
        self.ids.append(self.live.submit(words, command))

    def hosts_of(self) -> list[tuple[int, ...]]:
        names = self.machine.view.topology.hosts.names
        found = []
        for index in range(len(self.ids)):
            ranks = (self.folder / str(index)).read_text().strip().split(",")
            found.append(tuple(names.index(name) for name in dict.fromkeys(ranks)))
        return found


class InMemory(Live4):
    """The engine of the examples, whose time is this process's own."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = MemoryCluster(self.machine.view.topology)
        self.driver = MemoryDriver(self.cluster, self.machine, clock=self.clock)

    def submit(self, *hosts: int) -> None:
        self._submit([rigid(f"j{i}", count) for i, count in enumerate(hosts)])

    def submit_elastic(self, least: int, most: int) -> None:
        self._submit([rigid("j0", least, gpus_max=8 * most)])

    def _submit(self, jobs: list[Job]) -> None:
        self.ids = [job.id for job in jobs]
        for job in jobs:
            lasting = msgspec.structs.replace(
                job, submit_s=self.clock.now_s(), duration_s=float(self.live_seconds)
            )
            self.cluster.submit(lasting)

    def hosts_of(self) -> list[tuple[int, ...]]:
        rows = self.cluster.look(self.clock.now_s())
        return [row.placement.hosts for job in self.ids if (row := rows[job]).placement is not None]


def rigid(name: str, hosts: int, *, gpus_max: int = 0) -> Job:
    return batch_job(
        id=name, submit_s=0.0, gpus=8 * hosts, duration_s=float(SECONDS), hosts=hosts, gpus_max=gpus_max
    )


def no_profile(model: str) -> Profile:
    raise AssertionError(model)


def named_h(topology: Topology) -> Topology:
    from dataclasses import replace

    return replace(topology, hosts=replace(topology.hosts, names=tuple(f"h{i}" for i in range(4))))


class Script(Policy):
    """Decides by a function, and stops the run once every job has ended."""

    name = "script"

    def __init__(self, decide: Callable[[ClusterView], Iterable[Decision]]) -> None:
        self._decide = decide

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        yield from self._decide(view)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "simulated":
        yield Simulated()
        return
    if request.param == "in-memory":
        yield InMemory()
        return
    live: Live | LiveRay
    if request.param == "slurm":
        live = Live(request.getfixturevalue("lab"), tmp_path / "journal.db")
        yield OnSlurm(live)
    else:
        live = LiveRay(request.getfixturevalue("ray_nodes"), tmp_path / "journal.db")
        yield OnRay(live, tmp_path)
    live.clear()


def run(engine: Engine, decide: Callable[[ClusterView], Iterable[Decision]]) -> list[list[Event]]:
    """The loop until every job has ended; what happened, instant by instant."""
    seen: list[list[Event]] = []
    driver, view = engine.driver, engine.machine.view
    inner = driver.events
    count = len(engine.ids) if isinstance(engine, Live4) else None

    def events() -> Iterator[list[Event]]:
        for instant in inner():
            seen.append(instant)
            yield instant
            ended = sum(job.status == ENDED for job in view.jobs.values())
            if count is not None and ended == count:
                driver.stop()  # type: ignore[attr-defined]

    told: list[Any] = []
    carry_out = driver.execute

    def execute(decision: Decision) -> None:
        if isinstance(decision, Start | Move | Resize):
            told.append(decision)
        carry_out(decision)

    driver.events, driver.execute, driver.told = events, execute, told  # type: ignore[method-assign,attr-defined]
    with limit(driver) as late:
        run_loop(driver, engine.machine, Script(decide))
    statuses = {name: job.status for name, job in view.jobs.items()}
    assert not late.is_set(), f"it did not end within {LIMIT_S:g} s: {statuses} after {seen}"
    return seen


@contextmanager
def limit(driver: Driver) -> Iterator[threading.Event]:
    """A live engine's run ends after a while, whatever is missing; the event says that it had to be ended."""
    late = threading.Event()

    def end() -> None:
        late.set()
        getattr(driver, "stop", lambda: None)()

    timer = threading.Timer(patience(LIMIT_S), end)
    timer.start()
    yield late
    timer.cancel()


def on(*hosts: int) -> Placement:
    return Placement(hosts, (ALL,) * len(hosts))


def waiting(view: ClusterView) -> list[str]:
    return list(view.waiting)


def test_jobs_come_start_where_they_are_put_and_end_once(engine: Engine):
    engine.submit(1, 2, 1)
    wanted = {
        1: [on(3), on(2)],
        2: [on(0, 1)],
    }  # by size: Ray's jobs come in whatever order their processes are up
    rendered: list[str] = []

    def decide(view: ClusterView) -> Iterable[Decision]:
        for name in waiting(view):
            decision = Start(name, wanted[view.jobs[name].job.hosts].pop(0), "because")
            rendered.append(engine.driver.render(decision))
            yield decision

    events = [event for instant in run(engine, decide) for event in instant]
    came = [event.job.id for event in events if isinstance(event, Arrived | Adopted)]
    ended = [event.job_id for event in events if isinstance(event, Finished)]
    assert len(came) == 3 and sorted(came) == sorted(ended)
    first, both, third = engine.hosts_of()
    assert both == (0, 1) and {first, third} == {(3,), (2,)}
    assert len(rendered) == 3 and all(rendered)


def test_a_stopped_job_waits_and_runs_again_where_it_is_put(engine: Engine):
    engine.live_seconds = 6  # a busy machine is late to stop it
    engine.submit(2)
    state = {"stopped": False, "asked": False}

    def decide(view: ClusterView) -> Iterable[Decision]:
        if not state["asked"] and waiting(view):
            state["asked"] = True
            yield Start(waiting(view)[0], on(0, 1), "first")
            yield WakeAt(view.now + 1.6, "", "stop it then")
        elif view.running and not state["stopped"]:
            if next(iter(view.running.values())).held_s(view.now) >= 1.5:
                state["stopped"] = True
                yield Stop(next(iter(view.running)), "enough")
                yield WakeAt(view.now + 0.5, "", "start it again then")
        elif state["stopped"] and waiting(view):
            yield Start(waiting(view)[0], on(2, 3), "again")

    run(engine, decide)
    (job,) = engine.machine.view.jobs.values()
    assert job.status == ENDED and job.preemptions == 1
    assert engine.hosts_of() == [(2, 3)]


def test_a_moved_job_goes_on_elsewhere_without_waiting(engine: Engine):
    engine.submit(1)
    state = {"moved": False}

    def decide(view: ClusterView) -> Iterable[Decision]:
        for name in waiting(view):
            yield Start(name, on(0), "first")
            yield WakeAt(view.now + 1.6, name, "move it then")
        if view.timers and view.timers[0].status == RUNNING and not state["moved"]:
            state["moved"] = True
            yield Move(view.timers[0].id, on(3), "better there")

    run(engine, decide)
    (job,) = engine.machine.view.jobs.values()
    assert job.status == ENDED and (job.migrations, job.preemptions) == (1, 0)
    assert engine.hosts_of() == [(3,)]


def test_a_resized_job_goes_on_with_more_hosts_and_with_fewer(engine: Engine):
    engine.submit_elastic(1, 3)
    places = [on(0), on(1, 2, 3), on(2)]
    had: list[int] = []

    def decide(view: ClusterView) -> Iterable[Decision]:
        for job in (*view.waiting.values(), *view.running.values()):
            if job.status != RUNNING:
                yield Start(job.id, places.pop(0), "first")
            elif places and view.now - job.since_s >= 1.5 and job in view.timers:
                yield Resize(job.id, places.pop(0), "another size")
            else:
                continue
            had.append(job.gpus)
            yield WakeAt(view.now + 1.6, job.id, "resize it then")

    run(engine, decide)
    (job,) = engine.machine.view.jobs.values()
    assert had == [8, 24, 8]
    assert job.status == ENDED and (job.migrations, job.preemptions) == (2, 0)
    assert engine.hosts_of() == [(2,)]


def test_timers_come_once_and_never_early(engine: Engine):
    engine.submit(1)
    asked: list[float] = []

    def decide(view: ClusterView) -> Iterable[Decision]:
        for name in waiting(view):
            yield Start(name, on(1), "now")
            for after_s in (0.9, 0.3, 0.6):
                asked.append(view.now + after_s)
                yield WakeAt(view.now + after_s, name, "wake me")

    events = [event for instant in run(engine, decide) for event in instant]
    name = next(iter(engine.machine.view.jobs))
    told = [event.time_s for event in events if isinstance(event, Timer) and event.job_id == name]
    came = [
        time_s for time_s in told if time_s > min(asked) - 0.3
    ]  # one came with the job, where it was there before
    assert len(came) == 3
    assert all(then >= due for then, due in zip(came, sorted(asked), strict=True))


def test_what_the_machine_refuses_never_reaches_the_engine(engine: Engine):
    engine.submit(2)
    refused: list[str] = []

    def decide(view: ClusterView) -> Iterable[Decision]:
        for name in waiting(view):
            yield Start(name, on(0), "one host is too few")
            refused.append("still waiting" if name in view.waiting else "started")
            yield Start(name, on(1, 2), "right")

    run(engine, decide)
    assert set(refused) == {"still waiting"}
    assert engine.hosts_of() == [(1, 2)]
    assert [type(decision) for decision in engine.driver.told] == [Start]  # type: ignore[attr-defined]
