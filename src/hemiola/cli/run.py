"""`hemiola run`: start a training job as torchrun does, and say at the end what it took."""

from __future__ import annotations

import inspect
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from hemiola.cli.output import hosts_of, output_of, passed_on, terminal, writable

if TYPE_CHECKING:
    from hemiola.analysis.job.metrics import JobMetrics
    from hemiola.core.plan import Acceleration, Plan
    from hemiola.profiler.trace.values import TraceOptions
    from hemiola.train.launch import Failure, HostNumber, LaunchOutcome, LaunchSpec, World

__all__ = ["conclude", "run", "separated"]

Switch = Parameter(negative="")
Several = Annotated[tuple[str, ...], Parameter(name="--env", negative="")]


def run(
    *command: str,
    nproc: Annotated[str, Parameter(name=["--nproc", "--nproc-per-node", "--nproc_per_node"])] = "",
    hosts: str = "",
    module: Annotated[bool, Parameter(name=["--module", "-m"], negative="")] = False,
    no_python: Annotated[bool, Parameter(name=["--no-python", "--no_python"], negative="")] = False,
    python: str = "",
    plan: Path | None = None,
    trace: Path | None = None,
    full: Annotated[bool, Switch] = False,
    report: Path | None = None,
    logs: Path | None = None,
    show: str = "",
    env: Several = (),
    remote_shell: str = "",
    nnodes: int = 1,
    node_rank: Annotated[int, Parameter(name=["--node-rank", "--node_rank"])] = 0,
    master_addr: Annotated[str, Parameter(name=["--master-addr", "--master_addr"])] = "",
    master_port: Annotated[int | None, Parameter(name=["--master-port", "--master_port"])] = None,
    standalone: Annotated[bool, Switch] = False,
    on_loss: Literal["fail", "continue"] = "fail",
    min_ranks: int = 1,
    share_input: Annotated[bool, Switch] = False,
) -> None:
    """Start a training job as torchrun does, by a plan if there is one: hemiola run --nproc 4 train.py --lr 0.1.

    Options of Hemiola stand before the script; all that follows it is the script's. One rank's failure ends
    the others, and its exit status is the command's, unless --on-loss says otherwise. Ctrl-C is passed on, a
    second one kills.

    Parameters
    ----------
    command
        The script and its arguments.
    nproc
        Ranks on each host: a number, "gpu", "cpu", or "auto" (GPUs, else cores). As many as it has GPUs
        unless given, 1 without.
    hosts
        Start ranks on these hosts, rank 0 on the first: "n[0-3]", "a,b". On this host unless given.
    module
        The script is a module's name, as for python -m.
    no_python
        The script is a program, not Python.
    python
        The Python of every host; the one that runs this unless given.
    plan
        What "hemiola plan -o" wrote: given to hemiola.accelerate in the script.
    trace
        Record the job there, as "hemiola trace" does.
    full
        Record every operation too; with --trace.
    report
        Write how it ended, what was predicted and what was measured there, as JSON.
    logs
        Write what each rank prints into this folder too: rank0.log, rank1.log, ...
    show
        Show the output of these ranks only: "0", "0,3".
    env
        Set NAME=VALUE for all ranks, or with --hosts pass on NAME; can be repeated.
    remote_shell
        How to run a command on a host, instead of ssh: "kubectl exec -i {host} -- sh -c {command}".
    nnodes
        Where each host is started by hand: how many there are.
    node_rank
        Where each host is started by hand: which one this is, from 0.
    master_addr
        The address of rank 0's host.
    master_port
        A port that is free there; one is chosen unless given, or 29500 with --nnodes.
    standalone
        As without it; so that a torchrun command can stay as it is.
    on_loss
        "continue": the others go on when a rank fails, in a script that can (hemiola.train.elastic.Membership);
        their store is kept by a process of its own.
    min_ranks
        With --on-loss continue: end all when fewer are left.
    share_input
        Let ranks that read with hemiola.prefetch share the store evenly, or by HEMIOLA_INPUT_WEIGHT; who gets less
        than the others, and why, is said on standard error.
    """
    from hemiola.cli.run import conclude
    from hemiola.cli.trace import alone
    from hemiola.train.launch import REMOTE_SHELL, LaunchSpec, launch

    writable(trace, report)
    python = python or sys.executable
    _goes_on(on_loss, min_ranks)
    recording = _recording(trace, full)
    given = _environment(env, bool(hosts)) | _plan_variables(plan) | _loss_variables(on_loss, min_ranks)
    given |= {"HEMIOLA_SHARE_INPUT": "1"} if share_input else {}
    job = LaunchSpec(
        **_command(command, module, no_python, python),
        hosts=hosts_of(hosts),
        ranks_per_host=_ranks_per_host(nproc),
        nodes=_nodes(nnodes, node_rank, master_addr, hosts, standalone),
        master_address=master_addr,
        master_port=master_port,
        environment=given | _recording_variables(recording, given, bool(hosts)),
        remote_shell=remote_shell or REMOTE_SHELL,
        python=python,
        goes_on=on_loss == "continue",
        ranks_min=min_ranks,
    )
    read = _plan(plan)
    claimed = alone(recording) if recording is not None and node_rank == 0 else nullcontext()
    with claimed as claim:
        since_ns = 0 if claim is None else claim.since_ns
        outcome = launch(
            job,
            lambda world: output_of(world, logs, _shown(show, world)),
            lambda world: _admit(world, job, read, plan),
            _say_lost,
        )
        conclude(outcome, command, recording, report, job.nodes, since_ns)
    if outcome.lost and outcome.failure is None:
        print(
            f"hemiola run: warning: {len(outcome.lost)} lost on the way, the others ended well",
            file=sys.stderr,
        )
    raise SystemExit(outcome.status)


