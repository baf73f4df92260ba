"""Everything that a comparison needs, as one value: from the command line, or from a TOML file.

The command line has few flags; whatever else can be set stands here.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from hemiola.core.errors import InputError
from hemiola.core.events import NodeBack, NodeLost
from hemiola.core.hostlist import expand
from hemiola.core.job import Workload
from hemiola.core.result import Comparison
from hemiola.core.topology import Topology
from hemiola.core.units import parse_duration
from hemiola.core.virtual_cluster import VirtualCluster
from hemiola.cost.profiles import ProfileLibrary
from hemiola.simulator.records import Fidelity, ServingRules
from hemiola.simulator.rules import Rules, semantics_by_name
from hemiola.simulator.simulate import Progress, Recording, simulate, without_collection
from hemiola.trace.requests import RequestTrace
from hemiola.trace.workloads.services import ServiceEntry, service_of

__all__ = ["DEMO", "Prepared", "Scenario", "load_scenario", "prepare", "run_scenario"]


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One comparison.

    Attributes:
        workload: a file, "FORMAT:file", or a generator's spec ("generated:jobs=1000,...").
        journal: in its place, the journal of `hemiola serve`: what a live cluster was really given to do.
        cluster: a topology's file or spec; with a journal, the one that was served unless given.
        policies: names with parameters; the semantics' own choice unless given.
        baseline: what differences refer to; the first policy unless given.
        semantics: the rules of time and cost.
        contention: the law of shared links; the semantics' own unless given.
        collectives: "usual" for what profiles say, rings; "fitted" for all-reduces by schedules that fit the links.
        seeds: how many seeds, 0, 1, ...; each draws models (and generated jobs) anew.
        limit: only the first so many jobs.
        mix: how models are drawn for jobs that name none; "none" leaves them without, as a journal's are unless given.
        profiles: a file of the user's own profiles.
        recorded_on: the cluster that the run times were measured on; `cluster` unless given.
        failures: a file of hosts that fail and return.
        skip_bad_rows: leave rows out that cannot be used, and count them.
        preemption_cost: multiplies every save and load; 0 makes pre-emption free.
        checkpoint_interval: a host failure loses the work since the last multiple of it ("30min").
        clusters: virtual clusters by name: their hosts as a list of names, or of numbers from 0 ("0-7,9").
        services: what runs beside the jobs and answers requests (`trace.workloads.services.ServiceEntry`).
        serving: how requests are simulated: "fluid", or "requests" one by one.
        control_interval: from one word of a service's load to the next.
    """

    workload: str = ""
    journal: str = ""
    cluster: str = ""
    policies: tuple[str, ...] = ()
    baseline: str = ""
    semantics: str = "event-driven"
    contention: str = ""
    collectives: Literal["usual", "fitted"] = "usual"
    seeds: int = 1
    limit: int | None = None
    mix: str = "default"
    profiles: str = ""
    recorded_on: str = ""
    failures: str = ""
    skip_bad_rows: bool = False
    preemption_cost: float = 1.0
    checkpoint_interval: str = "30min"
    clusters: dict[str, str] = {}
    services: tuple[ServiceEntry, ...] = ()
    serving: Fidelity = "fluid"
    control_interval: str = "15s"


DEMO = Scenario(
    workload="generated:jobs=1000,load=1.0,mix=lingjun,largest=128,duration_max=12h,seed=2",
    cluster="leaf-spine:hosts=64,gpus_per_host=8,hosts_per_rack=8,nic=100gbit,oversubscription=4",
    policies=("fifo", "fifo-backfill:placement=consolidated", "tiresias", "gandiva", "dally"),
    mix="lingjun-like",
    seeds=3,
)
"""What `hemiola simulate --demo` runs: large jobs on 512 GPUs behind congested uplinks."""


