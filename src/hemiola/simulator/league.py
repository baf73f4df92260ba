"""A league: every policy on every trace, fabric and load, on the same jobs; run as one sweep, put together as one result.

A *cell* is a trace on a fabric at a load. Each seed of a cell is a *slice*: so many consecutive jobs of the trace,
another stretch of it for each seed, with arrivals stretched so that the work that arrives is `load` of what the
cluster can do meanwhile. All policies see the same slices. Finished runs are kept in a folder, so that a league that was
interrupted goes on (`sweep`); a policy from outside the package (`my.py:Mine`) can be edited and run again without the others.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from hemiola.analysis.cluster_metrics import summary
from hemiola.analysis.league import mean_bound_s
from hemiola.core.errors import InputError
from hemiola.core.job import Batch, Workload
from hemiola.core.result import Run
from hemiola.core.topology import Topology
from hemiola.core.units import parse_duration
from hemiola.cost.iteration import IterationModel, speed_at
from hemiola.cost.profiles import ProfileLibrary, assign, load_library
from hemiola.kernels.generate import generate, is_generator_spec
from hemiola.sched.policies import POLICIES, policy_from_text
from hemiola.simulator.scenario import Prepared, Scenario
from hemiola.simulator.simulate import Progress, Recording
from hemiola.simulator.sweep import Executor, sweep
from hemiola.trace.topologies import read_topology
from hemiola.trace.workloads import read_workload

__all__ = [
    "DEFAULT_LEAGUE", "RECORDED", "SLOW", "League", "LeagueCell", "LeagueEntry", "LeagueSlice", "is_clairvoyant", "load_league", "play",
]  # fmt: skip

RECORDED = "recorded"
"""The load of a trace whose arrivals stay as they are."""
LEAN = Recording(timeline=False)
Floats = NDArray[np.float64]


class League(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is played.

    Attributes:
        traces: by name a workload file, several ("FOLDER/*.csv", one for each seed in turn), or a generator's spec.
        fabrics: by name a topology's file or spec.
        policies: names with parameters; every registered one unless given.
        champion: the policy that is compared with the best other one of each cell.
        loads: "1.2" for arrivals stretched to that load, "recorded" for arrivals as they are.
        seeds: slices per cell.
        first_seed: of them; another one than 0 confirms on fresh slices what was chosen on the first.
        jobs: of a slice.
        longest: run times are cut there ("24h"), lest one job of weeks is all that a slice shows; "" for never.
        mixes: by trace how models are drawn for jobs that name none; "default" unless given.
        recorded_on: the cluster that run times were measured on; each fabric itself unless given.
        subset: policies that are slow, such as those that ask a solver. They play on `subset_seeds` slices of each trace's
            first load on the first fabric alone.
        subset_seeds: how many slices that are.
        block: consecutive arrivals that are resampled together.
        rate: of false discoveries.
        skip_bad_rows: leave rows of traces out that cannot be used, and say how many.
    """

    traces: dict[str, str] = {}
    fabrics: dict[str, str] = {}
    policies: tuple[str, ...] = ()
    champion: str = "hemiola"
    loads: tuple[str, ...] = ("0.8", "1.2")
    seeds: int = 3
    first_seed: int = 0
    jobs: int = 500
    longest: str = "24h"
    mixes: dict[str, str] = {}
    recorded_on: str = ""
    subset: tuple[str, ...] = ()
    subset_seeds: int = 1
    block: int = 25
    rate: float = 0.05
    skip_bad_rows: bool = False


