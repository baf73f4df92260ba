"""A job's timeline as Chakra `.et` files, one per rank, named as Chakra's tools expect them."""

from __future__ import annotations

from pathlib import Path

from hemiola.core.job_timeline import JobTimeline
from hemiola.trace.jobs.chakra import write_et
from hemiola.trace.jobs.chakra_to import to_chakra

__all__ = ["write_chakra"]


def write_chakra(timeline: JobTimeline, path: Path) -> tuple[Path, ...]:
    """Write "job.0.et", "job.1.et", ... for the path "job.et" (or "job.0.et.gz" ... for "job.et.gz").

    Returns:
        The files, in the order of the timeline's ranks.

    Raises:
        InputError: if a file cannot be written, a value cannot be kept, or protobuf is missing.
    """
    packed = ".gz" if path.suffix == ".gz" else ""
    stem = path.name.removesuffix(packed).removesuffix(".et")
    written = []
    for rank, trace in zip(timeline.ranks, to_chakra(timeline), strict=True):
        written.append(path.with_name(f"{stem}.{rank.rank}.et{packed}"))
        write_et(trace, written[-1])
    return tuple(written)