def separated(words: Sequence[str]) -> list[str]:
    """The words of a command line with "--" before the script of `hemiola run`, so that what follows is the script's.

    Example:
        >>> separated(["run", "--nproc", "2", "train.py", "--plan", "its own"])
        ['run', '--nproc', '2', '--', 'train.py', '--plan', 'its own']
    """
    if words[:1] != ["run"]:
        return list(words)
    switches = {"-h", *_switches()}
    place = 1
    while place < len(words) and words[place].startswith("-") and words[place] != "--":
        alone = words[place] in switches or "=" in words[place]
        place += 1 if alone else 2
    if place >= len(words) or words[place] == "--":
        return list(words)
    return [*words[:place], "--", *words[place:]]


def _switches() -> list[str]:
    """Options without a value: of this verb, and of every verb."""
    found = ["--help", "--version"]
    for name, hint in inspect.get_annotations(run).items():
        if hint.startswith("Annotated[bool"):
            found.append(f"--{name.replace('_', '-')}")
    return [*found, "-m", "--no_python"]


def _command(words: tuple[str, ...], module: bool, no_python: bool, python: str) -> dict[str, Any]:
    """What each rank runs, and what has to be there for it."""
    from hemiola.core.errors import InputError

    if not words:
        raise InputError("there is no script to run", "name it: hemiola run --nproc 2 train.py")
    if module and no_python:
        raise InputError("-m beside --no-python", "give one of them")
    if no_python:
        return {"command": words, "needs": ("program", words[0])}
    if module:
        return {"command": (python, "-m", *words)}
    return {"command": (python, *words), "needs": ("script", words[0])}


def _ranks_per_host(text: str) -> str:
    from hemiola.core.errors import InputError

    if text in ("", "auto", "gpu", "cpu") or (text.isdecimal() and int(text) > 0):
        return text
    raise InputError(f"--nproc {text}", "give a number of ranks for each host, or auto, gpu or cpu")


def _nodes(count: int, number: int, address: str, hosts: str, standalone: bool) -> HostNumber | None:
    from hemiola.core.errors import InputError
    from hemiola.train.launch import HostNumber

    if not 0 <= number < count:
        raise InputError(
            f"--node-rank {number} of --nnodes {count}", "number the hosts from 0 to --nnodes less 1"
        )
    if count == 1:
        return None
    if hosts or standalone:
        other = "--hosts" if hosts else "--standalone"
        raise InputError(
            f"--nnodes {count} beside {other}", "start each host by hand, or have --hosts start them"
        )
    if not address:
        raise InputError(
            f"--nnodes {count} without --master-addr", "give the address of the host with --node-rank 0"
        )
    return HostNumber(number, count)


