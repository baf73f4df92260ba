"""The jobs and clusters that the speed benchmarks replay.

Real jobs come from the folder that HEMIOLA_SHARED names. Without it the same number of jobs is
generated after Philly's published statistics, and every table says so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import hemiola
from hemiola import Job, Topology, Workload

SMALL = "leaf-spine:hosts=64,gpus_per_host=8,hosts_per_rack=8,nic=100gbit,oversubscription=4"
SMALL_FLAT = "flat:hosts=64,gpus_per_host=8"
PHILLY = "leaf-spine:hosts=352,gpus_per_host=8,hosts_per_rack=16,nic=100gbit,oversubscription=4"
HUGE = "leaf-spine:hosts=12500,gpus_per_host=8,hosts_per_rack=20,nic=100gbit,oversubscription=4"
SLICE, ALL = "data/golden/bench_slices/philly_10000.csv.gz", "data/traces/philly/philly.csv.gz"
SLICE_JOBS, ALL_JOBS = 10_000, 82_247


@dataclass(frozen=True)
class Source:
    """Where jobs come from.

    Attributes:
        text: what `hemiola simulate` takes: a file or a generator's specification.
        says: in words, for a table's caption.
        limit: only the first so many jobs; 0 for all.
    """

    text: str
    says: str
    limit: int = 0

    def read(self, gpus: int, seed: int = 0) -> Workload:
        """The jobs, without models. Those generated have their load from the number of GPUs."""
        if self.text.startswith("generated:"):
            return hemiola.generate(self.text, seed, gpus=gpus)
        return hemiola.read_workload(self.text, limit=self.limit or None)

    def command(self) -> list[str]:
        """The same for the command line."""
        return [self.text, *(["--limit", str(self.limit)] if self.limit else [])]


def philly_slice(jobs: int = SLICE_JOBS) -> Source:
    """The first jobs of the slice of Philly that the peers were measured on."""
    return _philly(SLICE, jobs, SLICE_JOBS, "load=2")


def philly_all(jobs: int = ALL_JOBS) -> Source:
    """The first jobs of all of Philly."""
    return _philly(ALL, jobs, ALL_JOBS, "load=0.8")


def _philly(path: str, jobs: int, known: int, load: str) -> Source:
    folder = os.environ.get("HEMIOLA_SHARED")
    if folder is None:
        spec = f"generated:jobs={jobs},{load},mix=philly,seed=1"
        return Source(spec, f"{jobs:,} generated jobs in the style of Philly (HEMIOLA_SHARED is not set)")
    return Source(str(Path(folder) / path), f"{jobs:,} Philly jobs", jobs if jobs < known else 0)


def generated(jobs: int, load: float = 0.8) -> Source:
    """Jobs in the style of Philly for whatever cluster they are read for."""
    return Source(
        f"generated:jobs={jobs},load={load:g},mix=philly,seed=1", f"{jobs:,} generated jobs, load {load:g}"
    )


def with_models(workload: Workload) -> Workload:
    """The same jobs, each with a model drawn by the default mix: placement and contention then matter."""
    return hemiola.assign(workload, hemiola.load_library(None), mix="default", seed=0)


def leaf_spine(gpus: int) -> Topology:
    """Hosts of 8 GPUs in racks of up to 16, 100 Gbit/s, uplinks four times oversubscribed."""
    hosts = max(1, gpus // 8)
    racks = min(16, max(1, hosts // 2))
    return hemiola.read_topology(
        f"leaf-spine:hosts={hosts},gpus_per_host=8,hosts_per_rack={racks},nic=100gbit,oversubscription=4"
    )


def rows(jobs: tuple[Job, ...]) -> list[tuple[float, int, float]]:
    """What the floor replays."""
    return [(job.submit_s, job.gpus, job.duration_s) for job in jobs]
