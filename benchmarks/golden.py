"""Peers' known answers beside ours: what their simulators said of a trace, and what their semantics say here.

Needs the traces and answers in the folder that HEMIOLA_SHARED names. Run it from the root:
python benchmarks/golden.py
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from page import table

from hemiola.core.result import JobRecord
from hemiola.simulator.rules import semantics_by_name
from hemiola.simulator.simulate import Recording, simulate
from hemiola.trace.topologies import read_topology
from hemiola.trace.workloads import read_workload

MURI = {"SRTF": "srtf", "SRSF": "srsf", "Tiresias_L": "tiresias"}
WITHIN = {"tiresias-sim": 1e-3, "muri-sim": 1e-3, "pollux-sim": 1e-2}


class Case(msgspec.Struct, frozen=True):
    """One published answer.

    Attributes:
        finished: jobs that the peer finished; None where it says nothing of it.
        answers: published figures by name, in seconds.
    """

    semantics: str
    name: str
    workload: Path
    cluster: str
    policy: str
    finished: int | None
    answers: dict[str, float]


def main() -> int:
    """Print the scoreboard; 1 if an answer is missed."""
    shared = os.environ.get("HEMIOLA_SHARED")
    if not shared:
        print("golden: left out, as HEMIOLA_SHARED names no folder with the peers' traces and answers")
        return 0
    data = Path(shared) / "data"
    lines, missed = [], 0
    for case in (*tiresias(data), *muri(data), *pollux(data)):
        began = time.process_time()
        records = replay(case)
        took_s = time.process_time() - began
        for line, failed in compare(case, records, took_s):
            lines.append(line)
            missed += failed
    print(table(["semantics", "case", "figure", "published", "here", "relative error", "CPU s"], lines))
    print(f"\n{len(lines)} figures, {missed} missed")
    return 1 if missed else 0


def replay(case: Case) -> tuple[JobRecord, ...]:
    """What becomes of every job under that peer's semantics."""
    comparison = simulate(
        read_workload(case.workload), read_topology(case.cluster), [case.policy],
        semantics=semantics_by_name(case.semantics), recording=Recording(timeline=False),
    )  # fmt: skip
    return comparison.runs[0].records


def compare(case: Case, records: tuple[JobRecord, ...], took_s: float) -> Iterator[tuple[list[str], bool]]:
    """A line of the table for each published figure, and whether it is missed."""
    finished = sum(record.status == "finished" for record in records)
    if case.finished is not None and case.finished < len(records):
        said = f"{case.finished} of {len(records)} jobs"
        here = f"{finished} of {len(records)} jobs"
        yield (
            [case.semantics, case.name, "finished", said, here, "peer loses jobs", f"{took_s:.2f}"],
            finished < len(records),
        )
        return
    ours = figures(records)
    for name, published in case.answers.items():
        error = abs(ours[name] / published - 1) if published else abs(ours[name])
        failed = finished < len(records) or error > WITHIN[case.semantics]
        here = f"{ours[name]:,.4f}" if finished == len(records) else f"{finished} of {len(records)} jobs"
        yield (
            [case.semantics, case.name, name, f"{published:,.4f}", here, f"{error:.1e}", f"{took_s:.2f}"],
            failed,
        )


def figures(records: tuple[JobRecord, ...]) -> dict[str, float]:
    """The peers' figures: the 99th percentile is the value at index int(0.99 n); the makespan ends at the last job."""
    done = [record for record in records if record.jct_s is not None and record.finish_s is not None]
    jct_s = sorted(record.jct_s or 0.0 for record in done)
    return {
        "mean JCT": sum(jct_s) / len(jct_s),
        "mean queueing": sum(record.queueing_s for record in done) / len(done),
        "makespan": max(record.finish_s or 0.0 for record in done),
        "p99 JCT": jct_s[int(0.99 * len(jct_s))],
        "pre-emptions": float(sum(record.preemptions for record in done)),
    }


def tiresias(data: Path) -> Iterator[Case]:
    """The cells of Tiresias's simulator."""
    slices, traces = data / "golden/bench_slices", data / "traces/tiresias"
    for cell, known in json.loads((data / "golden/tiresias.json").read_text())["results"].items():
        case, policy, scheme = cell.rsplit("_", 2)
        if found := re.fullmatch(r"tp(64_)?(\d+)", case):
            packed = ".gz" if found[2] == "10000" else ""
            workload = slices / f"philly_{found[2]}_tiresias_job.csv{packed}"
            cluster = slices / ("n64g8s4.csv" if found[1] else "n32g8s4.csv")
        else:
            workload = traces / "60_job.csv"
            cluster = slices / "n4g4.csv" if "n4g4" in case else traces / "n32g4.csv"
        answers = {
            "mean JCT": known["avg_jct"], "mean queueing": known["avg_pending"],
            "makespan": known["makespan"], "pre-emptions": known["preempt"],
        }  # fmt: skip
        policy = f"{policy}:placement={scheme}"
        yield Case("tiresias-sim", cell, workload, str(cluster), policy, known["finished"], answers)


def muri(data: Path) -> Iterator[Case]:
    """The figures behind Muri's paper, for the policies that do not group jobs."""
    folder = data / "traces/muri"
    for trace, rows in json.loads((data / "golden/muri.json").read_text())["published"].items():
        for row, policy in MURI.items():
            known = rows[row]
            answers = {
                "mean JCT": known["avg_jct_s"], "makespan": known["makespan_s"], "p99 JCT": known["p99_jct_s"],
            }  # fmt: skip
            yield Case(
                "muri-sim",
                f"{trace} {row}",
                folder / f"{trace}.csv",
                str(folder / "n8g8.csv"),
                policy,
                None,
                answers,
            )


def pollux(data: Path) -> Iterator[Case]:
    """The published run of Pollux's simulator."""
    for name, known in json.loads((data / "golden/pollux.json").read_text())["reproduced"].items():
        workload, policy = name.split("/")
        path = data / f"traces/pollux/workloads/{workload}.csv"
        cluster = "flat:hosts=16,gpus_per_host=4"
        yield Case("pollux-sim", name, path, cluster, policy, None, {"mean JCT": known["avg_jct_s"]})


if __name__ == "__main__":
    raise SystemExit(main())