def load_scenario(path: str | Path) -> Scenario:
    """A scenario from a TOML file whose keys are the attributes of `Scenario`.

    Paths in it are relative to the file.

    Raises:
        InputError: unreadable, not TOML, an unknown key, or a value of the wrong kind.
    """
    file = Path(path)
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8-sig"))
        scenario = msgspec.convert(raw, Scenario)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the scenario {path}: {error}", "give a TOML file in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            f"{path} is not TOML: {error}", "see docs/guides/simulate.md for an example"
        ) from error
    except msgspec.ValidationError as error:
        known = ", ".join(Scenario.__struct_fields__)
        raise InputError(f"{path}: {error}", f"the keys of a scenario are {known}") from error
    names = ("workload", "journal", "cluster", "profiles", "recorded_on", "failures")
    changes: dict[str, Any] = {name: _beside(file, getattr(scenario, name)) for name in names}
    return msgspec.structs.replace(
        scenario, **changes, services=tuple(_requests_beside(file, one) for one in scenario.services)
    )


def _requests_beside(file: Path, service: ServiceEntry) -> ServiceEntry:
    """The service, with the path of its requests made one beside this file."""
    if service.requests_from is None:
        return service
    path = msgspec.structs.replace(service.requests_from, path=_beside(file, service.requests_from.path))
    return msgspec.structs.replace(service, requests_from=path)


def _beside(file: Path, text: str) -> str:
    """Such a text with its path made one beside this file, if that is there.

    `PATH` or `KIND:PATH`, either with `,OPTIONS`, of which `kueue` is a path too, or `sqlite:///PATH`. In other
    addresses nothing is a path.
    """
    text = re.sub(r"(?<=,kueue=)[^,]+", lambda path: _beside(file, path[0]), text)
    kind, colon, rest = text.partition(":///" if text.startswith("sqlite:///") else ":")
    if rest.startswith("//"):
        return text
    for before, after in ((kind + colon, rest), ("", text)) if colon else (("", text),):
        path, comma, options = after.partition(",")
        for place, more in ((after, ""), (path, comma + options)):
            with suppress(OSError):  # too long for a name
                if place and (file.parent / place).exists():
                    return f"{before}{file.parent / place}{more}"
    return text


@dataclass(frozen=True, eq=False)
class Prepared:
    """A scenario with all that it names read: it runs the same wherever it is sent.

    Attributes:
        read: the workload as its file has it; None where one is generated for each seed.
        library: where jobs' profiles come from.
        mix: how models are drawn; "none" where the rules know none.
        node_events: hosts that fail and return.
        recorded_on: the cluster that the run times were measured on, if another.
        traces: of the scenario's services the requests that they name; None for one that names none.
        clusters: virtual clusters.
    """

    scenario: Scenario
    topology: Topology
    read: Workload | None
    library: ProfileLibrary
    mix: str
    node_events: tuple[NodeLost | NodeBack, ...]
    recorded_on: Topology | None
    traces: tuple[RequestTrace | None, ...] = ()
    clusters: tuple[VirtualCluster, ...] = ()

    @property
    def serving(self) -> ServingRules:
        """How services are simulated."""
        interval_s = parse_duration(self.scenario.control_interval)
        return ServingRules(fidelity=self.scenario.serving, interval_s=interval_s)

    @property
    def rules(self) -> Rules:
        """Of time, cost and contention."""
        return _semantics(self.scenario)

    @property
    def policies(self) -> tuple[str, ...]:
        """Those to compare."""
        return self.scenario.policies or self.rules.default_policies

    def workload(self, seed: int) -> Workload:
        """This seed's jobs, with their profiles; the last one asked for is kept."""
        return _made(self, seed)


