"""One replay in a process of its own, so that its peak memory is its own.

    run(policy="fifo", cluster="flat:...", workload="generated:...", limit=0, latency=False)

With `latency` the time of each decision is measured too, which slows the replay itself a little.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hemiola
from hemiola import ClusterView, Policy
from hemiola.core.decisions import Decision
from hemiola.kernels.fluid import warm_up
from hemiola.sched.policies import policy_from_text

MAIN = (
    "import json, sys; sys.path.insert(0, sys.argv[1]); import child; "
    "print(json.dumps(child.replay(json.loads(sys.argv[2]))))"
)


class Stopwatch(Policy):
    """Times another policy: each decision, and each instant's decisions together.

    Attributes:
        steps_s: from asking for a decision to having it (or to hearing that there is none).
        instants_s: their sum per instant.
    """

    name = "stopwatch"

    def __init__(self, inner: Policy) -> None:
        self.inner = inner
        self.placement = getattr(inner, "placement", None)
        self.steps_s = array("d")
        self.instants_s = array("d")

    def card(self) -> dict[str, str]:
        """The other policy's."""
        return self.inner.card()

    def decide(self, view: ClusterView) -> Iterator[Decision]:
        """The other policy's decisions."""
        clock, spent_s = time.perf_counter, 0.0
        since = clock()
        decisions = iter(self.inner.decide(view))
        while True:
            decision = next(decisions, None)
            step_s = clock() - since
            self.steps_s.append(step_s)
            spent_s += step_s
            if decision is None:
                self.instants_s.append(spent_s)
                return
            yield decision
            since = clock()


def quantile(values: array[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def peak_mib() -> float:
    """Peak resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def replay(spec: dict[str, Any]) -> dict[str, Any]:
    """Do what the specification says; every time in seconds of CPU unless it says wall."""
    from clocks import timed
    from workloads import Source, with_models

    topology, building = timed(lambda: hemiola.read_topology(spec["cluster"]))
    source = Source(spec["workload"], "", spec.get("limit", 0))
    read, reading = timed(lambda: source.read(topology.gpus))
    workload, assigning = timed(lambda: with_models(read))
    warm_up()
    before_mib = peak_mib()
    policy = policy_from_text(spec["policy"])
    asked = Stopwatch(policy) if spec.get("latency") else policy
    comparison, took = timed(
        lambda: hemiola.simulate(workload, topology, [asked], recording=hemiola.Recording(timeline=False))
    )
    run = comparison.runs[0]
    result = {
        "jobs": len(workload.jobs), "gpus": topology.gpus, "events": run.events,
        "decisions": run.decisions_made, "preemptions": sum(r.preemptions for r in run.records),
        "queueing_mean_s": sum(r.queueing_s for r in run.records) / len(run.records),
        "topology_s": building.cpu_s, "read_s": reading.cpu_s, "assign_s": assigning.cpu_s,
        "cpu_s": took.cpu_s, "wall_s": took.wall_s, "loop_s": run.cpu_s,
        "before_mib": before_mib, "peak_mib": peak_mib(),
    }  # fmt: skip
    if isinstance(asked, Stopwatch):
        result |= {
            f"{what}_{name}_s": quantile(values, share)
            for what, values in (("step", asked.steps_s), ("instant", asked.instants_s))
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        }
    return result


def run(*, limit_s: float | None = None, **spec: Any) -> dict[str, Any]:
    """The same in a process of its own; TimeoutError if it takes longer than `limit_s` of wall time."""
    command = [sys.executable, "-c", MAIN, str(Path(__file__).resolve().parent), json.dumps(spec)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"the replay {spec} took more than {limit_s} s") from None
    if done.returncode:
        raise RuntimeError(f"the replay {spec} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
