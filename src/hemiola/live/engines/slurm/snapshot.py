"""One look at Slurm: its jobs and nodes, and what of the nodes is not Hemiola's to give."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from hemiola.core.errors import EngineError, InputError
from hemiola.core.events import Event, ResourcesOffered, ResourcesRequested
from hemiola.core.hostlist import compress, expand
from hemiola.core.job import Batch
from hemiola.core.resources import ResourceRequest, Resources
from hemiola.core.topology import Topology
from hemiola.live.engines.slurm.client import Slurm, SlurmInterface, settings_of
from hemiola.live.engines.slurm.tracked_job import SlurmTrackedJob
from hemiola.live.engines.slurm.wire import SlurmJobRow, SlurmNodeRow, SlurmRules
from hemiola.trace.topologies.options import TopologyOptions
from hemiola.trace.topologies.read import read_topology
from hemiola.trace.topologies.slurm import read_slurm

__all__ = [
    "ENDED",
    "HOLDS",
    "SlurmResources",
    "SlurmSnapshot",
    "SlurmWatcher",
    "claim_of",
    "everywhere",
    "most_gpus",
    "slurm_topology",
]

_log = logging.getLogger("hemiola.slurm")
HOLDS = frozenset(
    {"RUNNING", "SUSPENDED", "COMPLETING", "STOPPED", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT"}
)
"""States in which a job has its nodes."""
ENDED = frozenset({
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED",
    "REVOKED",
})  # fmt: skip
_SOON = frozenset({"None", "Priority", "Resources"})
"""Why a job waits that waits for nothing but its nodes."""
_GONE = frozenset({"down", "error", "fail", "powered_down", "powering_down", "future", "unknown"})
_CLOSED = frozenset({
    "drained", "draining", "failing", "maint", "reserved", "reboot", "powering_up", "power_down", "invalid", "inval",
})  # fmt: skip
"""They get nothing new; what runs there goes on, also on a node that registered with less than it should have."""
RULES_S = 60.0
"""So often its configuration is asked for: it may be changed while Slurm runs."""
NODES_S = 1.0
"""Nodes change rarely. They are asked for this often, and when other people's jobs come or go while ours wait."""


@dataclass
class SlurmSnapshot:
    """What Slurm showed.

    Attributes:
        rows: all its jobs.
        jobs: of Hemiola's partition, by id.
        down: hosts on which nothing can run.
        closed: by host, GPUs that the node does not have, or gives nobody.
        fresh_nodes: those of Hemiola's partition, as they are now; none if they were not asked for at this look.
        rules: by which their processors and memory are counted.
    """

    rows: list[SlurmJobRow]
    jobs: dict[str, SlurmJobRow]
    down: set[int]
    closed: dict[int, int]
    fresh_nodes: list[SlurmNodeRow] = field(default_factory=list)
    rules: SlurmRules = field(default_factory=SlurmRules)


def everywhere(nodes: Iterable[SlurmNodeRow], partition: str) -> frozenset[str]:
    """Features that each node of a partition has; none where it has no nodes."""
    features = [node.features for node in nodes if node.partition == partition]
    return frozenset.intersection(*features) if features else frozenset()


def most_gpus(topology: Topology, nodes: Iterable[SlurmNodeRow], partition: str) -> dict[str, int]:
    """The GPUs of the largest host of each type, where types are known; under "": of all hosts.

    A partition's own hosts alone count where it has any: its jobs never have others.
    """
    names = {node.name for node in nodes if node.partition == partition}
    hosts = topology.hosts
    most: dict[str, int] = {"": 0}
    ours: dict[str, int] = {}
    for name, kind, gpus in zip(hosts.names, hosts.gpu_types, hosts.gpus.tolist(), strict=True):
        for key in {kind, ""}:
            most[key] = max(most.get(key, 0), gpus)
            if name in names and gpus:
                ours[key] = max(ours.get(key, 0), gpus)
    return most | ours


