"""What hosts of a topology and jobs of a workload have beside GPUs: read, written, and checked in simulations, too."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from replays import CheckedMachine, cluster, job, replay

from hemiola.core.decisions import Placement, Scale, Start
from hemiola.core.errors import HemiolaError, InputError, RowError, TopologyError
from hemiola.core.events import Arrived
from hemiola.core.job import Batch, Objective, Service, Workload
from hemiola.core.resources import ResourceRequest, Resources
from hemiola.core.topology import Topology
from hemiola.sched.policies.fifo import Fifo
from hemiola.sched.view import ClusterView
from hemiola.trace.topologies.native import read_native, topology_text
from hemiola.trace.workloads import read_workload, write_workload

GIB = 2**30
HAS = Resources(cpus=16.0, memory_bytes=64.0 * GIB, bandwidth_bytes_per_s=1e9)


def furnished(*resources: Resources, gpus: int = 4) -> Topology:
    """A host with so much for each."""
    plain = cluster([gpus] * len(resources))
    import dataclasses

    hosts = dataclasses.replace(plain.hosts, resources=resources)
    return dataclasses.replace(plain, hosts=hosts).check()


def wanting(name: str, gpus: int, submit_s: float = 0.0, **request: float) -> Batch:
    return job(name, submit_s, gpus, 10.0, resources=ResourceRequest(**request))


def test_a_topology_file_says_what_hosts_have(tmp_path: Path) -> None:
    text = """
[[hosts]]
names = "n[0-1]"
gpus = 4
nic = "25gbit"
cpus = 16
memory = "64GiB"
bandwidth = "1GB/s"

[[hosts]]
names = "n2"
gpus = 4
nic = "25gbit"
"""
    read = read_native(text, "t.toml")
    assert read.hosts.resources == (HAS, HAS, Resources())
    assert read_native(topology_text(read), "t.toml").hosts == read.hosts
    with pytest.raises(HemiolaError, match="memory"):
        read_native(text.replace("64GiB", "64"), "t.toml")


def test_a_host_cannot_have_less_than_nothing() -> None:
    with pytest.raises(TopologyError, match="'n1': cpus is -1"):
        furnished(HAS, Resources(cpus=-1.0))
    with pytest.raises(TopologyError, match="memory_bytes is nan"):
        furnished(Resources(memory_bytes=float("nan")))


def test_a_host_that_says_nothing_has_enough_for_anybody() -> None:
    machine = CheckedMachine(ClusterView(cluster([4]), estimates=None))  # type: ignore[arg-type]
    machine.apply(Arrived(0.0, wanting("a", 1, cpus=1e6)))
    assert machine.execute(Start("a", Placement((0,), (1,)), "")) == ""


def test_two_jobs_that_want_the_same_processors_run_one_after_the_other() -> None:
    jobs = [wanting("a", 1, cpus=12.0), wanting("b", 1, cpus=12.0), wanting("c", 1, cpus=4.0)]
    run = replay(jobs, furnished(HAS), Fifo())
    ends = {record.id: record.finish_s for record in run.records}
    assert (ends["a"], ends["b"]) == (10.0, 20.0)


def test_the_state_machine_says_what_a_host_lacks() -> None:
    machine = CheckedMachine(ClusterView(furnished(HAS, HAS), estimates=None))  # type: ignore[arg-type]
    reserved = {"bandwidth_per_host_bytes_per_s": 6e8}
    machine.apply(*(Arrived(0.0, wanting(name, 2, **reserved)) for name in "ab"))
    wide = [Placement((0, 1), (mask, mask)) for mask in (0b1, 0b10)]
    assert machine.execute(Start("a", wide[0], "")) == ""
    assert "of its link left" in machine.execute(Start("b", wide[1], ""))
    assert machine.execute(Start("b", Placement((0,), (0b110,)), "")) == "", "on one host it sends nothing"


def test_a_job_for_which_no_host_has_enough_is_refused_before_it_arrives() -> None:
    machine = CheckedMachine(ClusterView(furnished(HAS, HAS), estimates=None))  # type: ignore[arg-type]
    assert "16 CPUs left, and it needs 20" in machine.admission(wanting("a", 1, cpus=20.0))
    assert machine.admission(wanting("a", 1, cpus=16.0)) == ""


def test_a_replica_takes_its_share_and_gives_it_back() -> None:
    machine = CheckedMachine(ClusterView(furnished(HAS), estimates=None))  # type: ignore[arg-type]
    machine.apply(
        Arrived(
            0.0,
            Service(
                id="s", submit_s=0.0, gpus=1, objective=Objective(0.5), replicas_max=4,
                resources=ResourceRequest(cpus=6.0),
            ),
        )
    )  # fmt: skip
    places = [Placement((0,), (1 << gpu,)) for gpu in range(4)]
    assert machine.execute(Scale("s", tuple(places[:2]), "")) == ""
    assert "4 CPUs left, and it needs 6" in machine.execute(Scale("s", tuple(places[:3]), ""))
    assert machine.execute(Scale("s", tuple(places[1:3]), "")) == "", "the first one leaves"
    machine.validate()


def test_native_json_keeps_what_a_job_takes(tmp_path: Path) -> None:
    one = wanting("a", 1, cpus_per_gpu=4.0, memory_bytes=8.0 * GIB)
    write_workload(Workload(jobs=(one,)), tmp_path / "w.json")
    assert read_workload(tmp_path / "w.json").jobs == (one,)
    with pytest.raises(InputError, match="'a' has resources"):
        write_workload(Workload(jobs=(one,)), tmp_path / "w.csv")
    text = (tmp_path / "w.json").read_text().replace('"cpus_per_gpu":4.0', '"cpus_per_gpu":-4.0')
    (tmp_path / "w.json").write_text(text)
    with pytest.raises(RowError, match=r"-4.0 of cpus_per_gpu"):
        read_workload(tmp_path / "w.json")


def test_resources_that_nobody_gives_are_not_written() -> None:
    assert msgspec.json.encode(Resources(cpus=1.0)) == b'{"cpus":1.0}'
