"""Figures of a job: hand-computed answers, a slow oracle on a grid, and what must not matter."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_build import Build

from hemiola.analysis.job.breakdown import PARTS
from hemiola.analysis.job.metrics import JobMetrics, RankFigures, compare, efficiency, job_metrics
from hemiola.core.errors import InputError
from hemiola.core.job_timeline import SPAN_KINDS, JobTimeline, Rank, Spans

LENGTHS = ("iteration", *PARTS, "wire")


def means(metrics: JobMetrics) -> list[dict[str, float]]:
    return [{part: getattr(rank, f"{part}_s") for part in LENGTHS} for rank in metrics.ranks]


def two_ranks(*, waits: bool = True) -> Build:
    """Rank 1 computes 6 s and rank 0 only 4; then 3 s of all-reduce, and 1 s of update: 10 s."""
    build = Build(2)
    for rank, computing in ((0, 4), (1, 6)):
        build.span(rank, "compute", 0, computing, "backward")
        sent = build.transfer(rank, "bucket 0", computing, 6, 9, computing, 9, size=3e6)
        if waits:
            build.span(rank, "wait", computing, 9, transfer=sent)
        build.span(rank, "compute", 9, 10, "step")
        build.iteration(rank, 0, 0, 10)
    return build


def test_two_ranks_by_hand():
    found = job_metrics(two_ranks().timeline())
    assert found.evidence == "waits"
    none = {"overlapped": 0, "input": 0, "other": 0, "idle": 0}
    assert means(found) == [
        {"iteration": 10, "compute": 5, "exposed": 5, "wire": 3, **none},
        {"iteration": 10, "compute": 7, "exposed": 3, "wire": 3, **none},
    ]
    assert found.exposed_share == pytest.approx(0.4)
    assert (found.exposed_share_worst, found.worst_rank) == (0.5, 0)
    assert found.iteration_s.median == 10
    late, punctual = found.stragglers
    assert (late.rank, late.last, late.last_share, late.margin_s, late.lateness_s) == (1, 1, 1.0, 2, 2)
    assert (late.waited_s, punctual.waited_s, punctual.lateness_s) == (2, 0, 0)
    assert math.isnan(punctual.margin_s)
    assert found.waiting_share == pytest.approx(0.2)
    (bucket,) = found.transfers
    assert (bucket.name, bucket.count, bucket.queued_s, bucket.wire_s, bucket.slack_s) == (
        "bucket 0",
        2,
        1,
        3,
        -4,
    )
    assert (bucket.exposed_s, bucket.bandwidth_bytes_per_s) == (4, 1e6)
    assert [(item.name, item.seconds, item.share) for item in found.path_items] == [
        ("backward", 6, 0.6), ("bucket 0", 3, 0.3), ("step", 1, 0.1)
    ]  # fmt: skip
    assert found.path.rank.tolist()[:2] == [1, 1]
    assert [(one.kind, one.name, one.seconds) for one in found.operations] == [
        ("compute", "backward", 5), ("wait", "wait", 4), ("communication", "bucket 0", 3), ("compute", "step", 1)
    ]  # fmt: skip


def test_waits_are_taken_from_transfers_where_no_span_says_them():
    given_waits, made = (job_metrics(two_ranks(waits=waits).timeline()) for waits in (True, False))
    assert made.evidence == "transfers"
    assert means(made) == means(given_waits)
    assert made.path_items == given_waits.path_items


def test_without_any_wait_exposed_is_communication_beside_no_computing():
    build = Build()
    build.span(0, "compute", 0, 4)
    build.span(0, "communication", 2, 7)
    build.span(0, "input", 6, 8)
    build.span(0, "copy", 7, 9)
    build.iteration(0, 0, 0, 10)
    found = job_metrics(build.timeline())
    assert found.evidence == "inferred"
    assert means(found) == [
        {
            "iteration": 10,
            "compute": 2,
            "overlapped": 2,
            "exposed": 3,
            "wire": 3,
            "input": 1,
            "other": 1,
            "idle": 1,
        }
    ]
    assert found.efficiency == efficiency(5, 4, 7)
    assert found.efficiency.efficiency == pytest.approx(0.5)


def test_a_wait_inside_an_operation_is_no_computing():
    build = Build()
    build.span(0, "compute", 0, 10, "backward")
    sent = build.transfer(0, "bucket", 2, 2, 8)
    build.span(0, "wait", 5, 8, transfer=sent)
    build.iteration(0, 0, 0, 10)
    (rank,) = means(found := job_metrics(build.timeline()))
    assert (rank["compute"], rank["overlapped"], rank["exposed"]) == (4, 3, 3)
    assert [(item.kind, item.seconds) for item in found.path_items] == [("communication", 6), ("compute", 4)]


@pytest.mark.parametrize(
    ("sequential", "reverse", "makespan"),
    [(True, False, 33), (True, True, 64), (False, False, 33), (False, True, 33)],
)
def test_tictac_toys(sequential, reverse, makespan):
    """seq-32 and par-32: 32 parameters of one second, one operation of a second each, one channel, one unit."""
    build, free = Build(), 0.0
    arrived = {parameter: i + 1.0 for i, parameter in enumerate(range(32)[:: -1 if reverse else 1])}
    for parameter, last in arrived.items():
        build.transfer(0, f"parameter {parameter}", 0, last - 1, last)
    for parameter in range(32) if sequential else arrived:
        free = max(free, arrived[parameter])
        build.span(0, "compute", free, free + 1, f"operation {parameter}")
        free += 1
    found = job_metrics(build.timeline()).efficiency
    assert (found.communication_s, found.computation_s, found.makespan_s) == (32, 32, makespan)
    assert found.efficiency == pytest.approx((64 - makespan) / 32)
    assert (found.speedup, found.ratio) == (1, 1)


def test_efficiency_without_communication_or_computation():
    alone = efficiency(0, 5, 6)
    assert (alone.speedup, alone.ratio) == (0, 0)
    assert math.isnan(alone.efficiency)
    only_sent = efficiency(5, 0, 5)
    assert (only_sent.speedup, only_sent.ratio) == (0, math.inf)
    assert math.isnan(only_sent.efficiency)
    nothing = efficiency(0, 0, 0)
    assert all(math.isnan(value) for value in (nothing.efficiency, nothing.speedup, nothing.ratio))


def test_gaps_are_no_overlap_that_is_missed():
    """Of 4 s of communication one is hidden; 1 s of gap makes the iteration no shorter or longer by hiding."""
    build = Build()
    build.span(0, "compute", 0, 4)
    build.span(0, "communication", 3, 7)
    build.span(0, "compute", 8, 10)
    found = job_metrics(build.timeline())
    bounds = found.efficiency
    assert (bounds.makespan_s, bounds.gaps_s, bounds.reason) == (10, 1, "")
    assert bounds.efficiency == pytest.approx(1 / 4)
    assert found.saving_s == pytest.approx(3)


def launch_bound() -> Build:
    """A GPU that works for 4 of 20 s, the rest is its host: 2 s of all-reduce, one beside computing."""
    build = Build([Rank(0, device="cuda:0")])
    build.span(0, "other", 0, 20, "backward")
    build.span(0, "compute", 2, 3, "kernel", lane="stream 7")
    build.span(0, "compute", 10, 12, "kernel", lane="stream 7")
    build.span(0, "communication", 11, 13, "all-reduce", lane="stream 20")
    build.span(0, "copy", 14, 15, "to the host", lane="stream 7")
    build.iteration(0, 0, 0, 20)
    return build


def test_a_gpu_that_waits_for_its_host_gains_no_more_than_is_exposed():
    found = job_metrics(launch_bound().timeline())
    bounds, (rank,) = found.efficiency, found.ranks
    assert (bounds.communication_s, bounds.computation_s, bounds.makespan_s, bounds.gaps_s) == (2, 3, 11, 7)
    assert math.isnan(bounds.efficiency) and math.isnan(bounds.speedup)
    assert bounds.reason == (
        "neither computing nor communication goes on for 7.00 s of 11.00 s, longer than all that could be hidden, 2.00 s"
    )
    assert (rank.exposed_s, rank.hideable_s, rank.gpu_idle_s) == (1, 1, 15)
    assert found.saving_s == pytest.approx(1)


def test_ranks_that_keep_step_save_no_more_than_the_one_that_can_hide_least():
    """Rank 1 computes for 6 of 10 s and is held up for 3: nothing that rank 0 does makes it faster by more."""
    found = job_metrics(two_ranks().timeline())
    assert [rank.hideable_s for rank in found.ranks] == [5, 3]
    assert found.saving_s == pytest.approx(3)
    apart = Build(2)
    for rank, computing in ((0, 4), (1, 6)):
        apart.span(rank, "compute", 0, computing)
        apart.transfer(rank, f"of {rank}", computing, computing, 9)
    assert job_metrics(apart.timeline()).saving_s == pytest.approx((4 + 3) / 2)


def test_of_a_transfer_that_outlasts_the_iteration_only_what_is_inside_counts():
    """As where a GPU is behind its host, which the iterations are of."""
    build = Build([Rank(0, device="cuda:0")])
    build.span(0, "compute", 0, 8)
    build.transfer(0, "bucket", 7, 8, 30)
    build.iteration(0, 0, 0, 10)
    found = job_metrics(build.timeline())
    assert [one.exposed_s for one in found.transfers] == [2] == [found.ranks[0].exposed_s]


def test_waiting_counts_in_the_iteration_in_which_it_happens():
    """Handed over in an iteration of 2 s, awaited for 7 s in the next, and for 1 s after it."""
    build = Build(2)
    build.transfer(0, "bucket", 1, 13, 14, 5, 14, iteration=0)
    build.transfer(1, "bucket", 13, 13, 14, 13, 14, iteration=0)
    build.span(0, "compute", 0, 5)
    build.span(0, "wait", 5, 14, transfer=0)
    build.span(1, "compute", 0, 13)
    build.span(1, "wait", 13, 14, transfer=1)
    build.every(0, 0, 2)
    build.every(1, 2, 12)
    found = job_metrics(build.timeline())
    assert found.stragglers[0].waited_s == 7 / 2
    assert found.waiting_share == pytest.approx((0 + 7 / 10) / 2)
    assert found.transfers[0].exposed_s == pytest.approx(7 / 4) == pytest.approx(found.mean("exposed"))


def iterated(*durations: float, predicted: bool = False) -> JobMetrics:
    build, now = Build(), 0.0
    for number, duration in enumerate(durations):
        build.span(0, "compute", now, now + duration)
        build.iteration(0, number, now, now + duration)
        now += duration
    return job_metrics(build.timeline(predicted=predicted))


def test_the_rule_of_warm_up():
    assert iterated(1, 1, 1, 1).warm_up == (0,)
    assert iterated(9, 2, 1.2, 1, 1, 1).warm_up == (0, 1)
    assert iterated(9, 8, 7, 1, 1, 1).warm_up == (0, 1, 2)
    assert iterated(9, 1).warm_up == ()
    assert iterated(9, 1, 1, 1, predicted=True).warm_up == ()
    assert iterated(1, 1, 5, 1, 1).iteration_s.high == 5


def test_who_is_late_must_exceed_the_clocks_errors():
    build = Build([Rank(0, clock_error_s=0.3), Rank(1, clock_error_s=0.3)])
    for number, gap in enumerate((0.5, 0.7)):
        at = 10.0 * number
        build.transfer(0, "bucket", at + 1, at + 2, at + 3)
        build.transfer(1, "bucket", at + 1 + gap, at + 2, at + 3)
        build.every(number, at, at + 10)
    found = job_metrics(build.timeline())
    assert {rank.rank: rank.last for rank in found.stragglers} == {0: 0, 1: 1}
    assert found.stragglers[0].margin_s == pytest.approx(0.7)
    assert any("cannot tell" in note for note in found.notes)


def test_a_gpu_that_computes_slowly_is_late_though_its_host_is_not():
    """Both hosts have handed over by 0.6 s; rank 1's GPU comes to the first bucket 2 s later, to the second after the first."""
    build = Build([Rank(rank, device=f"cuda:{rank}") for rank in (0, 1)])
    for rank, ready in ((0, 4), (1, 6)):
        build.span(rank, "compute", 0, ready, "backward")
        build.transfer(rank, "bucket 0", 0.5, ready, 8)
        build.transfer(rank, "bucket 1", 0.6, 8, 9)
        build.span(rank, "compute", 9, 10, "step")
    build.every(0, 0, 10)
    found = job_metrics(build.timeline())
    late, punctual = found.stragglers
    assert (late.rank, late.last, late.collectives, late.margin_s, late.waited_s) == (1, 1, 2, 2, 2)
    assert (punctual.last, punctual.waited_s) == (0, 0)
    assert [(item.name, item.seconds) for item in found.path_items] == [
        ("backward", 6), ("bucket 0", 2), ("bucket 1", 1), ("step", 1)
    ]  # fmt: skip
    assert found.path.rank.tolist() == [1, 1, 1, 1]


