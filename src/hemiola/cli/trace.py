"""`hemiola trace`: run a command, and record what the training job in it did."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Parameter

from hemiola.cli.output import terminal, writable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hemiola.core.errors import ScheduleError
    from hemiola.core.job_timeline import JobTimeline
    from hemiola.profiler.trace.values import TraceOptions

__all__ = ["alone", "inspect", "merged", "trace"]

_ASKED, _ASK_AGAIN_S = 10, 0.1
_NOTHING = "no process of the command ran a collective or a backward pass of PyTorch"


def trace(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("run.trace.json"),
    full: Annotated[bool, Parameter(negative="")] = False,
    keep: int | None = None,
    listen: str = "",
) -> None:
    """Record a training job, whose script needs no change: hemiola trace -- torchrun --nproc-per-node 2 train.py.

    Parameters
    ----------
    command
        What to run, after "--".
    output
        Write the timeline there; its parts lie in a folder beside it until all ranks have ended.
    full
        Record every operation too, with PyTorch's profiler; slower, and says by how much.
    keep
        So many of the last iterations are kept at least; 1000, or 100 with --full.
    listen
        Serve metrics and requests for traces there while the job runs: "PORT" or "HOST:PORT"; each rank
        of a host adds its local rank to the port.
    """
    from hemiola.core.errors import InputError
    from hemiola.profiler.trace.api import options_for
    from hemiola.profiler.trace.parts import part_files

    if not command:
        raise InputError("nothing to run", "give the command after --: hemiola trace -- torchrun … train.py")
    writable(output)
    options = options_for(output, mode="full" if full else "light", listen=listen, keep_iterations=keep)
    with alone(options) as claim:
        status = _run(command, options)
        if claim.other and not claim.is_left():
            print(f"the recording is put together by {claim.other}", file=sys.stderr)
        elif not claim.other or part_files(Path(options.parts), claim.since_ns):
            _wait_for_hosts(Path(options.parts), claim.since_ns, crashed=status != 0)
            merged(options, claim.since_ns)
    raise SystemExit(status)


class Claim(NamedTuple):
    """Who records into a file.

    Attributes:
        since_ns: when this began, by the clock of the files.
        other: the process on another host that was first; "" if this one is.
        handle: of the file by which they keep others away.
    """

    since_ns: int
    other: str
    handle: int

    def is_left(self) -> bool:
        """Whether the one that was first has gone: what others of the job leave later, it has not put together."""
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


@contextmanager
def alone(options: TraceOptions) -> Iterator[Claim]:
    """Keep others from recording into the same file meanwhile.

    One that began on another host is of the same job: each host has a command of its own, and the first one puts the
    recording together, unless it ends before the others.

    Raises:
        InputError: another process of this host is recording into it.
    """
    from hemiola.core.errors import InputError

    path = Path(f"{options.path}.lock")
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}", "name another file") from error
    try:
        other = _claim(path, handle, options.path)
        try:
            yield Claim(os.fstat(handle).st_mtime_ns, other, handle)
        finally:
            if not other:
                path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def _claim(path: Path, handle: int, recorded: str) -> str:
    """Lock the file, say in it by whom, and set its time; the lock ends with the process, however that ends.

    Who has locked it where that is on another host, else "".
    """
    from hemiola.core.errors import InputError

    here = f" on {socket.gethostname()}"
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        who = _holder(path)
        if not who.endswith(here):
            return who or "another host"
        raise InputError(
            f"{recorded} is being recorded by {who}", "wait for its end, or name another file"
        ) from error
    except OSError:  # a file system that knows no locks
        pass
    os.ftruncate(handle, 0)
    with suppress(OSError):  # a full disk
        os.write(handle, f"process {os.getpid()}{here}".encode())
    return ""


def _holder(path: Path) -> str:
    """Who has locked it; "" if that is not said soon. It is said just behind the lock, and over a network it takes a while."""
    for _ in range(_ASKED):
        time.sleep(_ASK_AGAIN_S)
        with suppress(OSError):
            if said := path.read_text(encoding="utf-8"):
                return said
    return ""


def _run(command: tuple[str, ...], options: TraceOptions) -> int:
    """Run the command to its end; its exit status as a shell would give it."""
    from hemiola.core.errors import InputError
    from hemiola.profiler.trace.injected import variables

    try:
        process = subprocess.Popen(command, env=os.environ | variables(options, os.environ))
    except OSError as error:
        raise InputError(
            f"cannot run {command[0]!r}: {error.strerror}", "check that it is installed and spelled so"
        ) from error
    previous = signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
    try:
        while True:
            try:
                status = process.wait()
                break
            except KeyboardInterrupt:  # the terminal has told the command too: let it end as it sees fit
                continue
    finally:
        signal.signal(signal.SIGTERM, previous)
    return 128 - status if status < 0 else status


def _wait_for_hosts(parts: Path, since_ns: int, *, crashed: bool) -> None:
    """Where the job has ranks on other hosts, too, these may take a while longer than the command here."""
    from hemiola.core.errors import InputError
    from hemiola.profiler.trace.api import wait_for_parts
    from hemiola.profiler.trace.parts import heads

    here = socket.gethostname()
    # what cannot be read is named by who puts it together, which an interrupt has done at once
    with suppress(InputError, OSError, KeyboardInterrupt):
        if elsewhere := [head.world_size for head in heads(parts, since_ns) if head.host != here]:
            wait_for_parts(parts, max(elsewhere), crashed=crashed, since_ns=since_ns)


def merged(options: TraceOptions, since_ns: int = 0) -> JobTimeline | None:
    """Put the parts together and say in a few lines what was recorded; None if nothing was, or they cannot be.

    Args:
        since_ns: when the recording began (`alone`): what lies there from before gives way to what it has left, and
            stays if that is nothing.
    """
    from hemiola.core.errors import InputError
    from hemiola.profiler.trace.api import finish

    path, parts = Path(options.path), Path(options.parts)
    earlier, has_own = [], False
    for part in parts.glob("*"):
        with suppress(FileNotFoundError):  # another host of the job has just put them together
            if part.stat().st_mtime_ns < since_ns:
                earlier.append(part)
            else:
                has_own |= part.name.startswith("rank")
    if not has_own:
        print(f"nothing was recorded: {_NOTHING}", file=sys.stderr)
        return None
    for part in earlier:
        with suppress(OSError):
            shutil.rmtree(part) if part.is_dir() else part.unlink()
    try:
        timeline = finish(path, parts)
    except (InputError, OSError) as error:
        print(f"the recording could not be put together: {error}", file=sys.stderr)
        command = shlex.join(["python", "-m", "hemiola.profiler.trace", str(parts), str(path)])
        print(f"the ranks' parts are kept in {parts}: {command}", file=sys.stderr)
        return None
    print("\n".join(_summary(timeline, path)), file=sys.stderr)
    if "partial" in timeline.facts:
        print(f"the ranks' parts are kept in {parts}", file=sys.stderr)
    return timeline


def _summary(timeline: JobTimeline, path: Path) -> Iterator[str]:
    """Iterations, exposed communication, where the file lies, how good the clocks are, what is missing."""
    from hemiola.analysis.job.metrics import job_metrics
    from hemiola.report.job.words import finding

    ranks = len(timeline.ranks)
    count = len(set(timeline.iterations.number.tolist()))
    yield f"recorded {count} iterations of {ranks} rank{'s' * (ranks != 1)} into {path}"
    if count > 1:
        yield finding(job_metrics(timeline))
    if ranks > 1:
        error_s = max(rank.clock_error_s for rank in timeline.ranks)
        yield (
            f"clocks agree within {error_s * 1e6:.0f} µs" if error_s < inf else "clocks could not be compared"
        )
    if "profiler_fraction" in timeline.facts["cost"]:
        more = timeline.facts["cost"]["profiler_fraction"]
        yield f"profiled iterations took {f'{more:.1%}' if more > 0 else 'not measurably'} longer than others"
    yield from (f"partial: {words}" for words in timeline.facts.get("partial", []))


# `hemiola inspect`.

Files = Annotated[tuple[Path, ...], Parameter(name="--against", consume_multiple=True, negative="")]


def inspect(
    *files: Path,
    against: Files = (),
    report: Path | None = None,
    json: Path | None = None,
    perfetto: Path | None = None,
    title: str = "",
    salvage: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Say where a training job's time goes, where a network is narrow, or what a collective's schedule sends.

    Of a job: exposed communication, critical path, late ranks, overlap. Of a topology: hosts that are alike, their
    rates and intervals, uplinks, the slowest link. Of a schedule: whether it is proved right, and who sends how much
    to whom.

    Parameters
    ----------
    files
        What "hemiola trace", "hemiola.record" or "hemiola predict" wrote, Kineto/Chrome traces, PyTorch
        execution traces or Chakra .et. Several files are the ranks of one job. Or one topology (TOML, or a
        generator's line), or one schedule (Hemiola's JSON or MSCCL's XML).
    against
        The file (or files) of another job to compare with: before a change, or measured where FILE is predicted.
    report
        Write a page with the pictures there (HTML).
    json
        Write all figures there.
    perfetto
        Write a timeline there that Perfetto opens.
    title
        Of the page; the job's name unless given.
    salvage
        Of damaged files read what stands before the damage.
    """
    from hemiola.core.errors import InputError

    if not files:
        raise InputError("there is no file to inspect", "name one: hemiola inspect job.trace.json")
    outputs = (report, json, perfetto)
    writable(*outputs)
    options = {"--against": against, "--perfetto": perfetto, "--salvage": salvage}
    kind = _kind(files, against, [name for name, value in options.items() if value])
    problem = None
    if kind:
        problem = _network(kind, files[0], report, json, title)
    else:
        _job(files, against, report, json, perfetto, title, salvage)
    for path in outputs:
        if path is not None:
            terminal(stderr=True).print(f"wrote {path}", style="dim", highlight=False, soft_wrap=True)
    if problem is not None:
        raise problem


