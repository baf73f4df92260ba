"""A timeline says which of its ranks are missing, broke off, or come from damaged files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from job_build import Build

from hemiola.analysis.job.metrics import job_metrics
from hemiola.core.job_timeline import JobTimeline, Rank


def job(*ranks: int, groups: tuple[tuple[int, ...], ...] = (), **facts: Any) -> JobTimeline:
    build = Build(tuple(Rank(rank) for rank in ranks))
    for place in range(len(ranks)):
        build.span(place, "compute", 0, 4)
        build.iteration(place, 0, 0, 5)
    return replace(build.timeline(), groups=groups, facts=facts)


@pytest.mark.parametrize(
    ("timeline", "said"),
    [
        (job(1, distributedInfo={"world_size": 2}), "rank 0 of 2 is missing: no file of it was given"),
        (job(1, 2, groups=((1, 2, 3), (0, 1))), "ranks 0, 3 of 4 are missing: no file of them was given"),
        (
            job(3, distributedInfo={"world_size": 64}),
            "63 of 64 ranks are missing: their files were not given",
        ),
        (job(0, partial=["rank 1 left nothing"], groups=((0, 1),)), "partial: rank 1 left nothing"),
        (
            job(0, damaged={"k.json": "cut off or damaged at byte 9"}),
            "k.json is cut off or damaged at byte 9; what stood behind that is not in the figures, and makes its rank look "
            "early or late",
        ),
    ],
)
def test_each_gap_is_a_note(timeline: JobTimeline, said: str) -> None:
    assert job_metrics(timeline).notes[:1] == (said,)
    assert len(job_metrics(timeline).notes) == len(job_metrics(replace(timeline, predicted=True)).notes) + 1


@pytest.mark.parametrize(
    "timeline",
    [
        job(0, 1, groups=((0, 1),), distributedInfo={"world_size": 2}),
        job(0),
        job(0, distributedInfo={"world_size": "2"}, damaged=[], partial=3),
        job(0, distributedInfo=None),
    ],
)
def test_a_whole_job_has_no_such_note(timeline: JobTimeline) -> None:
    assert not [note for note in job_metrics(timeline).notes if "missing" in note or "partial" in note]