def test_collectives_that_ranks_count_differently_are_not_matched():
    build = Build(2)
    for rank, at in ((0, 1), (0, 3), (1, 2)):
        build.transfer(rank, "bucket", at, at, at + 1)
    build.every(0, 0, 10)
    found = job_metrics(build.timeline())
    assert found.stragglers == ()
    assert math.isnan(found.waiting_share)
    assert [one.name for one in found.transfers] == ["bucket #1", "bucket #2"]


def test_send_and_receive_are_one_transfer():
    build = Build(2)
    build.span(0, "compute", 0, 3, "stage 0")
    build.transfer(0, "activation", 3, 3, 5, collective="send")
    build.transfer(1, "activation", 0, 3, 5, collective="recv")
    build.span(1, "compute", 5, 9, "stage 1")
    build.every(0, 0, 9)
    found = job_metrics(build.timeline())
    assert (found.stragglers[0].rank, found.stragglers[0].waited_s) == (0, 0)
    assert [(item.name, item.seconds) for item in found.path_items] == [
        ("stage 1", 4), ("stage 0", 3), ("activation", 2)
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "collectives"), [("", 1), ("activation", 5)])
def test_sends_are_not_matched_with_sends(name, collectives):
    """A pipeline of two microbatches: the recorder names a transfer like its collective, the ranks send both ways."""
    build = Build(2)
    for batch in (0, 1):
        for rank, way, at in ((0, "send", 1), (1, "recv", 1), (1, "send", 4), (0, "recv", 2)):
            at += 4 * batch
            build.transfer(rank, name or way, at, at, at + 0.5, collective=way)
    build.every(0, 0, 10)
    build.transfer(0, "bucket", 9, 9, 9.5)
    build.transfer(1, "bucket", 9.2, 9.2, 9.5)
    found = job_metrics(build.timeline())
    assert {rank.rank: rank.collectives for rank in found.stragglers} == {0: collectives, 1: collectives}


