"""Idle GPU-seconds, split by hand."""

from __future__ import annotations

import pytest
from replays import CheckedMachine, check_run, cluster, job, replay, start

from hemiola.core.events import Arrived, NodeLost
from hemiola.sched.view import ClusterView
from hemiola.simulator.records import IdleLedger

# what waits on an idle cluster of 8 GPUs, and what its GPU-seconds are called in 10 s
CASES = [
    ([], (0, 0, 80)),
    ([3], (30, 0, 50)),  # it would fit: the policy chose to wait
    ([3, 3], (60, 0, 20)),
    ([3, 3, 3], (80, 0, 0)),
    ([8, 8], (80, 0, 0)),
]


def machine_with(sizes: list[int]) -> CheckedMachine:
    machine = CheckedMachine(ClusterView(cluster([4, 4]), estimates=None))  # type: ignore[arg-type]
    for n, gpus in enumerate(sizes):
        machine.apply(Arrived(0.0, job(f"j{n}", 0, gpus, 1)))
    return machine


@pytest.mark.parametrize(("sizes", "expected"), CASES)
def test_idle_time_by_its_cause(sizes: list[int], expected: tuple[float, float, float]) -> None:
    ledger = IdleLedger(machine_with(sizes).view)
    ledger.pass_time(10.0, 0)
    assert (ledger.waiting_gpu_s, ledger.fragmentation_gpu_s, ledger.no_demand_gpu_s) == expected


def test_what_would_not_fit_by_number_is_fragmentation() -> None:
    machine = machine_with([6, 4, 4])
    assert machine.execute(start("j0", (0, 0b1111), (1, 0b11))) == ""
    ledger = IdleLedger(machine.view)
    ledger.pass_time(10.0, 0)  # 2 free, each waiting job wants 4
    assert (ledger.waiting_gpu_s, ledger.fragmentation_gpu_s, ledger.no_demand_gpu_s) == (0, 20, 0)


def test_gpus_of_a_host_that_is_down_are_neither_free_nor_wanted() -> None:
    machine = machine_with([8])
    machine.apply(NodeLost(0.0, 1))
    ledger = IdleLedger(machine.view)
    ledger.pass_time(10.0, 4)
    assert (ledger.down_gpu_s, ledger.fragmentation_gpu_s, ledger.waiting_gpu_s) == (40, 40, 0)


def test_a_whole_run_split_by_hand() -> None:
    """a: 3 GPUs 0-10; b wants 4 from 2 on; c: 1 GPU 20-30."""
    topology = cluster([4])
    jobs = [job("a", 0, 3, 10), job("b", 2, 4, 5), job("c", 20, 1, 10)]
    run = replay(jobs, topology, "fifo")
    check_run(run, jobs, topology)
    split = run.gpu_seconds
    assert split.useful == 30 + 20 + 10
    assert split.idle_fragmentation == 8  # one GPU from 2 to 10
    assert split.idle_no_demand == 2 + 4 * 5 + 3 * 10
    assert split.idle_waiting == 0


def test_strict_order_lets_gpus_idle_by_choice() -> None:
    """c would fit from 2 on but stands behind b."""
    topology = cluster([4])
    jobs = [job("a", 0, 2, 10), job("b", 1, 4, 5), job("c", 2, 2, 3)]
    run = replay(jobs, topology, "fifo")
    check_run(run, jobs, topology)
    assert run.gpu_seconds.idle_fragmentation == 2  # b alone, 1-2
    assert run.gpu_seconds.idle_waiting == 16  # 2-10
