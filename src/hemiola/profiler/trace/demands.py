"""Full traces of a running job, asked for by signal or HTTP: agreed on by all ranks, written, put together.

Whoever is asked puts the request into the job's store, as the next by number and with a first iteration a little
ahead, so that every rank traces the same iterations; of several that are asked at once, one is the first. Each
rank writes a part; rank 0 waits for the parts and has another process merge them.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from hemiola.profiler.trace.keeper import Keeper
from hemiola.profiler.trace.parts import PartWriter, ended_parts
from hemiola.profiler.trace.profile import Profiling, TraceDemand
from hemiola.profiler.trace.recorder import IterationRecorder, logger
from hemiola.profiler.trace.values import End, Iteration, IterationDraft, PartFacts, TraceOptions

__all__ = ["Demands", "TraceRequest", "demand_path"]

_LEAD_S = 1.5
_PATIENCE_S = 60.0
_MERGE_S = 10.0
"""So long the end of the script waits for what is being put together then."""
_UNLIMITED = 2**62
_MERGE = (
    "import sys; sys.path.append(sys.argv.pop(1)); from hemiola.profiler.trace.__main__ import main; main()"
)
"""As `python -m hemiola.profiler.trace`, where the job's environment need not have Hemiola, as in `inject/sitecustomize.py`."""


class _Message(msgspec.Struct):
    first: int
    iterations: int


def demand_path(path: Path, number: int) -> Path:
    """Where the trace asked for as number so much will lie, beside the recording's own file."""
    name, dot, endings = path.name.partition(".")
    return path.with_name(f"{name}-demand-{number}{dot}{endings}")


class TraceRequest:
    """Somebody has asked this rank for so many iterations; once `answered` is set, `demand` is what they get."""

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations
        self.answered = threading.Event()
        self.demand: TraceDemand | None = None