class SlurmWatcher:
    """Looks at Slurm through the eyes of a topology.

    Args:
        partition: the one that Hemiola manages.

    Attributes:
        hosts: the topology's, by name.
        everywhere: features that each node of the partition has.
        most_gpus: of the partition's largest host of each type.
    """

    def __init__(self, slurm: SlurmInterface, topology: Topology, partition: str) -> None:
        self._slurm, self._topology, self._partition = slurm, topology, partition
        self.hosts = {name: index for index, name in enumerate(topology.hosts.names)}
        self._gpus = [int(count) for count in topology.hosts.gpus]
        self._nodes_seen: list[SlurmNodeRow] | None = None
        self._nodes_s = 0.0
        self._others: set[str] = set()
        self._stale = False
        self._rules, self._rules_s = SlurmRules(), -math.inf
        self._parts: dict[tuple[str, int, int, str], dict[int, int]] = {}
        self.everywhere: frozenset[str] = frozenset()
        self.most_gpus: dict[str, int] = {"": 0}
        self._left: dict[tuple[str, int], tuple[object, ...]] = {}
        self._said: set[tuple[str, str]] = set()

    def ends(self, ids: list[str]) -> dict[str, SlurmJobRow]:
        """What Slurm still knows of jobs that it no longer lists: for some minutes, how they ended.

        Raises:
            EngineError: Slurm is away.
        """
        return {row.id: row for row in self._slurm.jobs(ids=ids, states="all")} if ids else {}

    def look(self, now_s: float) -> SlurmSnapshot:
        """Ask for the jobs, and now and then for the nodes.

        Raises:
            EngineError: Slurm is away, or its answer is not whole.
        """
        rows = self._slurm.jobs()
        fresh = self._nodes_seen is None or self._must_ask_nodes(rows, now_s)
        if fresh:
            self._ask_rules(now_s)
            self._nodes_seen, self._nodes_s, self._stale = self._ask_nodes(), now_s, False
        assert self._nodes_seen is not None
        self._forget(rows)
        self._say_strange(rows)
        ours = {row.id: row for row in rows if self._is_ours(row)}
        down, closed = self._nodes(self._nodes_seen)
        own = [node for node in self._nodes_seen if fresh and node.partition == self._partition]
        return SlurmSnapshot(rows, ours, down, closed, own, self._rules)

    def _must_ask_nodes(self, rows: list[SlurmJobRow], now_s: float) -> bool:
        """They were seen some time ago; or somebody else came or went, and a job of ours waits for what they left."""
        others = {row.id for row in rows if row.state in HOLDS and not self._is_ours(row)}
        changed, self._others = others != self._others, others
        waits = any(row.state == "PENDING" and self._is_ours(row) for row in rows)
        self._stale = self._stale or changed
        return now_s - self._nodes_s >= NODES_S or (self._stale and waits)

    def leave(self, row: SlurmJobRow) -> None:
        """It is Slurm's from now on, though it is in Hemiola's partition, until it asks for something else."""
        self._left[row.id, row.submit_s] = _asks(row)

    def _is_left(self, row: SlurmJobRow) -> bool:
        """Whether it is Slurm's; not one that waits and was changed since, or is held: by job_submit.lua, or its user."""
        asked = self._left.get((row.id, row.submit_s))
        if asked is None or row.state != "PENDING":
            return asked is not None
        return asked == _asks(row) and (row.priority > 0 or row.reason != "JobHeldUser")

    def _forget(self, rows: list[SlurmJobRow]) -> None:
        """Those that are no longer there."""
        if len(self._left) > 2 * len(rows) + 1000:
            there = {(row.id, row.submit_s) for row in rows}
            self._left = {key: asked for key, asked in self._left.items() if key in there}

    def _say_strange(self, rows: list[SlurmJobRow]) -> None:
        """Each once."""
        strange = {
            (row.id, row.strange)
            for row in rows
            if row.strange and (not row.partition or self._partition in row.partition.split(","))
        }
        for job_id, why in sorted(strange - self._said):
            _log.warning("job %s is left to Slurm: %s", job_id, why)
        self._said = strange

    def blocked(self, look: SlurmSnapshot, inside: Set[str] = frozenset()) -> dict[int, int]:
        """By host, GPUs that are not ours to give.

        Args:
            inside: jobs that are in the view. What any other has is not ours, though it is of our partition: it could
                never run here, and does.
        """
        blocked = dict(look.closed)
        for row in look.rows:
            if row.takes_gpus and row.id not in inside:
                parts = self._taken(row) if row.state in HOLDS else self._awaited(row)
                for host, gpus in parts.items():
                    blocked[host] = min(self._gpus[host], blocked.get(host, 0) + gpus)
        return blocked

    def _taken(self, row: SlurmJobRow) -> dict[int, int]:
        """What it has, or all that it may have where Slurm has not said yet."""
        return self.parts(row) or self._whole(row.host_list)

    def _whole(self, names: str) -> dict[int, int]:
        return {
            self.hosts[name]: self._gpus[self.hosts[name]] for name in expand(names) if name in self.hosts
        }

    def _awaited(self, row: SlurmJobRow) -> dict[int, int]:
        """What a job that was left to Slurm waits for, if it names it: it would never find it free if it were given to others."""
        if not (row.bound_to and row.state == "PENDING" and row.priority and row.reason in _SOON):
            return {}
        if (row.id, row.submit_s) not in self._left:
            return {}  # of another partition
        whole = self._whole(row.bound_to)
        if row.exclusive or row.gpus_per_socket:
            return whole
        each = row.gpus_per_host or math.ceil(
            (row.gpus_per_job or row.gpus_per_task * row.tasks) / max(1, row.hosts)
        )
        return dict.fromkeys(whole, each)

    def _is_ours(self, row: SlurmJobRow) -> bool:
        return (
            self._partition in row.partition.split(",")
            and bool(row.id)
            and not row.reservation
            and not self._is_left(row)
        )

    def _ask_rules(self, now_s: float) -> None:
        if now_s - self._rules_s >= RULES_S:
            self._rules, self._rules_s = self._slurm.rules(self._partition), now_s

    def _ask_nodes(self) -> list[SlurmNodeRow]:
        nodes = self._slurm.nodes()
        if any(node.partition == self._partition for node in nodes):
            self.everywhere = everywhere(nodes, self._partition)
            self.most_gpus = most_gpus(self._topology, nodes, self._partition)
        elif self._nodes_seen is None:  # later all of them may be lent
            raise EngineError(
                f"the partition {self._partition!r} has no nodes",
                "name the partition that Hemiola manages: --partition",
            )
        return nodes

    def _nodes(self, nodes: list[SlurmNodeRow]) -> tuple[set[int], dict[int, int]]:
        there = {self.hosts[node.name]: node for node in nodes if node.name in self.hosts}
        down = {host for host, node in there.items() if node.state in _GONE}
        ours = {self.hosts.get(node.name) for node in nodes if node.partition == self._partition}
        blocked = {
            host: self._gpus[host]
            for host, node in there.items()
            if node.state in _CLOSED
            or node.silent  # for minutes, before Slurm takes it to be down
            or host not in ours  # lent to another partition, perhaps for a while
        }
        missing = set(self.hosts.values()) - there.keys()  # of no partition: what runs there goes on, too
        blocked |= {host: self._gpus[host] for host in missing}
        for host, node in there.items():
            if node.gpus < self._gpus[host] and host not in down:
                blocked[host] = max(blocked.get(host, 0), self._gpus[host] - node.gpus)
        return down, blocked

    def parts(self, row: SlurmJobRow) -> dict[int, int]:
        """How many GPUs of which hosts a running job has; hosts that the topology lacks are left out."""
        key = (row.id, row.submit_s, row.restarts, row.host_list)
        if key not in self._parts:
            if len(self._parts) > 100_000:
                self._parts.clear()
            found = self._work_out(row)
            if not found:
                return {}  # it has ended meanwhile, or Slurm did not say: asked again
            self._parts[key] = found
        return self._parts[key]

    def _work_out(self, row: SlurmJobRow) -> dict[int, int]:
        whole = self._whole(row.host_list)
        if row.exclusive:
            return whole
        if row.gpus_per_host:
            return dict.fromkeys(whole, row.gpus_per_host)
        total = row.gpus_per_job or row.gpus_per_task * row.tasks
        if not (total or row.gpus_per_socket):
            return {}
        if total and len(expand(row.host_list)) == 1:
            return dict.fromkeys(whole, total)
        return {
            self.hosts[name]: gpus for name, gpus in self._slurm.shares(row.id).items() if name in self.hosts
        }


