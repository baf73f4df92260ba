"""Named network namespaces that carry the mark of who made them. Knows nothing of links and rates.

A namespace gets its mark (the alias of its loopback device) before it gets its name, so that a name
without our mark is never ours, whenever a process was killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

__all__ = [
    "GONE",
    "RUN_VARIABLE",
    "apart",
    "belonging",
    "create",
    "end_processes",
    "end_run",
    "enter",
    "held",
    "inside",
    "mark_of",
    "matching",
    "parent_and_start",
    "path_of",
    "remove",
    "tell",
]


Result = TypeVar("Result")

FOLDER = Path("/run/netns")
NEW_NET = 0x40000000
LOOPBACK = 1
GONE = (errno.ENOENT, errno.EINVAL)
"""How entering a namespace fails whose name is gone, or leads nowhere any more."""

LIBC = ctypes.CDLL(None, use_errno=True)


def apart(work: Callable[[], Result]) -> Result:
    """Do something in a thread of its own: what it enters, no other thread enters.

    Interrupts (Ctrl-C) are raised here only when the work is done, so that nothing stays half made.
    """
    with _uninterrupted(), ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(work).result()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """However many interrupts come meanwhile, they are one, and it comes afterwards."""
    ours = threading.current_thread() is threading.main_thread()  # no other gets any
    before = signal.getsignal(signal.SIGINT)
    if not ours or before in (signal.SIG_IGN, None):
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def path_of(name: str) -> Path:
    """Where the system keeps the namespace of this name (`ip netns` does too)."""
    return FOLDER / name


def create(name: str, mark: str) -> Any:
    """Make a namespace, enter it with this thread, and return an `IPRoute` in it.

    Only for use under `apart`. The caller closes what is returned.

    Raises:
        OSError: the kernel or the user's rights do not allow it, or the name is taken.
    """
    from pyroute2 import IPRoute, netns

    if LIBC.unshare(NEW_NET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    ip = IPRoute()
    try:
        ip.link("set", index=LOOPBACK, state="up", ifalias=mark)
        netns.attach(name, "thread-self", libc=LIBC)
    except BaseException:
        ip.close()
        raise
    return ip


def enter(name: str) -> Any:
    """Enter a namespace with this thread, and return an `IPRoute` in it; as `create` otherwise."""
    from pyroute2 import IPRoute, netns

    netns.setns(name, flags=0, libc=LIBC)
    return IPRoute()


def mark_of(name: str) -> str | None:
    """The mark of the namespace of this name; None where there is no such namespace, "" for no mark."""
    if not _is_namespace(path_of(name)):
        return None

    def look() -> str:
        ip = enter(name)
        try:
            return str(ip.get_links(LOOPBACK)[0].get("ifalias") or "")
        finally:
            ip.close()

    try:
        return apart(look)
    except OSError as error:
        if error.errno in GONE:  # another process has just removed it
            return None
        raise


@contextmanager
def held(name: str) -> Iterator[tuple[int, int] | None]:
    """Keep a namespace in being; gives what the kernel knows it by (device, inode), None if it is gone."""
    try:
        handle = os.open(path_of(name), os.O_RDONLY)
    except FileNotFoundError:
        yield None
        return
    try:
        found = os.fstat(handle)
        yield found.st_dev, found.st_ino
    finally:
        os.close(handle)


def remove(name: str, mark: str) -> bool:
    """Take the name away, and with it the namespace unless someone holds it; False: it is not ours.

    A name that leads nowhere is what a killed `create` leaves: it goes too.
    """
    from pyroute2 import netns

    found = mark_of(name)
    if found is not None and found != mark:
        return False
    try:
        if found == mark:
            netns.remove(name, libc=LIBC)
        elif stat.S_ISREG(path_of(name).stat().st_mode) and path_of(name).stat().st_size == 0:
            path_of(name).unlink()
    except OSError as error:
        if error.errno != errno.ENOENT:  # another process was quicker
            raise
    return True


def _is_namespace(path: Path) -> bool:
    """Whether something is mounted there: a namespace is a file of another file system."""
    try:
        return path.stat().st_dev != path.parent.stat().st_dev
    except FileNotFoundError:
        return False


# Finds and ends the processes of a lab: those in its namespaces, or those of one run.

RUN_VARIABLE = "HEMIOLA_LAB_RUN"
"""In the environment of all that a run starts; a child inherits it, wherever it wanders."""

LOOK_AGAIN_S = 0.02
KILL_S = 2.0


def inside(namespaces: set[tuple[int, int] | None]) -> Callable[[int], bool]:
    """Whether a process lives in one of these namespaces (device and inode); this one never does."""

    def test(pid: int) -> bool:
        try:
            found = Path(f"/proc/{pid}/ns/net").stat()
        except OSError:  # gone, or a zombie
            return False
        return pid != os.getpid() and (found.st_dev, found.st_ino) in namespaces

    return test


def belonging(run: str) -> Callable[[int], bool]:
    """Whether a process was started by this run (or any run of this lab), or by one that was."""
    sign = f"{RUN_VARIABLE}={run}".encode()

    def test(pid: int) -> bool:
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return pid != os.getpid() and any(variable.startswith(sign) for variable in variables)

    return test


def matching(test: Callable[[int], bool]) -> list[int]:
    """All processes of the machine that pass."""
    return [
        pid
        for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
        if test(pid)
    ]


def tell(test: Callable[[int], bool], number: signal.Signals, *, groups: Collection[int] = ()) -> set[int]:
    """Signal all processes that pass, and these groups of processes as a whole.

    Returns:
        The processes that heard it: what a shell starts in the background ignores SIGINT.
    """
    found = matching(test)
    heard = {pid for pid in found if _hears(pid, number)}
    apart = [pid for pid in found if _group_of(pid) not in groups]
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
    for pid in apart:
        _send(pid, number, test)
    return heard


def end_processes(test: Callable[[int], bool], *, grace_s: float, asked: Collection[int] = ()) -> None:
    """Ask all processes that pass to end (SIGTERM), and after `grace_s` kill those that did not.

    What they start to end well, such as a copy of a checkpoint, is theirs: it is only killed. Returns when
    none is left, or two seconds after the kill: then one hangs in the kernel.

    Args:
        asked: those that were asked before: another signal could break off what they do at their end.
    """
    told = set(asked)
    kill_at_s = time.monotonic() + grace_s
    while time.monotonic() < kill_at_s + KILL_S:
        found = matching(test)
        if not found:
            return
        killing = time.monotonic() >= kill_at_s
        ending = told.intersection(found)
        for pid in found:
            if killing or not (pid in told or parent_and_start(pid)[0] in ending):
                _send(pid, signal.SIGKILL if killing else signal.SIGTERM, test)
        told.update(found)
        time.sleep(LOOK_AGAIN_S)


def _hears(pid: int, number: signal.Signals) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:  # gone
        return False
    ignored = status.partition("\nSigIgn:")[2].split(maxsplit=1)[0]
    return not int(ignored, 16) >> (number - 1) & 1


def parent_and_start(pid: int) -> tuple[int, int]:
    """A process's parent, and when it began; zeros where it is gone, or only its exit status is left."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0, 0
    return (0, 0) if words[0] in "ZX" else (int(words[1]), int(words[19]))


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _send(pid: int, number: signal.Signals, test: Callable[[int], bool]) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if test(pid):  # still the same process, now that it cannot be confused
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def end_run(run: str) -> None:
    """What the guardian of a run does once its owner has ended."""
    end_processes(belonging(run), grace_s=1.0)
