"""Runs in this process, and in a pool of processes of this machine."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import cast

from hemiola.core.errors import EngineError, InputError
from hemiola.simulator.simulate import Recording
from hemiola.simulator.sweep.answers import RunAnswer
from hemiola.simulator.sweep.tasks import (
    Answers,
    Packed,
    PickledError,
    RunTask,
    Work,
    compute,
    compute_packed,
    program_of,
)

__all__ = ["Adaptive", "Here", "ProcessPool", "cores"]

PATIENCE_S = 1.0
GRACE_S = 5.0
ATTEMPTS = 3


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Here:
    """One task after another, in this process."""

    def answers(self, work: Work) -> Answers:
        """Each task with its answer, in order."""
        for task in work.tasks:
            answer = compute(work.scenarios[task.scenario], task, work.recording, work.progress)
            yield task, answer
            if answer.interrupted:
                return


@dataclass(frozen=True)
class Adaptive:
    """In this process for a second, which is enough for most; what is then left, in a pool.

    Attributes:
        patience_s: how long before processes are started, which takes about as long.
    """

    pool: ProcessPool
    patience_s: float = PATIENCE_S

    def answers(self, work: Work) -> Answers:
        """Each task with its answer; in order while in this process."""
        end_s = time.monotonic() + self.patience_s
        left = list(work.tasks)

        def watched(policy: str, seed: int, ended: int, jobs: int) -> None:
            if len(left) > 1 and time.monotonic() > end_s:
                raise _TakesLongError
            if work.progress is not None:
                work.progress(policy, seed, ended, jobs)

        with suppress(_TakesLongError):
            for task, answer in Here().answers(replace(work, progress=watched)):
                left.remove(task)
                yield task, answer
            return
        yield from self.pool.answers(replace(work, tasks=left))


class _TakesLongError(Exception):
    """What is left is worth starting processes for."""


@dataclass(frozen=True)
class ProcessPool:
    """In processes of this machine. One that dies costs the run that it was at, which another does again.

    Attributes:
        workers: how many at the same time.
    """

    workers: int

    def answers(self, work: Work) -> Answers:
        """Each task with its answer, as they end.

        Raises:
            EngineError: processes died again and again on the same task.
            InputError: one of them has found the policy's file edited.
        """
        packed = [Packed.of(prepared) for prepared in work.scenarios]
        workers = [_Worker(packed, work.recording) for _ in work.tasks[: self.workers]]
        try:
            yield from _as_they_end(workers, deque(work.tasks))
        except KeyboardInterrupt:
            yield from _interrupted(workers)
        finally:
            for worker in workers:
                worker.end()


class _Worker:
    """A process that does one task after another.

    It has a pipe of its own: where several share one, as in `concurrent.futures`, a process that is killed in the
    middle of an answer leaves the others, and the driver, waiting for its end.

    Attributes:
        task: what it is at.
        torn: whether its answer was begun to be read, and not ended: what comes next from the pipe is no answer.
    """

    def __init__(self, packed: list[Packed], recording: Recording) -> None:
        self._needs = packed, recording
        self.task: RunTask | None = None
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        self.pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, *self._needs), daemon=True)
        self._process.start()
        other.close()
        self.torn = False

    def give(self, task: RunTask) -> None:
        """Begin with this; in a new process, where the last one has died."""
        self.task = task
        try:
            self.pipe.send(task)
        except OSError:
            self.end()
            self._start()
            self.pipe.send(task)

    def take(self) -> RunAnswer | None:
        """The answer; None without one, because of Ctrl-C or because the process died: then there is a new one.

        Raises:
            HemiolaError, Exception: what the task raised.
        """
        self.torn = True
        try:
            found = self.pipe.recv()
        except (EOFError, OSError):
            self.end()
            self._start()
            return None
        self.torn = False
        if isinstance(found, PickledError):
            raise found.error()
        if isinstance(found, BaseException):
            raise found
        return cast(RunAnswer | None, found)

    def interrupt(self) -> None:
        """Pass Ctrl-C on."""
        with suppress(ProcessLookupError):
            os.kill(self._process.pid or 0, signal.SIGINT)

    def end(self) -> None:
        """At once."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self.pipe.close()


def _as_they_end(workers: Sequence[_Worker], left: deque[RunTask]) -> Answers:
    died: Counter[RunTask] = Counter()
    while True:
        for worker in workers:
            if worker.task is None and left:
                worker.give(left.popleft())
        busy = {worker.pipe: worker for worker in workers if worker.task is not None}
        if not busy:
            return
        for pipe in wait(list(busy)):
            worker = busy[cast(Connection, pipe)]
            task, answer, worker.task = worker.task, worker.take(), None
            assert task is not None
            if answer is None:
                left.appendleft(_once_more(task, died))
                continue
            yield task, answer
            if answer.interrupted:
                raise KeyboardInterrupt


def _once_more(task: RunTask, died: Counter[RunTask]) -> RunTask:
    died[task] += 1
    if died[task] == ATTEMPTS:
        raise EngineError(
            f"{task.name}, seed {task.seed}: its process was killed {ATTEMPTS} times",
            "is there enough memory? try fewer --workers",
        )
    return task


def _interrupted(workers: Sequence[_Worker]) -> Answers:
    """Tell those that are at something, and give what they have."""
    busy = {worker.pipe: worker for worker in workers if worker.task is not None and not worker.torn}
    for worker in busy.values():
        worker.interrupt()
    end_s = time.monotonic() + GRACE_S
    while busy and (ready := wait(list(busy), timeout=max(0.0, end_s - time.monotonic()))):
        for pipe in ready:
            worker = busy.pop(cast(Connection, pipe))
            with suppress(Exception):
                if (answer := worker.take()) is not None and worker.task is not None:
                    yield worker.task, answer


_stopped = False
_busy = False


def _serve(pipe: Connection, packed: list[Packed], recording: Recording) -> None:
    """A process's life: end with the parent, leave Ctrl-C to it, answer each task, with None after Ctrl-C."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, _stop)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):  # the parent is gone
        while True:
            task = pipe.recv()
            pipe.send(_answer(packed[task.scenario], task, recording))


def _stop(number: int, frame: FrameType | None) -> None:
    """Ctrl-C outside a replay; within one it is the replay's to end."""
    global _stopped
    _stopped = True
    if _busy:
        raise KeyboardInterrupt


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _answer(
    packed: Packed, task: RunTask, recording: Recording
) -> RunAnswer | PickledError | Exception | None:
    global _busy, _stopped
    if _stopped:
        return None
    # each process reads it anew, this one later than others
    if task.program not in (None, program_of(task.policy)):
        return PickledError(
            InputError, f"the file of the policy {task.name} was changed while the sweep ran",
            "start it again; with --resume, what is finished is kept",
        )  # fmt: skip
    _busy = True
    try:
        answer = compute_packed(packed, task, recording)
    except KeyboardInterrupt:
        return None
    except Exception as error:
        return _sendable(error)
    finally:
        _busy = False
    _stopped = _stopped or (isinstance(answer, RunAnswer) and answer.interrupted)
    return answer


def _sendable(error: Exception) -> Exception:
    """With where it happened, which does not travel by itself."""
    told = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(repr(error))
    error.add_note(f"In a worker:\n{told}")
    return error