def _asks(row: SlurmJobRow) -> tuple[object, ...]:
    """What of a job that waits says whose it is."""
    return (
        row.bound_to, row.features, row.partition, row.strange, row.exclusive,
        row.gpus_per_host, row.gpus_per_job, row.gpus_per_task, row.gpus_per_socket,
    )  # fmt: skip


# The network of a Slurm: from its configuration where that is at hand, else as `scontrol` shows it.

_NODE = re.compile(r"NodeName=([\w.-]{1,255})\s.*?\sGres=(\S{1,1024})\s")
_NO_GPUS = "(null)"


def slurm_topology(slurm: Slurm, options: Mapping[str, str] | None = None) -> Topology:
    """The cluster as Slurm knows it.

    From topology.conf, gres.conf and slurm.conf beside each other; from `scontrol` where they are not on this host, or
    a topology.yaml stands in their place. A Slurm without a topology is one switch with all nodes that have GPUs.

    Raises:
        EngineError: Slurm does not answer.
        InputError, TopologyError: what it says is no tree, or no node has GPUs.
    """
    folder = _folder(slurm)
    if folder is not None and _is_file(folder / "topology.conf") and not _is_file(folder / "topology.yaml"):
        return read_topology(str(folder), options, keep_unusable=True)  # nodes that are down may come back
    nodes = _NODE.findall(slurm.ask("scontrol", "-o", "show", "node"))
    with_gpus = [name for name, gres in nodes if gres != _NO_GPUS]
    if not with_gpus:
        raise InputError(
            "no node of this Slurm has GPUs (Gres=gpu:...)",
            "configure them in slurm.conf and gres.conf, or give the topology as a file: --topology FILE",
        )
    files = {
        "topology.conf": slurm.ask("scontrol", "show", "topology").strip()
        or f"SwitchName=cluster Nodes={compress(with_gpus)}",
        "slurm.conf": "\n".join(f"NodeName={name} Gres={gres}" for name, gres in nodes),
    }
    return read_slurm(files, "scontrol", TopologyOptions(options or {}, "scontrol"))