def _environment(given: tuple[str, ...], remote: bool) -> dict[str, str]:
    import os

    from hemiola.core.errors import InputError

    found = passed_on() if remote else {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or (not equals and name not in os.environ):
            raise InputError(f"--env {text}", "write NAME=VALUE, or the name of a variable that is set here")
        found[name] = value if equals else os.environ[name]
    return found


def _plan(path: Path | None) -> Plan | None:
    from hemiola.trace.struct_json import read_plan

    return read_plan(path) if path is not None else None


def _plan_variables(path: Path | None) -> dict[str, str]:
    return {"HEMIOLA_PLAN": str(path.absolute())} if path is not None else {}


def _recording(path: Path | None, full: bool) -> TraceOptions | None:
    from hemiola.core.errors import InputError
    from hemiola.profiler.trace.api import options_for

    if path is None and full:
        raise InputError("--full without --trace", "say where the recording goes: --trace run.trace.json")
    return options_for(path, mode="full" if full else "light") if path is not None else None


def _recording_variables(options: TraceOptions | None, given: dict[str, str], remote: bool) -> dict[str, str]:
    """What makes a rank record itself, if only for the scheduler, in the environment that it is given."""
    import os

    from hemiola.profiler.trace.injected import RECORD, variables
    from hemiola.profiler.trace.keeper import REPORTS, job_name
    from hemiola.profiler.trace.values import TraceOptions

    environment = os.environ | given
    job = job_name(environment) if environment.get(REPORTS) else ""
    if options is None and job and not environment.get(RECORD):  # what is being recorded is reported, too
        options = TraceOptions(path="", parts="", answer_signal=False)
    found = {"HEMIOLA_JOB": job} if job and remote else {}  # the engine's own variables stay here
    return found | (variables(options, environment) if options is not None else {})


def _goes_on(on_loss: str, min_ranks: int) -> None:
    from hemiola.core.errors import InputError

    if min_ranks < 1 or (min_ranks > 1 and on_loss == "fail"):
        raise InputError(
            f"--min-ranks {min_ranks} with --on-loss {on_loss}",
            "give a number above 0, and --on-loss continue",
        )


def _loss_variables(on_loss: str, min_ranks: int) -> dict[str, str]:
    """What a script's membership reads."""
    return {} if on_loss == "fail" else {"HEMIOLA_ON_LOSS": on_loss, "HEMIOLA_RANKS_MIN": str(min_ranks)}


def _say_lost(failure: Failure, running: int) -> None:
    from hemiola.train.launch import ending

    who = f"rank {failure.rank}" if failure.rank is not None else "the connection"
    where = f" on {failure.host}" if failure.host else ""
    others = {0: "the others have ended", 1: "1 rank goes on"}.get(running, f"{running} ranks go on")
    said = "".join(f"\n  | {line}" for line in failure.last_words)
    print(
        f"hemiola run: warning: {who}{where} was lost, with {ending(failure.status)}; {others}"
        + (f". It said last:{said}" if said else ""),
        file=sys.stderr,
        flush=True,
    )


def _admit(world: World, job: LaunchSpec, plan: Plan | None, path: Path | None) -> None:
    """Refuse a plan for another number of ranks; say what was set that nobody asked for."""
    from hemiola.core.errors import PlanError

    if plan is not None and plan.ranks != world.ranks:
        raise PlanError(
            f"the plan in {path} is for {plan.ranks} ranks, and this job has {world.ranks}",
            f"start {plan.ranks} ranks, or plan anew: hemiola plan --ranks {world.ranks}",
        )
    threads = sorted({place.threads for place in world.places if place.threads})
    if threads:
        each = " or ".join(map(str, threads))
        print(
            f"hemiola run: {world.ranks} ranks; OMP_NUM_THREADS is {each}, a rank's share of the cores",
            file=sys.stderr,
        )


def _shown(text: str, world: World) -> frozenset[int] | None:
    from hemiola.core.errors import InputError

    if not text:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) < world.ranks for part in parts):
        raise InputError(
            f"--show {text}", f"write ranks from 0 to {world.ranks - 1} with commas between: 0,1"
        )
    return frozenset(map(int, parts))


# What `hemiola run` says once all ranks have ended: who failed, what was predicted, measured and exposed.

_HINT = "nothing was predicted or measured: --trace FILE records the job, hemiola.accelerate in the script speeds it up"