def test_two_timelines_with_groups_that_use_one_name():
    """Each group has its own buckets 0: their exposed times add up, their times on the wire are a mean."""
    both, one = Build(4), Build(4)
    for build, lengths in ((both, (1, 3)), (one, (1, 2))):
        for rank in range(4):
            sent = build.transfer(
                rank, "bucket 0", 0, 0, lengths[rank // 2], 0, lengths[rank // 2], group=rank // 2
            )
            build.span(rank, "wait", 0, lengths[rank // 2], transfer=sent)
        build.every(0, 0, 4)
    found = compare(*(job_metrics(b.timeline(groups=((0, 1), (2, 3)))) for b in (both, one)))
    assert [(d.before_s, d.after_s) for d in found.transfers] == [(2, 1.5)]
    assert [(d.before_s, d.after_s) for d in found.exposed] == [(2, 1.5)]


def test_transfers_alone_draw_their_communication():
    build = Build()
    build.span(0, "compute", 0, 4)
    build.transfer(0, "bucket", 1, 2, 5, drawn=False)
    build.iteration(0, 0, 0, 6)
    (rank,) = means(found := job_metrics(build.timeline()))
    assert (rank["overlapped"], rank["exposed"], rank["idle"]) == (2, 1, 1)
    assert "drawn from transfers" in found.notes[0]


def test_spans_without_an_end_are_left_out_and_counted():
    build = Build()
    a = build.span(0, "compute", 0, 2)
    build.span(0, "compute", 2, math.nan)
    c = build.span(0, "compute", 2, 5)
    build.edges = [(a, c), (1, c)]
    found = job_metrics(build.timeline(attributes=({"a": 1}, {}, {"c": 1})))
    assert found.notes[0].startswith("1 of 3 spans")
    assert found.timeline.dependencies.tolist() == [[0, 1]]
    assert found.timeline.attributes == ({"a": 1}, {"c": 1})
    assert found.iteration_s.median == 5


def test_nothing_recorded_is_an_error():
    with pytest.raises(InputError, match="nothing was recorded"):
        job_metrics(Build().timeline())


def test_the_path_goes_through_given_dependencies_to_other_ranks():
    build = Build(2)
    a = build.span(0, "compute", 0, 3, "a")
    build.span(1, "compute", 0, 1, "b")
    c = build.span(1, "compute", 4, 6, "c")
    build.edges = [(a, c)]
    found = job_metrics(build.timeline())
    assert [(item.kind, item.name, item.seconds) for item in found.path_items] == [
        ("compute", "a", 3), ("compute", "c", 2), ("idle", "", 1)
    ]  # fmt: skip


def test_the_path_leaves_a_busy_link_by_the_transfer_before():
    build = Build()
    build.span(0, "compute", 0, 1, "first")
    build.span(0, "compute", 1, 2, "second")
    sent = [build.transfer(0, "large", 1, 1, 8), build.transfer(0, "small", 2, 8, 9)]
    build.span(0, "wait", 2, 9, transfer=sent[1])
    build.iteration(0, 0, 0, 9)
    found = job_metrics(build.timeline())
    assert [(item.name, item.seconds) for item in found.path_items] == [
        ("large", 7),
        ("first", 1),
        ("small", 1),
    ]


def test_the_path_leaves_a_busy_stream_by_the_transfer_before_though_the_gpu_computes():
    build = Build([Rank(0, device="cuda:0")])
    build.span(0, "compute", 0, 1, "first")
    build.span(0, "compute", 1, 9, "second")
    build.transfer(0, "large", 0.5, 1, 8)
    build.transfer(0, "small", 0.6, 8, 10)
    build.iteration(0, 0, 0, 10)
    found = job_metrics(build.timeline())
    assert [(item.name, item.seconds) for item in found.path_items] == [
        ("large", 7), ("small", 2), ("first", 1)
    ]  # fmt: skip


@pytest.mark.parametrize("begin", [0, 0.25])
def test_the_path_goes_from_kernel_to_kernel_across_streams(begin):
    """Launches are known, in the window or before it; the step waited for the collective, and not for its host, which runs ahead."""
    build = Build([Rank(0, device="cuda:0")])
    calls = [build.span(0, "other", at, at + 0.05, "launch") for at in (0, 0.05, 0.1)]
    build.span(0, "other", 0.3, 4.0005, "next batch")
    build.span(0, "other", 4.0005, 9.001, "next forward")
    sent = build.transfer(0, "bucket", 0.05, 4.001, 9, drawn=False)
    kernels = [
        build.span(0, "compute", 0.3, 4, "gradient", lane="stream 7"),
        build.span(0, "communication", 4.001, 9, "bucket", lane="stream 20", transfer=sent),
        build.span(0, "compute", 9.002, 10, "step", lane="stream 7"),
    ]
    build.edges = [*zip(calls, kernels, strict=True)]
    build.iteration(0, 0, begin, 10)
    path = job_metrics(build.timeline()).path
    assert [span for span in path.span.tolist() if span >= 0][-3:] == kernels


def test_operations_inside_others_take_their_time_from_them():
    build = Build()
    build.span(0, "compute", 0, 10, "outer")
    build.span(0, "compute", 2, 5, "inner")
    build.span(0, "compute", 3, 4, "innermost")
    build.span(0, "compute", 7, 9, "inner")
    found = job_metrics(build.timeline())
    assert {one.name: (one.seconds, one.calls) for one in found.operations} == {
        "outer": (5, 1), "inner": (4, 2), "innermost": (1, 1)
    }  # fmt: skip


def test_two_timelines_compared():
    before, slower = two_ranks(), Build(2)
    for rank in (0, 1):
        slower.span(rank, "compute", 0, 6, "backward")
        slower.transfer(rank, "bucket 0", 6, 6, 15, 6, 15)
        slower.span(rank, "compute", 15, 16, "new step")
        slower.iteration(rank, 0, 0, 16)
    found = compare(job_metrics(before.timeline()), job_metrics(slower.timeline()))
    assert found.iteration_ratio == 1.6
    assert {one.name: one.change_s for one in found.parts} == {
        "compute": 1, "overlapped": 0, "exposed": 5, "input": 0, "other": 0, "idle": 0, "iteration": 6
    }  # fmt: skip
    assert [(one.name, one.before_s, one.after_s) for one in found.transfers] == [("bucket 0", 3, 9)]
    assert ("new step", None, 1) in [(one.name, one.before_s, one.after_s) for one in found.operations]


def test_the_ratio_is_of_the_times_that_the_parts_add_up_to():
    steady, uneven = Build(1), Build(1)
    for build, lengths in ((steady, (4, 4, 4, 4)), (uneven, (4, 4, 4, 6))):
        start = 0
        for number, length in enumerate(lengths):
            build.span(0, "compute", start, start + length)
            build.iteration(0, number, start, start + length)
            start += length
    found = compare(job_metrics(steady.timeline()), job_metrics(uneven.timeline()))
    assert found.parts[-1].after_s > found.parts[-1].before_s
    assert found.iteration_ratio == found.parts[-1].after_s / found.parts[-1].before_s


END = 24
SPAN = st.tuples(
    st.integers(0, 1),
    st.sampled_from(SPAN_KINDS),
    st.integers(0, END - 1),
    st.integers(0, 8),
    st.sampled_from("ab"),
)


@st.composite
def builds(draw):
    """Spans on an integer grid, two ranks, three iterations (with gaps between them) or none."""
    build = Build(2)
    for rank, kind, start, length, lane in draw(st.lists(SPAN, min_size=1, max_size=24)):
        build.span(rank, kind, start, min(start + length, END), f"{kind} {length}", lane=lane)
    build.span(0, "other", 0, END, lane="c")
    if draw(st.booleans()):
        for rank in (0, 1):
            edges = sorted(draw(st.lists(st.integers(0, END), min_size=6, max_size=6, unique=True)))
            for number in range(3):
                build.iteration(rank, number, edges[2 * number], edges[2 * number + 1])
    return build


def cell(kinds: set[str], measured: bool) -> tuple[str, ...]:
    """What one unit of time belongs to: the slow way, straight from the definition."""
    computing = "compute" in kinds and not (measured and "wait" in kinds)
    sending = "communication" in kinds
    held = "wait" in kinds if measured else sending and not computing
    sets = [name for name, on in (("communication", sending), ("computation", computing)) if on]
    if computing:
        return ("overlapped" if sending else "compute", *sets)
    if held:
        return ("exposed", *(["wire"] if sending else []), *sets)
    if "input" in kinds:
        return ("input", *sets)
    return ("other" if kinds & {"copy", "other"} else "idle", *sets)


@given(builds())
def test_parts_agree_with_a_count_of_cells(build):
    found = job_metrics(build.timeline())
    every, measured = found.parts, any(row[3] == SPAN_KINDS.index("wait") for row in build.spans)
    for i in range(len(every)):
        counted = dict.fromkeys((*PARTS, "wire", "communication", "computation"), 0)
        busy = []
        for at in range(int(every.start_s[i]), int(every.end_s[i])):
            rows = [row for row in build.spans if row[0] == every.rank[i] and row[4] <= at < row[5]]
            names = cell({SPAN_KINDS[row[3]] for row in rows}, measured)
            busy += [at] if {"communication", "computation"} & set(names) else []
            for name in names:
                counted[name] += 1
        assert {name: float(getattr(every, f"{name}_s")[i]) for name in counted} == counted
        assert every.makespan_s[i] == (busy[-1] - busy[0] + 1 if busy else 0)


@given(builds())
def test_what_always_holds(build):
    found = job_metrics(build.timeline())
    every = found.parts
    total = sum(getattr(every, f"{part}_s") for part in PARTS)
    assert np.allclose(total, every.duration_s, rtol=1e-12)
    assert (every.wire_s <= every.communication_s + 1e-12).all()
    if found.evidence == "inferred":
        assert (every.exposed_s <= every.communication_s + 1e-12).all()
    for rank in found.ranks:
        check_ranges(rank)
    path = found.path
    assert (path.start_s[1:] == path.end_s[:-1]).all()
    assert (path.end_s > path.start_s).all()
    assert sum(item.share for item in found.path_items) == pytest.approx(1)
    mine = every.number == path.number
    assert (path.start_s[0], path.end_s[-1]) == (every.start_s[mine].min(), every.end_s[mine].max())


def check_ranges(rank: RankFigures) -> None:
    """Shares and efficiencies lie in [0, 1] or are unknown with a reason; what can be saved is part of what is exposed."""
    bounds, rounding = rank.efficiency, 1e-9
    hideable = min(bounds.communication_s, bounds.computation_s)
    assert math.isnan(bounds.efficiency) == bool(bounds.reason)
    assert math.isnan(bounds.efficiency) == (not hideable or bounds.gaps_s > hideable)
    assert bounds.reason or bounds.efficiency == pytest.approx(rank.overlapped_s / hideable)
    assert bounds.reason or 0 <= bounds.efficiency <= 1
    assert math.isnan(bounds.speedup) or 0 <= bounds.speedup <= 1
    assert 0 <= bounds.gaps_s <= bounds.makespan_s <= rank.iteration_s + rounding
    assert bounds.busy_s <= bounds.cost_max_s + rounding
    assert 0 <= rank.exposed_share <= 1
    assert 0 <= rank.hideable_s <= rank.exposed_s <= rank.iteration_s
    assert rank.hideable_s <= rank.iteration_s - bounds.cost_min_s + rounding
    if not math.isnan(rank.gpu_idle_s):
        assert 0 <= rank.gpu_idle_s <= rank.input_s + rank.other_s + rank.idle_s + rounding


@st.composite
def jobs(draw):
    """As `builds`, on GPUs or not, with transfers that ranks have in common, that are awaited or not, and outlast iterations."""
    build = draw(builds())
    build.ranks = tuple(Rank(rank, device=draw(st.sampled_from(["cpu", "cuda:0"]))) for rank in (0, 1))
    for number in range(draw(st.integers(1, 4))):
        for rank in (0, 1):
            times = sorted(draw(st.lists(st.integers(0, END + 9), min_size=5, max_size=5)))
            awaited = draw(st.booleans())
            given = times if awaited else [*times[:3], math.nan, math.nan]
            sent = build.transfer(rank, f"bucket {number % 2}", *given, iteration=draw(st.integers(-1, 2)))
            if awaited and draw(st.booleans()):
                build.span(rank, "wait", times[3], times[4], transfer=sent)
    return build


@given(jobs())
def test_every_figure_lies_in_its_range(build):
    found = job_metrics(build.timeline())
    rounding, whole, exposed = 1e-9, found.iteration_s.median, found.mean("exposed")
    for rank in found.ranks:
        check_ranges(rank)
    assert 0 <= found.saving_s <= found.exposed_share * whole + rounding <= whole + 2 * rounding
    assert found.evidence != "inferred" or exposed <= found.efficiency.communication_s + rounding
    assert math.isnan(found.efficiency.efficiency) == bool(found.efficiency.reason)
    assert found.efficiency.reason or 0 <= found.efficiency.efficiency <= 1
    assert math.isnan(found.waiting_share) or 0 <= found.waiting_share <= 1 + rounding
    for transfer in found.transfers:
        assert 0 <= transfer.exposed_s <= exposed + rounding
    for late in found.stragglers:
        assert 0 <= late.last_share <= 1
        assert 0 <= late.waited_s <= exposed * len(found.ranks) + rounding
    assert all(0 < item.share <= 1 + rounding for item in found.path_items)


def moved(timeline: JobTimeline, by_s: float) -> JobTimeline:
    def shifted(columns):
        times = [f.name for f in fields(columns) if f.name.endswith("_s")]
        return replace(columns, **{name: getattr(columns, name) + by_s for name in times})

    return replace(
        timeline,
        spans=shifted(timeline.spans),
        transfers=shifted(timeline.transfers),
        iterations=shifted(timeline.iterations),
    )


def figures(found: JobMetrics) -> tuple[object, ...]:
    return (
        found.ranks, found.exposed_share, found.iteration_s, found.steady, repr(found.transfers),
        repr(found.stragglers), [(one.kind, one.name, one.seconds) for one in found.operations], found.path.by_kind(),
    )  # fmt: skip


@given(builds(), st.integers(-1000, 1000))
def test_when_it_was_does_not_matter(build, by_s):
    timeline = build.timeline()
    assert repr(figures(job_metrics(moved(timeline, by_s)))) == repr(figures(job_metrics(timeline)))


@given(builds(), st.randoms(use_true_random=False))
def test_the_order_of_spans_does_not_matter(build, chance):
    timeline = build.timeline()
    order = list(range(len(timeline.spans)))
    chance.shuffle(order)
    mixed = Spans(**{f.name: getattr(timeline.spans, f.name)[order] for f in fields(Spans)})
    one, other = job_metrics(timeline), job_metrics(replace(timeline, spans=mixed))
    assert means(one) == means(other)
    assert (one.exposed_share, one.efficiency.makespan_s) == (
        other.exposed_share,
        other.efficiency.makespan_s,
    )
    assert one.path.length_s == other.path.length_s


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 5), st.lists(st.integers(1, 8), max_size=3)),
        min_size=1,
        max_size=30,
    )
)
def test_the_path_of_a_schedule_without_delays_has_no_gap(tasks):
    """Each task begins when its lane and what it depends on are done: the path explains every second."""
    build, free = Build(), [0.0, 0.0, 0.0]
    for task, (lane, length, back) in enumerate(tasks):
        before = sorted({task - step for step in back if step <= task})
        start = max([free[lane], *(build.spans[one][5] for one in before)])
        build.span(0, "compute", start, start + length, f"task {task}", lane=f"lane {lane}")
        build.edges += [(one, task) for one in before]
        free[lane] = start + length
    path = job_metrics(build.timeline()).path
    assert (path.kind >= 0).all()
    for earlier, later in zip(path.span[:-1].tolist(), path.span[1:].tolist(), strict=True):
        same_lane = build.spans[earlier][1] == build.spans[later][1]
        assert same_lane or (earlier, later) in build.edges


