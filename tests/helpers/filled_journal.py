"""A journal as a daemon leaves it, filled by the real loop, state machine and policy on a simulated engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hemiola.core.decisions import Decision, Start
from hemiola.core.events import Event, NodeBack, NodeLost, Started
from hemiola.core.job import Job, Profile, batch_job
from hemiola.core.topology import Topology
from hemiola.cost.contention import MaxMin
from hemiola.cost.iteration import IterationModel
from hemiola.live.driver_wrappers import JournalingDriver, ObserveDriver
from hemiola.live.job_store import JobStore
from hemiola.live.journal import Journal, Opening
from hemiola.live.live_driver import Identity, LiveDriver, Vanished
from hemiola.sched.loop import run_loop
from hemiola.sched.machine import StateMachine
from hemiola.sched.policies import policy_from_text
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import Costs, SimulatedDriver, SimulatedEstimates
from hemiola.trace.topologies.native import topology_text
from hemiola.trace.topologies.read import read_topology

BEGAN_S = 1_800_000_000.0
"""2027-01-15 08:00:00 UTC: when the filled run begins."""
RACKS = "leaf-spine:hosts=4,gpus_per_host=8,hosts_per_rack=2,nic=10gbit,oversubscription=4"


class SimulatedEngine(LiveDriver):
    """A cluster that exists only in numbers, as a live engine; its jobs are called 101, 102, ...

    Args:
        until_s: nothing is seen after that.
        others: what else happens there, by time.
    """

    away = ""

    def __init__(
        self, inner: SimulatedDriver, view: ClusterView, jobs: list[Job], until_s: float, others: list[Event]
    ) -> None:
        self._view = view
        self._inner, self._until_s, self._others = inner, until_s, others
        self._numbers = {job.id: (101 + i, job) for i, job in enumerate(jobs)}
        self._decided: list[str] = []
        self._started: list[Event] = []
        self._over = False

    def events(self) -> Iterator[list[Event]]:
        for events in self._inner.events():
            if events[0].time_s > self._until_s:
                self._over = True
                return
            due = [event for event in self._others if event.time_s <= events[0].time_s]
            self._others = [event for event in self._others if event not in due]
            if due:
                yield due
            started, self._started = self._started, []
            yield [*events, *started]

    def execute(self, decision: Decision) -> None:
        self._decided.append(decision.job_id)
        if isinstance(decision, Start):
            self._started.append(Started(self._view.now, decision.job_id))
        self._inner.execute(decision)

    def render(self, decision: Decision) -> str:
        return self._inner.render(decision)

    def identity(self, job_id: str) -> Identity | None:
        number, job = self._numbers[job_id]
        return Identity(engine_id=str(number), submit_s=job.submit_s, user=job.user, name=job.model)

    def vanished(self) -> list[Vanished]:
        return []

    def answers(self) -> list[tuple[str, bool, str]]:
        answers, self._decided = [(job, True, "") for job in self._decided if not self._over], []
        return answers

    def advise(self, decision: Decision) -> None:
        pass

    def hand_back(self) -> None:
        pass

    def add(self, events: Sequence[Event]) -> None:
        raise AssertionError(events)

    def stop(self) -> None:
        self._inner.stop = True


def fill(
    where: Path, jobs: list[Job], until_s: float, *, policy: str = "dally", topology: Topology | None = None,
    others: list[Event] | None = None, nodes: list[NodeLost | NodeBack] | None = None, observes: bool = False,
    leads_s: float | None = 10.0, engine: str = "slurm-wlm 22.05.8",
) -> int:  # fmt: skip
    """Run these jobs until then and write it down; the run's number.

    Args:
        leads_s: the daemon leads for so long after `until_s`; None: it has ended.
        engine: its name and version.
    """
    topology = topology or read_topology(RACKS)
    model = IterationModel(topology)
    view = ClusterView(topology, SimulatedEstimates(model, Costs()), now=BEGAN_S)
    inner = SimulatedDriver(view, jobs, model, MaxMin().sharing(), node_events=nodes or ())
    simulated = SimulatedEngine(inner, view, jobs, until_s, others or [])
    mode = "observe" if observes else "enforce"
    opening = Opening(
        policy=policy,
        engine=engine,
        mode=mode,
        topology=topology_text(topology),
        version="0.1.0",
    )
    with Journal.open(where) as journal:
        epoch = journal.lead("n0/1234-5/77/1/ab", BEGAN_S, until_s - BEGAN_S + (leads_s or 1.0))
        assert epoch is not None
        run = journal.begin_run(epoch, opening, BEGAN_S)
        driver: LiveDriver = ObserveDriver(simulated, view) if observes else simulated
        book = JobStore(view, simulated, IterationModel(view.topology), acts=not observes)
        journaled = JournalingDriver(driver, journal, run, book, intents=not observes)

        def note(decision: Decision, refused: str) -> None:
            journaled.note(decision, refused)
            if isinstance(driver, ObserveDriver):
                driver.note(decision, refused)

        run_loop(journaled, StateMachine(view), policy_from_text(policy), note)
        if leads_s is None:
            journal.end_run(run, "it was asked to stop", until_s)
            journal.resign(epoch)
    return run


def uuid_of(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def job(number: int, after_s: float, gpus: int, duration_s: float, **more: object) -> Job:
    """Slurm's job 100 + number, submitted so many seconds after the beginning."""
    values: dict[str, object] = {
        "id": uuid_of(number), "submit_s": BEGAN_S + after_s, "gpus": gpus, "duration_s": duration_s,
        "user": "ada" if number % 2 else "bo", "model": f"train{number}",
    }  # fmt: skip
    return batch_job(**{**values, **more})  # type: ignore[arg-type]


__all__ = ["BEGAN_S", "Profile", "SimulatedEngine", "fill", "job", "uuid_of"]
