"""On each host: starts its ranks, passes on what they print, and ends them with all that they have started.

A script of its own that needs only Python's standard library: the launcher sends its text along, so that nothing
of Hemiola has to be installed where ranks run. Lines of JSON come in on standard input and go out on
standard output, bytes as Latin-1:

    in   ["start", what]         out  ["hello", facts]
         ["signal", number]           ["refused", what, remedy]
         ["end", grace_s]             ["out", rank, text], ["err", rank, text]
         ["lost", line]               ["ended", rank, status]
                                      ["report", text]
                                      ["unkept", status], ["signalled", number]

Standard input ends with the launcher, however that ends; the ranks then end as by "end". Orphans of ranks become
this process's children (it is their "subreaper"), so what a rank leaves behind is found wherever it wandered. It ends
with the host's last rank; what keeps the store for the ranks of all hosts stays until "end". A signal to this process
is one to its ranks: behind a remote shell it may be what a scheduler or an init system takes for the job.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

__all__: list[str] = []

SET_DEATH_SIGNAL, SET_SUBREAPER = 1, 36
CHUNK_BYTES = 1 << 16
CHUNKS_AT_END = 32
"""More than a pipe holds: what the dead have written, but no more from one that lives on."""
GRACE_S = 10.0
STRAYS_GRACE_S = 2.0
LOOK_AGAIN_S = 0.05
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
ASK_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TOGETHER_S = 5.0
"""Where all processes of a job are signalled, this one and the launcher hear of it within so much of each other."""


def facts() -> dict[str, Any]:
    """What the launcher asks of a host before it divides the ranks."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    return {
        "host": socket.gethostname(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), Path("/dev")),
        "port": port,
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
    }


def gpus(visible: str | None, devices: Path) -> int:
    """How many NVIDIA GPUs a process sees: CUDA_VISIBLE_DEVICES up to the first that is none, or the devices there are."""
    if visible is None:
        return sum(path.name[6:].isdigit() for path in devices.glob("nvidia*"))
    count = 0
    for name in visible.split(","):
        if not name.strip() or name.strip().startswith("-"):
            break
        count += 1
    return count


