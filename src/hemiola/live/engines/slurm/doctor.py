"""What `hemiola doctor` looks at in Slurm: by questions alone, nothing is changed or tried."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import time
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Literal

from hemiola.core.errors import EngineError, HemiolaError
from hemiola.core.hostlist import compress
from hemiola.core.topology import Topology
from hemiola.core.units import format_duration
from hemiola.cost.iteration import IterationModel
from hemiola.live.check import Check, alive_checks, problem_check
from hemiola.live.engines.slurm.client import Slurm, settings_of
from hemiola.live.engines.slurm.job_spec import is_slurms, is_user_held, job_of, shape
from hemiola.live.engines.slurm.snapshot import everywhere, most_gpus, slurm_topology
from hemiola.live.engines.slurm.wire import SlurmJobRow, Words
from hemiola.live.job_labels import profiles_by_model
from hemiola.live.polling_driver import USUAL_S
from hemiola.sched.machine import StateMachine
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import Costs, SimulatedEstimates

__all__ = ["gate_checks", "slurm_checks", "why_unknown"]


# What `hemiola doctor` reads in Slurm's configuration.

OLDEST = (20, 11)
OFFSET_WARN_S, OFFSET_FAIL_S = 2.0, 60.0
AGE_LEAST_S = 30
QUICK = ("sched_interval", "sched_min_interval", "batch_sched_delay")
"""Of SchedulerParameters: with these set low, a released job starts after 0.4 s in the median, not after 2.6 s."""


def version_check(version: str, took_s: float) -> Check:
    """Whether this Slurm is one that Hemiola was meant for."""
    found = re.search(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        return Check(
            "WARN", "slurm", f"{version}: tested with 22.05, 24.11 and 26.05, meant for 20.11 and newer", "try with --mode observe first"
        )  # fmt: skip
    return Check(
        "OK", "slurm", f"{version}; its controller answers ({1000 * took_s:.0f} ms for two questions)"
    )


def clock_check(text: str, before_s: float, after_s: float) -> Check:
    """The controller says what time it is there: "Configuration data as of ..."."""
    found = re.match(r"Configuration data as of (\d+)", text)
    if found is None:
        return Check(
            "WARN", "clocks", "the controller does not say its time", "compare by hand: date on both hosts"
        )
    there_s = float(found[1])  # of a second that had begun
    offset_s = there_s - after_s if there_s > after_s else min(0.0, there_s + 1.0 - before_s)
    if abs(offset_s) < OFFSET_WARN_S:
        return Check(
            "OK", "clocks", "this host's clock and the controller's agree, as far as whole seconds tell"
        )
    way = "ahead of" if offset_s > 0 else "behind"
    return Check(
        "FAIL" if abs(offset_s) > OFFSET_FAIL_S else "WARN", "clocks",
        f"the controller's clock is {format_duration(abs(offset_s))} {way} this host's",
        "set both by NTP or PTP: chronyc tracking",
    )  # fmt: skip


def select_checks(settings: dict[str, str]) -> Iterator[Check]:
    """Whether Slurm shares out GPUs."""
    kind, types = settings.get("SelectType", ""), settings.get("GresTypes", "")
    if kind == "select/cons_tres":
        yield Check("OK", "select", f"{kind}, {settings.get('SelectTypeParameters', '')}")
    else:
        yield Check(
            "FAIL", "select", f"SelectType is {kind or 'not set'}: GPUs cannot be shared out",
            "set SelectType=select/cons_tres in slurm.conf and restart slurmctld",
        )  # fmt: skip
    if "gpu" not in types.split(","):
        yield Check("FAIL", "gres", f"GresTypes is {types!r}, without gpu", "set GresTypes=gpu in slurm.conf")


def privilege_checks(
    slurm: Slurm, settings: dict[str, str], serious: Literal["WARN", "FAIL"]
) -> Iterator[Check]:
    """Whether this user may release others' jobs: as root, as SlurmUser, or as an operator of the accounting."""
    uid, told = os.geteuid(), settings.get("SlurmUser", "")
    owner = re.search(r"\((\d+)\)", told)
    if uid == 0 or (owner is not None and int(owner[1]) == uid):
        yield Check(
            "OK", "privileges", f"{_user(uid)} may release and requeue others' jobs (SlurmUser is {told})"
        )
        return
    try:
        level = slurm.ask("sacctmgr", "-nP", "show", "user", _user(uid), "format=adminlevel").strip()
    except EngineError:
        level = ""
    if level in ("Operator", "Administrator"):
        yield Check("OK", "privileges", f"{_user(uid)} is {level} in Slurm's accounting")
        return
    yield Check(
        serious, "privileges",
        f"{_user(uid)} may not release others' jobs: it is neither root, nor SlurmUser ({told}), nor an operator",
        f"run as SlurmUser, or: sacctmgr modify user {_user(uid)} set adminlevel=operator",
    )  # fmt: skip
    if hidden := {"jobs", "nodes"} & set(settings.get("PrivateData", "").split(",")):
        yield Check(
            "FAIL", "privileges", f"PrivateData hides others' {' and '.join(sorted(hidden))} from this user", "run as SlurmUser"
        )  # fmt: skip


