"""`hemiola simulate`, `policies` and `explain`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from hemiola.cli.output import fail, terminal, writable

if TYPE_CHECKING:
    from rich.console import Console

    from hemiola.core.errors import HemiolaError
    from hemiola.core.result import Comparison
    from hemiola.simulator.scenario import Scenario, Served
    from hemiola.simulator.sweep import Executor

__all__ = ["explain", "policies", "simulate"]

Policies = Annotated[tuple[str, ...], Parameter(name="--policy", consume_multiple=True, negative="")]
Scenarios = Annotated[tuple[Path, ...], Parameter(name="--scenario", negative="")]
Switch = Parameter(negative="")
SUFFIXES = {
    "json": ".json", "jobs_csv": ".csv", "decisions": ".jsonl", "report": ".html", "timeline": ".json",
}  # fmt: skip


def simulate(
    workload: str = "",
    /,
    *,
    cluster: str = "",
    policy: Policies = (),
    baseline: str = "",
    semantics: str = "",
    contention: str = "",
    collectives: Literal["", "usual", "fitted"] = "",
    seeds: int | None = None,
    limit: int | None = None,
    json: Path | None = None,
    jobs_csv: Path | None = None,
    decisions: Path | None = None,
    report: Path | None = None,
    timeline: Path | None = None,
    scenario: Scenarios = (),
    ray: str = "",
    workers: int | None = None,
    resume: Path | None = None,
    journal: str = "",
    skip_bad_rows: Annotated[bool, Switch] = False,
    demo: Annotated[bool, Switch] = False,
) -> None:
    """Replay a cluster's jobs under several policies on its network, and compare them.

    The exit status is 1 if under some policy no job ran to its end.

    Parameters
    ----------
    workload
        A trace (recognised by its content), "FORMAT:FILE", or "generated:jobs=1000,load=0.8,mix=philly".
    cluster
        A topology's file, or a spec: "flat:hosts=8,gpus_per_host=4",
        "leaf-spine:hosts=64,gpus_per_host=8,hosts_per_rack=8,nic=100gbit,oversubscription=4".
    policy
        Policies to compare, with parameters: fifo tiresias "dally:timer=break-even". See "hemiola policies".
    baseline
        The policy that differences refer to; the first unless given.
    semantics
        The rules of time and cost: event-driven, or a peer's: tiresias-sim, muri-sim, pollux-sim, shockwave-sim.
    contention
        How jobs on one link slow each other: max-min, interleaved, colliding, eta, isolated.
    collectives
        How all-reduces go: usual, as rings; or fitted, by schedules that fit the links of each placement.
    seeds
        Repeat with so many seeds and give confidence intervals.
    limit
        Only the first so many jobs.
    json
        Write the metrics there.
    jobs_csv
        Write a row per job there.
    decisions
        Write every decision with its reason there, for "hemiola explain".
    report
        Write a page with the pictures there (HTML).
    timeline
        Write a timeline there that Perfetto opens.
    scenario
        A TOML file with all of this and more; flags given here go before it. Several, or a folder of them, are swept
        together: each writes a file named after it into the folders that --json and its like then name.
    ray
        Spread the runs over a Ray cluster: HOST:PORT, ray://HOST:PORT, "auto" for the one this machine belongs to,
        "local" for one of its own.
    workers
        Spread the runs over so many processes; as many as there are cores, if that is worth it, unless given.
    resume
        A folder that keeps each finished run: the same sweep, started again, does not do it again.
    journal
        Instead of a workload, what a live cluster was really given to do: the journal of "hemiola serve".
    skip_bad_rows
        Leave out rows of the trace that cannot be used, and count them.
    demo
        A small cluster behind congested uplinks under five policies; writes hemiola-demo.html.
    """
    import msgspec

    from hemiola.simulator.scenario import DEMO, Scenario, load_scenario
    from hemiola.simulator.sweep import executor_for

    if demo and scenario:
        raise SystemExit(fail("--demo and --scenario exclude each other", "give one of them"))
    files = _scenario_files(scenario)
    given = {
        "workload": workload, "journal": journal, "cluster": cluster, "policies": policy, "baseline": baseline,
        "semantics": semantics, "contention": contention, "collectives": collectives, "skip_bad_rows": skip_bad_rows,
    }  # fmt: skip
    changes: dict[str, object] = {name: value for name, value in given.items() if value}
    changes |= {name: n for name, n in (("seeds", seeds), ("limit", limit)) if n is not None}
    if workload or journal:  # either goes before whichever of them a file has
        changes |= {"workload": workload, "journal": journal}
    bases = [load_scenario(file) for file in files] or [DEMO if demo else Scenario()]
    asked = [msgspec.structs.replace(base, **changes) for base in bases]
    if demo and report is None:
        report = Path("hemiola-demo.html")
    given_outputs = {
        "json": json,
        "jobs_csv": jobs_csv,
        "decisions": decisions,
        "report": report,
        "timeline": timeline,
    }
    outputs = {name: path for name, path in given_outputs.items() if path is not None}
    several = len(files) > 1 or any(path.is_dir() for path in scenario)
    names = [file.stem for file in files] if several else [""]
    _run(dict(zip(names, asked, strict=True)), outputs, executor_for(ray=ray, workers=workers), resume)


def _scenario_files(given: tuple[Path, ...]) -> list[Path]:
    """Each file, and for a folder its TOML files by name."""
    from hemiola.core.errors import InputError

    files: list[Path] = []
    for path in given:
        found = sorted(path.glob("*.toml")) if path.is_dir() else [path]
        if not found:
            raise InputError(f"{path} has no scenario", "put TOML files there, named *.toml")
        files += found
    twice = {file.stem for file in files if [other.stem for other in files].count(file.stem) > 1}
    if twice:
        raise InputError(
            f"several scenarios are called {', '.join(sorted(twice))}",
            "outputs bear their names: give each its own",
        )
    return files


def _served(scenario: Scenario) -> Served | None:
    """How to read its journal: loaded only where it names one, for that needs the extra `serve`."""
    if not scenario.journal:
        return None
    from hemiola.live.journal.replay import SERVED

    return SERVED


def _run(
    scenarios: dict[str, Scenario], outputs: dict[str, Path], executor: Executor, folder: Path | None
) -> None:
    """Run with a progress bar; of each scenario write the files and print the table."""
    from contextlib import closing

    from hemiola.report.table import ProgressBar
    from hemiola.report.words import no_job_ended
    from hemiola.simulator.scenario import prepare
    from hemiola.simulator.simulate import Recording
    from hemiola.simulator.sweep import sweep

    console = terminal(stderr=True)
    files = {name: _output_files(outputs, name) for name in scenarios}
    recording = Recording(
        timeline=bool({"report", "timeline", "decisions"} & outputs.keys()),
        decisions="decisions" in outputs,
        traffic="report" in outputs,
    )
    with ProgressBar(console) as bar:
        prepared = [
            prepare(scenario, served=_served(scenario), say=bar.say) for scenario in scenarios.values()
        ]
    done = sweep(
        prepared, executor, recording=recording, folder=folder,
        progress=lambda *so_far: bar.update(*so_far), say=lambda line: bar.say(line),
    )  # fmt: skip
    missing = 0
    idle: list[str] = []
    unwritten: list[HemiolaError] = []
    gone: BaseException | None = None
    with closing(done):
        for name in scenarios:
            with ProgressBar(console) as bar:
                swept = next(done)
            missing += swept.missing
            if swept.comparison is not None:
                written, failed = _write_all(swept.comparison, files[name])
                unwritten += failed
                idle += no_job_ended(swept.comparison)
                try:
                    _show(name, swept.comparison, written, console)
                except (BrokenPipeError, SystemExit) as end:  # the latter is Rich's: nobody reads on
                    if not (outputs or folder):
                        raise
                    gone = gone or end
    for told in idle:
        fail(told, "give a cluster that has what they ask for, or take the wish out of the workload")
    for error in unwritten if missing else unwritten[1:]:
        fail(error.what, error.remedy)
    if missing:
        remedy = (
            "the same command goes on" if folder else "with --resume FOLDER, what was done is not done again"
        )
        console.print(f"interrupted: {missing:,} runs are not done; {remedy}", highlight=False)
        raise SystemExit(130)
    if unwritten:
        raise unwritten[0]
    if gone is not None:
        raise gone
    if idle:
        raise SystemExit(1)


def _output_files(outputs: dict[str, Path], scenario: str) -> dict[str, Path]:
    """Where a scenario's outputs go: where it was said, or with a name in the folders that were named."""
    from hemiola.core.errors import InputError

    for path in outputs.values() if scenario else ():
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{path} cannot be a folder: {error.strerror}",
                "of several scenarios, each writes a file into it",
            ) from error
    files = {
        name: path / f"{scenario}{SUFFIXES[name]}" if scenario else path for name, path in outputs.items()
    }
    writable(*files.values())
    return files