class HostAgent:
    """The host's ranks, by number."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.prctl(SET_SUBREAPER, 1, 0, 0, 0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ, self._hear)
        self._wake_on_ends()
        self._heard = b""
        self._living: dict[int, int] = {}  # rank by process
        self._kept: list[subprocess.Popen[bytes]] = []
        self._keeper: subprocess.Popen[bytes] | None = None
        self._keeper_said = b""
        self._spared: set[int] = set()  # the keeper, until the job is over on all hosts
        self._pipes: dict[int, list[int]] = {}
        self._report: tuple[int, Path] | None = None
        self._kill_at_s: float | None = None
        self._asked: set[int] = set()
        self._passed_on: dict[int, tuple[str, float]] = {}  # which way a signal came last, and when
        self._started = self._over = self._clearing = self._strays = False

    def run(self) -> None:
        """Until all ranks have ended, nothing of them is left, and nobody elsewhere needs the store."""
        try:
            self._write(b"\n")  # a login may have printed something without an end of line
            self._say("hello", facts())
            while not self._over:
                for key, _ in self._selector.select(self._patience_s()):
                    key.data()
                self._reap()
                self._press()
                if self._started and not self._living:
                    self._strays = self._end_strays()
                    self._over = not (self._strays or self._spared)
            for rank in list(self._pipes):
                self._drain(rank)
        finally:
            if self._report is not None:
                shutil.rmtree(self._report[1].parent, ignore_errors=True)

    # ---- what comes from the launcher ------------------------------------------------------------

    def _hear(self) -> None:
        data = os.read(0, CHUNK_BYTES)
        if not data:
            self._selector.unregister(0)
            self._end(GRACE_S)
            return
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            verb, value = json.loads(line)
            if verb == "start":
                self._start(value)
            elif verb == "signal":
                self._signal(value)
            elif verb == "lost":
                self._tell_keeper(value)
            else:
                self._end(value)

    def _start(self, what: dict[str, Any]) -> None:
        environment = what["defaults"] | os.environ | what["environment"]
        refused = refusal(what["cwd"], what["needs"], environment)
        if refused is None:
            self._heed_signals()
            try:
                self._start_keeper(what, environment)
                for rank, own in what["ranks"]:
                    self._start_rank(rank, what, environment | own)
            except OSError as error:
                refused = (
                    f"cannot run {what['command'][0]!r}: {error.strerror}",
                    "check that it can be executed",
                )
        if refused is not None:
            self._say("refused", *refused)
            self._end(0.0)
        self._started = True

    def _start_rank(self, rank: int, what: dict[str, Any], environment: dict[str, str]) -> None:
        if rank == 0:
            self._report = (rank, Path(tempfile.mkdtemp(prefix="hemiola-run-")) / "report.json")
            environment["HEMIOLA_RUN_REPORT"] = str(self._report[1])
        keyboard = what["keyboard"] if rank == 0 and what["keyboard"] is not None else subprocess.DEVNULL
        process = subprocess.Popen(
            what["command"], cwd=what["cwd"], env=environment, stdin=keyboard, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True, preexec_fn=partial(self._die_with, os.getpid()),
        )  # fmt: skip
        self._kept.append(process)
        self._living[process.pid] = rank
        self._pipes[rank] = []
        for stream, name in ((process.stdout, "out"), (process.stderr, "err")):
            assert stream is not None
            handle = stream.fileno()
            os.set_blocking(handle, False)
            self._pipes[rank].append(handle)
            self._selector.register(handle, selectors.EVENT_READ, partial(self._pass_on, rank, name, handle))

    def _start_keeper(self, what: dict[str, Any], environment: dict[str, str]) -> None:
        """What keeps the ranks' store, if it is to be kept here; it is no rank, and outlives those of this host."""
        if what["keeper"] is not None:
            self._keeper = subprocess.Popen(
                what["keeper"], cwd=what["cwd"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, start_new_session=True, preexec_fn=partial(self._die_with, os.getpid()),
                bufsize=0,
            )  # fmt: skip
            self._spared.add(self._keeper.pid)
            assert self._keeper.stderr is not None
            os.set_blocking(self._keeper.stderr.fileno(), False)
            self._selector.register(self._keeper.stderr, selectors.EVENT_READ, self._hear_keeper)

    def _hear_keeper(self) -> None:
        """It need not wait for a reader; what it says is of interest if it ends before its time."""
        assert self._keeper is not None and self._keeper.stderr is not None
        data = self._keeper.stderr.read(CHUNK_BYTES)
        if data == b"":
            self._selector.unregister(self._keeper.stderr)
        self._keeper_said = (self._keeper_said + (data or b""))[-CHUNK_BYTES:]

    def _unkept(self, status: int) -> None:
        """The keeper has ended before its time: by itself only if it cannot keep a store, and then no ranks ever meet."""
        assert self._keeper is not None and self._keeper.stderr is not None
        said = self._keeper_said + (self._keeper.stderr.read() or b"")
        if status > 0:
            words = said.decode(errors="replace").strip().rpartition("\n")[2]
            self._say(
                "refused",
                f"the ranks' store cannot be kept: {words}",
                "give another --master-port if it is taken; --on-loss continue needs Hemiola and PyTorch there",
            )
        else:
            self._say("unkept", status)

    def _tell_keeper(self, line: str) -> None:
        """Which rank has ended, so that nobody has to find out."""
        if self._keeper is not None and self._keeper.stdin is not None and not self._keeper.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._keeper.stdin.write(line.encode() + b"\n")

    def _die_with(self, parent: int) -> None:
        """In the child: if this agent is killed itself, its ranks do not outlive it."""
        self._libc.prctl(SET_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    def _signal(self, number: int, way: str = "from the launcher") -> None:
        """An interrupt as a terminal gives it, to all of a rank's processes; others to the rank alone, as `kill` does.

        What has just come another way is passed on already.
        """
        before, when_s = self._passed_on.get(number, (way, 0.0))
        if before != way and time.monotonic() < when_s + TOGETHER_S:
            return
        self._passed_on[number] = way, time.monotonic()
        for process in self._living:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if number == signal.SIGINT else os.kill)(process, number)

    def _end(self, grace_s: float) -> None:
        self._spared.clear()
        if not self._living and not self._started:
            self._over = True
        if self._kill_at_s is None:
            self._signal(signal.SIGTERM)
        self._kill_by(grace_s)

    def _kill_by(self, grace_s: float) -> None:
        until_s = time.monotonic() + grace_s
        self._kill_at_s = until_s if self._kill_at_s is None else min(until_s, self._kill_at_s)

    # ---- what becomes of the ranks ---------------------------------------------------------------

    def _reap(self) -> None:
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not process:
                return
            if process in self._spared:
                self._spared.remove(process)
                self._unkept(os.waitstatus_to_exitcode(status))
            rank = self._living.pop(process, None)
            if rank is not None:
                self._ended(rank, os.waitstatus_to_exitcode(status))

    def _ended(self, rank: int, status: int) -> None:
        self._drain(rank)
        if self._report is not None and self._report[0] == rank and self._report[1].is_file():
            self._say("report", self._report[1].read_text(encoding="utf-8", errors="replace"))
        self._say("ended", rank, status)

    def _press(self) -> None:
        if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
            self._send(signal.SIGKILL, descendants(self._spared))

    def _end_strays(self) -> bool:
        """Ask what the ranks have left behind to end, then kill it; whether there is any."""
        strays = descendants(self._spared)
        if strays and not self._clearing:
            self._clearing = True
            self._kill_by(STRAYS_GRACE_S)
        if self._keeper is not None and self._keeper.stdin is not None and not self._spared:
            self._keeper.stdin.close()  # as long as it is open, the keeper only notes that it is to end
        self._send(signal.SIGTERM, strays - self._asked)
        self._asked |= strays
        return bool(strays)

    def _send(self, number: signal.Signals, processes: set[int]) -> None:
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)

    def _patience_s(self) -> float | None:
        if self._started and not self._living:
            return LOOK_AGAIN_S if self._strays or not self._spared else None
        if self._kill_at_s is None:
            return None
        return max(LOOK_AGAIN_S, self._kill_at_s - time.monotonic())

    # ---- what goes to the launcher ---------------------------------------------------------------

    def _pass_on(self, rank: int, name: str, handle: int) -> bool:
        """A chunk at most; False: nothing is there, or nothing comes any more."""
        try:
            data = os.read(handle, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(handle)
            self._pipes[rank].remove(handle)
            return False
        self._say(name, rank, data.decode("latin-1"))
        return True

    def _drain(self, rank: int) -> None:
        for handle in list(self._pipes[rank]):
            pass_on = self._selector.get_key(handle).data
            for _ in range(CHUNKS_AT_END):
                if not pass_on():
                    break

    def _say(self, *words: Any) -> None:
        self._write(json.dumps(words).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(1, data) :]
        except BrokenPipeError:  # the launcher is gone: its input ends too, which ends the ranks
            pass

    def _wake_on_ends(self) -> None:
        """Have `select` return whenever a child has ended."""
        reader, writer = os.pipe()
        for handle in (reader, writer):
            os.set_blocking(handle, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._selector.register(reader, selectors.EVENT_READ, partial(self._hear_signals, reader))

    def _heed_signals(self) -> None:
        """Have them passed on, but for what is ignored, as by a shell's "&"; `exec` takes the handlers from the ranks."""
        for number in PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, frame: None)

    def _hear_signals(self, reader: int) -> None:
        """A byte for each that has come."""
        for number in os.read(reader, CHUNK_BYTES):
            if number in PASSED_ON:
                self._signal(number, "to this process")
            if number in ASK_TO_END:
                self._say("signalled", number)


def refusal(cwd: str, needs: list[str], environment: dict[str, str]) -> tuple[str, str] | None:
    """What is missing here, and what to do: the folder, the script, the program."""
    if not Path(cwd).is_dir():
        return f"there is no folder {cwd}", "share it among the hosts, or start where all have it"
    kind, name = needs
    if kind == "script" and not Path(cwd, name).is_file():
        return (
            f"there is no script {name!r} in {cwd}",
            "check the path; for a module write -m, for a program --no-python",
        )
    program = str(Path(cwd, name)) if "/" in name else name  # this process need not be in that folder
    if kind == "program" and shutil.which(program, path=environment.get("PATH")) is None:
        return f"there is no program {name!r}", "check that it is installed and spelled so"
    return None


def descendants(spared: Collection[int] = ()) -> set[int]:
    """All that comes of this process and lives, without those spared and what comes of them."""
    children: dict[int, list[int]] = {}
    for process, parent in _parents():
        if process not in spared:
            children.setdefault(parent, []).append(process)
    found: set[int] = set()
    open_ = [os.getpid()]
    while open_:
        mine = children.get(open_.pop(), [])
        found.update(mine)
        open_ += mine
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (path / "stat").read_bytes().rpartition(b")")[2].split()[:2]
                if state != b"Z":
                    yield int(path.name), int(parent)


if __name__ == "__main__":
    HostAgent().run()
    sys.stdout.flush()