def gate_checks(
    settings: dict[str, str], partition: str, alive: Path | None, serious: Literal["WARN", "FAIL"]
) -> Iterator[Check]:
    """Whether jobs are held at submission."""
    lua = Path(settings.get("SLURM_CONF", "/etc/slurm/slurm.conf")).parent / "job_submit.lua"
    if "lua" not in settings.get("JobSubmitPlugins", "").split(","):
        yield Check(
            serious, "job_submit", "JobSubmitPlugins has no lua: Slurm may start a job before Hemiola sees it",
            f"copy Hemiola's job_submit.lua to {lua.parent}, set JobSubmitPlugins=lua, and: scontrol reconfigure",
        )  # fmt: skip
        return
    try:
        text = lua.read_text(errors="replace")
    except OSError as problem:
        yield Check(
            "WARN", "job_submit", f"{lua} cannot be read here ({problem.strerror}); it may be on the controller alone",
            "look there whether it names the partition",
        )  # fmt: skip
        return
    code = re.sub(r"--.*", "", text)
    if f'["{partition}"]' not in code and f'"{partition}"' not in code:
        yield Check(
            serious, "job_submit", f"{lua} does not name the partition {partition!r}: its jobs are not held",
            f'write local managed = {{ ["{partition}"] = true }} there, and: scontrol reconfigure',
        )  # fmt: skip
        return
    if "may_name_nodes" not in code:
        yield Check(
            "WARN", "job_submit", f"{lua} is of an earlier Hemiola: its users can get past the queue",
            f"copy Hemiola's job_submit.lua to {lua.parent} anew, and: scontrol reconfigure",
        )  # fmt: skip
    yield Check("OK", "job_submit", f"{lua} holds the jobs of {partition} at submission")
    yield from _alive(lua, code, alive, serious)


def _alive(lua: Path, code: str, alive: Path | None, serious: Literal["WARN", "FAIL"]) -> Iterator[Check]:
    """Whether jobs are held only while the daemon lives, and whether both mean the same file."""
    found = re.search(r'alive_file, silent_s = "([^"]*)", (\d+)', code)
    told = found[1] if found is not None else ""
    if not told:
        yield Check(
            "WARN", "job_submit", f"{lua} looks at no alive file: it holds jobs even while Hemiola is silent",
            'write local alive_file, silent_s = "/run/hemiola/alive", 60 there, and serve with --alive /run/hemiola/alive',
        )  # fmt: skip
    elif alive is not None and str(alive) != told:
        yield Check(
            serious, "job_submit", f"{lua} looks at {told}, and the daemon writes {alive}: jobs are not held",
            "let both name the same file",
        )  # fmt: skip
    elif alive is None and serious == "FAIL":
        yield alive_checks(Path(told), time.time())


def rule_checks(settings: dict[str, str]) -> Iterator[Check]:
    """What of Slurm's own behaviour gets in the way, or slows it down."""
    if settings.get("JobRequeue") == "1":
        yield Check(
            "OK", "requeue", "JobRequeue=1: jobs can be pre-empted, unless submitted with --no-requeue"
        )
    else:
        yield Check(
            "WARN", "requeue", "JobRequeue=0: only jobs submitted with --requeue can be pre-empted",
            "set JobRequeue=1 in slurm.conf, if jobs resume from checkpoints",
        )  # fmt: skip
    preempt = settings.get("PreemptMode", "OFF")
    if preempt == "OFF":
        yield Check("OK", "preempt", "PreemptMode=OFF: nobody but Hemiola pre-empts")
    else:
        yield Check(
            "WARN", "preempt", f"PreemptMode={preempt}: Slurm pre-empts by itself, too", "set PreemptMode=OFF for this partition"
        )  # fmt: skip
    parameters = settings.get("SchedulerParameters", "")
    if any(name in parameters for name in QUICK):
        yield Check("OK", "latency", f"SchedulerParameters={parameters}")
    else:
        yield Check(
            "WARN", "latency", f"SchedulerParameters={parameters}: a released job may wait some seconds for its start",
            "add sched_interval=1,sched_min_interval=0,batch_sched_delay=0 if the controller has room for it",
        )  # fmt: skip
    age = re.match(r"\d+", settings.get("MinJobAge", ""))
    if age is not None and 0 < int(age[0]) < AGE_LEAST_S:
        yield Check(
            "WARN", "memory", f"MinJobAge is {age[0]} s: how a job ended may be forgotten before Hemiola asks",
            "set MinJobAge=300 in slurm.conf, Slurm's own",
        )  # fmt: skip


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


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
