"""What running jobs and hosts say of themselves, for the scheduler: one small file each, in a folder that all hosts see.

Whose word it is, the file's owner tells: nobody can write a file that belongs to somebody else. So the folder is
one that everybody may write to and nobody may clear (mode 1777, like /tmp). The files are untrusted: they are read
only if they are plain, small, and exactly of the form.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from hemiola.core.errors import DAMAGED, InputError
from hemiola.trace.atomic import replacing

__all__ = ["HostReport", "JobReport", "Reported", "Reports", "check_reports", "write_report"]

SCHEMA = "hemiola.reports/1"
MOST_BYTES = 65_536
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_SECONDS = 1e9


class JobReport(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="job", tag_field="of"
):
    """One running job, by its rank 0.

    Attributes:
        job: as the engine calls it.
        time_s: Unix time of writing.
        gpus: ranks.
        iterations: since it began.
        iteration_s, compute_s: means over the last seconds; the latter without exposed communication.
        traffic_bytes: that each rank's link carries per iteration and direction (`core.job.Demand`).
        all_reduced: share of it that all-reduces send.
    """

    job: str
    time_s: float
    gpus: int
    iterations: int
    iteration_s: float
    compute_s: float
    traffic_bytes: float
    all_reduced: float = 1.0
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        good = (
            bool(_NAME.fullmatch(self.job)) and self.gpus >= 1 and self.iterations >= 1
            and 0 < self.compute_s <= self.iteration_s < _SECONDS
            and 0 <= self.traffic_bytes < 1e15 and 0 <= self.all_reduced <= 1 and 0 <= self.time_s < 1e11
        )  # fmt: skip
        if not good or self.schema != SCHEMA:
            raise ValueError(f"no job reports this: {self}")


class HostReport(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="host", tag_field="of"
):
    """One host's network counters.

    Attributes:
        host: as the topology calls it.
        time_s: Unix time of writing.
        sent_bytes_per_s, received_bytes_per_s: over the last seconds, all of its network cards together.
    """

    host: str
    time_s: float
    sent_bytes_per_s: float
    received_bytes_per_s: float
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        rates = (self.sent_bytes_per_s, self.received_bytes_per_s)
        good = bool(_NAME.fullmatch(self.host)) and all(0 <= rate < 1e15 for rate in rates)
        if not good or not 0 <= self.time_s < 1e11 or self.schema != SCHEMA:
            raise ValueError(f"no host reports this: {self}")


class Reported(NamedTuple):
    """A report, and the user id of who wrote it."""

    uid: int
    report: JobReport | HostReport


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[JobReport | HostReport] = msgspec.json.Decoder(JobReport | HostReport)


def write_report(folder: Path, report: JobReport | HostReport) -> None:
    """Put it in the place of the last one, whatever lies there: a link is replaced, not followed.

    Raises:
        InputError: the folder cannot be written to, or the job's name is none.
    """
    name = f"job-{report.job}" if isinstance(report, JobReport) else f"host-{report.host}"
    with replacing(folder / f"{name}.json", follow=False) as stream:
        stream.write(_encoder.encode(report))


def check_reports(folder: Path) -> None:
    """Refuse a folder of reports that is not there, or that this user may not look into.

    Raises:
        InputError: so it is.
    """
    if not os.access(f"{folder}/.", os.X_OK, effective_ids=True):  # unlike Path.is_dir it never raises
        raise InputError(
            f"the folder of reports {str(folder)!r} is not there, or this user may not look into it",
            f"make it: install -d -m 1777 {folder}",
        )


class Reports:
    """A folder of reports, read again and again: each report is handed out once. It may be away for a while.

    Attributes:
        damaged: names of files that were no reports when last looked at.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[str, tuple[int, int]] = {}
        self.damaged: set[str] = set()

    def fresh(self) -> Iterator[Reported]:
        """Those that are new since last asked for; a folder that is away has none."""
        try:
            entries = [entry for entry in os.scandir(self._folder) if entry.name.endswith(".json")]
        except OSError:
            return
        self._seen = {name: seen for name, seen in self._seen.items() if name in {e.name for e in entries}}
        self.damaged &= set(self._seen)
        for entry in entries:
            found = self._read(entry)
            if found is not None:
                yield found

    def _read(self, entry: os.DirEntry[str]) -> Reported | None:
        try:
            now = entry.stat(follow_symlinks=False)
            if self._seen.get(entry.name) == (now.st_ino, now.st_mtime_ns) or entry.name.startswith("."):
                return None
            self._seen[entry.name] = now.st_ino, now.st_mtime_ns
            self.damaged.add(entry.name)
            file = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            found = _read(file)
        except (OSError, *DAMAGED):  # the last of what is nested very deeply
            return None
        finally:
            os.close(file)
        if found is not None:
            self.damaged.discard(entry.name)
        return found


def _read(file: int) -> Reported | None:
    facts = os.fstat(file)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > MOST_BYTES:
        return None
    return Reported(facts.st_uid, _decoder.decode(os.read(file, MOST_BYTES)))
