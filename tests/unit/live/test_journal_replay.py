"""Runs that were journaled are decided the same again; whoever changes a rule or a decision is told where."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from journal_helpers import HERE
from replays import cluster, job, profile
from sqlalchemy import update

from hemiola.core.decisions import Decision, Start
from hemiola.core.errors import InputError
from hemiola.core.events import (
    Adopted,
    Arrived,
    Event,
    Finished,
    Held,
    NodeBack,
    NodeLost,
    Released,
    Started,
    Undone,
)
from hemiola.core.job import Job
from hemiola.core.topology import Topology
from hemiola.cost.iteration import IterationModel
from hemiola.live.journal import Journal, JournalError, Opening
from hemiola.live.journal.records import DECISIONS, EVENTS
from hemiola.live.journal.replay import replay
from hemiola.live.journal.tables import INSTANTS
from hemiola.sched.loop import Driver, run_loop
from hemiola.sched.machine import StateMachine
from hemiola.sched.policies import policy_from_text
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import SimulatedEstimates
from hemiola.simulator.rules import Semantics
from hemiola.trace.topologies.native import topology_text

TOPOLOGY = cluster([4, 4], [4, 4], nic=1e9, uplink=1e9, latency_s=1e-6)
SEMANTICS = Semantics()
FAILURES = (NodeLost(400.0, 1), NodeBack(700.0, 1))
"""A host fails in the middle and comes back."""


def opening(policy: str, topology: Topology = TOPOLOGY, **more: Any) -> Opening:
    return Opening(
        policy=policy, engine="simulated", mode="enforce", topology=topology_text(topology), version="0.1.0",
        costs=SEMANTICS.costs, **more,
    )  # fmt: skip


def jobs() -> list[Job]:
    """Forty jobs of mixed size that contend for GPUs and for the links between the racks."""
    talks = profile(compute_s=0.1, traffic_bytes=2e7, checkpoint_s=5.0, restore_s=10.0)
    return [
        job(
            f"j{i}",
            7.0 * i,
            1 + (5 * i) % 8,
            60.0 + (37 * i) % 200,
            profile=talks if i % 2 else None,
            user=f"u{i % 3}",
        )
        for i in range(40)
    ]


class Written(Driver):
    """A driver whose instants and decisions are written down, as a live one's are."""

    def __init__(self, inner: Driver, journal: Journal, run: int) -> None:
        self.inner, self.journal, self.run, self.instants = inner, journal, run, 0
        self.supports = inner.supports
        self.decisions: list[tuple[Decision, str]] = []

    def events(self) -> Iterator[list[Event]]:
        for events in self.inner.events():
            self.instants += 1
            self.journal.record_events(self.run, self.instants, events)
            yield events
            self.journal.record_decisions(self.run, self.instants, self.decisions, intents=True, now_s=0.0)
            self.decisions = []

    def note(self, decision: Decision, refused: str) -> None:
        if refused:
            self.decisions[-1] = decision, refused
        else:
            self.decisions.append((decision, ""))

    def execute(self, decision: Decision) -> None:
        self.inner.execute(decision)

    def render(self, decision: Decision) -> str:
        return self.inner.render(decision)


def lived(journal: Journal, policy: str) -> tuple[int, Written]:
    """A run that was journaled from its first event to its last."""
    epoch = journal.lead("one", 0.0, 1e9)
    assert epoch is not None
    run = journal.begin_run(epoch, opening(policy), 0.0)
    model = IterationModel(TOPOLOGY)
    view = ClusterView(TOPOLOGY, SimulatedEstimates(model, SEMANTICS.costs))
    inner = SEMANTICS.driver(
        view, jobs(), model, node_events=FAILURES, record=False, record_traffic=False, progress=None
    )
    written = Written(inner, journal, run)
    run_loop(written, StateMachine(view), policy_from_text(policy), written.note)
    return run, written


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.db") as opened:
        yield opened


@pytest.mark.parametrize("policy", ["fifo-backfill", "tiresias", "dally", "dally:timer=break-even"])
def test_a_run_is_decided_the_same_again(policy: str, journal: Journal) -> None:
    run, written = lived(journal, policy)
    found = replay(journal, run)
    assert found.difference is None
    assert found.instants == written.instants > 80
    assert found.decisions == sum(len(i.decisions or ()) for i in journal.instants(run)) >= 40
    assert {type(i.events[-1]).__name__ for i in journal.instants(run)} >= {"Arrived", "Measured", "NodeLost"}


def test_another_policy_is_told_from_the_first_decision_that_differs(journal: Journal) -> None:
    run, _ = lived(journal, "fifo-backfill")
    found = replay(journal, run, policy_from_text("dally"))
    assert found.difference is not None
    assert found.difference.written != found.difference.decided
    same = {i.instant: i for i in journal.instants(run)}[found.difference.instant]
    assert same.decisions == found.difference.written