class Demands:
    """The requests of one rank."""

    def __init__(
        self, recorder: IterationRecorder, profiling: Profiling, keeper: Keeper, options: TraceOptions
    ) -> None:
        self._recorder = recorder
        self._profiling = profiling
        self._keeper = keeper
        self._options = options
        self._asked: deque[TraceRequest] = deque()
        self._seen = 0
        self._writers: dict[int, PartWriter] = {}
        self._merging: dict[int, float] = {}
        self.mergers: list[subprocess.Popen[bytes]] = []
        """Of the traces that are being put together now."""
        self._light_ns: deque[int] = deque(maxlen=50)
        self.store: Any = None
        keeper.every.append(self._visit)
        keeper.on_iteration.append(self._keep)
        keeper.at_end.append(self._close)

    def ask(self, iterations: int) -> TraceRequest:
        """Ask for so many iterations. A trace of as many that is outstanding is the answer, else a new one."""
        request = TraceRequest(iterations)
        self._asked.append(request)
        return request

    def withdraw(self, request: TraceRequest) -> None:
        """Ask no longer."""
        with suppress(ValueError):  # it has just been answered
            self._asked.remove(request)

    def _visit(self) -> None:
        try:
            self._listen()
            for request in list(self._asked):
                self._answer(request)
        except (OSError, RuntimeError, msgspec.MsgspecError) as problem:
            # the store is gone, training may go on
            logger.info("traces are no longer agreed upon with the other ranks: %s", problem)
            self.store = None
        for number in list(self._merging):
            self._merge_when_whole(number)
        for merger in [one for one in self.mergers if one.poll() is not None]:
            self.mergers.remove(merger)
            _say_if_failed(merger)

    def _answer(self, request: TraceRequest) -> None:
        """With what is outstanding if that is enough; with a new trace if nothing is."""
        demand = self._profiling.demand
        if demand is None and (self.store is None or self._light_ns):
            demand = self._announce(request.iterations)
        if demand is not None and demand.iterations >= request.iterations:
            request.demand = demand
            self.withdraw(request)
            request.answered.set()

    def _announce(self, iterations: int) -> TraceDemand | None:
        """Far enough ahead for all ranks to have heard of it, at the pace of the fastest iteration so far: the
        first ones are slow. Where another rank has announced this number meanwhile, its word holds."""
        lead = 1 if self.store is None else 2 + int(_LEAD_S / max(min(self._light_ns) / 1e9, 1e-4))
        message = _Message(self._recorder.number + lead, iterations)
        if self.store is not None:
            content = msgspec.json.encode(message).decode()
            first = self.store.compare_set(f"demand/{self._seen + 1}", "", content)
            message = msgspec.json.decode(first, type=_Message)
        self._seen += 1
        return self._start(self._seen, message)

    def _listen(self) -> None:
        """Look for the next request of any rank."""
        key = f"demand/{self._seen + 1}"
        if self._profiling.demand is None and self.store is not None and self.store.check([key]):
            self._seen += 1
            self._start(self._seen, msgspec.json.decode(self.store.get(key), type=_Message))

    def _start(self, number: int, message: _Message) -> TraceDemand | None:
        first = max(message.first, self._recorder.number + 1)
        if first < message.first + message.iterations:
            self._profiling.demand = demand = TraceDemand(
                number, first, message.first + message.iterations - first
            )
            return demand
        logger.warning("the request for trace %d came too late for this rank", number)
        self._complete(number, "the request came too late")
        return None

    def _keep(self, draft: IterationDraft, iteration: Iteration) -> None:
        if iteration.complete and not iteration.profiled and iteration.number > 0:
            self._light_ns.append(iteration.end - iteration.start)
        if not draft.demand:
            return
        self._writer(draft.demand).write(iteration)
        if draft.demand_ends:
            self._complete(draft.demand, "")

    def _writer(self, number: int) -> PartWriter:
        if number not in self._writers:
            head = self._keeper.head
            stem = self._folder(number) / f"rank{head.rank if head else 0:05d}-{head.pid if head else 0}"
            self._writers[number] = PartWriter(stem, _UNLIMITED, _UNLIMITED, self._keeper.writer.preamble)
        return self._writers[number]

    def _complete(self, number: int, why: str) -> None:
        writer = self._writer(number)
        del self._writers[number]
        if self._light_ns:
            writer.write(PartFacts({"light_iteration_s": median(self._light_ns) / 1e9}))
        writer.write(End(why=why, iterations=0, cost_ns=0))
        writer.close()
        self._keeper.totals.traces += 1
        if self._keeper.head is not None and self._keeper.head.rank == 0:
            self._merging[number] = time.monotonic()
            with suppress(OSError):  # of an earlier run: what lies there afterwards is ready
                self._target(number).unlink()

    def _folder(self, number: int) -> Path:
        return Path(self._options.parts) / f"demand-{number}"

    def _target(self, number: int) -> Path:
        return demand_path(Path(self._options.path), number)

    def _merge_when_whole(self, number: int) -> None:
        world = self._keeper.head.world_size if self._keeper.head is not None else 1
        ended = ended_parts(self._folder(number), self._keeper.writer.began_ns)
        if ended < world and time.monotonic() - self._merging[number] < _PATIENCE_S:
            return
        del self._merging[number]
        words = map(str, (Path(__file__).parents[3], self._folder(number), self._target(number)))
        command = [sys.executable, "-P", "-c", _MERGE, *words]
        self.mergers.append(subprocess.Popen(command, env=_plain_environment(), stdin=subprocess.DEVNULL))

    def _close(self) -> None:
        for number in list(self._writers):
            self._complete(number, "the script ended first")
        deadline = time.monotonic() + 2.0
        while self._merging and time.monotonic() < deadline:
            for number in list(self._merging):
                self._merge_when_whole(number)
            time.sleep(0.05)
        end_s = time.monotonic() + _MERGE_S
        for merger in self.mergers:
            with suppress(subprocess.TimeoutExpired):  # it goes on by itself
                merger.wait(max(0.0, end_s - time.monotonic()))
                _say_if_failed(merger)


def _say_if_failed(merger: subprocess.Popen[bytes]) -> None:
    if merger.returncode:
        folder, target = list(merger.args)[-2:]  # type: ignore[arg-type]
        logger.warning("%s could not be put together, its parts are in %s", target, folder)


def _plain_environment() -> dict[str, str]:
    import os

    hidden = ("HEMIOLA_RECORD", "RANK", "WORLD_SIZE")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
