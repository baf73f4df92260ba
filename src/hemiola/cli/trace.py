"""`hemiola trace`: run a command, and record what the training job in it did."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hemiola.cli.output import writable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hemiola.core.job_timeline import JobTimeline
    from hemiola.run.record.values import Options

__all__ = ["merged", "trace"]

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
    from hemiola.run.record.api import options_for

    if not command:
        raise InputError("nothing to run", "give the command after --: hemiola trace -- torchrun … train.py")
    writable(output)
    options = options_for(output, mode="full" if full else "light", listen=listen, keep_iterations=keep)
    status = _run(command, options)
    merged(options)
    raise SystemExit(status)


def _run(command: tuple[str, ...], options: Options) -> int:
    """Run the command to its end; its exit status as a shell would give it."""
    from hemiola.core.errors import InputError
    from hemiola.run.record.injected import variables

    shutil.rmtree(options.parts, ignore_errors=True)
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


def merged(options: Options) -> JobTimeline | None:
    """Put the parts together and say in a few lines what was recorded; None if nothing was, or they cannot be."""
    from hemiola.core.errors import InputError
    from hemiola.run.record.api import finish

    path, parts = Path(options.path), Path(options.parts)
    if not any(parts.glob("rank*")):
        print(f"nothing was recorded: {_NOTHING}", file=sys.stderr)
        return None
    try:
        timeline = finish(path, parts)
    except InputError as error:
        print(f"the recording could not be put together: {error}", file=sys.stderr)
        command = shlex.join(["python", "-m", "hemiola.run.record", str(parts), str(path)])
        print(f"the ranks' parts are kept in {parts}: {command}", file=sys.stderr)
        return None
    print("\n".join(_summary(timeline, path)), file=sys.stderr)
    if "partial" in timeline.facts:
        print(f"the ranks' parts are kept in {parts}", file=sys.stderr)
    return timeline


def _summary(timeline: JobTimeline, path: Path) -> Iterator[str]:
    """Iterations, exposed communication, where the file lies, how good the clocks are, what is missing."""
    from hemiola.core.job_metrics import job_metrics
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
