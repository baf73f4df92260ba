"""`hemiola.record`: a training script's own way to have itself recorded."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from hemiola.core.errors import InputError
from hemiola.core.job_timeline import JobTimeline
from hemiola.profiler.trace.demands import demand_path
from hemiola.profiler.trace.merge import collect
from hemiola.profiler.trace.parts import ended_parts, part_files
from hemiola.profiler.trace.recorder import IterationRecorder, logger
from hemiola.profiler.trace.server import parse_address
from hemiola.profiler.trace.session import TraceSession
from hemiola.profiler.trace.values import TraceOptions
from hemiola.trace.jobs.timeline_json import write_timeline

__all__ = ["finish", "options_for", "parts_folder", "record", "wait_for_parts"]

_PATIENCE_S = 15.0
_PATIENCE_AFTER_CRASH_S = 2.0


@contextmanager
def record(
    path: str | Path,
    *,
    mode: Literal["light", "full"] = "light",
    listen: str | int | None = None,
    keep_iterations: int | None = None,
    demand_iterations: int | None = None,
    answer_signal: bool = True,
    clock_skew_s: float = 0.0,
) -> Iterator[IterationRecorder]:
    """Record what happens inside, on every rank that enters it, into one timeline at `path`.

    Each rank writes its part into the folder `path` + ".parts" while it runs; all ranks must see that folder. On
    leaving, rank 0 waits for the others, merges the parts and removes them; if some are missing, the
    timeline says so and the parts stay, for `collect`. Inside `hemiola trace` this does nothing.

    Args:
        path: the file to write; compressed if it ends in ".gz".
        mode: "light" for iterations, phases, transfers and waits, at next to no cost; "full" for
            every operation too, by PyTorch's profiler, after some light iterations to compare with.
        listen: serve metrics and take requests there: a port, or "HOST:PORT"; the host's local rank is
            added to the port. `HEMIOLA_RECORD_LISTEN` unless given; not at all if that is not set.
        keep_iterations: so many of the last iterations are kept, at most twice as many; 1000 if light, else 100.
        demand_iterations: length of a trace that SIGUSR2 asks for. `HEMIOLA_RECORD_ITERATIONS`, or 5.
        answer_signal: whether SIGUSR2 asks for a full trace.
        clock_skew_s: set this rank's clock so much ahead, to see that it is put right.

    Yields:
        The rank's recorder: `step()` marks iterations where optimizer steps do not, `span()` adds spans.

    Raises:
        InputError: if an argument is wrong, the path cannot be written, or PyTorch is missing.
    """
    options = options_for(
        Path(path), mode=mode, listen=listen, keep_iterations=keep_iterations, demand_iterations=demand_iterations,
        answer_signal=answer_signal, clock_skew_s=clock_skew_s,
    )  # fmt: skip
    if TraceSession.active is not None and not TraceSession.active.options.parts:
        TraceSession.active.close("")
    if TraceSession.active is not None:
        logger.warning("already recording into %s: %s is not written", TraceSession.active.options.path, path)
        yield TraceSession.active.recorder
        return
    session = TraceSession(options)
    try:
        session.arm()
    except Exception as problem:
        session.recorder.fail(problem)
    why = ""
    try:
        yield session.recorder
    except BaseException as problem:
        why = f"crashed: {type(problem).__name__}: {problem}"
        raise
    finally:
        _close(session, why)


def parts_folder(path: Path) -> Path:
    """Where the ranks' parts lie while the timeline at `path` is being recorded."""
    return path.with_name(path.name + ".parts")


def finish(path: Path, parts: Path, since_ns: int = 0) -> JobTimeline:
    """Merge the parts into the file, and remove them if none is missing; the timeline.

    Parts of a trace on demand stay until its file is there: another process may be reading them.

    Args:
        since_ns: parts of a later recording are left alone; see `part_files`.

    Raises:
        InputError: if there are no parts, or the path cannot be written.
    """
    timeline = collect(parts, path.name, since_ns)
    write_timeline(timeline, path)
    if "partial" not in timeline.facts:
        _remove(path, parts, since_ns)
    return timeline


