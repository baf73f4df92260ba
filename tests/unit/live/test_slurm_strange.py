"""What a Slurm may show that is not to be expected: it stops nobody, and takes nothing away."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from fake_slurm import BLOCK, FORGED, RUNS, FakeSlurm, node
from live_slurm import until
from replays import cluster
from scripted import leading

from hemiola.core.decisions import Placement, Start
from hemiola.core.errors import EngineError
from hemiola.core.events import Arrived, Blocked, NodeLost
from hemiola.core.job import Job, batch_job
from hemiola.live.engines.slurm.client import shares_in
from hemiola.live.engines.slurm.diff import SlurmDiff
from hemiola.live.engines.slurm.job_spec import asks_otherwise
from hemiola.live.engines.slurm.release import HandingBack
from hemiola.live.engines.slurm.snapshot import SlurmWatcher, everywhere, most_gpus
from hemiola.live.engines.slurm.tracked_job import SlurmTrackedJob
from hemiola.live.engines.slurm.wire import SlurmJobRow, SlurmNodeRow, SlurmRules, Words
from hemiola.live.journal import Journal
from hemiola.live.leadership import silent_s
from hemiola.sched.inventory import Inventory
from hemiola.sched.job_state import RUNNING
from hemiola.sched.machine import StateMachine
from hemiola.sched.view import ClusterView


class Shows:
    """A Slurm that shows these."""

    def __init__(self, rows: Sequence[SlurmJobRow], nodes: Sequence[SlurmNodeRow]) -> None:
        self.rows, self.seen = list(rows), list(nodes)

    def jobs(self, **_: object) -> list[SlurmJobRow]:
        return self.rows

    def nodes(self) -> list[SlurmNodeRow]:
        return self.seen

    def rules(self, partition: str) -> SlurmRules:
        return SlurmRules()


@pytest.mark.parametrize(
    ("seen", "lost"),
    [
        ([], False), ([node("n1", "inval", 7)], False), ([node("n1", "mixed", silent=True)], False),
        ([node("n1", "down")], True),
    ],
)  # fmt: skip
def test_what_runs_on_a_node_that_has_left_goes_on(seen: list[SlurmNodeRow], lost: bool):
    topology = cluster([8, 8])
    machine = StateMachine(ClusterView(topology, estimates=None))  # type: ignore[arg-type]
    one = SlurmTrackedJob(batch_job(id="u", submit_s=0.0, gpus=8, duration_s=1.0), RUNS, ran=True)
    one.wanted, one.bound_s = Placement((1,), (0xFF,)), 0.0
    machine.apply(Arrived(0.0, one.job))
    assert not machine.execute(Start("u", one.wanted, ""))
    watcher = SlurmWatcher(Shows([RUNS], [node("n0"), *seen]), topology, "hemiola")  # type: ignore[arg-type]
    look = watcher.look(1.0)
    changes = SlurmDiff(machine.view, watcher, 1.0)
    changes.hosts(look.down.__contains__, watcher.blocked(look, {"7"}), {})
    events = changes.with_new([])
    assert events == [NodeLost(1.0, 1) if lost else Blocked(1.0, 1, 8)]
    for event in events:
        machine.apply(event)
    machine.validate()
    assert (machine.view.jobs["u"].status == RUNNING) is not lost
    assert not machine.view.inventory.is_free_on(1, 1)


def test_a_partition_without_nodes_has_no_features():
    assert everywhere([], "hemiola") == frozenset()


def test_all_nodes_of_a_partition_may_be_lent_while_it_is_managed():
    lent = [node("n0", partition="infer"), node("n1", partition="infer")]
    slurm = Shows([RUNS], [node("n0"), node("n1")])
    watcher = SlurmWatcher(slurm, cluster([8, 8]), "hemiola")  # type: ignore[arg-type]
    assert watcher.look(0.0).closed == {}
    slurm.seen = lent
    look = watcher.look(2.0)
    assert (look.down, look.closed) == (set(), {0: 8, 1: 8}) and list(look.jobs) == ["7"]
    with pytest.raises(EngineError, match="has no nodes"):
        SlurmWatcher(slurm, cluster([8, 8]), "hemiola").look(2.0)  # type: ignore[arg-type]


def test_only_hosts_of_the_partition_are_counted_for_the_largest_one():
    topology = cluster([8, 4, 2], types=("h100", "a100", "a100"))
    nodes = [node("n0", partition="other"), node("n1"), node("n2")]
    assert most_gpus(topology, nodes, "hemiola") == {"": 4, "a100": 4, "h100": 8}
    assert most_gpus(topology, nodes, "none") == {"": 8, "a100": 4, "h100": 8}


def test_what_is_taken_on_a_host_that_is_down_is_not_counted():
    inventory = Inventory(cluster([8, 8]))
    inventory.lose(1)
    whole = Placement((1,), (0xFF,))
    inventory.take(whole)
    assert (inventory.free, inventory.counts) == (8, [8, 0])
    inventory.release(whole)
    inventory.take(Placement((1,), (0xF,)))
    inventory.regain(1)
    assert (inventory.free, inventory.counts) == (12, [8, 4])


DETAILS = """JobId=9 ArrayJobId=8 ArrayTaskId=1 JobName={name}
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   NodeList=h[0-2]
   JOB_GRES=gpu:5
     Nodes=h0 CPU_IDs=0 Mem=0 GRES=gpu:h100:3(IDX:0-2)
     Nodes=h[1-2] CPU_IDs=0-1 Mem=0 GRES=gpu:h100:1(IDX:0)
   MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0
   WorkDir=/tmp
   Comment={comment}
