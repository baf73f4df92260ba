"""Hemiola schedules distributed machine learning on every clock.

    import hemiola

    workload = hemiola.read_workload("jobs.csv")
    cluster = hemiola.read_topology("leaf-spine:hosts=64,gpus_per_host=8,hosts_per_rack=8")
    comparison = hemiola.simulate(workload, cluster, ["fifo", "dally"])

    graph = hemiola.capture(model, example_inputs)     # one training iteration, without running it
    with hemiola.record("run.json"):                   # what a training loop really does
        train()

    model, optimizer = hemiola.accelerate(model, optimizer)    # the same training, by a plan

Names are imported when they are first used, so that `import hemiola` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hemiola import _moved

if TYPE_CHECKING:
    from hemiola.analysis.cluster_metrics import summary
    from hemiola.core.decisions import (
        Align,
        Lend,
        Move,
        Pace,
        Placement,
        Reallocate,
        Reclaim,
        Resize,
        Scale,
        Start,
        Stop,
        WakeAt,
    )  # fmt: skip
    from hemiola.core.errors import HemiolaError
    from hemiola.core.job import (
        Batch,
        Configuration,
        Demand,
        Elastic,
        Job,
        Objective,
        Profile,
        RequestRate,
        Service,
        Workload,
        batch_job,
    )  # fmt: skip
    from hemiola.core.result import Comparison, Run
    from hemiola.core.topology import Topology
    from hemiola.cost.profiles import assign, load_library
    from hemiola.kernels.generate import generate
    from hemiola.profiler.capture import capture
    from hemiola.profiler.trace import record
    from hemiola.sched.index import Index
    from hemiola.sched.job_state import JobState
    from hemiola.sched.placement import Rule, TierAware, find
    from hemiola.sched.policy import Policy, by_order
    from hemiola.sched.queues import Order
    from hemiola.sched.view import ClusterView
    from hemiola.simulator.rules import Semantics
    from hemiola.simulator.simulate import Recording, simulate
    from hemiola.trace.topologies import read_topology
    from hemiola.trace.workloads import read_workload
    from hemiola.train.accelerate import accelerate
    from hemiola.train.input.batches import prefetch
    from hemiola.train.parameter_server import synchronise

__version__ = "0.1.0"

_HOMES = {
    "hemiola.simulator.simulate": ("Recording", "simulate"),
    "hemiola.core.decisions": (
        "Align",
        "Lend",
        "Move",
        "Pace",
        "Placement",
        "Reallocate",
        "Reclaim",
        "Resize",
        "Scale",
        "Start",
        "Stop",
        "WakeAt",
    ),
    "hemiola.core.errors": ("HemiolaError",),
    "hemiola.core.job": (
        "Batch",
        "Configuration",
        "Demand",
        "Elastic",
        "Job",
        "Objective",
        "Profile",
        "RequestRate",
        "Service",
        "Workload",
        "batch_job",
    ),
    "hemiola.core.result": ("Comparison", "Run"),
    "hemiola.core.topology": ("Topology",),
    "hemiola.cost.profiles": ("assign", "load_library"),
    "hemiola.simulator.rules": ("Semantics",),
    "hemiola.analysis.cluster_metrics": ("summary",),
    "hemiola.train.accelerate": ("accelerate",),
    "hemiola.train.input.batches": ("prefetch",),
    "hemiola.profiler.capture": ("capture",),
    "hemiola.profiler.trace": ("record",),
    "hemiola.train.parameter_server": ("synchronise",),
    "hemiola.sched.index": ("Index",),
    "hemiola.sched.job_state": ("JobState",),
    "hemiola.sched.placement": ("Rule", "TierAware", "find"),
    "hemiola.sched.policy": ("Policy", "by_order"),
    "hemiola.sched.queues": ("Order",),
    "hemiola.sched.view": ("ClusterView",),
    "hemiola.kernels.generate": ("generate",),
    "hemiola.trace.topologies": ("read_topology",),
    "hemiola.trace.workloads": ("read_workload",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Align",
    "Batch",
    "ClusterView",
    "Comparison",
    "Configuration",
    "Demand",
    "Elastic",
    "HemiolaError",
    "Index",
    "Job",
    "JobState",
    "Lend",
    "Move",
    "Objective",
    "Order",
    "Pace",
    "Placement",
    "Policy",
    "Profile",
    "Reallocate",
    "Reclaim",
    "Recording",
    "RequestRate",
    "Resize",
    "Rule",
    "Run",
    "Scale",
    "Semantics",
    "Service",
    "Start",
    "Stop",
    "TierAware",
    "Topology",
    "WakeAt",
    "Workload",
    "accelerate",
    "assign",
    "batch_job",
    "by_order",
    "capture",
    "find",
    "generate",
    "load_library",
    "prefetch",
    "read_topology",
    "read_workload",
    "record",
    "simulate",
    "summary",
    "synchronise",
]


_moved.install()


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hemiola' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)
