"""Leads while it can: renews the lease from a thread of its own, and tells when it is lost."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hemiola.core.errors import EngineError, HemiolaError
from hemiola.live.journal import Journal
from hemiola.trace.atomic import replacing

__all__ = ["STOPPED", "Leadership", "is_gone", "process_identity", "silent_s"]


_log = logging.getLogger("hemiola.serve")
LEASE_S, RENEW_S = 10.0, 2.0
"""Another instance takes over within `LEASE_S` and a second; a renewal may fail a few times before."""
STOPPED = " stopped"
WRITTEN = "give the file that `hemiola serve --alive` writes"


class Leadership:
    """One epoch of leading.

    Args:
        alive: a file that says when the loop last turned, for those who hold jobs in our name; None for none.
        lost: called once, when the lease could not be kept.
    """

    def __init__(self, journal: Journal, epoch: int, alive: Path | None, lost: Callable[[], None]) -> None:
        self.epoch = epoch
        self._journal, self._alive, self._lost = journal, alive, lost
        self._until_s = time.monotonic() + LEASE_S
        self._turned_s = time.monotonic()
        self._acts = False
        self._saying = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="hemiola-lease", daemon=True)
        self._thread.start()

    def holds(self) -> bool:
        """Whether nobody else can be leading: asked right before the engine is."""
        return not self._over.is_set() and time.monotonic() < self._until_s

    def turned(self, *, acts: bool) -> None:
        """The loop has come around; nobody is to hold jobs for one that only looks on."""
        acted, self._acts, self._turned_s = self._acts, acts, time.monotonic()
        if acted and not acts:
            self._say(STOPPED)

    def end(self) -> None:
        """Give it back."""
        lost = self._over.is_set()
        self._over.set()
        self._thread.join()
        if not lost:
            self.turned(acts=False)
        try:
            self._journal.resign(self.epoch)
        except HemiolaError as problem:
            _log.warning("the lease could not be given back: %s", problem.what)

    def _renew(self) -> None:
        while not self._over.wait(RENEW_S):
            asked_s = time.monotonic()
            try:
                # By the wall clock, for those that read it; this process goes by `_until_s`.
                kept = self._journal.renew(self.epoch, time.time(), LEASE_S)
            except HemiolaError as problem:
                _log.warning("the lease could not be renewed: %s", problem.what)
                kept = time.monotonic() < self._until_s
            else:
                if kept:
                    self._until_s = asked_s + LEASE_S
            if not kept:
                self._over.set()
                self._lost()
                return
            self._say_alive()

    def _say_alive(self) -> None:
        """Only if the loop turns: a process that hangs is as good as gone."""
        if time.monotonic() - self._turned_s <= LEASE_S:
            self._say("")

    def _say(self, more: str) -> None:
        """The time, and what job_submit.lua takes for no time at all where it is to hold no more jobs."""
        with self._saying:
            if self._alive is None or not (self._acts or more):
                return
            try:
                with replacing(self._alive) as stream:
                    stream.write(f"{time.time():.0f}{more}\n".encode())
            except (OSError, HemiolaError) as problem:
                _log.warning("%s could not be written: %s", self._alive, problem)


# Who holds a lease: a process, so that one on the same host can see that it is gone, and need not wait.


def process_identity() -> str:
    """Host, space of process numbers, process, when it began (clock ticks since boot), and a number drawn once."""
    return f"{socket.gethostname()}/{_space()}/{os.getpid()}/{_began(os.getpid())}/{secrets.token_hex(4)}"


def is_gone(holder: str) -> bool:
    """Whether this was a process of this host that has ended. False where nobody can know."""
    words = holder.split("/")
    if len(words) != 5 or words[:2] != [socket.gethostname(), _space()] or not words[2].isdigit():
        return False
    return _began(int(words[2])) != words[3]


def _space() -> str:
    """Of process numbers, in this boot: containers may share a host's name."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot[:8]}-{Path('/proc/self/ns/pid').stat().st_ino}"


def _began(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if words[0] in "ZX" else words[19]


def silent_s(alive: Path, now_s: float) -> float:
    """For how long Hemiola has said nothing; infinity if it never has.

    Raises:
        EngineError: the file cannot be read, or holds something else.
    """
    try:
        text = alive.read_text()
    except FileNotFoundError:
        return float("inf")
    except (OSError, UnicodeDecodeError) as problem:
        raise EngineError(f"{alive} cannot be read: {problem}", WRITTEN) from problem
    text = text.strip().removesuffix(STOPPED)
    if not text.isdecimal():
        raise EngineError(f"{alive} holds {text[:40]!r}, not a time", WRITTEN)
    return now_s - int(text)
