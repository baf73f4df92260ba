"""A host's network counters as reports: what `hemiola counters` runs on each host, beside the jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hemiola.core.errors import InputError
from hemiola.trace.reports import HostReport

__all__ = ["cards", "host_reports"]

COUNTERS = Path("/proc/net/dev")
CARDS = Path("/sys/class/net")


def cards(names: Sequence[str] = (), counters: Path = COUNTERS, folder: Path = CARDS) -> list[str]:
    """The network cards to count: those named, or those of hardware, or else all but the loopback.

    Bonds and bridges are made of cards that are counted themselves.

    Raises:
        InputError: one of the names is none, or there is no card.
    """
    there = sorted(_read(counters))
    for name in names:
        if name not in there:
            raise InputError(
                f"this host has no network card {name!r}", f"it has {', '.join(there) or 'none'}"
            )
    found = list(names) or [name for name in there if (folder / name / "device").exists()]
    found = found or [name for name in there if name != "lo"]
    if not found:
        raise InputError("this host has no network card", "name what is to be counted: --card lo")
    return found


def host_reports(
    host: str, names: Sequence[str], every_s: float, counters: Path = COUNTERS
) -> Iterator[HostReport]:
    """A report every so many seconds, of the time since the last one."""
    before, then = _sums(names, counters), time.monotonic()
    while True:
        time.sleep(every_s)
        sums, now = _sums(names, counters), time.monotonic()
        received, sent = (max(0, new - old) / (now - then) for new, old in zip(sums, before, strict=True))
        yield HostReport(host=host, time_s=time.time(), sent_bytes_per_s=sent, received_bytes_per_s=received)
        before, then = sums, now


def _sums(names: Sequence[str], counters: Path) -> tuple[int, int]:
    found = _read(counters)
    counts = [found[name] for name in names if name in found]  # a card may be taken out
    return sum(received for received, _ in counts), sum(sent for _, sent in counts)


def _read(counters: Path) -> dict[str, tuple[int, int]]:
    """(bytes received, bytes sent) by card."""
    found = {}
    for line in counters.read_text().splitlines()[2:]:
        name, _, numbers = line.partition(":")
        values = numbers.split()
        found[name.strip()] = int(values[0]), int(values[8])
    return found
