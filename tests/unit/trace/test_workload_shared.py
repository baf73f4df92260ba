"""The published traces themselves, where they lie at hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from hemiola.core.errors import FormatError
from hemiola.trace.workloads import read_workload

pytestmark = pytest.mark.shared_data


@pytest.fixture
def traces(shared: Path) -> Path:
    return shared / "data" / "traces"


def test_all_of_philly(traces: Path) -> None:
    workload = read_workload(traces / "philly" / "philly.csv.gz")
    assert (workload.format, len(workload.jobs), workload.skipped) == ("philly-csv", 82_247, {})
    assert Counter(job.gpus for job in workload.jobs)[1] == 76_627
    assert len({job.queue for job in workload.jobs}) == 15
    assert sum(job.duration_s for job in workload.jobs) / 82_247 == pytest.approx(13_135.9, abs=0.1)


@pytest.mark.parametrize("jobs", [500, 1000, 2000, 5000, 10000])
def test_slices_of_philly_in_two_formats_agree(shared: Path, jobs: int) -> None:
    folder = shared / "data" / "golden" / "bench_slices"
    packed = ".gz" if jobs == 10000 else ""
    table = read_workload(folder / f"philly_{jobs}.csv{packed}")
    other = read_workload(folder / f"philly_{jobs}_tiresias_job.csv{packed}")
    assert (table.format, other.format) == ("philly-csv", "tiresias")
    assert [(j.submit_s, j.gpus, j.duration_s) for j in table.jobs] == [
        (j.submit_s, j.gpus, j.duration_s) for j in other.jobs
    ]


@pytest.mark.parametrize(
    ("name", "jobs", "longest_s"),
    [("trace3", 992, 927_475.0), ("trace4_pr", 2638, 4_014_063.0), ("cluster_trace", 400, None)],
)
def test_muri(traces: Path, name: str, jobs: int, longest_s: float | None) -> None:
    workload = read_workload(traces / "muri" / f"{name}.csv")
    assert (workload.format, len(workload.jobs)) == ("muri", jobs)
    assert len({job.model for job in workload.jobs}) == 8
    if longest_s is not None:
        assert max(job.duration_s for job in workload.jobs) == longest_s


def test_tiresias(traces: Path) -> None:
    workload = read_workload(traces / "tiresias" / "60_job.csv")
    assert (workload.format, len(workload.jobs), workload.jobs[-1].submit_s) == ("tiresias", 60, 1779.0)


def test_pollux_and_its_untuned_variant(traces: Path) -> None:
    for folder in ("workloads", "workloads-0.5", "workloads-1.5", "workloads-2.0", "workloads-realistic"):
        for path in sorted((traces / "pollux" / folder).glob("*.csv")):
            assert read_workload(path).format == "pollux"


def test_gavel(traces: Path) -> None:
    for path in sorted((traces / "gavel" / "physical_cluster").glob("*.trace")):
        assert read_workload(path).format == "gavel"
    paths = sorted((traces / "gavel" / "msr_seed0").glob("*.gz"))
    read = [read_workload(path, skip_bad_rows=True) for path in paths]
    assert {workload.format for workload in read} == {"gavel-old"}
    assert sum(len(workload.jobs) + sum(workload.skipped.values()) for workload in read) == 15_264


def test_shockwave(traces: Path) -> None:
    sizes = [len(read_workload(path).jobs) for path in sorted((traces / "shockwave").glob("*.trace"))]
    assert sizes == [120, 220, 460, 900, 900]


def test_other_tables_are_not_mistaken_for_workloads(traces: Path) -> None:
    for name in ("tiresias/cluster_spec.csv", "tiresias/yarn-gput1000.csv", "lingjun/topo.csv",
                 "acme/cluster_summary.csv", "muri/n8g8.csv", "alibaba-v2020/job_1_norm.csv.gz",
                 "philly/philly_runtime_alibaba.csv.gz"):  # fmt: skip
        with pytest.raises(FormatError, match="in no known format"):
            read_workload(traces / name)