SOLVERS = ("pd-ors", "oasis", "optimus", "gavel", "pollux", "sia", "shockwave")
"""Policies that ask a solver, or search, at each decision; those that are registered play a subset unless they are named."""
SLOW = tuple(name for name in SOLVERS if name in POLICIES)
_SMALL = "leaf-spine:hosts=16,gpus_per_host=4,hosts_per_rack=4"
DEFAULT_LEAGUE = League(
    traces={
        "lingjun-like": "generated:jobs=500,mix=lingjun,largest=32",
        "muri-like": "generated:jobs=500,mix=muri",
        "philly-like": "generated:jobs=500,mix=philly,arrivals=diurnal",
        "helios-like, elastic": "generated:jobs=500,mix=helios,largest=64,arrivals=burst,elastic=0.5",
    },
    fabrics={
        "25 Gbit/s, 4:1": f"{_SMALL},nic=25gbit,oversubscription=4",
        "100 Gbit/s, 1:1": f"{_SMALL},nic=100gbit,oversubscription=1",
    },
    loads=("0.7", "1.0", "1.5"),
    mixes={"lingjun-like": "lingjun-like", "muri-like": "muri"},
    recorded_on=f"{_SMALL},nic=100gbit,oversubscription=1",
    subset=SLOW,
)
"""What `hemiola league` plays where no trace is given: generated ones, on 64 GPUs of 16 hosts in 4 racks."""

REAL = {
    "philly": "philly/philly.csv.gz",
    "pollux": "pollux/workloads/*.csv",
    "gavel": "gavel/msr_seed0/*.trace.gz",
    "shockwave": "shockwave/*.trace",
    "muri": "muri/trace[34].csv",
    "tiresias": "tiresias/60_job.csv",
}
"""Published traces by name, where they lie in a folder of them; those that can be read join the default league."""


class LeagueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one slice.

    Attributes:
        jct_s: completion times of the slice's jobs in order of arrival; NaN for one that never ended.
        end_s: when the run ended, on the slice's clock.
        utility, certificate: where the run reports them (what it reached, and what no schedule could exceed).
    """

    policy: str
    jct_s: Floats
    end_s: float
    preemptions: int
    exposed_fraction: float | None
    cpu_s: float
    utility: float | None = None
    certificate: float | None = None


class LeagueSlice(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one seed of a cell.

    Attributes:
        submit_s: arrivals of the jobs that could run, by order.
        bound_s: a mean completion time that no schedule can beat.
        left_out: jobs that could run under no policy.
    """

    seed: int
    submit_s: Floats
    bound_s: float
    left_out: int
    entries: dict[str, LeagueEntry]

    def jct_s(self, policy: str) -> Floats:
        """Completion times; of a job that never ended what it had waited when the last run ended."""
        end_s = max(entry.end_s for entry in self.entries.values())
        found = self.entries[policy].jct_s
        return np.where(np.isnan(found), end_s - self.submit_s, found)

    def only(self, policies: Sequence[str]) -> LeagueSlice:
        """The same with the entries of these policies."""
        return msgspec.structs.replace(self, entries={name: self.entries[name] for name in policies})


class LeagueCell(msgspec.Struct, frozen=True, kw_only=True):
    """A trace on a fabric at a load, with its slices.

    Attributes:
        subset: whether it is the part of another cell that the subset's policies played on, too.
    """

    trace: str
    fabric: str
    load: str
    slices: tuple[LeagueSlice, ...]
    subset: bool = False

    @property
    def name(self) -> str:
        """As a table calls it."""
        load = "as recorded" if self.load == RECORDED else f"load {self.load}"
        return f"{self.trace}; {self.fabric}; {load}{'; subset' if self.subset else ''}"

    @property
    def policies(self) -> tuple[str, ...]:
        """Those that played all of it."""
        return tuple(self.slices[0].entries) if self.slices else ()

    def jct_s(self, policy: str) -> list[Floats]:
        """Completion times per slice; of a job that never ended what it had waited when the last run of the slice ended."""
        return [one.jct_s(policy) for one in self.slices]

    def unfinished(self, policy: str) -> int:
        """Jobs that this policy left, though they could run."""
        return sum(int(np.isnan(one.entries[policy].jct_s).sum()) for one in self.slices)

    def times_bound(self, policy: str) -> float:
        """Mean completion time over what no schedule can beat, the mean of the slices."""
        times = zip(self.jct_s(policy), self.slices, strict=True)
        return float(np.mean([jct_s.mean() / one.bound_s if one.bound_s else 1.0 for jct_s, one in times]))