def test_a_decision_that_was_changed_in_the_file_is_found(journal: Journal) -> None:
    run, _ = lived(journal, "fifo-backfill")
    changed = [i for i in journal.instants(run) if i.decisions][10]
    assert changed.decisions is not None
    (decision, refused), *rest = changed.decisions
    other = ((msgspec.structs.replace(decision, reason="a whim"), refused), *rest)
    overwrite(journal, run, changed.instant, decisions=DECISIONS.encode(tuple(other)))
    found = replay(journal, run)
    assert found.difference is not None and found.difference.instant == changed.instant
    assert found.difference.written == other and found.difference.decided == changed.decisions
    assert found.difference.time_s == changed.events[-1].time_s
    assert found.instants == changed.instant - 1


def test_an_event_that_was_changed_in_the_file_is_found(journal: Journal) -> None:
    run, _ = lived(journal, "fifo-backfill")
    first = next(journal.instants(run))
    (event,) = (e for e in first.events if isinstance(e, Arrived))
    other = Arrived(event.time_s, msgspec.structs.replace(event.job, gpus=event.job.gpus + 1))
    overwrite(journal, run, first.instant, events=EVENTS.encode((other,)))
    found = replay(journal, run)
    assert found.difference is not None and found.instants == 0


def overwrite(journal: Journal, run: int, instant: int, **values: str) -> None:
    with journal._database.writing("test") as connection:
        connection.execute(
            update(INSTANTS).where(INSTANTS.c.run == run, INSTANTS.c.instant == instant).values(**values)
        )


def test_a_live_run_begins_with_what_is_there(journal: Journal) -> None:
    """Adopted jobs, holds, and starts that the engine confirms elsewhere; the last instant was cut off."""
    epoch = journal.lead("one", 1000.0, 1e9)
    assert epoch is not None
    topology = cluster([2])
    run = journal.begin_run(epoch, opening("fifo", topology), 1000.0)
    a, b, c = (job(name, 900.0 + i, 2, 50.0) for i, name in enumerate("abc"))
    story: list[tuple[list[Event], list[Decision]]] = [
        (
            [
                Adopted(1000.0, a, HERE, 950.0, served_s=50.0),
                Adopted(1000.0, b, None, 901.0),
                Held(1000.0, "b", "user"),
            ],
            [],
        ),
        ([Arrived(1001.0, c)], []),
        ([Finished(1010.0, "a")], [Start("c", HERE, "")]),
        ([Started(1011.0, "c", HERE)], []),
        ([Released(1012.0, "b")], []),
        ([Finished(1020.0, "c")], [Start("b", HERE, "")]),
    ]
    policy = policy_from_text("fifo")
    machine = StateMachine(
        ClusterView(topology, SimulatedEstimates(IterationModel(topology), SEMANTICS.costs), now=1000.0)
    )
    for number, (events, expected) in enumerate(story):
        journal.record_events(run, number, events)
        machine.apply(*events)
        decided = [(decision, machine.execute(decision)) for decision in policy.decide(machine.view)]
        assert [(d.job_id, d.placement) for d, _ in decided] == [(d.job_id, d.placement) for d in expected]  # type: ignore[union-attr]
        journal.record_decisions(run, number, decided, intents=True, now_s=1000.0)
    journal.record_events(run, len(story), [Finished(1030.0, "nobody")])
    found = replay(journal, run)
    assert (found.instants, found.decisions, found.difference) == (len(story), 2, None)


class Tape(Driver):
    """Instants that are known from the beginning; nothing is carried out."""

    def __init__(self, *instants: list[Event]) -> None:
        self.instants = instants

    def events(self) -> Iterator[list[Event]]:
        yield from self.instants

    def execute(self, decision: Decision) -> None:
        pass

    def render(self, decision: Decision) -> str:
        return ""


def test_a_run_that_only_observed_is_decided_the_same_again(journal: Journal) -> None:
    """Each decision is taken back; nobody is asked about that."""
    epoch = journal.lead("one", 0.0, 1e9)
    assert epoch is not None
    topology = cluster([2])
    run = journal.begin_run(epoch, opening("fifo", topology), 0.0)
    back = Undone(1.0, "a", None, 1.0, 0.0, 0.0, 0.0, 0, 0)
    a, b = job("a", 1.0, 2, 50.0), job("b", 2.0, 1, 50.0)
    written = Written(Tape([Arrived(1.0, a)], [back], [Arrived(2.0, b)], [back]), journal, run)
    view = ClusterView(topology, SimulatedEstimates(IterationModel(topology), SEMANTICS.costs))
    run_loop(written, StateMachine(view), policy_from_text("fifo"), written.note)
    assert [[d.job_id for d, _ in i.decisions or ()] for i in journal.instants(run)] == [["a"], [], ["a"], []]
    found = replay(journal, run)
    assert (found.instants, found.decisions, found.difference) == (4, 2, None)


def test_a_run_that_is_not_there(journal: Journal) -> None:
    with pytest.raises(InputError, match="has no run 7"):
        replay(journal, 7)


def test_a_journal_of_another_version_is_not_guessed_at(journal: Journal) -> None:
    run, _ = lived(journal, "fifo")
    overwrite(journal, run, 3, events='[{"type":"Thawed","time_s":1.0}]')
    with pytest.raises(JournalError, match=rf"(?s)instant 3 of run {run} of .*Thawed.*Hemiola 0\.1\.0"):
        replay(journal, run)
