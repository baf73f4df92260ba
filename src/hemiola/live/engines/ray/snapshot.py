"""One look at Ray: its jobs, groups and nodes, and what of the nodes is not Hemiola's to give."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from hemiola.core.decisions import Placement
from hemiola.core.errors import DAMAGED, InputError
from hemiola.core.events import Event, ResourcesOffered, ResourcesRequested
from hemiola.core.resources import ResourceRequest, Resources
from hemiola.core.topology import Topology
from hemiola.live.engines.ray.client import Ray
from hemiola.live.engines.ray.kv_store import ADVICE, ALONE, PLACE, TYPE, WRAPPER, JobPlace, Wrapper
from hemiola.live.engines.ray.tracked_job import RayTrackedJob
from hemiola.live.engines.ray.wire import ENDED, GroupRow, RayJobRow, RayNodeRow, RayReply, read_answer
from hemiola.trace.topologies.levels import HARDWARE_OPTIONS, LEVEL_OPTIONS, make_hosts, make_levels
from hemiola.trace.topologies.options import TopologyOptions

__all__ = [
    "RayResources",
    "RaySnapshot",
    "RayWatcher",
    "is_late",
    "ray_topology",
    "stray_groups",
    "stray_notes",
]

Note = TypeVar("Note")
_log = logging.getLogger("hemiola.ray")
TINY = 1e-4
STEADY_S = 1.5
"""What others use of a node counts once it has been the same for so long: Ray's counts of what is free come late."""


@dataclass
class RaySnapshot:
    """What Ray showed.

    Attributes:
        jobs: by submission id: those that have not ended, and those that were asked for.
        wrappers, places: the notes of and for each job's `hemiola hold`, by submission id.
        groups: of ours, by name.
        nodes: id by host; "" for one that is not there.
        blocked: by host, GPUs that are not ours to give.
        beyond: names of groups for which the topology has too few GPUs: to us, somebody else's.
        strangers: ids of nodes that live and are none of our hosts.
        cpus: by host, how many its node has, and how many are free.
    """

    jobs: dict[str, RayJobRow]
    wrappers: dict[str, Wrapper]
    places: dict[str, JobPlace]
    groups: dict[str, GroupRow]
    nodes: list[str]
    blocked: dict[int, int]
    beyond: frozenset[str] = frozenset()
    strangers: frozenset[str] = frozenset()
    cpus: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    def placement(self, name: str) -> Placement | None:
        """Where a group stands, in the order of its bundles; None if it does not, or not on our hosts alone."""
        group = self.groups.get(name)
        if group is None or group.state != "CREATED" or not set(group.nodes) <= set(filter(None, self.nodes)):
            return None
        if name in self.beyond:
            return None
        counts = Counter(self.nodes.index(node) for node in group.nodes)
        return Placement(tuple(counts), tuple((1 << count) - 1 for count in counts.values()))

    def is_lost(self, name: str) -> bool:
        """Whether a group is gone, or has lost a node, ours or not."""
        group = self.groups.get(name)
        if group is None or group.state in ("REMOVED", "RESCHEDULING"):
            return True
        return not set(group.nodes) <= {"", *self.nodes, *self.strangers}