"""  # as Slurm 22.05 printed it


@pytest.mark.parametrize(
    "details", [DETAILS, DETAILS.replace("\n   User", "\n   SLUID=s641M8AQADX000\n   User", 1)]
)
@pytest.mark.parametrize("forged", ["", "a", f"a\n{FORGED}\nb", BLOCK])
def test_nobody_writes_lines_of_slurms_into_a_name_or_a_comment(forged: str, details: str):
    """Slurm 26.05 has a line more below the name."""
    text = details.format(name=forged or "(null)", comment=forged)
    assert shares_in(text, forged) == {"h0": 3, "h1": 1, "h2": 1}


@pytest.mark.parametrize(
    "text", ["", DETAILS.format(name="another", comment=""), DETAILS.format(name="a", comment="")[:200]]
)
def test_half_an_answer_about_shares_is_refused(text: str):
    with pytest.raises(EngineError, match="of a job"):
        shares_in(text, "a")


class Notes(Shows):
    """It notes what it is told, and may be away."""

    def __init__(self, *rows: SlurmJobRow) -> None:
        super().__init__(rows, ())
        self.told: list[str] = []
        self.away = False

    def jobs(self, **_: object) -> list[SlurmJobRow]:
        if self.away:
            raise EngineError("it is away", "wait")
        return [row for row in self.rows if row.state == "PENDING"]

    def words(self, _: object) -> dict[str, Words]:
        return {}

    def tell(self, orders: Sequence[str]) -> str:
        self.told += orders
        if orders and orders[0].startswith("release"):
            self.rows = [msgspec.structs.replace(row, priority=1) for row in self.rows]
        return ""


def test_what_comes_back_held_after_the_kill_switch_is_handed_back_too():
    held = msgspec.structs.replace(RUNS, state="PENDING", reason="JobHeldUser", priority=0, host_list="")
    slurm = Notes(held)
    slurm.away = True
    handing = HandingBack(slurm, "hemiola")  # type: ignore[arg-type]
    assert not handing.do()
    slurm.away = False
    handing.seen([held], 10.0)
    assert slurm.told == ["release 7"], "what had failed is tried again"
    slurm = Notes()
    handing = HandingBack(slurm, "hemiola")  # type: ignore[arg-type]
    leaves = msgspec.structs.replace(RUNS, state="COMPLETING")
    handing.seen([leaves], 10.0)
    handing.seen([leaves], 12.0)
    slurm.rows = [held]
    handing.seen(slurm.rows, 14.0)
    assert slurm.told == ["release 7"]
    slurm.rows, slurm.told = [held], []
    handing.seen(slurm.rows, 16.0)
    assert slurm.told == [], "whoever holds it now has the right to"


def test_what_is_put_back_after_the_kill_switch_waits_for_no_nodes():
    waits = msgspec.structs.replace(RUNS, state="PENDING", reason="BeginTime", host_list="")
    slurm = FakeSlurm([], [], said={"7": Words(admin=f"hemiola:{'0' * 36}:ranks=n1")})
    handing = HandingBack(slurm, "hemiola")  # type: ignore[arg-type]
    handing.seen([RUNS], 10.0)
    slurm.rows = [waits, msgspec.structs.replace(waits, id="8")]
    for _ in range(2):
        handing.seen(slurm.rows, 10.0)
    assert slurm.told == ["update jobid=7 ReqNodeList="], "once; what its user has bound stays so"


@pytest.mark.parametrize("how", ["end", "look on"])
def test_whoever_stops_says_so_and_who_has_lost_the_lease_does_not(tmp_path: Path, how: str):
    alive = tmp_path / "alive"
    with Journal.open(tmp_path / "j.db") as journal:
        leadership = leading(journal, alive)
        leadership.turned(acts=True)
        until(alive.exists, "it says that it lives")
        assert silent_s(alive, time.time()) < 30 and alive.read_text().strip().isdigit()
        if how == "look on":
            leadership.turned(acts=False)
            assert alive.read_text().endswith(" stopped\n")
        leadership.end()
        assert alive.read_text().endswith(" stopped\n") and silent_s(alive, time.time()) < 30
        alive.write_text("another's\n")
        leadership = leading(journal, alive)
        leadership.turned(acts=True)
        journal.resign(leadership.epoch)
        assert journal.lead("another", time.time(), 60.0)
        until(lambda: not leadership.holds(), "it is told")
        leadership.end()
        assert alive.read_text() == "another's\n"


def test_what_of_a_job_that_waits_its_user_may_change_is_seen():
    before = msgspec.structs.replace(RUNS, state="PENDING", hosts=2, most_hosts=2)
    job = batch_job(id="u", submit_s=0.0, gpus=16, duration_s=1.0)

    def otherwise(job: Job = job, old: SlurmJobRow = before, **other: object) -> bool:
        return asks_otherwise(old, msgspec.structs.replace(old, **other), job)

    assert not otherwise(reason="Priority", priority=7, eligible_s=7, bound_to="n1")
    for changes in ({"hosts": 4}, {"gpus_per_host": 4}, {"limit_s": 60.0}, {"requeues": False}):
        assert otherwise(**changes), changes
    elastic = batch_job(**msgspec.structs.asdict(job) | {"hosts": 2, "gpus_max": 32})
    assert not otherwise(elastic, hosts=3, most_hosts=3, bound_to="n[1-3]"), "Hemiola has bound it"
    assert otherwise(elastic, limit_s=60.0, bound_to="n[1-3]")