def _remove(path: Path, parts: Path, since_ns: int) -> None:
    for folder in parts.glob("demand-*"):
        if demand_path(path, int(folder.name.removeprefix("demand-"))).exists():
            shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # what is left keeps the folder
        for part in part_files(parts, since_ns):
            part.unlink()
        parts.rmdir()


def options_for(
    path: Path,
    *,
    mode: str = "light",
    listen: str | int | None = None,
    keep_iterations: int | None = None,
    demand_iterations: int | None = None,
    answer_signal: bool = True,
    clock_skew_s: float = 0.0,
) -> TraceOptions:
    """How to record, from what was asked for and what the environment says; see `record`.

    Raises:
        InputError: if something asked for cannot be.
    """
    if mode not in ("light", "full"):
        raise InputError(f"there is no mode {mode!r} of recording", 'use mode="light" or mode="full"')
    if find_spec("torch") is None:
        raise InputError("recording needs PyTorch", "pip install 'hemiola[torch]'")
    path = path.absolute()
    if not path.parent.is_dir() or path.is_dir():
        raise InputError(f"{path} cannot be written", "name a file in a folder that exists")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"{path} cannot be written", "name a file in a folder that you may write to")
    address = str(listen) if listen not in (None, "") else os.environ.get("HEMIOLA_RECORD_LISTEN", "")
    if address:
        parse_address(address)
    usual = 1000 if mode == "light" else 100
    keep = usual if keep_iterations is None else keep_iterations
    demanded = _demanded() if demand_iterations is None else demand_iterations
    if keep < 1 or demanded < 1:
        raise InputError(f"cannot keep {keep} or trace {demanded} iterations", "give 1 or more")
    return TraceOptions(
        path=str(path), parts=str(parts_folder(path)), mode=mode, listen=address, keep_iterations=keep,
        demand_iterations=demanded, answer_signal=answer_signal, clock_skew_s=clock_skew_s,
    )  # fmt: skip


def _demanded() -> int:
    text = os.environ.get("HEMIOLA_RECORD_ITERATIONS") or "5"
    try:
        return int(text)
    except ValueError as error:
        raise InputError(
            f"HEMIOLA_RECORD_ITERATIONS={text}", "give a number of iterations, or unset it"
        ) from error


def wait_for_parts(folder: Path, ranks: int, *, crashed: bool, since_ns: int = 0) -> None:
    """Wait until so many ranks' parts have their end, but not for long; for less long if one of the ranks has crashed.

    Args:
        since_ns: parts that had their end before do not count; see `ended_parts`.
    """
    deadline = time.monotonic() + (_PATIENCE_AFTER_CRASH_S if crashed else _PATIENCE_S)
    while ended_parts(folder, since_ns) < ranks and time.monotonic() < deadline:
        time.sleep(0.1)


def _close(session: TraceSession, why: str) -> None:
    """End the recording; rank 0 merges. Nothing that fails here reaches the script."""
    try:
        if not session.close(why):
            if session.recorder.failure:
                return  # that has been said
            logger.warning("nothing was recorded: no collective ran and no optimizer stepped")
        elif session.head.rank == 0:
            _merge(session, crashed=bool(why))
    except Exception as problem:
        parts = session.options.parts
        logger.warning("the recording could not be put together, its parts are in %s: %s", parts, problem)


def _merge(session: TraceSession, *, crashed: bool) -> None:
    path, parts = Path(session.options.path), Path(session.options.parts)
    since_ns = session.began_ns
    wait_for_parts(parts, session.head.world_size, crashed=crashed, since_ns=since_ns)
    if "partial" in finish(path, parts, since_ns).facts:
        logger.warning("the timeline in %s is partial; the ranks' parts are kept in %s", path, parts)
