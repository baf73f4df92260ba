"""A recording from arming to closing: puts hooks, recorder, keeper, peers and server together.

Armed, it waits: a process that neither communicates nor trains leaves nothing behind, so that launchers and
loader processes can be armed too. What fails here stops the recording and never the training.
"""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hemiola.profiler.trace import collectives, hooks, profile, recorder, values
from hemiola.profiler.trace import collectives as buckets
from hemiola.profiler.trace.collectives import Buckets, Groups, hide
from hemiola.profiler.trace.demands import Demands, demand_path
from hemiola.profiler.trace.hooks import Hooks
from hemiola.profiler.trace.keeper import Keeper, Reporting
from hemiola.profiler.trace.parts import NoPart, PartWriter
from hemiola.profiler.trace.peers import Peers
from hemiola.profiler.trace.profile import Profiling
from hemiola.profiler.trace.recorder import IterationRecorder, logger
from hemiola.profiler.trace.server import TraceServer, exposition, parse_address
from hemiola.profiler.trace.values import PartFacts, PartHead, RankGroup, TraceOptions

__all__ = ["TraceSession"]

_END_S = 15.0
_ATTEMPT = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"


class TraceSession:
    """The recording of this process; there is one at a time (`TraceSession.active`)."""

    active: TraceSession | None = None
    count = 0

    def __init__(self, options: TraceOptions) -> None:
        skew_ns = round(options.clock_skew_s * 1e9)
        clock = time.perf_counter_ns
        self.options = options
        self.recorder = IterationRecorder((lambda: clock() + skew_ns) if skew_ns else clock)
        self.recorder.on_begin = self._begin
        self._groups = Groups(self._announce)
        self._profiling = Profiling(self.recorder, always=options.mode == "full")
        self._hooks = Hooks(self.recorder, self._groups, self._profiling)
        self.recorder.on_failure = self._profiling.abandon
        self._early: list[RankGroup] = []
        self._started = (self.recorder.now(), time.time_ns())
        self._place = (int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
        self._number = -1
        self._keeper: Keeper | None = None
        self._demands: Demands | None = None
        self._peers: Peers | None = None
        self._server: TraceServer | None = None
        self._previous_handler: Any = None
        self._in_handler = False
        self._signalled_early = False
        self._pid = os.getpid()
        self._closed = False

    def arm(self) -> None:
        """Install the hooks; recording begins with the first collective or backward pass."""
        TraceSession.active = self
        TraceSession.count += 1
        atexit.register(self._at_exit)
        os.register_at_fork(after_in_child=self._forked)
        hide(recorder, collectives, buckets, values, profile, with_callees=True)
        hide(hooks, with_callees=False)  # beneath these runs the script's own code
        self._hooks.install()
        reducers = self._hooks.collectives.reducers
        named = Buckets(reducers, lambda facts: self._announce(PartFacts(facts)))
        self._hooks.collectives.on_gate = named.name
        self._handle_signal()

    def close(self, why: str) -> bool:
        """Write what is left, take the hooks away; whether anything had been recorded."""
        if self._closed or os.getpid() != self._pid:
            return False
        self._closed = True
        atexit.unregister(self._at_exit)
        TraceSession.active = None
        began = self._keeper is not None
        why = f"recording failed: {self.recorder.failure}" if self.recorder.failure else why
        if self._keeper is not None:
            self._keeper.finish(why, _END_S)
        self.recorder.on = False
        self._hooks.uninstall()
        if self._server is not None:
            self._server.close()
        self._restore_handler()
        return began

    def _at_exit(self) -> None:
        problem = getattr(sys, "last_value", None) or sys.exc_info()[1]
        if isinstance(problem, SystemExit):
            problem = None
        self.close(f"crashed: {type(problem).__name__}: {problem}" if problem is not None else "")

    @property
    def head(self) -> PartHead:
        """Who this is, as last written."""
        return self._keeper.head if self._keeper is not None and self._keeper.head else self._head()

    @property
    def began_ns(self) -> int:
        """When this rank's part was begun, by the clock of the files; 0 before."""
        return self._keeper.writer.began_ns if self._keeper is not None else 0

    def _begin(self) -> None:
        """The first event: open the part, start the thread."""
        if multiprocessing.parent_process() is not None:  # a forked one ends without `atexit`
            multiprocessing.util.Finalize(None, self._at_exit, exitpriority=0)
        self._use_device()
        head = self._head()
        writer = self._writer(head)
        writer.write(head)
        keeper = self._keeper = Keeper(self.recorder, writer, self._head)
        self._demands = Demands(self.recorder, self._profiling, keeper, self.options)
        self._peers = Peers(keeper, self._demands, self.recorder.now, TraceSession.count)
        self.recorder.on_boundary = self._boundary
        for group in self._early:
            keeper.tell(group)
        self._listen()
        self._handle_signal()
        keeper.every.append(self._answer_early)
        Reporting.begin(keeper)
        keeper.start()

    def _writer(self, head: PartHead) -> PartWriter:
        if not self.options.parts:
            return NoPart()
        stem = Path(self.options.parts) / f"rank{head.rank:05d}-{self._pid}-{TraceSession.count}"
        return PartWriter(stem, self.options.keep_iterations)

    def _boundary(self, draft: Any, last: bool) -> bool:
        self._hooks.collectives.forget()
        if self._keeper is not None and self._keeper.device is None:
            self._use_device()
        return self._profiling.boundary(draft, last)

    def _use_device(self) -> None:
        """Once the script has touched CUDA, phases are timed on its streams."""
        import torch

        if self._keeper is not None and torch.cuda.is_initialized():
            from hemiola.profiler.trace.collectives import DeviceClock

            device = DeviceClock(self.recorder.now)
            self._keeper.device = device
            self.recorder.stream_now = device.stream_now

    def number(self, group: Any) -> int:
        """Of a process group, for transfers that the hooks do not see."""
        return self._groups.number(group)

    def _announce(self, line: RankGroup | PartFacts) -> None:
        if self._keeper is not None:
            self._keeper.tell(line)
        elif isinstance(line, RankGroup):
            self._early.append(line)

    def _head(self) -> PartHead:
        import torch
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            with suppress(ValueError):  # the group is being left
                self._place = (dist.get_rank(), dist.get_world_size())
                self._number = self._place[0] if self._number < 0 else self._number
        device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_initialized() else "cpu"
        return PartHead(
            rank=self._place[0],
            world_size=self._place[1],
            host=socket.gethostname(),
            device=device,
            pid=self._pid,
            mode=self.options.mode,
            monotonic_ns=self._started[0],
            unix_ns=self._started[1],
            run=self._peers.run if self._peers is not None else "",
            listen=self._server.address if self._server is not None else "",
            versions={"torch": str(torch.__version__)},
            number=self._number,
            attempt=" ".join(os.environ.get(name, "") for name in _ATTEMPT).strip(),
        )

    def _listen(self) -> None:
        if not self.options.listen:
            return
        host, port = parse_address(self.options.listen)
        local = int(os.environ.get("LOCAL_RANK", "0"))
        try:
            self._server = TraceServer(
                (host, port + local if port else 0), self._metrics, self._health, self._ask
            )
        except (OSError, OverflowError) as problem:  # there is no port 65536
            logger.warning("no metrics are served at %s: %s", self.options.listen, problem)

    def _metrics(self) -> str:
        assert self._keeper is not None
        head = self.head
        labels = {"rank": str(head.rank), "host": head.host}
        return exposition(self._keeper.totals, labels, recording=self.recorder.on)

    def _health(self) -> dict[str, Any]:
        state = {"recording": self.recorder.on, "iteration": self.recorder.number, "pid": self._pid}
        return state | ({"failure": self.recorder.failure} if self.recorder.failure else {})

    def _ask(self, iterations: int, timeout_s: float) -> dict[str, Any] | None:
        assert self._demands is not None
        request = self._demands.ask(iterations)
        if not request.answered.wait(timeout_s):
            self._demands.withdraw(request)
        demand = request.demand
        if demand is None:
            return None
        path = demand_path(Path(self.options.path), demand.number)
        return {"path": str(path), "first_iteration": demand.first, "iterations": demand.iterations}

    def _handle_signal(self) -> None:
        """From the start, since the signal would kill who does not handle it; again once training begins,
        in case the script has set a handler meanwhile."""
        if not self.options.answer_signal or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGUSR2) != self._signalled:
            self._previous_handler = signal.signal(signal.SIGUSR2, self._signalled)

    def _signalled(self, number: int, frame: Any) -> None:
        if self._in_handler:  # a handler of the script's that calls the one before it, which is this one too
            return
        if self._demands is None:
            self._signalled_early = True
        elif not self._closed:
            self._demands.ask(self.options.demand_iterations)
        if callable(self._previous_handler):
            self._in_handler = True
            try:
                self._previous_handler(number, frame)
            finally:
                self._in_handler = False

    def _answer_early(self) -> None:
        """What was asked for before training began, once the ranks have met."""
        if self._signalled_early and self._demands is not None:
            self._signalled_early = False
            self._demands.ask(self.options.demand_iterations)

    def _restore_handler(self) -> None:
        ours = self._previous_handler is not None and threading.current_thread() is threading.main_thread()
        if ours and signal.getsignal(signal.SIGUSR2) == self._signalled:
            signal.signal(signal.SIGUSR2, self._previous_handler)

    def _forked(self) -> None:
        """In a forked child: what had begun belongs to the parent; what had not may begin here."""
        if self._keeper is None:
            self._pid = os.getpid()
        else:
            self.recorder.on = False