def test_many_spans():
    """Two hundred thousand spans, nested ones among them, over eight ranks."""
    per_rank, ranks = 25_000, 8
    start = np.arange(per_rank, dtype=np.float64) * 2
    nested = np.arange(per_rank) % 3 == 1
    begin = np.where(nested, start - 1.5, start)
    count = per_rank * ranks
    zeros = np.zeros(count, dtype=np.int64)
    spans = Spans(
        rank=np.repeat(np.arange(ranks), per_rank), lane=zeros, name=zeros, kind=zeros.astype(np.int8),
        start_s=np.tile(begin, ranks), end_s=np.tile(begin, ranks) + np.tile(np.where(nested, 0.5, 1.0), ranks),
        iteration=zeros, transfer=zeros - 1, operation=zeros - 1,
    )  # fmt: skip
    build = Build(ranks)
    build.span(0, "compute", 0, 1)
    found = job_metrics(replace(build.timeline(), spans=spans))
    assert found.ranks[0].compute_s == (~nested).sum()
    assert found.operations[0].seconds == pytest.approx((~nested).sum())
    assert len(found.path) > per_rank


@pytest.mark.parametrize("waits", [True, False])
def test_transfers_that_are_awaited_together_share_the_waiting(waits):
    build = Build()
    build.span(0, "compute", 0, 4)
    for name, first, last in (("a", 1, 3), ("b", 3, 6), ("c", 6, 10)):
        sent = build.transfer(0, name, 1, first, last, 4, max(4, last))
        if waits and last > 4:
            build.span(0, "wait", max(4, first), last, transfer=sent)
    build.iteration(0, 0, 0, 10)
    found = job_metrics(build.timeline())
    assert {one.name: (one.exposed_s, one.slack_s) for one in found.transfers} == {
        "c": (4, -6), "b": (2, -2), "a": (0, 1)
    }  # fmt: skip
    assert found.ranks[0].exposed_s == 6


