"""Every kind of decision, of a job in every state, on every driver: what a driver cannot carry out is refused with the
reason, and no job is lost for it."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_slurm import RUNS, FakeSlurm, node
from memory_engine import MemoryCluster, MemoryDriver
from replays import CheckedMachine, cluster, job, profile
from scripted import Scripted, serve

from hemiola.core.decisions import (
    EVERY_KIND,
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
    asks_engine,
    parts,
    placement_of,
)
from hemiola.core.errors import PolicyError
from hemiola.core.events import Arrived, Event, Timer
from hemiola.core.job import Configuration, Profile
from hemiola.cost.iteration import IterationModel
from hemiola.live.driver_wrappers import JournalingDriver, ObserveDriver
from hemiola.live.engines.ray.client import Ray
from hemiola.live.engines.ray.driver import RayDriver
from hemiola.live.engines.ray.wire import GroupRow, RayJobRow, RayNodeRow, RayReply
from hemiola.live.engines.slurm.driver import SlurmDriver
from hemiola.live.engines.slurm.wire import Words
from hemiola.live.job_store import JobStore
from hemiola.live.journal import Journal, Opening
from hemiola.live.journal.replay import replay
from hemiola.live.live_driver import DriverWrapper, LiveDriver
from hemiola.live.polling_driver import Clock
from hemiola.live.query.cluster import Following
from hemiola.live.service import SessionSettings
from hemiola.sched.loop import NO_CONFIGURATION, DecisionGate, Driver, cannot, missing, run_loop, why_not
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView
from hemiola.simulator.rules import Rules, Semantics, semantics_by_name
from hemiola.simulator.simulate import Recording, simulate
from hemiola.trace.topologies.native import topology_text

TWO = cluster([8, 8])
BEGAN_S = 200.0
DECIDES_S, ENDS_S = 3.0, 9.0
"""After the beginning: all is at rest before the one, and what was decided has come about before the other."""
THERE, ELSEWHERE, BOTH = (Placement(hosts, (0xFF,) * len(hosts)) for hosts in ((0,), (1,), (0, 1)))
NOT_PACED = cannot(Pace("a", 2.0, ""))


class Waiting(Clock, threading.Event):
    """A clock that stands still but for who waits, and what live drivers wait for: nobody ever sleeps."""

    def __init__(self) -> None:
        threading.Event.__init__(self)
        self.time_s = BEGAN_S

    def now_s(self) -> float:
        return self.time_s

    def behind_s(self) -> float:
        return 0.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.time_s += timeout
        assert self.time_s < BEGAN_S + 10 * ENDS_S, "the run does not end"
        return self.is_set()


class Says(Policy):
    """Decides by a function of the view."""

    name = "says"

    def __init__(self, decide: Callable[[ClusterView], Iterable[Decision]]) -> None:
        self._decide = decide

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        return self._decide(view)


def no_profile(model: str) -> Profile:
    raise AssertionError(model)


class Bench:
    """A driver on two hosts with eight GPUs each, and one job that can have one host or both.

    Attributes:
        acts: whether decisions are carried out.
    """

    driver: Driver
    acts = True
    rules: Rules = Semantics()

    def __init__(self, runs: bool, folder: Path) -> None:
        self.runs, self.folder = runs, folder
        model = IterationModel(TWO)
        self.view = ClusterView(TWO, self.rules.estimates(model), now=BEGAN_S)
        self.machine = CheckedMachine(self.view)
        self.noted: list[tuple[Decision, str]] = []
        self.make(model)

    def make(self, model: IterationModel) -> None:
        """The driver; the job runs on the first host, if it is to."""
        raise NotImplementedError

    def begin(self, name: str) -> Iterator[Decision]:
        """What has to be decided for that."""
        return iter(())

    def hosts(self) -> tuple[int, ...]:
        """Where the engine has the job."""
        raise NotImplementedError

    def stop(self) -> None:
        self.driver.stop()  # type: ignore[attr-defined]

    def note(self, decision: Decision, refused: str) -> None:
        if refused:
            assert self.noted[-1] == (decision, "")
            self.noted[-1] = decision, refused
        else:
            self.noted.append((decision, ""))

    def loop(self, decide: Callable[[ClusterView], Iterable[Decision]]) -> None:
        run_loop(self.driver, self.machine, Says(decide), self.note)

    def check(self) -> None:
        """What else has to be true in the end."""


class Simulated(Bench):
    def make(self, model: IterationModel) -> None:
        late = BEGAN_S + 10 * ENDS_S  # the peers' clocks stop where nothing runs and nobody is to come
        jobs = [job("a", BEGAN_S, 8, 1e6, gpus_max=16), job("b", late, 8, 1e6)]
        self.driver = self.rules.driver(
            self.view, jobs, model, node_events=(), record=False, record_traffic=False, progress=None
        )

    def begin(self, name: str) -> Iterator[Decision]:
        if self.runs:
            yield Start(name, THERE, "it is to run")

    def hosts(self) -> tuple[int, ...]:
        placement = self.driver.tasks["a"].placement  # type: ignore[attr-defined]
        return () if placement is None else placement.hosts

    def stop(self) -> None:
        self.driver.stop = True  # type: ignore[attr-defined]


class Peer(Simulated):
    rules = semantics_by_name("tiresias-sim")


class Obeying(FakeSlurm):
    """It does what it is told, at once."""

    def tell(self, orders: Sequence[str]) -> str:
        for order in orders:
            self.rows = [self._told(order, row) for row in self.rows]
        return super().tell(orders)

    @staticmethod
    def _told(order: str, row: Any) -> Any:
        change = msgspec.structs.replace
        if (named := re.search(r" ReqNodeList=(\S*)", order)) is not None:
            return change(row, bound_to=named[1])
        if order.startswith("release") and row.state == "PENDING":
            return change(row, state="RUNNING", host_list=row.bound_to, priority=9, reason="None")
        if order.startswith("requeuehold") and row.state == "RUNNING":
            restarts = row.restarts + 1
            return change(
                row, state="PENDING", host_list="", priority=0, reason="JobHeldUser", restarts=restarts
            )
        return row


class OnSlurm(Bench):
    def make(self, model: IterationModel) -> None:
        row = msgspec.structs.replace(RUNS, most_hosts=2, host_list="n0", bound_to="")
        if not self.runs:
            row = msgspec.structs.replace(
                row, state="PENDING", reason="JobHeldUser", priority=0, host_list="", bound_to=""
            )
        said = {"7": Words(admin=f"hemiola:{'0' * 36}:ranks=n0:nodes=1-2")} if self.runs else {}
        self.slurm = Obeying([row], [node("n0"), node("n1")], said)
        clock = Waiting()
        inner = SlurmDriver(
            self.slurm, self.machine, "hemiola", acts=self.acts, clock=clock, profile=no_profile
        )  # type: ignore[arg-type]
        inner._stop = clock
        self.driver = self.around(inner)

    def around(self, inner: LiveDriver) -> LiveDriver:
        return inner

    def hosts(self) -> tuple[int, ...]:
        (row,) = self.slurm.rows
        names = {"": (), "n0": (0,), "n1": (1,), "n[0-1]": (0, 1)}
        return names[row.host_list]


class Observed(OnSlurm):
    acts = False
    advises = False

    def around(self, inner: LiveDriver) -> LiveDriver:
        return ObserveDriver(inner, self.view, advises=self.advises)

    def note(self, decision: Decision, refused: str) -> None:
        super().note(decision, refused)
        self.driver.note(decision, refused)  # type: ignore[attr-defined]

    def check(self) -> None:
        assert all("AdminComment=hemiola:advice" in order for order in self.slurm.told)


class Advised(Observed):
    advises = True


class InJournal(OnSlurm):
    """What is refused is written down and asks nobody for anything; the run is decided the same again."""

    def around(self, inner: LiveDriver) -> LiveDriver:
        self.journal = Journal.open(self.folder / "j.db")
        epoch = self.journal.lead("one", BEGAN_S, 1e6)
        assert epoch is not None
        opening = Opening(
            policy="fifo", engine="slurm", mode="enforce", topology=topology_text(TWO), version="0",
            supports=tuple(kind.__name__ for kind in inner.supports),
        )  # fmt: skip
        self.run = self.journal.begin_run(epoch, opening, BEGAN_S)
        book = JobStore(self.view, inner, IterationModel(TWO))
        return JournalingDriver(DriverWrapper(inner), self.journal, self.run, book, intents=True)

    def note(self, decision: Decision, refused: str) -> None:
        super().note(decision, refused)
        self.driver.note(decision, refused)  # type: ignore[attr-defined]

    def check(self) -> None:
        written = [made for instant in self.journal.instants(self.run) for made in instant.decisions or ()]
        assert written == self.noted
        assert [made.decision for made in Following().read(self.journal, self.run).recent] == [
            part for decision, _ in written for part in parts(decision) if asks_engine(part)
        ]
        refused = {type(part) for decision, why in written if why for part in parts(decision)}
        assert refused.isdisjoint(type(intent.decision) for intent in self.journal.open_intents())
        again = iter(written)
        found = replay(self.journal, self.run, Says(lambda view: self._again(view, again)))
        assert found.difference is None and found.decisions == len(written)
        self.journal.close()

    def _again(self, view: ClusterView, written: Iterator[tuple[Decision, str]]) -> Iterator[Decision]:
        """Of this instant; a timer ends each."""
        for decision, _ in written:
            yield decision
            if isinstance(decision, WakeAt) and not decision.job_id:
                return


class ObeyingRay(Ray):
    """Two nodes and one job, whose wrapper does what it is told, at once."""

    def __init__(self, runs: bool) -> None:
        super().__init__("nowhere:1")
        self.groups: dict[str, GroupRow] = {}
        self.notes = {"wrapper:raysubmit_1": '{"token": "t", "state": "waits"}'}
        if runs:
            name = "hemiola:raysubmit_1:0"
            self.groups[name] = GroupRow(name, "CREATED", "ab" * 18, ("0" * 8,) * 8)
            self.notes["wrapper:raysubmit_1"] = '{"token": "t", "state": "runs"}'

    def ask(self, request: str, *arguments: Any) -> msgspec.Raw:
        match request, arguments:
            case "look", _:
                return msgspec.Raw(msgspec.json.encode(self.answer()))
            case "make", (name, _, nodes):
                self.groups[name] = GroupRow(name, "CREATED", "cd" * 18, tuple(nodes))
            case "put", ("place:raysubmit_1" as key, text):
                place = self.notes[key] = text
                self._place(msgspec.json.decode(place))
            case "remove", (name,):
                self.groups.pop(name, None)
        return msgspec.Raw(b"true")

    def _place(self, place: dict[str, Any]) -> None:
        state = "runs" if place["group"] else "waits"
        if state == "waits":
            self.groups.clear()  # it has left them
        number = place["number"]
        self.notes["wrapper:raysubmit_1"] = f'{{"token": "t", "state": "{state}", "number": {number}}}'

    def answer(self) -> RayReply:
        taken = [name for group in self.groups.values() for name in group.nodes]
        nodes = tuple(
            RayNodeRow(f"{i}" * 8, (f"n{i}",), 8, 8.0 - taken.count(f"{i}" * 8), {}) for i in range(2)
        )
        jobs = (RayJobRow("raysubmit_1", "RUNNING", 100_000, None, "gpus=8 max_gpus=16 hosts=1"),)
        return RayReply(groups=tuple(self.groups.values()), notes=self.notes, jobs=jobs, nodes=nodes)

    def hosts(self) -> tuple[int, ...]:
        wrapper = msgspec.json.decode(self.notes["wrapper:raysubmit_1"])
        group = self.groups.get(f"hemiola:raysubmit_1:{wrapper.get('number', 0)}")
        if wrapper["state"] == "waits" or group is None:
            return ()
        return tuple(sorted({int(name[0]) for name in group.nodes}))


class OnRay(Bench):
    def make(self, model: IterationModel) -> None:
        self.ray = ObeyingRay(self.runs)
        clock = Waiting()
        self.driver = RayDriver(self.ray, self.machine, clock=clock, profile=no_profile)
        self.driver._stop = clock

    def hosts(self) -> tuple[int, ...]:
        return self.ray.hosts()


class InMemory(Bench):
    def make(self, model: IterationModel) -> None:
        self.cluster = MemoryCluster(TWO, [job("a", BEGAN_S, 8, 1e6, gpus_max=16)])
        if self.runs:
            self.cluster.look(BEGAN_S)  # it starts it by itself, on the first host
        clock = Waiting()
        self.driver = MemoryDriver(self.cluster, self.machine, clock=clock)
        self.driver._stop = clock

    def hosts(self) -> tuple[int, ...]:
        (row,) = self.cluster.look(self.view.now).values()
        return row.placement.hosts if row.state == "running" and row.placement is not None else ()


BENCHES: dict[str, type[Bench]] = {
    "simulated": Simulated, "tiresias-sim": Peer, "slurm": OnSlurm, "ray": OnRay, "observed": Observed,
    "advised": Advised, "journaled": InJournal, "in-memory": InMemory,
}  # fmt: skip
NOBODY: set[type[Decision]] = {Align, Scale, Lend, Reclaim}
"""What no driver carries out yet."""
CANNOT: dict[str, set[type[Decision]]] = {
    "simulated": NOBODY,  # without services
    "tiresias-sim": {Resize, Pace, Reallocate} | NOBODY,
    "in-memory": {Pace, Reallocate} | NOBODY,
}
"""What each cannot carry out; live engines cannot pace jobs."""
KINDS: dict[type[Decision], Callable[[str, float], Decision]] = {
    Start: lambda name, now: Start(name, THERE, "because"),
    Stop: lambda name, now: Stop(name, "because"),
    Move: lambda name, now: Move(name, ELSEWHERE, "because"),
    Resize: lambda name, now: Resize(name, BOTH, "because"),
    Pace: lambda name, now: Pace(name, 2.0, "because"),
    WakeAt: lambda name, now: WakeAt(now + 2.0, name, "because"),
    Align: lambda name, now: Align(name, 0, 0.5, "because"),
    Scale: lambda name, now: Scale(name, (THERE,), "because"),
    Lend: lambda name, now: Lend((1,), "ours", "theirs", now + 9.0, "because"),
    Reclaim: lambda name, now: Reclaim((1,), "ours", now + 9.0, "because"),
    Reallocate: lambda name, now: Reallocate((Move(name, ELSEWHERE, "because"),), "because"),
}


def scripted(
    bench: Bench, made: list[Callable[[str, float], Decision]]
) -> Callable[[ClusterView], Iterator[Decision]]:
    """Begin, decide these once all is at rest, and end once all is at rest again; a timer ends each instant."""
    times = {"begin": BEGAN_S, "decide": BEGAN_S + DECIDES_S, "end": BEGAN_S + ENDS_S}

    def decide(view: ClusterView) -> Iterator[Decision]:
        if not view.jobs:
            return
        (name,) = view.jobs
        if "begin" in times:
            del times["begin"]
            yield from bench.begin(name)
        elif "decide" in times and view.now >= times["decide"]:
            del times["decide"]
            assert bool(view.running) is bench.runs
            for make in made:
                yield make(name, view.now)
        elif view.now >= times["end"]:
            bench.stop()
        yield WakeAt(view.now + 1.5, "", "to go on")

    return decide


def expected(bench: Bench) -> tuple[int, ...]:
    """Where the accepted decisions have put the job."""
    there = (0,) if bench.runs else ()
    for decision, refused in bench.noted if bench.acts else ():
        for part in parts(decision):
            if not refused and asks_engine(part) and not isinstance(part, Pace):
                placement = placement_of(part)
                there = () if placement is None else placement.hosts
    return there


@pytest.mark.parametrize("bench", BENCHES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("when", ["waiting", "running", "started", "stopped and started"])
def test_a_decision_is_carried_out_or_refused_and_no_job_is_lost(
    bench: str, kind: type[Decision], when: str, tmp_path: Path
) -> None:
    built = BENCHES[bench](when in ("running", "stopped and started"), tmp_path)
    before = {"started": [KINDS[Start]], "stopped and started": [KINDS[Stop], KINDS[Start]]}.get(when, [])
    built.loop(scripted(built, [*before, KINDS[kind]]))
    asked = [(d, why) for d, why in built.noted if d.reason == "because"]
    assert [type(d) for d, _ in asked] == [*(type(make("", 0.0)) for make in before), kind]
    decision, refused = asked[-1]
    lacks = CANNOT.get(bench, {Pace} | NOBODY)
    assert built.driver.supports - {Configuration} == EVERY_KIND - lacks
    if kind in lacks:
        assert refused == cannot(decision)
    elif kind in (Start, WakeAt):
        assert bool(refused) is (kind is Start and when != "waiting")
    else:
        assert bool(refused) is (when == "waiting")
    (state,) = built.view.jobs.values()
    in_view = () if state.placement is None else state.placement.hosts
    assert built.hosts() == in_view == expected(built)
    built.check()


def test_every_kind_is_tried() -> None:
    assert KINDS.keys() == EVERY_KIND


@pytest.mark.parametrize("bench", BENCHES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_is_not_supported_is_rendered_as_such(bench: str, kind: type[Decision], tmp_path: Path) -> None:
    built = BENCHES[bench](True, tmp_path)
    shown: list[str] = []

    def decide(view: ClusterView) -> Iterator[Decision]:
        for name in view.jobs:
            decision = KINDS[kind](name, view.now)
            shown.append(built.driver.render(decision))
            if kind not in built.driver.supports:
                assert shown[-1] == cannot(decision)
            built.stop()
            yield WakeAt(view.now + 1.5, "", "to go on")

    built.loop(decide)
    assert shown and not any("cannot" in text for text in shown if kind in built.driver.supports)


class Unpaced(Scripted):
    """An engine without a way to pace jobs."""

    supports = EVERY_KIND - {Pace}


@pytest.mark.parametrize(
    "driver", [DriverWrapper, lambda inner: ObserveDriver(inner, None)], ids=["around", "observing"]
)
def test_a_driver_around_another_one_supports_what_that_one_does(driver: Callable[..., Driver]) -> None:
    assert driver(Unpaced()).supports == Unpaced.supports and driver(Scripted()).supports == JOB_KINDS


SENDING = cluster([4, 4, 4], nic=1e9)


def sending(*names: str, now: float = 0.0) -> list[Event]:
    """Jobs of one and a half hosts: two of them meet on a host's link."""
    talks = {name: profile(compute_s=0.1, traffic_bytes=1e8 * (1 + i)) for i, name in enumerate(names)}
    return [Arrived(now, job(name, now, 6, 6000.0, profile=talks[name])) for name in names]