@lru_cache(maxsize=1)
def _made(prepared: Prepared, seed: int) -> Workload:
    from hemiola.cost.profiles import assign
    from hemiola.kernels.generate import generate

    jobs, limit = prepared.read, prepared.scenario.limit
    if jobs is None:
        jobs = generate(prepared.scenario.workload, seed, gpus=prepared.topology.gpus)
        if limit:
            jobs = msgspec.structs.replace(jobs, jobs=jobs.jobs[:limit])
    services = tuple(
        service_of(entry, trace, seed)
        for entry, trace in zip(prepared.scenario.services, prepared.traces, strict=True)
    )
    notes = tuple(note for trace in prepared.traces if trace for note in trace.notes)
    made = assign(jobs, prepared.library, mix=prepared.mix, seed=seed)
    if not services:
        return made
    return msgspec.structs.replace(made, services=(*made.services, *services), notes=(*made.notes, *notes))


class Served(NamedTuple):
    """How to read the journal of a live cluster, by its name. A journal belongs to `live`, which hands this in.

    Attributes:
        topology: the cluster of its last run.
        workload: the jobs that it was given.
    """

    topology: Callable[[str], Topology]
    workload: Callable[[str], Workload]


@without_collection()
def prepare(
    scenario: Scenario, *, served: Served | None = None, say: Callable[[str], None] = lambda _: None
) -> Prepared:
    """Read what the scenario names.

    Args:
        served: how to read the journal, where the scenario names one (`live.journal.replay.SERVED`).
        say: told in words what was read and how it was recognised.

    Raises:
        InputError, TopologyError: a file that cannot be used, or values that cannot be.
    """
    from hemiola.cost.profiles import load_library
    from hemiola.kernels.generate import is_generator_spec
    from hemiola.trace.requests import read_requests
    from hemiola.trace.topologies import read_topology

    _check(scenario)
    semantics = _semantics(scenario)
    journal = _reader(scenario, served)
    topology = (
        read_topology(scenario.cluster)
        if not journal or scenario.cluster
        else journal.topology(scenario.journal)
    )
    say(f"cluster: {topology.name}, {len(topology.hosts):,} hosts, {topology.gpus:,} GPUs; {topology.source}")
    library = load_library(scenario.profiles or None)
    mix = _mix(scenario, semantics, library)
    read = None if is_generator_spec(scenario.workload) else _read(scenario, journal)
    prepared = Prepared(
        scenario, topology, read, library, mix, _failures(scenario, topology),
        read_topology(scenario.recorded_on) if scenario.recorded_on else None,
        tuple(read_requests(one.requests_from.path) if one.requests_from else None for one in scenario.services),
        tuple(VirtualCluster(name, _hosts(name, text, topology)) for name, text in scenario.clusters.items()),
    )  # fmt: skip
    first = prepared.workload(0)
    say(f"workload: {first.name}, {len(first.jobs):,} jobs, read as {first.format} ({first.why})")
    for service in first.services:
        say(
            f"service: {service.id}, {service.replicas_min} to {service.replicas_max} replicas with {service.gpus} GPUs each"
        )
    if first.skipped:
        say("left out: " + "; ".join(f"{n:,} rows: {why}" for why, n in sorted(first.skipped.items())))
    return prepared


