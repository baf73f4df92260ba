"""The peers' known answers, on the traces they were given: exactly, where the peer loses no job."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from hemiola.analysis.cluster_metrics import conservation
from hemiola.core.result import JobRecord
from hemiola.simulator.rules import semantics_by_name
from hemiola.simulator.simulate import Recording, simulate
from hemiola.trace.topologies import read_topology
from hemiola.trace.workloads import read_workload

pytestmark = pytest.mark.shared_data
SHARED = os.environ.get("HEMIOLA_SHARED")
MURI = {"srtf": "SRTF", "srsf": "SRSF", "tiresias": "Tiresias_L"}
POLLUX_MEANS = {
    "workloads-0.5": "1450.9375 2333.275 1869.9 1946.7625 1425.3875 1826.575 3979.15 1899.95",
    "workloads": "2473.65 5144.9625 3876.25625 3280.2625 3501.0125 3469.69375 5479.9125 5079.70625",
    "workloads-1.5": "5520.29167 6333.77083 6561.97917 5577.32083 6832.42083 5830.48333 5366.78333 7435.75",
    "workloads-2.0": "10138.175 8655.990625 10727.81875 9664.728125 12098.103125 10254.66875 8370.846875 10405.80625",
}
"""Mean completion times in seconds of the published runs (petuum/adaptdl, osdi21-artifact, tiresias)."""


def golden(name: str) -> Any:
    """A file of known answers; nothing where there are none."""
    return json.loads((Path(SHARED) / f"data/golden/{name}.json").read_text()) if SHARED else {}


def records(semantics: str, workload: Path, cluster: str, policy: str) -> tuple[JobRecord, ...]:
    """What became of every job; GPU-seconds add up."""
    topology = read_topology(cluster)
    run = simulate(
        read_workload(workload),
        topology,
        [policy],
        semantics=semantics_by_name(semantics),
        recording=Recording(False),
    ).runs[0]
    conservation(run, topology)
    return run.records


def tiresias_files(data: Path, case: str) -> tuple[Path, str]:
    """The job file and the cluster of a cell such as t60n4g4 or tp64_5000."""
    slices, traces = data / "golden/bench_slices", data / "traces/tiresias"
    if case.startswith("t60"):
        return traces / "60_job.csv", str(slices / "n4g4.csv" if "n4g4" in case else traces / "n32g4.csv")
    found = re.fullmatch(r"tp(64_)?(\d+)", case)
    assert found is not None
    name = f"philly_{found[2]}_tiresias_job.csv" + (".gz" if found[2] == "10000" else "")
    return slices / name, str(slices / ("n64g8s4.csv" if found[1] else "n32g8s4.csv"))


@pytest.mark.parametrize("cell", golden("tiresias").get("results", {}))
def test_tiresias(shared: Path, cell: str) -> None:
    case, policy, scheme = cell.rsplit("_", 2)
    workload, cluster = tiresias_files(shared / "data", case)
    done = records("tiresias-sim", workload, cluster, f"{policy}:placement={scheme}")
    assert all(record.status == "finished" for record in done)
    known = golden("tiresias")["results"][cell]
    if known["finished"] < len(done):
        return  # the peer lost jobs here: its averages are over the rest
    count = len(done)
    assert sum(record.jct_s or 0 for record in done) / count == pytest.approx(known["avg_jct"], abs=1e-4)
    assert sum(record.queueing_s for record in done) / count == pytest.approx(known["avg_pending"], abs=1e-4)
    assert max(record.finish_s or 0 for record in done) == known["makespan"]
    assert sum(record.preemptions for record in done) == known["preempt"]


@pytest.mark.parametrize("policy", MURI)
@pytest.mark.parametrize("trace", ["trace3", "trace4"])
def test_muri(shared: Path, trace: str, policy: str) -> None:
    folder = shared / "data/traces/muri"
    done = records("muri-sim", folder / f"{trace}.csv", str(folder / "n8g8.csv"), policy)
    jct_s = sorted(record.jct_s or 0 for record in done)
    known = golden("muri")["published"][trace][MURI[policy]]
    assert sum(jct_s) / len(jct_s) == pytest.approx(known["avg_jct_s"], rel=1e-8)
    assert max(record.finish_s or 0 for record in done) == pytest.approx(known["makespan_s"], rel=1e-8)
    assert jct_s[int(0.99 * len(jct_s))] == pytest.approx(known["p99_jct_s"], rel=1e-8)


@pytest.mark.parametrize("workload", range(1, 9))
@pytest.mark.parametrize("load", POLLUX_MEANS)
def test_pollux_means(shared: Path, load: str, workload: int) -> None:
    path = shared / f"data/traces/pollux/{load}/workload-{workload}.csv"
    done = records("pollux-sim", path, "flat:hosts=16,gpus_per_host=4", "tiresias")
    mean_s = sum(record.jct_s or 0 for record in done) / len(done)
    assert mean_s == pytest.approx(float(POLLUX_MEANS[load].split()[workload - 1]), abs=1e-5)


def test_pollux_job_by_job(shared: Path) -> None:
    path = shared / "data/traces/pollux/workloads/workload-6.csv"
    done = records("pollux-sim", path, "flat:hosts=16,gpus_per_host=4", "tiresias")
    known = golden("pollux")["reproduced"]["workload-6/tiresias"]["per_job"]
    assert {record.id: record.jct_s for record in done} == known