def _write_all(comparison: Comparison, files: dict[str, Path]) -> tuple[list[Path], list[HemiolaError]]:
    """Write every file that can be written; which those are, and why others cannot."""
    from hemiola.core.errors import HemiolaError

    written: list[Path] = []
    unwritten: list[HemiolaError] = []
    for output, path in files.items():
        try:
            _write(output, comparison, path)
        except HemiolaError as error:
            unwritten.append(error)
        else:
            written.append(path)
    return written, unwritten


def _show(name: str, comparison: Comparison, written: list[Path], console: Console) -> None:
    """Print the table, and which files were written."""
    from hemiola.report.table import table
    from hemiola.trace.struct_json import as_text

    out = terminal()
    try:
        if name:
            out.rule(as_text(name), align="left")
        out.print(table(comparison))
    finally:
        for path in written:
            console.print(f"wrote {path}", style="dim", highlight=False, soft_wrap=True)


def _write(name: str, comparison: Comparison, path: Path) -> None:
    if name == "json":
        from hemiola.trace.results import write_json

        write_json(comparison, path)
    elif name == "jobs_csv":
        from hemiola.trace.results import write_jobs_csv

        write_jobs_csv(comparison, path)
    elif name == "decisions":
        from hemiola.trace.decisions import write_decisions

        write_decisions(comparison, path)
    elif name == "report":
        from hemiola.report.html import write_report

        write_report(comparison, path)
    elif name == "timeline":
        from hemiola.trace.perfetto import write_timeline

        write_timeline(comparison, path)