def load_league(path: str | Path) -> League:
    """A league from a TOML file whose keys are the attributes of `League`; paths of traces are relative to it.

    Raises:
        InputError: unreadable, not TOML, an unknown key, or a value of the wrong kind.
    """
    file = Path(path)
    try:
        league = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8-sig")), League)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the league {path}: {error}", "give a TOML file in UTF-8") from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        known = ", ".join(League.__struct_fields__)
        raise InputError(f"{path}: {error}", f"the keys of a league are {known}") from error
    traces = {
        name: where if is_generator_spec(where) else str(file.parent / where)
        for name, where in league.traces.items()
    }
    return msgspec.structs.replace(league, traces=traces)


def with_published(league: League, folder: Path) -> tuple[League, tuple[str, ...]]:
    """The same league with the published traces that are in a folder, and which were looked for and are not there."""
    there = {name: str(folder / where) for name, where in REAL.items() if _files(str(folder / where))}
    missing = tuple(name for name in REAL if name not in there)
    return msgspec.structs.replace(league, traces={**there, **league.traces}), missing


def is_clairvoyant(policy: str) -> bool:
    """Whether a policy goes by true run times: its card says so by the word "oracle"."""
    return any("oracle" in rule for rule in policy_from_text(policy).card().values())


# ---- what is played


@dataclass(frozen=True, eq=False)
class _Fixture:
    """A slice to be run."""

    trace: str
    fabric: str
    load: str
    seed: int
    prepared: Prepared


