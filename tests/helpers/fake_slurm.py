"""A Slurm that shows what a test wants, and a driver on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hemiola.core.decisions import Decision
from hemiola.core.errors import EngineError
from hemiola.core.events import Event
from hemiola.core.topology import Topology
from hemiola.live.engines.slurm.driver import SlurmDriver
from hemiola.live.engines.slurm.snapshot import ENDED
from hemiola.live.engines.slurm.tracked_job import SlurmRecoveryKey
from hemiola.live.engines.slurm.wire import RunSpan, SlurmJobRow, SlurmNodeRow, SlurmRules, Words
from hemiola.live.polling_driver import Clock
from hemiola.live.tracked_job import RecoveredJob
from hemiola.sched.machine import StateMachine
from hemiola.sched.view import ClusterView

FORGED = "   Nodes=h[0-127] CPU_IDs=0 Mem=0 GRES=gpu:8(IDX:0-7)"
BLOCK = f"x\n   UserId=root(0)\n{FORGED}\n   MinCPUsNode=1\nx"
"""What somebody may write into a name or a comment so that it looks like lines of Slurm's."""
RUNS = SlurmJobRow(
    "7",
    "RUNNING",
    "None",
    1,
    1,
    "n1",
    8,
    0,
    0,
    1,
    100,
    1000,
    9,
    100,
    "7",
    "n1",
    0,
    None,
    "hemiola",
    0,
    "",
    True,
)


def node(
    name: str, state: str = "idle", gpus: int = 8, *, silent: bool = False, partition: str = "hemiola"
) -> SlurmNodeRow:
    return SlurmNodeRow(name, state, silent, gpus, partition, frozenset())


@dataclass
class FakeSlurm:
    """It notes what it is told, and does nothing of it.

    Attributes:
        rows, seen: its jobs and nodes.
        said: of jobs, by id.
        dealt: what it says that any job has of each node.
        lasted: when jobs began and ended, by id.
        ruled: by what it counts processors and memory.
        complaints: of whatever it is told; None: it gives no answer.
        excluded: jobs that name nodes that they must not have.
    """

    rows: list[SlurmJobRow]
    seen: list[SlurmNodeRow]
    said: dict[str, Words] = field(default_factory=dict)
    dealt: dict[str, int] = field(default_factory=dict)
    lasted: dict[str, RunSpan] = field(default_factory=dict)
    ruled: SlurmRules = field(default_factory=SlurmRules)
    complaints: str | None = ""
    told: list[str] = field(default_factory=list)
    excluded: set[str] = field(default_factory=set)

    def jobs(self, *, ids: Sequence[str] = (), **_: object) -> list[SlurmJobRow]:
        return [row for row in self.rows if (row.id in ids if ids else row.state not in ENDED)]

    def words(self, ids: Sequence[str]) -> dict[str, Words]:
        return {row.id: self.said.get(row.id, Words()) for row in self.jobs(ids=ids)}

    def jobs_and_words(self, ids: Sequence[str]) -> dict[str, tuple[SlurmJobRow, Words]]:
        return {row.id: (row, self.words([row.id])[row.id]) for row in self.jobs(ids=ids)}

    def nodes(self, partition: str = "") -> list[SlurmNodeRow]:
        return self.seen

    def excluding(self, ids: Sequence[str]) -> set[str]:
        return self.excluded & set(ids)

    def rules(self, partition: str) -> SlurmRules:
        return self.ruled

    def shares(self, job_id: str) -> dict[str, int]:
        return self.dealt

    def spans(self, ids: Sequence[str]) -> dict[str, RunSpan]:
        return {name: self.lasted[name] for name in ids if name in self.lasted}

    def tell(self, orders: Sequence[str]) -> str:
        self.told += orders
        if self.complaints is None and orders:
            raise EngineError("it gives no answer", "wait")
        return self.complaints or ""


class Hands(Clock):
    """A clock that a test sets, and the wall clock beside it."""

    def __init__(self) -> None:
        self.time_s, self.ahead_s = 0.0, 0.0

    def now_s(self) -> float:
        return self.time_s

    def behind_s(self) -> float:
        return self.ahead_s


class Driven:
    """A driver, and the state machine that is told what it sees."""

    def __init__(
        self, slurm: FakeSlurm, topology: Topology, recovered: Sequence[RecoveredJob[SlurmRecoveryKey]] = ()
    ) -> None:
        self.machine = StateMachine(ClusterView(topology, estimates=None))  # type: ignore[arg-type]
        self.clock = Hands()
        self.driver = SlurmDriver(
            slurm,
            self.machine,
            "hemiola",
            clock=self.clock,
            recovered=recovered,
            profile=lambda model: None,
        )  # type: ignore[arg-type,return-value]

    def look(self, now_s: float) -> list[Event]:
        self.clock.time_s = now_s
        events = self.driver._see(now_s)
        self.driver._first = False
        for event in events:
            self.machine.apply(event)
        self.machine.validate()
        return events

    def carry_out(self, decision: Decision) -> None:
        assert not self.machine.execute(decision)
        self.driver._carry_out([decision])