def _folder(slurm: Slurm) -> Path | None:
    """With its slurm.conf, as Slurm says."""
    conf = settings_of(slurm.ask("scontrol", "show", "config")).get("SLURM_CONF")
    return Path(conf).parent if conf else None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


# What jobs and nodes of a Slurm have beside GPUs: processors and memory, as the state machine counts them.
#
# Slurm has the last word: what is counted here is the least that a job can need, and the most that a node can have left.


def claim_of(row: SlurmJobRow, job: Batch, rules: SlurmRules) -> ResourceRequest:
    """What a job takes of its nodes, or wants of them: Slurm's defaults for GPUs are those of jobs that ask for nothing."""
    cpus, memory_bytes = row.tres
    if row.state in HOLDS:
        return ResourceRequest(cpus=cpus, memory_bytes=memory_bytes)
    per_host = 1 / max(1, row.hosts) if job.is_elastic else 0.0
    memory_per_gpu = row.memory_per_gpu_bytes or (0.0 if row.asks_memory else rules.memory_per_gpu_bytes)
    memory_bytes = memory_bytes if row.asks_memory else 0.0
    return ResourceRequest(
        cpus=0.0 if per_host else cpus,
        cpus_per_host=max(row.cpus_per_host, cpus * per_host),
        cpus_per_gpu=row.cpus_per_gpu or (rules.cpus_per_gpu if row.cpus_per_host <= 1 else 0),
        memory_bytes=0.0 if per_host else memory_bytes,
        memory_per_host_bytes=memory_bytes * per_host,
        memory_per_gpu_bytes=memory_per_gpu,
        whole=row.exclusive,
        all_memory=rules.counts_memory and not (row.asks_memory or memory_per_gpu),
    )