def _kind(files: Sequence[Path], against: Sequence[Path], options: Sequence[str]) -> str:
    """ "topology" or "schedule", or "" for a job; the first two stand alone."""
    from hemiola.core.errors import InputError
    from hemiola.report.network.inspection import recognise

    for path in (*files, *against):
        if kind := recognise(path):
            if len(files) > 1 or options:
                beside = "other files" if len(files) > 1 else options[0]
                raise InputError(
                    f"{str(path)!r} is a {kind}, and does not go with {beside}",
                    f"inspect it alone: hemiola inspect {shlex.quote(str(path))} --report page.html",
                )
            return kind
    return ""


def _network(
    kind: str, file: Path, report: Path | None, json: Path | None, title: str
) -> ScheduleError | None:
    """Show a topology or a schedule; return why a schedule is not right, if it is not."""
    from hemiola.report.network.inspection import show_schedule, show_topology

    if kind == "schedule":
        return show_schedule(file, terminal(), report=report, json=json, title=title)
    show_topology(file, terminal(), report=report, json=json, title=title)
    return None


def _job(
    files: Sequence[Path], against: Sequence[Path], report: Path | None, json: Path | None, perfetto: Path | None, title: str,
    salvage: bool,
) -> None:  # fmt: skip
    from hemiola.analysis.job.metrics import job_metrics
    from hemiola.report.job.table import job_table
    from hemiola.trace.jobs.read import read_job

    timeline = read_job(files, salvage=salvage)
    metrics = job_metrics(timeline)
    other = job_metrics(read_job(against, salvage=salvage)) if against else None
    if report is not None:
        from hemiola.report.job.page import write_job_report

        write_job_report(metrics, report, other=other, title=title)
    if json is not None:
        from hemiola.report.job.inspection import write_inspection

        write_inspection(metrics, json, other)
    if perfetto is not None:
        from hemiola.trace.jobs.perfetto import write_perfetto

        write_perfetto(timeline, perfetto)
    terminal().print(job_table(metrics, other))