@pytest.mark.parametrize("policy", ["crux", "lwf"])
@pytest.mark.parametrize("mode", ["enforce", "observe", "advise"])
def test_policies_that_pace_go_on_without_where_the_engine_cannot(
    policy: str, mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = Clock().now_s()
    instants = [
        sending("a", "b", now=now),
        *([Timer(now + i, "")] for i in range(1, 6)),
        sending("c", now=now + 9),
    ]
    driver = Unpaced(*instants, [Timer(now + 10, "")])
    with caplog.at_level(logging.WARNING, "hemiola.serve"):
        service, _ = serve(tmp_path, SessionSettings(policy=policy, mode=mode), driver, topology=SENDING)  # type: ignore[arg-type]
    assert not service.broken
    told = {decision.job_id for decision in driver.told if isinstance(decision, Start)}
    assert told == (set() if mode == "observe" else {"a", "b"})
    assert len(driver.told) == len([d for d in driver.told if isinstance(d, Start)])
    with Journal.open(tmp_path / "j.db") as journal:
        (run,) = journal.runs()
        made = [each for instant in journal.instants(run.id) for each in instant.decisions or ()]
        paces = [(decision, why) for decision, why in made if isinstance(decision, Pace)]
        assert [why for _, why in paces] == [NOT_PACED]
        assert replay(journal, run.id).difference is None
        assert [m.refused for m in Following().read(journal, run.id).recent if m.decision == paces[0][0]] == [
            NOT_PACED
        ]
        assert all(record.note != paces[0][0].reason for record in journal.open_jobs())
    assert caplog.text.count(NOT_PACED) == 1


@pytest.mark.parametrize("policy", ["crux", "lwf"])
def test_a_simulator_that_stands_in_for_an_engine_paces_nobody_either(policy: str) -> None:
    jobs = [event.job for event in sending("a", "b", "c") if isinstance(event, Arrived)]
    runs = [
        simulate(jobs, SENDING, [policy], semantics=rules, recording=Recording(decisions=True)).runs[0]
        for rules in (Semantics(), Semantics(supports=EVERY_KIND - {Pace}))
    ]
    paced, unpaced = ([x.refused for x in run.decisions if isinstance(x.decision, Pace)] for run in runs)
    assert paced and not any(paced)
    assert unpaced == [NOT_PACED]
    assert all(record.status == "finished" for record in runs[1].records)


def paced(weight: Callable[[float], float], instants: int = 6) -> list[tuple[Decision, str]]:
    """What is recorded of a policy that asks at every instant for a weight."""
    view = ClusterView(TWO, estimates=None)  # type: ignore[arg-type]
    noted: list[tuple[Decision, str]] = []

    def note(decision: Decision, refused: str) -> None:
        if refused:
            noted[-1] = decision, refused
        else:
            noted.append((decision, ""))

    def decide(view: ClusterView) -> Iterator[Decision]:
        for name in view.jobs:
            yield Pace(name, weight(view.now), f"at {view.now}")

    driver = Unpaced(
        [Arrived(0.0, job("a", 0.0, 8, 5.0))], *([Timer(float(i), "")] for i in range(1, instants))
    )
    made, refused = run_loop(driver, CheckedMachine(view), Says(decide), note)
    assert made == refused == len(noted) and driver.told == []
    return noted


def test_a_refusal_is_recorded_once_while_the_same_is_asked() -> None:
    assert paced(lambda now: 2.0) == [(Pace("a", 2.0, "at 0.0"), NOT_PACED)]


def test_a_refusal_is_recorded_again_once_something_else_is_asked() -> None:
    weights = [decision.weight for decision, _ in paced(lambda now: 2.0 if now < 3 else 3.0)]  # type: ignore[union-attr]
    assert weights == [2.0, 3.0]


def test_a_policy_that_asks_for_ever_at_one_instant_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hemiola.sched.loop.DECISIONS_PER_INSTANT", 20)
    view = ClusterView(TWO, estimates=None)  # type: ignore[arg-type]

    def decide(view: ClusterView) -> Iterator[Decision]:
        while True:
            yield Pace("a", 2.0, "")

    with pytest.raises(PolicyError, match="cannot pace jobs"):
        run_loop(Unpaced([Arrived(0.0, job("a", 0.0, 8, 5.0))]), CheckedMachine(view), Says(decide))


def test_what_is_no_decision_is_none_where_an_engine_supports_nothing() -> None:
    view = ClusterView(TWO, estimates=None)  # type: ignore[arg-type]
    gate = DecisionGate(CheckedMachine(view), frozenset())
    with pytest.raises(PolicyError, match="which is no decision"):
        gate.decide(Says(lambda view: ["start"]))  # type: ignore[list-item]
    assert view.cannot == {}


def test_a_journal_of_before_is_replayed_as_it_was_decided() -> None:
    opening = Opening(policy="crux", engine="slurm", mode="enforce", topology="", version="0")
    assert opening.supported == EVERY_KIND
    assert msgspec.structs.replace(opening, supports=("Start", "Teleport")).supported == {Start}


CONFIGURED = Configuration(8, 32, 2)


@pytest.mark.parametrize("bench", BENCHES)
@pytest.mark.parametrize("within", [False, True], ids=["alone", "together"])
def test_a_configuration_is_refused_where_a_job_has_none_or_no_driver_can_tell_it(
    bench: str, within: bool, tmp_path: Path
) -> None:
    def start(name: str, now: float) -> Decision:
        one = Start(name, THERE, "because", CONFIGURED)
        return Reallocate((one,), "because") if within else one

    built = BENCHES[bench](False, tmp_path)
    built.loop(scripted(built, [start]))
    ((decision, refused),) = [(d, why) for d, why in built.noted if d.reason == "because"]
    if Configuration in built.driver.supports:
        assert "is none of its configurations" in refused and built.hosts() == ()
        return
    lacks_all = within and Reallocate not in built.driver.supports
    assert refused == (cannot(decision) if lacks_all else NO_CONFIGURATION)
    assert (Reallocate if lacks_all else Configuration) in built.view.cannot
    assert built.driver.render(decision) == refused
    assert built.hosts() == ()
    built.check()


def test_what_one_part_needs_the_whole_needs() -> None:
    unsized = EVERY_KIND - {Resize}
    whole = Reallocate((Stop("a", ""), Resize("b", BOTH, "")), "")
    assert missing(whole, unsized) is Resize and why_not(whole, unsized) == cannot(Resize("b", BOTH, ""))
    assert missing(whole, EVERY_KIND) is None and not why_not(whole, EVERY_KIND)