class SlurmResources:
    """Tells the state machine of it: of jobs when it changes, of nodes whenever they were asked for.

    Args:
        hosts: numbers of the topology's, by name.
    """

    def __init__(self, hosts: Mapping[str, int]) -> None:
        self._hosts = hosts
        self._told: dict[int, ResourcesOffered] = {}

    def events(self, look: SlurmSnapshot, jobs: Iterable[SlurmTrackedJob], now_s: float) -> list[Event]:
        """What has changed; nothing where Slurm does not say what its nodes have."""
        nodes = [node for node in look.fresh_nodes if node.cpus is not None or node.memory_bytes is not None]
        if not (nodes or self._told):
            return []
        jobs = [known for known in jobs if not known.refused]
        claims = [self._claimed(known, look.rules, now_s) for known in jobs]
        taken = _taken(jobs) if nodes else {}
        hosts = [
            self._furnished(self._hosts[node.name], node, look.rules, taken, now_s)
            for node in nodes
            if node.name in self._hosts
        ]
        return [event for event in (*hosts, *claims) if event is not None]

    def _claimed(self, known: SlurmTrackedJob, rules: SlurmRules, now_s: float) -> Event | None:
        claim = claim_of(known.row, known.job, rules)
        if claim == known.claim:
            return None
        known.claim = claim
        return ResourcesRequested(now_s, known.job.id, claim)

    def _furnished(
        self,
        host: int,
        node: SlurmNodeRow,
        rules: SlurmRules,
        taken: Mapping[int, tuple[float, float]],
        now_s: float,
    ) -> Event | None:
        """Ours is what is left, and what jobs have there that the state machine counts itself."""
        total = Resources(node.cpus, node.memory_bytes)
        cpus, memory_bytes = taken.get(host, (0.0, 0.0))
        ours = Resources(
            _rest(node.cpus, node.cpus_taken, cpus, rules, counts=rules.counts_cpus),
            _rest(
                node.memory_bytes, node.memory_taken_bytes, memory_bytes, rules, counts=rules.counts_memory
            ),
        )
        before = self._told.get(host)
        if before is not None and (before.ours, before.total) == (ours, total):
            return None
        self._told[host] = event = ResourcesOffered(now_s, host, ours, total)
        return event


def _rest(
    total: float | None, taken: float, by_ours: float, rules: SlurmRules, *, counts: bool
) -> float | None:
    """What others do not have of it."""
    if total is None or not counts:
        return None
    return float(total if rules.preempts else round(total - taken + by_ours, 3))


def _taken(jobs: Iterable[SlurmTrackedJob]) -> dict[int, tuple[float, float]]:
    """By host, what jobs have where they run; parted as the state machine does."""
    taken: dict[int, tuple[float, float]] = {}
    for known in jobs:
        if known.row.state in HOLDS and known.ran and known.wanted is not None and known.claim is not None:
            hosts = known.wanted.hosts
            for host in hosts:
                cpus, memory_bytes = taken.get(host, (0.0, 0.0))
                taken[host] = (
                    cpus + known.claim.cpus / len(hosts),
                    memory_bytes + known.claim.memory_bytes / len(hosts),
                )
    return taken