def play(
    league: League,
    executor: Executor,
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[tuple[LeagueCell, ...], int]:
    """Run everything that is not in the folder yet.

    Args:
        executor: where runs are done (`executor_for`).
        folder: finished runs are kept there, and not done again.
        progress, say: as for `sweep`.

    Returns:
        The cells, and how many runs are missing because of Ctrl-C. A cell has the slices that every policy it is for has run.

    Raises:
        InputError, PolicyError, TopologyError: before anything runs, or by a run as it would alone.
    """
    fixtures = list(_fixtures(league, say))
    swept = sweep(
        [fixture.prepared for fixture in fixtures], executor, recording=LEAN, folder=folder,
        progress=progress, say=say,
    )  # fmt: skip
    cells: dict[tuple[str, str, str], list[LeagueSlice]] = {}
    missing = 0
    for fixture, done in zip(fixtures, swept, strict=True):
        mine = cells.setdefault((fixture.trace, fixture.fabric, fixture.load), [])
        missing += done.missing
        if not done.missing and done.comparison is not None:
            mine.append(_slice(fixture, done.comparison.runs))
    found = [cell for place, slices in cells.items() for cell in _cells(league, place, slices)]
    return tuple(found), missing


def _cells(league: League, place: tuple[str, str, str], slices: list[LeagueSlice]) -> Iterator[LeagueCell]:
    """The cell of those that play everywhere, and where the subset played, too, one of all."""
    trace, fabric, load = place
    everywhere = policies_of(league)
    mine = tuple(one.only(everywhere) for one in slices)
    yield LeagueCell(trace=trace, fabric=fabric, load=load, slices=mine)
    both = tuple(one for one in slices if len(one.entries) > len(everywhere))
    if both:
        yield LeagueCell(trace=trace, fabric=fabric, load=load, slices=both, subset=True)


def _fixtures(league: League, say: Callable[[str], None]) -> Iterator[_Fixture]:
    _check(league)
    library = load_library(None)
    recorded_on = read_topology(league.recorded_on) if league.recorded_on else None
    fabrics = {name: read_topology(spec) for name, spec in league.fabrics.items()}
    for trace, where in league.traces.items():
        mix = league.mixes.get(trace, "default")
        for number, (fabric, topology) in enumerate(fabrics.items()):
            for place, load in enumerate(league.loads):
                for turn, seed in enumerate(range(league.first_seed, league.first_seed + league.seeds)):
                    jobs = _jobs(league, where, load, seed, topology, library, mix)
                    first = not number and not place and turn < league.subset_seeds
                    scenario = Scenario(
                        workload=where, cluster=league.fabrics[fabric], mix=mix, limit=league.jobs,
                        policies=policies_of(league, with_subset=first),
                        recorded_on=league.recorded_on,
                    )  # fmt: skip
                    prepared = Prepared(scenario, topology, jobs, library, mix, (), recorded_on)
                    if not number and not place and not turn:
                        say(f"{trace}: {jobs.name}, {len(jobs.jobs):,} jobs a slice ({jobs.format})")
                    yield _Fixture(trace, fabric, load, seed, prepared)


def policies_of(league: League, *, with_subset: bool = False) -> tuple[str, ...]:
    """Those that play everywhere: what was named, or all that are registered but the subset's; with the subset's, if asked."""
    named = league.policies or tuple(name for name in POLICIES if name not in league.subset)
    return tuple(dict.fromkeys((*named, league.champion, *(league.subset if with_subset else ()))))


def _check(league: League) -> None:
    if not league.traces:
        raise InputError("the league has no traces", "name a file, or a generator's spec")
    if not league.fabrics:
        raise InputError(
            "the league has no fabrics",
            "name a topology with --cluster: a file, or leaf-spine:hosts=16,gpus_per_host=8",
        )
    for name, value in (("seeds", league.seeds), ("jobs", league.jobs), ("block", league.block)):
        if value < 1:
            raise InputError(f"the league's {name} is {value}", "give 1 or more")
    if not 0 < league.rate < 1:
        raise InputError(f"the league's rate is {league.rate}", "give a share between 0 and 1, such as 0.05")
    if league.first_seed < 0 or league.subset_seeds < 0:
        raise InputError(
            f"first_seed is {league.first_seed}, subset_seeds {league.subset_seeds}", "give 0 or more"
        )
    for load in league.loads:
        _stretch_of(load)
    for name in league.mixes:
        if name not in league.traces:
            raise InputError(
                f"mixes names {name!r}, which is no trace", f"the traces are {', '.join(league.traces)}"
            )


def _stretch_of(load: str) -> float | None:
    """The load that arrivals are stretched to; None for as recorded."""
    if load == RECORDED:
        return None
    try:
        found = float(load)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise InputError(f"the load {load!r}", f"give a number above 0, such as 0.8, or {RECORDED}")
    return found


def _jobs(
    league: League, where: str, load: str, seed: int, topology: Topology, library: ProfileLibrary, mix: str
) -> Workload:
    """A slice with its models."""
    workload = _stretch(_cut(league, where, seed, topology), _stretch_of(load), topology.gpus)
    return assign(workload, library, mix=mix, seed=seed)


def _cut(league: League, where: str, seed: int, topology: Topology) -> Workload:
    """Consecutive jobs that the cluster could hold, their run times cut, from 0 on."""
    if is_generator_spec(where):
        whole, turn = generate(where, seed, gpus=topology.gpus), 0
    else:
        files = _files(where) or [where]
        whole, turn = _read(files[seed % len(files)], league.skip_bad_rows), seed // len(files)
    fitting = [job for job in whole.jobs if topology.narrowest(job.gpus, "", job.hosts) is not None]
    if not fitting:
        raise InputError(f"no job of {where} fits {topology.name}", "give a larger cluster")
    count = min(league.jobs, len(fitting))
    first = turn * 17 % (len(fitting) // count) * count
    longest_s = parse_duration(league.longest) if league.longest else float("inf")
    began_s = fitting[first].submit_s
    jobs = tuple(
        msgspec.structs.replace(
            job, submit_s=job.submit_s - began_s, duration_s=min(job.duration_s, longest_s)
        )
        for job in fitting[first : first + count]
    )
    return msgspec.structs.replace(whole, jobs=jobs)


def _files(where: str) -> list[str]:
    """The files that a path with wildcards means, by name; none where there are none."""
    path = Path(where)
    if path.exists():
        return [where]
    wild = next((n for n, part in enumerate(path.parts) if set(part) & set("*?[")), None)
    if wild is None:
        return []
    return sorted(map(str, Path(*path.parts[:wild]).glob("/".join(path.parts[wild:]))))


@lru_cache(maxsize=4)
def _read(path: str, skip_bad_rows: bool) -> Workload:
    whole = read_workload(path, skip_bad_rows=skip_bad_rows)
    return msgspec.structs.replace(whole, services=())


def _stretch(workload: Workload, load: float | None, gpus: int) -> Workload:
    """Arrivals over just the time in which their work is `load` of what the cluster could do."""
    jobs = workload.jobs
    span_s = jobs[-1].submit_s
    if load is None or span_s <= 0:
        return workload
    factor = sum(job.gpus * job.duration_s for job in jobs) / (load * gpus) / span_s
    moved = (msgspec.structs.replace(job, submit_s=job.submit_s * factor) for job in jobs)
    return msgspec.structs.replace(workload, jobs=tuple(moved))


# ---- what came out


def _slice(fixture: _Fixture, runs: Sequence[Run]) -> LeagueSlice:
    """The jobs that could run under some policy, and how long they took under each."""
    alike = zip(*(run.records for run in runs), strict=True)
    never = {records[0].id for records in alike if all(one.status == "refused" for one in records)}
    jobs = [job for job in fixture.prepared.workload(0).jobs if job.id not in never]
    began_s = runs[0].origin_s
    submit_s = np.array([job.submit_s for job in jobs], dtype=np.float64)
    return LeagueSlice(
        seed=fixture.seed,
        submit_s=submit_s,
        bound_s=_bound_s(fixture.prepared, jobs, submit_s),
        left_out=len(never),
        entries={run.policy: _entry(run, never, fixture.prepared.topology, began_s) for run in runs},
    )


def _entry(run: Run, never: set[str], topology: Topology, began_s: float) -> LeagueEntry:
    whole = summary(run, topology)
    jct_s = [record.jct_s for record in run.records if record.id not in never]
    return LeagueEntry(
        policy=run.policy,
        jct_s=np.array([np.nan if one is None else one for one in jct_s], dtype=np.float64),
        end_s=run.end_s - began_s,
        preemptions=whole.preemptions,
        exposed_fraction=whole.exposed_communication_fraction,
        cpu_s=run.cpu_s,
        utility=getattr(whole, "utility", None),
        certificate=getattr(whole, "certificate", None),
    )


def _bound_s(prepared: Prepared, jobs: Sequence[Batch], submit_s: Floats) -> float:
    """By the least time and the fewest GPU-seconds that each job takes here at any of its sizes, alone."""
    model = IterationModel(prepared.topology, prepared.recorded_on)
    kinds = prepared.topology.gpu_types
    shortest_s, work_gpu_s = [], []
    for job in jobs:
        fastest = max((job.profile.speed(kind) for kind in kinds if job.profile), default=1.0)
        sizes = [
            gpus
            for gpus in job.sizes
            if prepared.topology.narrowest(gpus, job.gpu_type, job.hosts * gpus // job.gpus) is not None
        ]
        speeds = {gpus: max(1.0, fastest) * speed_at(model, job, job.gpus, gpus) for gpus in sizes}
        shortest_s.append(job.duration_s / max(speeds.values()))
        work_gpu_s.append(min(job.duration_s * gpus / speed for gpus, speed in speeds.items()))
    return mean_bound_s(submit_s, np.array(shortest_s), np.array(work_gpu_s), prepared.topology.gpus)


def data_folder() -> Path | None:
    """Where published traces lie, as HEMIOLA_SHARED says it; None where it is not set."""
    named = os.environ.get("HEMIOLA_SHARED")
    return Path(named) / "data" / "traces" if named else None
