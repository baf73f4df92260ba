"""What parameter servers ask of a host, worked out by hand from known seconds."""

from __future__ import annotations

import numpy as np
import pytest

from hemiola.core.errors import HardwareError, PlanError
from hemiola.core.graph import KINDS, PHASES, Graph, Operations, Parameter, Signature
from hemiola.core.hardware import CollectiveCost, Hardware, KindEfficiency, PhaseCost
from hemiola.core.topology import Topology
from hemiola.plan.problem import PlanProblem
from hemiola.plan.shares import demand_of, share

MB = 1_000_000


def problem(ranks: int, gpus_per_host: int = 1, measured: bool = True) -> PlanProblem:
    """Forward 0.1 s, backward 0.2 s, optimizer 0.05 s; one parameter of 40 MB."""
    operations = Operations(
        name=("known",) * 3, kind=np.full(3, KINDS.index("other"), dtype=np.int8), phase=np.arange(3, dtype=np.int8),
        micro_step=np.zeros(3, dtype=np.int16), flop=np.zeros(3), read_bytes=np.zeros(3), written_bytes=np.zeros(3),
        module=np.zeros(3, dtype=np.int64), forward=np.full(3, -1), signature=np.zeros(3, dtype=np.int64),
        dep_start=np.array([0, 0, 1, 2]), dep=np.arange(2),
    )  # fmt: skip
    weight = Parameter(
        name="w", module="", shape=(10 * MB,), dtype="float32", size_bytes=40 * MB, gradient_bytes=40 * MB,
        first_use=0, gradient_ready=1, updated=2,
    )  # fmt: skip
    graph = Graph(name="g", operations=operations, parameters=(weight,), signatures=(Signature("known"),))
    link = CollectiveCost(
        backend="hemiola", collective="all-reduce", ranks=2, hosts=("a", "b"), alpha_s=1e-4, bytes_per_s=1e9,
        cpu_s_per_byte=1e-9,
    )  # fmt: skip
    hardware = Hardware(
        name="h", kind="cpu", peak_flop_per_s={"float32": 1e12}, memory_bytes_per_s=12e9, memory_bytes=1e12, cores=8,
        threads_per_rank=2, phases={p: PhaseCost(operation_s=0.0, view_s=0.0) for p in PHASES},
        efficiencies={k: KindEfficiency(compute=1.0, memory=1.0) for k in KINDS if k != "view"},
        collectives=(link,) if measured else (),
    )  # fmt: skip
    hosts = -(-ranks // gpus_per_host)
    topology = Topology.flat(hosts=hosts, gpus_per_host=gpus_per_host, nic_bytes_per_s=125e6)
    return PlanProblem(graph, hardware, topology, ranks, seconds=np.array([0.1, 0.2, 0.05]))


def test_two_hosts_with_a_server_each_send_half_of_everything_either_way():
    found = demand_of(problem(2), servers=2)
    assert found.compute_s == pytest.approx(0.6)  # two threads
    assert found.push_bytes == pytest.approx(20 * MB)
    assert found.answer_bytes == pytest.approx(20 * MB)
    assert found.communication_s == pytest.approx(80 * MB * 1e-9)
    half = 0.1 + 160 * MB * 1e-9 + 3 * 80 * MB / 12e9  # the optimizer on one core, sending, adding
    assert found.server_s == pytest.approx(half / 2)


def test_a_host_without_a_server_pushes_all_and_answers_nothing():
    found = demand_of(problem(3), servers=1, host=2)
    assert (found.push_bytes, found.answer_bytes, found.server_s) == (pytest.approx(40 * MB), 0.0, 0.0)
    home = demand_of(problem(3), servers=1, host=0)
    assert (home.push_bytes, home.answer_bytes) == (0.0, pytest.approx(80 * MB))


def test_ranks_of_one_host_count_together():
    found = demand_of(problem(4, gpus_per_host=2), servers=4, host=1)
    assert found.compute_s == pytest.approx(1.2)
    assert found.push_bytes == pytest.approx(40 * MB)  # two ranks, half of the servers elsewhere


def test_ranks_that_wait_for_cores_ask_for_no_more_of_them():
    """8 ranks of 2 threads take twice as long on 8 cores; the two of another host have enough."""
    found = demand_of(problem(8, gpus_per_host=8), servers=1)
    assert found.compute_s == pytest.approx(8 * 0.3 * 2)
    assert found.server_s == pytest.approx(0.05 * 2 + 8 * 80 * MB * 1e-9 + 3 * 8 * 40 * MB / 12e9)
    assert demand_of(problem(10, gpus_per_host=8), servers=1, host=1).compute_s == pytest.approx(2 * 0.3 * 2)


def test_what_it_asks_for_can_be_shared_out():
    found = share(demand_of(problem(2), servers=2), cores=8, link_bytes_per_s=125e6)
    assert found.iteration_s == pytest.approx(0.32)  # 40 MB at 125 MB/s


def test_what_cannot_be_is_named():
    with pytest.raises(PlanError, match="host 2 of 2"):
        demand_of(problem(2), servers=1, host=2)
    with pytest.raises(HardwareError, match="'h' was not measured"):
        demand_of(problem(2, measured=False), servers=1)
