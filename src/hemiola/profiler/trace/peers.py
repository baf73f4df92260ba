"""What the ranks tell each other beside the training: the time, their pace, requests for a trace.

Through a connection of its own to the job's store, so that no collective is added and the store that the script
uses is never held up. Runs on the keeper's thread; a store that has gone ends the talk, not the recording. A clock that
does not answer ends neither: it is asked again later.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import Any

import msgspec

from hemiola.profiler.trace.clock import ClockClient, ClockServer
from hemiola.profiler.trace.demands import Demands
from hemiola.profiler.trace.keeper import Keeper
from hemiola.profiler.trace.recorder import logger

__all__ = ["Peers"]

_CLOCK_EVERY_S = 2.0
_CLOCK_EVERY_S_MAX = 64.0
"""Where nobody answers: each question may hold this thread up for seconds."""
_PACE_EVERY_S = 2.0
_TIMEOUT = timedelta(seconds=5)


class _ClockAddress(msgspec.Struct):
    run: str
    hosts: list[str]
    port: int
    token: bytes


class Peers:
    """One rank's side."""

    def __init__(self, keeper: Keeper, demands: Demands, now: Callable[[], int], number: int) -> None:
        """The ranks must count their recordings alike: the `number` keeps one from the next in the store."""
        self._number = number
        self._keeper = keeper
        self._demands = demands
        self._now = now
        self._store: Any = None
        self._gone = False
        self._rank = 0
        self._world = 1
        self._server: ClockServer | None = None
        self._client: ClockClient | None = None
        self._address: _ClockAddress | None = None
        self._clock_every_s = _CLOCK_EVERY_S
        self._next_clock = 0.0
        self._next_pace = 0.0
        self._pace = ""
        self.run = ""
        """A word for this run that all ranks know once they have talked."""
        keeper.every.append(self.visit)
        keeper.at_end.append(self.close)

    def visit(self) -> None:
        """Do what is due."""
        if self._gone:
            return
        try:
            if self._store is None and not self._connect():
                return
            self._visit_clock()
            self._visit_pace()
        except (OSError, RuntimeError, msgspec.MsgspecError) as problem:
            self._leave(problem)

    def close(self) -> None:
        """Ask for the time once more, and hang up."""
        try:
            if self._keeper.totals.clock_error_s is not None:  # it has answered before
                self._ask_clock()
        except OSError:
            logger.debug("rank 0 is gone: its clock could not be asked at the end")
        self._leave(None)

    def _leave(self, problem: Exception | None) -> None:
        if problem is not None:
            logger.info("this rank no longer talks to the others: %s", problem)
        self._gone = True
        self._store = self._demands.store = None
        for side in (self._client, self._server):
            if side is not None:
                side.close()
        self._client = self._server = None

    def _connect(self) -> bool:
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return False
        prefix = f"hemiola/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{self._number}"
        store = dist.PrefixStore(prefix, dist.distributed_c10d._get_default_store().clone())
        store.set_timeout(_TIMEOUT)
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._store = self._demands.store = store
        return True

    def _visit_clock(self) -> None:
        """Give the time, or ask for it if that is due."""
        if time.monotonic() < self._next_clock:
            return
        try:
            if self._rank == 0 and self._server is None:
                self._serve()
            elif self._rank > 0 and (self._address is not None or self._store.check(["clock"])):
                self._next_clock = time.monotonic() + _CLOCK_EVERY_S
                self._ask_clock()
                self._clock_every_s = _CLOCK_EVERY_S
        except OSError as problem:  # rank 0 is held up or has ended, or a firewall is between
            if self._clock_every_s == _CLOCK_EVERY_S:
                say = logger.warning if self._keeper.totals.clock_error_s is None else logger.info
                say("rank 0's clock cannot be asked, and is asked again later: %s", problem)
            self._next_clock = time.monotonic() + self._clock_every_s
            self._clock_every_s = min(2 * self._clock_every_s, _CLOCK_EVERY_S_MAX)

    def _ask_clock(self) -> None:
        """Over the connection that there is, or else a new one: one that has failed may still bring an old answer."""
        if self._address is None:
            self._address = msgspec.json.decode(self._store.get("clock"), type=_ClockAddress)
            self.run = self._address.run
        if self._client is None:
            address = self._address
            self._client = ClockClient(address.hosts, address.port, address.token, self._now)
        try:
            sample = self._client.sample()
        except OSError:
            self._client.close()
            self._client = None
            raise
        self._keeper.tell(sample)
        self._keeper.totals.clock_error_s = sample.error_ns / 1e9

    def _serve(self) -> None:
        host = os.environ.get("MASTER_ADDR", "")
        alone = os.environ.get("LOCAL_WORLD_SIZE") == str(self._world) or host in ("localhost", "127.0.0.1")
        self._server = ClockServer(self._now, only_this_host=alone)
        self.run = os.urandom(8).hex()
        hosts = ["127.0.0.1"] if alone else [name for name in (host, socket.gethostname()) if name]
        address = _ClockAddress(self.run, hosts, self._server.port, self._server.token)
        self._store.set("clock", msgspec.json.encode(address))

    def _visit_pace(self) -> None:
        """Give one's own pace, take the median: rank 0 reckons it, so that not everybody reads everybody's."""
        if time.monotonic() < self._next_pace:
            return
        self._next_pace = time.monotonic() + _PACE_EVERY_S
        own = self._keeper.totals.take_window()
        if own is not None:
            self._pace = repr(own)
            self._store.set(f"pace/{self._rank}", self._pace)
        keys = [f"pace/{rank}" for rank in range(self._world)]
        if self._rank == 0 and self._store.check(keys):
            paces = [float(value) for value in self._store.multi_get(keys)]
            self._store.set("pace", repr(median(paces)))
        if self._pace and self._store.check(["pace"]):
            middle = float(self._store.get("pace"))
            if middle > 0:
                self._keeper.totals.straggler_index = float(self._pace) / middle
