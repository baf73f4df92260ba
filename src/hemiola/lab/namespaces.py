"""Named network namespaces that carry the mark of who made them. Knows nothing of links and rates.

A namespace gets its mark (the alias of its loopback device) before it gets its name, so that a name
without our mark is never ours, whenever a process was killed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["GONE", "apart", "create", "enter", "held", "mark_of", "path_of", "remove"]

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