def conclude(
    outcome: LaunchOutcome,
    command: tuple[str, ...],
    recording: TraceOptions | None,
    report: Path | None,
    nodes: HostNumber | None = None,
    since_ns: int = 0,
) -> None:
    """Say it on standard error, and write the report if one was asked for.

    Of hosts that were started by hand (`nodes`) the first knows of all: the others leave the recording to it.

    Args:
        since_ns: when the recording began; see `merged`.

    Raises:
        InputError: the report cannot be written.
    """
    from hemiola.report.job.table import print_acceleration, print_measured

    console = terminal(stderr=True, highlight=False)
    if outcome.failure is not None:
        console.print(_failed(outcome, outcome.failure), soft_wrap=True)
    knows = nodes is None or nodes.rank == 0
    metrics = _measured(recording, outcome, nodes, since_ns) if recording is not None and knows else None
    acceleration = _acceleration(outcome)
    if acceleration is not None:
        print_acceleration(console, acceleration)
    elif metrics is not None:
        print_measured(console, metrics)
    elif recording is None and outcome.failure is None and knows:
        console.print(_HINT, soft_wrap=True, style="dim")
    if report is not None:
        _write(report, _as_json(outcome, command, acceleration, recording, metrics))


def _failed(outcome: LaunchOutcome, failure: Failure) -> str:
    """Who failed first and how, and what it said last."""
    from hemiola.train.launch import ending

    where = f" on {failure.host}" if failure.host else ""
    who = (
        f"rank {failure.rank}{where}"
        if failure.rank is not None
        else f"the connection to {failure.host or 'the ranks'}"
    )
    how = ending(failure.status)
    if outcome.interrupted:
        return f"hemiola run: interrupted; {who} ended with {how}"
    others, first = ("; the others were ended", " first") if outcome.ranks > 1 else ("", "")
    said = "".join(f"\n  | {line}" for line in failure.last_words) if outcome.ranks > 1 else ""
    return f"hemiola run: {who} failed{first}, with {how}{others}" + (
        f". It said last:{said}" if said else ""
    )


def _measured(
    recording: TraceOptions, outcome: LaunchOutcome, nodes: HostNumber | None, since_ns: int
) -> JobMetrics | None:
    """Of the recording, which is put together now; ranks that others have started may take a while longer."""
    from hemiola.analysis.job.metrics import job_metrics
    from hemiola.cli.trace import merged
    from hemiola.profiler.trace.api import wait_for_parts

    parts = Path(recording.parts)
    if nodes is not None and parts.is_dir():
        wait_for_parts(parts, outcome.ranks, crashed=outcome.status != 0, since_ns=since_ns)
    timeline = merged(recording, since_ns)
    return job_metrics(timeline) if timeline is not None and len(timeline.iterations) > 1 else None


def _acceleration(outcome: LaunchOutcome) -> Acceleration | None:
    """What hemiola.accelerate has left; None if the script did not use it, or is of another version."""
    from hemiola.core.errors import InputError
    from hemiola.trace.struct_json import read_acceleration

    if not outcome.report:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "acceleration.json"
        path.write_text(outcome.report, encoding="utf-8")
        try:
            return read_acceleration(path)
        except InputError as error:
            print(f"hemiola run: what rank 0 left cannot be read: {error.what}", file=sys.stderr)
            return None


def _as_json(
    outcome: LaunchOutcome,
    command: tuple[str, ...],
    acceleration: Acceleration | None,
    recording: TraceOptions | None,
    metrics: JobMetrics | None,
) -> dict[str, Any]:
    import msgspec

    from hemiola.trace.struct_json import as_text

    measured: dict[str, float | None] = {"iteration_s": None, "exposed_s": None}
    if metrics is not None:
        whole_s = metrics.iteration_s.median
        measured = {
            "iteration_s": whole_s,
            "exposed_s": metrics.exposed_share * whole_s,
        }
    said = msgspec.to_builtins(outcome)
    del said["report"]
    words = [as_text(word) for word in command]
    return {
        "schema": "hemiola.run/1", "command": words, **said, "acceleration": acceleration,
        "trace": as_text(recording.path) if recording is not None else None, **measured,
    }  # fmt: skip


def _write(path: Path, value: dict[str, Any]) -> None:
    import msgspec

    from hemiola.trace.atomic import replacing

    with replacing(path) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
