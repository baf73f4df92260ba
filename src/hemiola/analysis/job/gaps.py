"""What a timeline says of its own gaps: damaged files, ranks that broke off, ranks that are not in it."""

from __future__ import annotations

from collections.abc import Iterator

from hemiola.core.job_timeline import JobTimeline

__all__ = ["missing_notes"]

_NAMED = 4
"""So many absent ranks are named; of more the number is told."""


def missing_notes(timeline: JobTimeline) -> Iterator[str]:
    """Each gap in a sentence, by the facts that the timeline's source left ("damaged", "partial",
    "distributedInfo") and by the ranks that its groups name. A prediction has no gaps.
    """
    if timeline.predicted:
        return
    damaged, partial = timeline.facts.get("damaged"), timeline.facts.get("partial")
    for file, damage in damaged.items() if isinstance(damaged, dict) else ():
        yield f"{file} is {damage}; what stood behind that is not in the figures, and makes its rank look early or late"
    if isinstance(partial, list) and partial:
        yield from (f"partial: {words}" for words in partial)
    else:
        yield from _absent(timeline)


def _absent(timeline: JobTimeline) -> Iterator[str]:
    here = {rank.rank for rank in timeline.ranks}
    about = timeline.facts.get("distributedInfo")
    told = about.get("world_size") if isinstance(about, dict) else None
    world = told if isinstance(told, int) else 0
    named = sorted({rank for group in timeline.groups for rank in group} - here)
    count = max(world - len(here), len(named))
    if count <= 0:
        return
    first = named if len(named) == count else (rank for rank in range(world) if rank not in here)
    of = max(world, len(here) + count)
    if count > _NAMED:
        yield f"{count:,} of {of:,} ranks are missing: their files were not given"
    else:
        ranks = ", ".join(str(rank) for rank, _ in zip(first, range(count), strict=False))
        yield f"rank{'s' * (count > 1)} {ranks} of {of:,} {'are' if count > 1 else 'is'} missing: no file of {'them' if count > 1 else 'it'} was given"
