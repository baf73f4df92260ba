"""Processors and memory of Slurm's jobs and nodes: how they are counted, and where jobs go by them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import pytest
from fake_slurm import RUNS, Driven, FakeSlurm, node
from replays import cluster

from hemiola.core.errors import EngineError
from hemiola.core.events import Held, Requeued, ResourcesOffered, ResourcesRequested
from hemiola.core.job import Job, batch_job
from hemiola.core.resources import ResourceRequest, Resources
from hemiola.live.engines.slurm.diff import LACKING_S
from hemiola.live.engines.slurm.snapshot import SlurmWatcher, claim_of
from hemiola.live.engines.slurm.wire import SlurmJobRow, SlurmNodeRow, SlurmRules, read_tres, rules_of
from hemiola.live.tracked_job import ELSEWHERE_S
from hemiola.sched.policies import policy_from_text

MIB = 2.0**20
WAITS = msgspec.structs.replace(
    RUNS, state="PENDING", host_list="", bound_to="", priority=0, reason="JobHeldUser", gpus_per_host=1, eligible_s=None, tres=(1, 0.0),
    asks_memory=True,
)  # fmt: skip


def waits(number: int, **more: object) -> SlurmJobRow:
    return msgspec.structs.replace(WAITS, id=str(number), array=str(number), submit_s=100 + number, **more)


def has(
    name: str, cpus: int = 16, taken: int = 0, memory: float = 1000.0, memory_taken: float = 0.0
) -> SlurmNodeRow:
    return msgspec.structs.replace(
        node(name),
        cpus=cpus,
        cpus_taken=taken,
        memory_bytes=memory * MIB,
        memory_taken_bytes=memory_taken * MIB,
    )


class Binds(FakeSlurm):
    """It binds jobs as it is told, and starts none."""

    def tell(self, orders: Sequence[str]) -> str:
        for order in orders:
            if match := re.fullmatch(r"update jobid=(\w+) ReqNodeList=(\S+) .*", order):
                self._set(match[1], bound_to=match[2])
            elif match := re.fullmatch(r"(release|uhold) (\S+)", order):
                is_held = match[1] == "uhold"
                for job in match[2].split(","):
                    self._set(
                        job, priority=9 * (not is_held), reason="JobHeldUser" if is_held else "Resources"
                    )
        return super().tell(orders)

    def _set(self, job: str, **more: object) -> None:
        self.rows = [msgspec.structs.replace(row, **more) if row.id == job else row for row in self.rows]


def driven(slurm: FakeSlurm, nodes: int = 3) -> Driven:
    return Driven(slurm, cluster([8] * nodes))


def started(one: Driven) -> dict[str, str]:
    """What fifo-backfill decides now, carried out: by job, its node."""
    names = {known.job.id: known.row.id for known in one.driver.tracked.values()}
    found = {}
    for decision in policy_from_text("fifo-backfill").decide(one.machine.view):
        one.carry_out(decision)
        found[names[decision.job_id]] = f"n{decision.placement.hosts[0]}"
    return found


COUNTED = SlurmRules(counts_memory=True)
DEFAULTS = SlurmRules(cpus_per_gpu=4, memory_per_gpu_bytes=100 * MIB, counts_memory=True)
JOB, GANG = (
    batch_job(id="a", submit_s=0.0, gpus=2, duration_s=1.0, hosts=1),
    batch_job(id="a", submit_s=0.0, gpus=4, duration_s=1.0, hosts=2),
)
ELASTIC = batch_job(id="a", submit_s=0.0, gpus=4, duration_s=1.0, hosts=2, gpus_max=8)


@pytest.mark.parametrize(
    ("row", "job", "rules", "wanted"),
    [
        (waits(1, tres=(16, 0.0), cpus_per_host=16), JOB, COUNTED, ResourceRequest(cpus=16, cpus_per_host=16)),
        (waits(1, tres=(3, 600 * MIB)), GANG, COUNTED, ResourceRequest(cpus=3, cpus_per_host=1, memory_bytes=600 * MIB)),
        (waits(1, cpus_per_gpu=6), JOB, DEFAULTS,
         ResourceRequest(cpus=1, cpus_per_host=1, cpus_per_gpu=6)),
        (waits(1, tres=(1, 1000 * MIB), asks_memory=False), JOB, DEFAULTS,
         ResourceRequest(cpus=1, cpus_per_host=1, cpus_per_gpu=4, memory_per_gpu_bytes=100 * MIB)),
        (waits(1, tres=(2, 0.0), cpus_per_host=2), JOB, DEFAULTS, ResourceRequest(cpus=2, cpus_per_host=2)),
        (waits(1, tres=(1, 1000 * MIB), asks_memory=False), JOB, COUNTED,
         ResourceRequest(cpus=1, cpus_per_host=1, all_memory=True)),
        (waits(1, tres=(1, 1000 * MIB), asks_memory=False), JOB, SlurmRules(), ResourceRequest(cpus=1, cpus_per_host=1)),
        (waits(1, exclusive=True), JOB, SlurmRules(), ResourceRequest(cpus=1, cpus_per_host=1, whole=True)),
        (waits(1, hosts=2, tres=(6, 200 * MIB), cpus_per_host=3), ELASTIC, COUNTED,
         ResourceRequest(cpus_per_host=3, memory_per_host_bytes=100 * MIB)),
        (msgspec.structs.replace(RUNS, tres=(8, 200 * MIB), exclusive=True), JOB, DEFAULTS,
         ResourceRequest(cpus=8, memory_bytes=200 * MIB)),
    ],
)  # fmt: skip
def test_what_jobs_take(row: SlurmJobRow, job: Job, rules: SlurmRules, wanted: ResourceRequest):
    assert claim_of(row, job, rules) == wanted


def test_numbers_as_slurm_writes_them():
    assert read_tres("cpu=3,mem=1500M,node=2,billing=3,gres/gpu=4") == (3, 1500 * MIB)
    assert read_tres("cpu=8,mem=1.50T") == (8, 1.5 * 2**40) and read_tres("mem=4G") == (0, 2.0**32)
    assert read_tres("N/A") == (0, 0.0)


PARTITION = "PartitionName=p OverSubscribe=NO JobDefaults=(null)"


@pytest.mark.parametrize(
    ("settings", "partition", "wanted"),
    [
        ({"SelectTypeParameters": "CR_CPU", "PreemptType": "preempt/none"}, PARTITION, SlurmRules()),
        ({"SelectTypeParameters": "CR_CORE_MEMORY", "PreemptType": "(null)"}, PARTITION, SlurmRules(counts_memory=True)),
        ({"JobDefaults": "DefCpuPerGPU=4,DefMemPerGPU=100"}, PARTITION, SlurmRules(4, 100 * MIB)),
        ({"JobDefaults": "DefCpuPerGPU=4"}, PARTITION.replace("(null)", "DefCpuPerGPU=2"), SlurmRules(2)),
        ({"PreemptType": "preempt/partition_prio"}, PARTITION, SlurmRules(preempts=True)),
        ({}, PARTITION.replace("NO", "FORCE:4"), SlurmRules(counts_cpus=False)),
        ({}, PARTITION.replace("NO", "FORCE:1"), SlurmRules()), ({}, PARTITION.replace("NO", "EXCLUSIVE"), SlurmRules()),
    ],
)  # fmt: skip
def test_rules_by_which_slurm_counts(settings: dict[str, str], partition: str, wanted: SlurmRules):
    assert rules_of(settings, partition) == wanted
    with pytest.raises(EngineError, match="of a partition"):
        rules_of(settings, "slurm_load_partitions error")


def test_jobs_go_where_their_processors_are_and_one_that_nobody_has_keeps_none_waiting():
    slurm = FakeSlurm(
        [waits(1, tres=(16, 0.0)), waits(2), waits(3)],
        [has("n0", taken=16), has("n1", taken=1), has("n2", taken=1)],
    )
    one = driven(slurm)
    one.look(0.0)
    assert started(one) == {"2": "n1", "3": "n1"}, "15 CPUs are the most that a node has left"
    slurm.seen = [has("n0"), has("n1", taken=3), has("n2", taken=1)]
    one.look(1.5)
    assert started(one) == {"1": "n0"}


def test_jobs_of_one_instant_share_what_a_node_has():
    slurm = FakeSlurm(
        [waits(number, tres=(10, 0.0)) for number in range(4)], [has("n0"), has("n1"), has("n2")]
    )
    one = driven(slurm)
    one.look(0.0)
    assert sorted(started(one).values()) == ["n0", "n1", "n2"]


def test_memory_counts_where_slurm_counts_it():
    nodes = [has("n0", memory_taken=600), has("n1"), has("n2")]
    for rules, wanted in ((COUNTED, {"1": "n1", "2": "n2"}), (SlurmRules(), {"1": "n0", "2": "n0"})):
        slurm = FakeSlurm([waits(number, tres=(1, 600 * MIB)) for number in (1, 2)], nodes, ruled=rules)
        one = driven(slurm)
        one.look(0.0)
        assert started(one) == wanted


def test_what_its_own_jobs_have_is_counted_once():
    runs = msgspec.structs.replace(RUNS, host_list="n0", bound_to="", gpus_per_host=1, tres=(12, 0.0))
    slurm = Binds(
        [runs, waits(8, tres=(3, 0.0)), waits(9, tres=(3, 0.0))],
        [has("n0", taken=13), has("n1", taken=16), has("n2", 8, 8)],
    )
    one = driven(slurm)
    events = one.look(0.0)
    assert ResourcesOffered(0.0, 0, Resources(15.0), Resources(16, 1000 * MIB)) in events, "others have one"
    assert started(one) == {"8": "n0"}
    slurm._set("8", state="RUNNING", host_list="n0")
    slurm.seen[0] = has("n0", taken=16)
    events = one.look(2.0)
    assert not [event for event in events if isinstance(event, ResourcesOffered)], "nothing is new"
    slurm.rows = [row for row in slurm.rows if row.id != "7"] + [
        msgspec.structs.replace(runs, state="COMPLETED")
    ]
    one.look(2.5)
    assert started(one) == {"9": "n0"}, "at once, though the nodes were not asked anew"


def test_a_job_whose_user_asks_for_less_is_the_same_job():
    slurm = FakeSlurm([waits(1, tres=(16, 0.0), cpus_per_host=16)], [has(f"n{i}", taken=9) for i in range(3)])
    one = driven(slurm)
    one.look(0.0)
    (before,) = one.driver.tracked
    assert started(one) == {}
    slurm.rows = [waits(1, tres=(4, 0.0), cpus_per_host=4)]
    assert [type(event) for event in one.look(0.1)] == [ResourcesRequested]
    assert started(one) == {"1": "n0"} and list(one.driver.tracked) == [before]


def test_nodes_that_say_nothing_have_enough():
    slurm = FakeSlurm([waits(1, tres=(1000, 0.0))], [node("n0"), node("n1"), node("n2")])
    one = driven(slurm)
    assert not [event for event in one.look(0.0) if isinstance(event, ResourcesRequested | ResourcesOffered)]
    assert started(one) == {"1": "n0"}


def test_what_slurm_would_stop_for_a_job_is_not_in_its_way():
    slurm = FakeSlurm([waits(1, tres=(16, 0.0))], [has("n0", taken=16)], ruled=SlurmRules(preempts=True))
    one = driven(slurm, nodes=1)
    one.look(0.0)
    assert started(one) == {"1": "n0"}


@pytest.mark.parametrize("takes_nodes", [True, False])
def test_a_refused_job_is_tried_on_one_node_after_the_other_and_not_left_alone_for_long(takes_nodes: bool):
    """Slurm does not show why: a node that belongs to another user, for example."""
    slurm = (Binds if takes_nodes else FakeSlurm)([waits(1)], [has(f"n{i}") for i in range(4)])
    one = driven(slurm, nodes=4)
    now, tried, pauses = 0.0, [], []
    for _ in range(5):
        one.look(now)
        tried += started(one).values()
        for later in (0.1, 0.2, 0.3 + LACKING_S) if takes_nodes else ():
            assert not one.driver._soon
            one.look(now + later)
        requeued, held = one.driver._soon
        assert isinstance(requeued, Requeued) and requeued.refused and isinstance(held, Held)
        one.machine.apply(requeued, held)
        one.driver._soon.clear()
        (known,) = one.driver.tracked.values()
        pauses.append(known.not_before_s - one.clock.time_s)
        now = known.not_before_s + 0.1
    assert sorted(tried[:4]) == ["n0", "n1", "n2", "n3"] and len(tried) == 5, (
        "each once before one is tried again"
    )
    assert max(pauses[:4]) <= ELSEWHERE_S


@pytest.mark.parametrize(("ours", "processors_left"), [([waits(1)], 4.0), ([], 16.0)])
def test_nodes_are_asked_again_at_once_when_others_come_while_a_job_waits(
    ours: list[SlurmJobRow], processors_left: float
):
    theirs = msgspec.structs.replace(RUNS, id="9", partition="other", host_list="n0")
    slurm = FakeSlurm([*ours], [has("n0")])
    watcher = SlurmWatcher(slurm, cluster([8]), "hemiola")  # type: ignore[arg-type]
    watcher.look(0.0)
    slurm.rows, slurm.seen = [*ours, theirs], [has("n0", taken=12)]
    fresh = watcher.look(0.1).fresh_nodes
    left = fresh[0].cpus - fresh[0].cpus_taken if fresh else 16.0  # as it was seen before
    assert left == processors_left
    assert not watcher.look(0.2).fresh_nodes, "nobody came or went since"