def test_iterations_without_transfers_count_in_the_means():
    """As where ranks meet at every eighth step."""
    build = Build(2)
    for number in range(8):
        build.every(number, 10 * number, 10 * number + 10)
    for rank, ready in enumerate((74, 78)):
        build.span(rank, "compute", 0, ready)
        sent = build.transfer(rank, "sync", ready, ready, 79, ready, 79, iteration=7)
        build.span(rank, "wait", ready, 79, "wait for sync", transfer=sent, iteration=7)
    found = job_metrics(build.timeline())
    (sync,) = found.transfers
    assert sync.count == 2
    assert sync.exposed_s == pytest.approx(found.mean("exposed")) == pytest.approx(6 / 14)
    assert {one.name: one.seconds for one in found.operations}["wait for sync"] == sync.exposed_s


def test_where_nobody_says_when_it_was_handed_over_the_first_byte_counts():
    build = Build(2)
    for rank, first in ((0, 1), (1, 4)):
        build.span(rank, "compute", 0, first)
        build.transfer(rank, "bucket", math.nan, first, 6)
    build.every(0, 0, 6)
    found = job_metrics(build.timeline())
    assert (found.stragglers[0].rank, found.stragglers[0].margin_s, found.stragglers[0].waited_s) == (1, 3, 3)
    assert math.isnan(found.transfers[0].queued_s)
    assert found.path.by_kind() == {"compute": 4, "communication": 2}
    assert any("handed over" in note for note in found.notes)


