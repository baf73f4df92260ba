"""What `hemiola doctor` looks at in Slurm: by questions alone, nothing is changed or tried."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Literal

from hemiola.live.polling_driver import USUAL_S
from hemiola.live.models import profiles_by_model
from hemiola.live.query.health_checks import Check, problem_check
from hemiola.simulator.cluster import Costs, SimulatedEstimates
from hemiola.live.engines.slurm.client import Slurm, settings_of
from hemiola.live.engines.slurm.doctor_settings import (
    clock_check,
    gate_checks,
    privilege_checks,
    rule_checks,
    select_checks,
    version_check,
)
from hemiola.live.engines.slurm.job_spec import is_slurms, is_user_held, job_of, shape
from hemiola.live.engines.slurm.snapshot import everywhere, most_gpus
from hemiola.live.engines.slurm.wire import SlurmJobRow, Words
from hemiola.live.engines.slurm.topology import slurm_topology
from hemiola.core.errors import EngineError, HemiolaError
from hemiola.core.hostlist import compress
from hemiola.core.topology import Topology
from hemiola.cost.iteration import IterationModel
from hemiola.sched.machine import StateMachine
from hemiola.sched.view import ClusterView

__all__ = ["slurm_checks", "why_unknown"]

GOOD_STATES = frozenset({"idle", "allocated", "mixed", "completing", "planned"})


def slurm_checks(
    slurm: Slurm, partition: str, topology: Topology | None, alive: Path | None, mode: str
) -> Iterator[Check]:
    """All of them; where the controller does not answer, one.

    Args:
        topology: the cluster, if it is not the one that Slurm's own configuration describes.
        mode: of the daemon, "" where it is not known; what only matters to "enforce" is no failure in "observe".
    """
    began_s = time.time()
    try:
        version = slurm.ask("squeue", "--version").strip()
        text = slurm.ask("scontrol", "show", "config")
    except EngineError as problem:
        yield problem_check("slurm", problem)
        return
    took_s, settings = time.time() - began_s, settings_of(text)
    yield version_check(version, took_s)
    yield clock_check(text, began_s, time.time())
    serious: Literal["WARN", "FAIL"] = "WARN" if mode in ("observe", "advise") else "FAIL"
    checks: tuple[Callable[[], Iterator[Check]], ...] = (
        lambda: select_checks(settings), lambda: _partition(slurm, partition), lambda: privilege_checks(slurm, settings, serious),
        lambda: gate_checks(settings, partition, alive, serious), lambda: _loose(slurm, partition, mode),
        lambda: rule_checks(settings), lambda: _cluster(slurm, partition, topology), lambda: _nodes(slurm, partition),
    )  # fmt: skip
    for check in checks:
        try:
            yield from check()
        except HemiolaError as problem:
            yield problem_check("slurm", problem)


def why_unknown(slurm: Slurm, job_id: str, partition: str, topology: Topology) -> str:
    """Why Hemiola knows nothing of a job that Slurm has; "" where Slurm does not know it either.

    Raises:
        EngineError: Slurm does not answer.
    """
    if not re.fullmatch(r"\d+(_\d+)?", job_id):
        return ""
    found = slurm.jobs_and_words([job_id]).get(job_id)
    if found is None:
        return ""
    row, words = found
    if partition not in row.partition.split(","):
        return f"it is in the partition {row.partition}, and Hemiola manages {partition}"
    nodes = slurm.nodes(partition)
    if row.state == "PENDING" and is_user_held(words):
        return f"its user holds it; to lift that: scontrol release {job_id}"
    if why := _why_slurms(row, words, everywhere(nodes, partition), slurm.excluding([job_id])):
        return f"{why}, so Slurm starts it by itself"
    job, _ = job_of(
        row, job_id, words, most_gpus(topology, nodes, partition), USUAL_S, profiles_by_model(None)
    )
    machine = StateMachine(ClusterView(topology, SimulatedEstimates(IterationModel(topology), Costs())))
    if never := machine.admission(job):
        return f"it can never run here: {never}"
    return f"Hemiola has not looked at it yet; Slurm has it as {row.state.lower()} ({row.reason})"


def _why_slurms(row: SlurmJobRow, words: Words, features: Set[str], excluding: Set[str]) -> str:
    """Why a job of the partition is not Hemiola's to place, in words; "" if it is.

    Args:
        features: that all nodes have.
        excluding: jobs that name nodes that they must not have.
    """
    if row.reservation:
        return f"it is to run in the reservation {row.reservation}"
    if row.strange:
        return row.strange
    if not shape(row, 1)[0]:
        return "it wants no GPU"
    is_theirs = is_slurms(row, words, features, excludes=row.id in excluding)
    return "it says on which nodes it may run" if is_theirs else ""


def _partition(slurm: Slurm, partition: str) -> Iterator[Check]:
    try:
        text = slurm.ask("scontrol", "show", "partition", partition)
    except EngineError:
        yield Check(
            "FAIL", "partition", f"there is no partition {partition!r}", "name the one that Hemiola manages: --partition"
        )  # fmt: skip
        return
    words = dict(word.partition("=")[::2] for word in text.split() if "=" in word)
    if words.get("State") != "UP":
        yield Check(
            "WARN", "partition", f"{partition} is {words.get('State', '?')}: nothing starts there",
            f"scontrol update partitionname={partition} state=up",
        )  # fmt: skip
        return
    shares = words.get("OverSubscribe", "NO")
    if shares not in ("NO", "EXCLUSIVE"):
        yield Check(
            "WARN", "partition", f"{partition} has OverSubscribe={shares}: Slurm may put two jobs on the same cores",
            f"scontrol update partitionname={partition} oversubscribe=no",
        )  # fmt: skip
        return
    yield Check("OK", "partition", f"{partition} is up, with {words.get('TotalNodes', '?')} nodes")


def _loose(slurm: Slurm, partition: str, mode: str) -> Iterator[Check]:
    """Waiting jobs that Slurm would start by itself, though Hemiola is to decide."""
    rows = slurm.jobs(partition=partition, states="PENDING")
    rows = [row for row in rows if not row.reservation]
    held = [row for row in rows if not row.priority]
    loose = [row for row in rows if row.priority and not row.bound_to and not row.dependency]
    ids = [row.id for row in loose]
    words, excluding = slurm.words(ids), slurm.excluding(ids)
    features = everywhere(slurm.nodes(partition), partition)
    ours = [row.id for row in loose if not _why_slurms(row, words.get(row.id, Words()), features, excluding)]
    if mode == "enforce" and ours:
        yield Check(
            "WARN", "holds", f"{len(ours)} waiting jobs are not held, and Slurm may place them: {', '.join(ours[:5])}",
            "the daemon holds such jobs when it looks next; if they stay, see job_submit above",
        )  # fmt: skip
    else:
        yield Check("OK", "holds", f"jobs that wait in {partition}: {len(rows)}, of them held: {len(held)}")


def _cluster(slurm: Slurm, partition: str, topology: Topology | None) -> Iterator[Check]:
    """The topology against Slurm's nodes and their GPUs."""
    try:
        topology = topology or slurm_topology(slurm)
    except HemiolaError as problem:
        yield Check("WARN", "topology", problem.what, problem.remedy)
        return
    nodes = {node.name: node for node in slurm.nodes(partition)}
    names = topology.hosts.names
    ours = dict(zip(names, map(int, topology.hosts.gpus), strict=True))
    missing, strangers = [n for n in names if n not in nodes], [n for n in nodes if n not in ours]
    if missing:
        yield Check(
            "WARN", "topology", f"of its hosts, {partition} has no {compress(missing)}", "nothing is placed there"
        )  # fmt: skip
    if strangers:
        yield Check(
            "WARN", "topology", f"{compress(strangers)} of {partition} is not in it, and is not used",
            "add it to topology.conf and gres.conf, or to the topology's file",
        )  # fmt: skip
    wrong = [name for name in names if name in nodes and nodes[name].gpus != ours[name]]
    if wrong:
        first = wrong[0]
        yield Check(
            "WARN", "gpus", f"Slurm counts {nodes[first].gpus} GPUs on {first}, the topology {ours[first]}"
            + (f"; so on {len(wrong) - 1} more" if len(wrong) > 1 else ""), "let gres.conf and the topology say the same",
        )  # fmt: skip
    if not (missing or strangers or wrong):
        levels = ", ".join(f"{len(level.domains)} {level.name}s" for level in topology.levels) or "no racks"
        yield Check(
            "OK", "topology", f"{len(names)} hosts in {levels}, {topology.gpus} GPUs, as Slurm counts them"
        )


def _nodes(slurm: Slurm, partition: str) -> Iterator[Check]:
    """Nodes that are drained or down, with Slurm's reason."""
    text = slurm.table("sinfo", "-N", "-p", partition, "-o", "%N|%T|%E")
    groups: dict[tuple[str, str], list[str]] = {}
    for line in text.splitlines():
        name, state, reason = [*line.split("|", 2), "", ""][:3]
        if re.sub(r"\W+$", "", state).split("+")[0] not in GOOD_STATES or "*" in state:
            groups.setdefault((state, reason), []).append(name)
    for (state, reason), names in groups.items():
        said = "" if reason in ("none", "") else f": {''.join(sign for sign in reason if sign.isprintable())}"
        yield Check(
            "WARN", "nodes", f"{compress(names)} {'is' if len(names) == 1 else 'are'} {_state(state)}{said}",
            f"once it is well: scontrol update {shlex.quote(f'nodename={compress(names)}')} state=resume",
        )  # fmt: skip
    if not groups:
        yield Check("OK", "nodes", "no node is drained or down")


def _state(state: str) -> str:
    silent = " and does not answer" if "*" in state else ""
    return re.sub(r"\W+$", "", state) + silent