def policies(*, semantics: str = "event-driven") -> None:
    """List the policies with their parameters and sources.

    Parameters
    ----------
    semantics
        The rules under which they exist.
    """
    from hemiola.report.words import policy_list
    from hemiola.simulator.rules import semantics_by_name

    terminal().print(policy_list(semantics_by_name(semantics).policies))


def explain(
    what: str,
    job: str = "",
    /,
    *,
    policy: str = "",
    seed: int | None = None,
    journal: str = "",
    partition: str = "hemiola",
    engine: str = "",
    json: Annotated[bool, Switch] = False,
) -> None:
    """Tell a job's story: why it waited, for whom, why these nodes, why it was pre-empted, when it will start.

    Parameters
    ----------
    what
        What "hemiola simulate --decisions FILE" wrote, or a journal; without a JOB behind it, a live job's id.
    job
        The job's id.
    policy
        Of a decisions file, only under this policy; all that ran unless given.
    seed
        Of a decisions file, only with this seed.
    journal
        Of a live job: what "hemiola serve --journal" writes; the same place as there unless given.
    partition
        Of a live job: the partition that Hemiola manages.
    engine
        Of a live job: what runs the jobs, as in "hemiola serve". Default: what the journal says.
    json
        Of a live job: all that is told, as JSON.
    """
    from hemiola.cli.explain import explain_live, is_journal
    from hemiola.core.errors import InputError

    if not job and os.path.isfile(what):  # noqa: PTH113 - pathlib's raises where a folder may not be searched
        raise InputError(f"of which job of {what}?", f"name it: hemiola explain {shlex.quote(what)} JOB")
    if not job or is_journal(what):
        explain_live(
            job or what, journal=what if job else journal, partition=partition, engine=engine, json=json
        )
        return
    from hemiola.report.story import explain as tell

    print(tell(Path(what), job, policy=policy, seed=seed))