def test_a_collective_that_waits_for_a_late_rank_is_on_the_path_only_from_its_arrival():
    build = Build(2)
    for rank, ready, rest in ((0, 1, 3), (1, 4, 1)):
        build.span(rank, "compute", 0, ready, f"work {rank}")
        build.transfer(rank, "bucket", ready, ready, 6)
        build.span(rank, "compute", 6, 6 + rest, f"rest {rank}")
    build.every(0, 0, 9)
    path = job_metrics(build.timeline()).path
    assert list(zip(path.rank.tolist(), path.start_s.tolist(), path.end_s.tolist(), strict=True)) == [
        (1, 0, 4), (0, 4, 6), (0, 6, 9)
    ]  # fmt: skip


def test_waiting_for_one_transfer_is_no_waiting_for_who_is_late_to_the_next():
    build = Build(2)
    for rank, arrives in ((0, 1), (1, 6)):
        build.span(rank, "compute", 0, 1)
        one = build.transfer(rank, "a", 0.5, 1, 4, 1, 4)
        two = build.transfer(rank, "b", arrives, 6, 7, max(4, arrives), 7)
        build.span(rank, "wait", 1, 4, transfer=one)
        build.span(rank, "wait", max(4, arrives), 7, transfer=two)
    build.every(0, 0, 7)
    (late, _) = job_metrics(build.timeline()).stragglers
    assert (late.rank, late.waited_s) == (1, 2)


def test_waits_for_several_late_ranks_that_overlap_count_once():
    """Rank 0 awaits two collectives from 5 s on; rank 1 comes last to the one, at 10 s, rank 2 to the other, at 12 s."""
    build = Build(3)
    for rank, (a, b) in enumerate(((5, 5), (10, 5), (5, 12))):
        come = max(a, b)
        build.span(rank, "compute", 0, come)
        one = build.transfer(rank, "a", a, a, 10, come, max(come, 10))
        two = build.transfer(rank, "b", b, b, 12, come, 12)
        build.span(rank, "wait", come, max(come, 10), transfer=one)
        build.span(rank, "wait", max(come, 10), 12, transfer=two)
    build.every(0, 0, 20)
    found = job_metrics(build.timeline())
    assert found.waiting_share == found.exposed_share_worst == pytest.approx(0.35)
    assert {rank.rank: rank.waited_s for rank in found.stragglers} == {0: 0, 1: 5, 2: 7 + 2}