@without_collection()
def run_scenario(
    scenario: Scenario,
    *,
    recording: Recording | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Read what the scenario names, and compare its policies, one run after another.

    Args:
        say: told in words what was read and how it was recognised.
    """
    prepared = prepare(scenario, say=say)
    return simulate(
        prepared.workload,
        prepared.topology,
        prepared.policies,
        baseline=scenario.baseline or None,
        semantics=prepared.rules,
        seeds=range(scenario.seeds),
        node_events=prepared.node_events,
        recorded_on=prepared.recorded_on,
        recording=recording,
        progress=progress,
        clusters=prepared.clusters,
        serving=prepared.serving,
    )


def _hosts(cluster: str, text: str, topology: Topology) -> tuple[int, ...]:
    """The hosts of a virtual cluster: names of the topology's, or numbers from 0 where none is called so."""
    names = {name: i for i, name in enumerate(topology.hosts.names)}
    listed = (
        expand(text)
        if re.search(r"[^0-9,\- ]", text)
        else [name for part in text.split(",") for name in _counted(part)]
    )
    hosts = []
    for name in listed:
        host = names.get(name, int(name) if name.isdecimal() else -1)
        if not 0 <= host < len(topology.hosts):
            raise InputError(
                f"virtual cluster {cluster!r}: there is no host {name!r}", "name hosts, or numbers from 0"
            )
        hosts.append(host)
    return tuple(hosts)


def _counted(part: str) -> list[str]:
    """ "3", or "0-7"."""
    first, dash, last = part.strip().partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise InputError(f"{part!r} is no number of a host", 'write "0-7,9", or names')
    return [str(number) for number in range(int(first), int(last if dash else first) + 1)]


def _check(scenario: Scenario) -> None:
    if scenario.workload and scenario.journal:
        raise InputError("a workload and a journal were given", "give one of them")
    if not scenario.workload and not scenario.journal:
        raise InputError("no workload was given", 'name a file, or "generated:jobs=1000,load=0.8"')
    if not scenario.cluster and not scenario.journal:
        raise InputError(
            "no cluster was given", "add --cluster FILE, or --cluster flat:hosts=8,gpus_per_host=4"
        )
    if scenario.seeds < 1:
        raise InputError(f"seeds is {scenario.seeds}", "give 1 or more")
    if scenario.limit is not None and scenario.limit < 1:
        raise InputError(f"limit is {scenario.limit}", "give 1 or more, or leave it out")
    if not 0 <= scenario.preemption_cost < float("inf"):
        raise InputError(f"preemption_cost is {scenario.preemption_cost}", "give a factor of 0 or more")


def _reader(scenario: Scenario, served: Served | None) -> Served | None:
    if scenario.journal and served is None:
        raise InputError(
            f"nothing here reads the journal {scenario.journal}", "use hemiola simulate, or pass served="
        )
    return served if scenario.journal else None


def _semantics(scenario: Scenario) -> Rules:
    from hemiola.cost.contention import by_name

    semantics = semantics_by_name(scenario.semantics)
    changes: dict[str, Any] = {}
    if scenario.contention:
        changes["law"] = by_name(scenario.contention)
    interval_s = parse_duration(scenario.checkpoint_interval)
    if interval_s <= 0:
        raise InputError(f"checkpoint_interval is {scenario.checkpoint_interval!r}", "give more than 0")
    return semantics.changed(
        scale=scenario.preemption_cost,
        checkpoint_interval_s=interval_s,
        fitted=scenario.collectives == "fitted",
        **changes,
    )


def _failures(scenario: Scenario, topology: Topology) -> tuple[NodeLost | NodeBack, ...]:
    if not scenario.failures:
        return ()
    from hemiola.trace.failures import read_failures

    return read_failures(scenario.failures, topology)


def _mix(scenario: Scenario, semantics: Rules, library: ProfileLibrary) -> str:
    """How models are drawn; checked, so that a wrong one is refused before the workload is read."""
    drawn = semantics.uses_profiles and not (
        scenario.journal and scenario.mix == Scenario().mix
    )  # what ran is known
    if not drawn:
        return "none"
    if scenario.mix != "none":
        library.mix(scenario.mix)
    return scenario.mix


def _read(scenario: Scenario, served: Served | None) -> Workload:
    if served:
        read = served.workload(scenario.journal)
        return msgspec.structs.replace(read, jobs=read.jobs[: scenario.limit]) if scenario.limit else read
    from hemiola.trace.workloads import FORMATS, read_workload

    kind, colon, rest = scenario.workload.partition(":")
    named = bool(colon) and kind in {known.name for known in FORMATS}
    with suppress(OSError, ValueError):  # too long for a name, or none
        if not named and not Path(scenario.workload).exists():
            named = Path(rest).is_file()  # so that the error says which format may be meant
    return read_workload(
        rest if named else scenario.workload,
        format=kind if named else None,
        skip_bad_rows=scenario.skip_bad_rows,
        limit=scenario.limit,
    )