class RayWatcher:
    """Looks at Ray through the eyes of a topology.

    A host of the topology is the node that is called so: by its label `node`, its `--node-name`, its host name or
    its address, in this order.

    Args:
        is_refused: whether a job can never run here. Ray may have placed it: its GPUs are not ours to give.
    """

    def __init__(self, ray: Ray, topology: Topology, is_refused: Callable[[RayJobRow], bool]) -> None:
        self._ray, self._is_refused = ray, is_refused
        self._hosts = {name: index for index, name in enumerate(topology.hosts.names)}
        self._gpus = [int(count) for count in topology.hosts.gpus]
        self._others: dict[int, tuple[int, float]] = {}
        self._steady: dict[int, int] = {}
        self._counted: frozenset[str] = frozenset()
        self._said: set[str] = set()

    def look(self, known: list[str], now_s: float) -> RaySnapshot:
        """Ask.

        Args:
            known: submission ids of jobs of which the end is to be told, too.

        Raises:
            EngineError: Ray is away, or its answer is not understood.
        """
        answer = read_answer(self._ray.ask("look", known))
        there = self._there(answer.nodes)
        nodes = [there[host].id if host in there else "" for host in range(len(self._gpus))]
        ours, beyond = self._count(there, answer)
        strangers = frozenset(node.id for node in answer.nodes) - set(nodes)
        return RaySnapshot(
            {row.id: row for row in answer.jobs}, _notes(answer.notes, WRAPPER, Wrapper), _notes(answer.notes, PLACE, JobPlace),
            {row.name: row for row in answer.groups}, nodes, self._blocked(there, ours, now_s), beyond,
            strangers,
            {host: (node.cpus, node.free_cpus) for host, node in there.items() if node.cpus is not None},
        )  # fmt: skip

    def _there(self, nodes: tuple[RayNodeRow, ...]) -> dict[int, RayNodeRow]:
        there: dict[int, RayNodeRow] = {}
        for node in nodes:
            host = next((self._hosts[name] for name in node.names if name in self._hosts), None)
            if host is None:
                if node.gpus:
                    self._say(f"the node {node.names[0]} is not in the topology, and is left alone")
            elif host in there:
                self._say(f"two nodes are called {node.names[0]}; one is left alone")
            else:
                there[host] = node
        for name in self._hosts.keys() - {list(self._hosts)[host] for host in there}:
            self._say(f"Ray has no node called {name} (--node-name, or its label node): it counts as down")
        return there

    def _say(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            _log.warning("%s", what)

    def _count(self, there: dict[int, RayNodeRow], answer: RayReply) -> tuple[Counter[str], frozenset[str]]:
        """GPUs by node, in groups on our nodes alone, of jobs that may run here; and those of these groups that are
        too much for the topology. What has counted before still does, what is left of jobs that are no more comes after
        all that live, and what Hemiola made before the rest."""
        room = {node.id: self._gpus[host] for host, node in there.items()}
        jobs = {row.id: row for row in answer.jobs}
        groups = (
            group for group in answer.groups
            if group.state == "CREATED" and room.keys() >= set(group.nodes)
            and not ((row := jobs.get(group.job)) and self._is_refused(row))
        )  # fmt: skip
        ours, counted, beyond = Counter[str](), set(), set()

        def order(group: GroupRow) -> tuple[bool, bool, bool, str]:
            return group.name not in self._counted, group.job not in jobs, group.number == ALONE, group.name

        for group in sorted(groups, key=order):
            if all(ours[node] + count <= room[node] for node, count in Counter(group.nodes).items()):
                ours.update(group.nodes)
                counted.add(group.name)
            else:
                beyond.add(group.name)
                if group.number == ALONE:
                    self._say(f"job {group.job} is on more GPUs than the topology has, and is left alone")
        self._counted = frozenset(counted)
        return ours, frozenset(beyond)

    def _blocked(self, there: dict[int, RayNodeRow], ours: Counter[str], now_s: float) -> dict[int, int]:
        blocked = {}
        for host, node in there.items():
            lacks = max(0, self._gpus[host] - node.gpus)
            others = max(0, math.ceil(node.gpus - node.free_gpus - TINY) - ours[node.id])
            others = self._steadily(host, others, now_s)
            count = self._gpus[host] if node.draining else min(self._gpus[host], lacks + others)
            if count:
                blocked[host] = count
        return blocked

    def _steadily(self, host: int, others: int, now_s: float) -> int:
        before, since_s = self._others.get(host, (others, -float("inf")))
        if before != others:
            since_s = now_s
        self._others[host] = others, since_s
        if now_s - since_s >= STEADY_S:
            self._steady[host] = others
        return self._steady.get(host, others)


def _notes(notes: dict[str, str], prefix: str, kind: type[Note]) -> dict[str, Note]:
    """Those that can be read: anybody who uses Ray can write there."""
    found = {}
    for key, text in notes.items():
        if key.startswith(prefix):
            try:
                found[key.removeprefix(prefix)] = msgspec.json.decode(text, type=kind)
            except DAMAGED:
                _log.warning("the note %r cannot be read, and is left alone", key[:200])
    return found


# Groups and notes that are nobody's any more.

LEAVES_S = 10.0
"""So much longer than its grace a command may take to end before its group is taken away from under it."""


def stray_groups(look: RaySnapshot, known: Mapping[str, RayTrackedJob], now_s: float) -> Iterator[str]:
    """Names of groups of jobs that have ended, and of those that their jobs have left.

    Args:
        known: jobs by submission id.
    """
    for group in look.groups.values():
        row = look.jobs.get(group.job)
        if (
            group.state == "REMOVED"
            or row is None
            or row.status in ENDED
            or (group.job in known and _is_left(group, look, known[group.job], now_s))
        ):
            yield group.name


def _is_left(group: GroupRow, look: RaySnapshot, known: RayTrackedJob, now_s: float) -> bool:
    if group.name == known.group or group.number == ALONE:
        return False
    wrapper = look.wrappers.get(group.job)
    if wrapper is None or wrapper.state == "waits" or wrapper.number != group.number:
        return True
    return is_late(known, wrapper, now_s)


def is_late(known: RayTrackedJob, wrapper: Wrapper, now_s: float) -> bool:
    """Whether a command that was told to leave should have left long ago."""
    return known.left_s is not None and now_s - known.left_s > wrapper.grace_s + LEAVES_S


def stray_notes(look: RaySnapshot) -> Iterator[str]:
    """Keys of notes for jobs that have ended."""
    live = {row.id for row in look.jobs.values() if row.status not in ENDED}
    for job in look.wrappers.keys() - live:
        yield from (ADVICE + job, WRAPPER + job)
    yield from (PLACE + job for job in look.places.keys() - live)


# The cluster as the labels of Ray's nodes say: `ray start --node-name=n1 --labels="rack=r0,pod=p0"`.

LEVELS = ("rack", "block", "pod", "zone")
"""Labels that are looked for, narrow to wide."""


def ray_topology(ray: Ray, options: Mapping[str, str] | None = None) -> Topology:
    """Nodes with GPUs, by the labels that all of them have.

    Args:
        options: of hosts and levels (`nic=200gbit`, `oversubscription=4`); `labels=rack+pod` names the labels.

    Raises:
        EngineError: Ray does not answer.
        InputError: there is no node with GPUs, or one lacks a label that others have.
    """
    given = TopologyOptions(options or {}, f"ray:{ray.address}")
    given.only((*HARDWARE_OPTIONS, *LEVEL_OPTIONS, "labels", "name"))
    nodes = sorted((node for node in read_answer(ray.ask("look", [])).nodes if node.gpus), key=_name)
    if not nodes:
        raise InputError(f"no node of the Ray at {ray.address} has GPUs", "ray start --num-gpus=8 ...")
    keys = given.words("labels") or [key for key in LEVELS if any(key in node.labels for node in nodes)]
    for node in nodes:
        if missing := [key for key in keys if not node.labels.get(key)]:
            raise InputError(
                f"the node {_name(node)} has no label {missing[0]!r}", "give it one: ray start --labels=..."
            )
    types = [node.labels.get(TYPE, "") for node in nodes]
    hosts = make_hosts(given, [_name(node) for node in nodes], [node.gpus for node in nodes], types)
    levels = make_levels(hosts, keys, [[node.labels[key] for node in nodes] for key in keys], given)
    facts = [f"the nodes of the Ray at {ray.address}" + (f" by {', '.join(keys)}" if keys else "")]
    return Topology(given.values.get("name", "ray"), hosts, levels, given.notes(facts)).check()


def _name(node: RayNodeRow) -> str:
    return node.names[0]


# What jobs and nodes of a Ray have beside GPUs, as the state machine counts them: processors. Groups ask for no more.


class RayResources:
    """Tells the state machine of it: of jobs once, of nodes when it changes."""

    def __init__(self) -> None:
        self._claimed: set[str] = set()
        self._others: dict[int, tuple[float, float]] = {}
        self._told: dict[int, tuple[Resources, Resources]] = {}

    def events(self, look: RaySnapshot, jobs: Iterable[RayTrackedJob], now_s: float) -> list[Event]:
        """What is new; nothing where Ray does not say what its nodes have."""
        if not look.cpus:
            return []
        jobs = [known for known in jobs if not known.refused]
        new = [known for known in jobs if known.cpus and known.job.id not in self._claimed]
        self._claimed = {known.job.id for known in jobs if known.cpus}
        claims = [
            ResourcesRequested(now_s, known.job.id, ResourceRequest(cpus_per_gpu=float(known.cpus)))
            for known in new
        ]
        return [*self._furnished(look, _taken(look, jobs), now_s), *claims]

    def _furnished(self, look: RaySnapshot, taken: Counter[int], now_s: float) -> list[Event]:
        events: list[Event] = []
        for host, (cpus, free) in look.cpus.items():
            others = self._steadily(host, max(0.0, cpus - free - taken[host]), now_s)
            ours, total = Resources(cpus - others), Resources(cpus)
            if self._told.get(host) != (ours, total):
                self._told[host] = ours, total
                events.append(ResourcesOffered(now_s, host, ours, total))
        return events

    def _steadily(self, host: int, others: float, now_s: float) -> float:
        """What others use counts once it has been the same for some time, as it does of GPUs."""
        before, since_s = self._others.get(host, (others, float("-inf")))
        since_s = since_s if abs(before - others) < TINY else now_s
        self._others[host] = others, since_s
        if now_s - since_s >= STEADY_S or host not in self._told:
            return others
        ours, total = self._told[host]
        assert ours.cpus is not None and total.cpus is not None
        return total.cpus - ours.cpus


def _taken(look: RaySnapshot, jobs: Iterable[RayTrackedJob]) -> Counter[int]:
    """By host, the processors of groups that stand: what the state machine counts itself."""
    taken: Counter[int] = Counter()
    for known in jobs:
        place = look.placement(known.group) if known.group and known.wanted is not None else None
        if place is not None:
            for host, mask in zip(place.hosts, place.masks, strict=True):
                taken[host] += known.cpus * mask.bit_count()
    return taken
