"""Says where modules and names have gone that README and guides showed under other ones, in place of a bare "No module named".

Python asks this last, for modules that nothing else finds: importing what is there costs nothing.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["ATTRIBUTES", "MODULES", "NAMES", "install", "renamed", "renamed_attributes"]

MODULES = {
    "cli.inspect": "cli.trace",
    "cli.run_report": "cli.run",
    "control": "live, simulator and contrib.peers",
    "control.driver": "sched.loop",
    "control.journal": "live.journal",
    "control.journal.schema": "live.journal.tables",
    "control.live": "live",
    "control.peers": "contrib.peers.simulators",
    "control.ray": "live.engines.ray",
    "control.ray.topology": "live.engines.ray.snapshot",
    "control.scenario": "simulator.scenario",
    "control.semantics": "simulator.rules",
    "control.simulate": "simulator.simulate",
    "control.simulated": "simulator.cluster",
    "control.slurm": "live.engines.slurm",
    "control.slurm.topology": "live.engines.slurm.snapshot",
    "control.sweep": "simulator.sweep",
    "control.web": "live.web",
    "control.web.metrics": "live.web.queries",
    "core.acceleration": "core.plan",
    "core.beside": "core.resources",
    "core.job_metrics": "analysis.job.metrics",
    "core.metrics": "analysis.cluster_metrics",
    "core.ordering": "core.graph",
    "core.series": "core.timeline",
    "core.strategy": "core.collective.schedule",
    "core.strategy_relays": "core.collective.shapes",
    "core.strategy_shapes": "core.collective.shapes",
    "core.timeline_builder": "core.job_timeline",
    "cost.collectives": "cost.collective.library",
    "cost.hardware_files": "cost.operations",
    "cost.learnt_profile": "cost.job_profile",
    "cost.strategies": "cost.parallelism",
    "cost.strategy_bounds": "cost.collective.duration",
    "cost.strategy_cost": "cost.collective.price",
    "cost.strategy_time": "cost.collective.duration",
    "lab.slurm.programs": "lab.slurm.config",
    "plan.collectives": "plan.collective",
    "plan.demands": "plan.shares",
    "report.chart": "report.document",
    "report.chart_gantt": "report.charts",
    "report.progress": "report.table",
    "run": "comm, profiler and train",
    "run.accelerate": "train.accelerate",
    "run.calibrate": "profiler.calibrate",
    "run.capture": "profiler.capture",
    "run.capture.assemble": "profiler.capture.iteration",
    "run.capture.storages": "profiler.capture.recorder",
    "run.elastic": "train.elastic",
    "run.elastic.keeper": "train.elastic.keeper",
    "run.group": "comm.process_group",
    "run.group.deadlines": "comm.process_group.worker",
    "run.late": "comm.stragglers",
    "run.launch": "train.launch",
    "run.probe": "comm.probe",
    "run.probe.meeting": "comm.probe.measure",
    "run.probe.result": "comm.probe.measure",
    "run.record": "profiler.trace",
    "run.record.kernels": "profiler.trace.collectives",
    "run.servers": "train.parameter_server",
    "run.strategy": "comm.schedule_executor",
    "run.strategy.script": "comm.schedule_executor.layout",
    "run.transport": "comm.transport",
    "sched.from_outside": "sched.engine_events",
    "sched.policies.peers": "contrib.peers.policies",
    "sim": "kernels",
    "sim.arrivals": "kernels.generate",
    "sim.mixes": "kernels.generate",
    "trace.acceleration_json": "trace.struct_json",
    "trace.decision_log": "trace.decisions",
    "trace.hardware_json": "trace.struct_json",
    "trace.msccl.words": "trace.msccl.document",
    "trace.plan_json": "trace.struct_json",
    "trace.strategy_json": "trace.struct_json",
    "trace.topologies.slurm_nodes": "trace.topologies.slurm",
}
"""New modules by old ones, all within hemiola; what lies in an old package lies in the new one."""

NAMES = {
    "core.collective.schedule": {"Strategy": "CollectiveSchedule", "Move": "ChunkMove", "Place": "ChunkPlace", "Pace": "SendRate"},
    "cost.collective.duration": {"strategy_seconds": "schedule_seconds"},
    "cost.collective.price": {"given_strategy": "given_schedule", "strategy_cost": "schedule_cost"},
    "cost.parallelism": {"Strategy": "Parallelism", "STRATEGIES": "PARALLELISMS", "parse_strategy": "parse_parallelism"},
    "cost.prediction": {"Options": "PredictionOptions"},
    "lab": {"Outcome": "CommandOutcome", "Settings": "LabSettings"},
    "plan.problem": {"Problem": "PlanProblem"},
    "plan.shares": {"Demand": "HostDemand"},
    "comm.transport": {"Options": "TransportOptions"},
    "train.elastic": {"State": "TrainingState"},
    "trace.struct_json": {"read_strategy": "read_schedule", "write_strategy": "write_schedule"},
}  # fmt: skip
"""New names by module and old name."""

ATTRIBUTES = {"Candidate": {"strategy": "schedule"}}
"""New names by class and old name, of attributes; the old ones work for one release."""


class _Finder:
    """Knows no module, and tells of those that moved."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        """Python's question where a module is.

        Raises:
            ModuleNotFoundError: it has moved; says where to.
        """
        if name.startswith("hemiola.") and (words := _words(_asked(name).removeprefix("hemiola."))):
            raise ModuleNotFoundError(words, name=name)


def install() -> None:
    """Have Python ask here, after everybody else."""
    sys.meta_path.append(_Finder)


def renamed(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module some of whose names have changed."""
    names = NAMES[module.removeprefix("hemiola.")]

    def missing(name: str) -> Any:
        if name in names:
            raise ImportError(f"{module}.{name} is now {module}.{names[name]}", name=module)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return missing


def renamed_attributes(kind: str) -> Callable[[object, str], Any]:
    """The `__getattr__` of a class some of whose attributes have changed their names: warns, and gives the value."""
    names = ATTRIBUTES[kind]

    def missing(value: object, name: str) -> Any:
        if name not in names:
            raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=value)
        told = f"{kind}.{name} is now {kind}.{names[name]}; the old name works until the next release"
        warnings.warn(told, DeprecationWarning, stacklevel=2)
        return getattr(value, names[name])

    return missing


def _words(old: str) -> str:
    """Where an old module is; "" if it is none."""
    parts = old.split(".")
    known = next((head for n in range(len(parts), 0, -1) if (head := ".".join(parts[:n])) in MODULES), "")
    if not known:
        return ""
    new, inner = MODULES[known], old[len(known) :]
    if inner and _is_there(new + inner):
        known, new = old, new + inner
    changed = ", ".join(f"{before} is {now}" for before, now in NAMES.get(new, {}).items())
    return f"hemiola.{known} is now {_full(new)}{f' ({changed})' if changed else ''}"


def _is_there(module: str) -> bool:
    from pathlib import Path

    path = Path(__file__).parent.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def _full(modules: str) -> str:
    """With the package before each: "hemiola.comm, hemiola.profiler and hemiola.train"."""
    return " ".join(word if word == "and" else f"hemiola.{word}" for word in modules.split())


def _asked(name: str) -> str:
    """The module that was asked for. Python looks for its packages first, and names them alone to a finder."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("importlib"):
        its = frame.f_locals.get("fullname", frame.f_locals.get("name"))
        if isinstance(its, str) and its.startswith(f"{name}."):
            name = its
        frame = frame.f_back
    return name
