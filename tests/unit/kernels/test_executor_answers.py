"""The executor's answers worked out by hand, and what it refuses."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from hemiola.core.errors import InputError
from hemiola.kernels.executor import critical_path, execute, warm_up
from hemiola.kernels.executor.tasks import Execution, Row, Tasks, tasks_from_columns, tasks_from_rows


def done(rows: list[Row], links: Mapping[str, float] | None = None, **more: Any) -> Execution:
    return execute(tasks_from_rows(rows, links or {}, **more))


def ends(rows: list[Row], links: Mapping[str, float] | None = None, **more: Any) -> dict[str, float]:
    """When each ended, to nine digits."""
    end_s = done(rows, links, **more).end_s
    return {row.name: float(f"{end:.9g}") for row, end in zip(rows, end_s, strict=True)}


def flow(name: str, size: float, *path: str, **more: Any) -> Row:
    return Row(name, size_bytes=size, path=path, **more)


# --- links --------------------------------------------------------------------------------------


def test_two_flows_share_a_link_and_the_longer_has_it_alone_at_last() -> None:
    assert ends([flow("a", 10, "l"), flow("b", 20, "l")], {"l": 10}) == {"a": 2, "b": 3}


def test_a_third_flow_ends_early_and_leaves_its_share() -> None:
    # 10/3 each until 0.9 s, when the two others have 7 bytes left at 5 bytes/s
    rows = [flow("a", 10, "l"), flow("b", 10, "l"), flow("c", 3, "l")]
    assert ends(rows, {"l": 10}) == {"a": 2.3, "b": 2.3, "c": 0.9}


def test_a_flow_through_two_links_takes_its_share_of_the_narrower() -> None:
    # 2 each on "narrow", 8 for the other on "wide"; from 1 s on 4 and 6; from 1.5 s on 10
    rows = [flow("both", 4, "wide", "narrow"), flow("wide", 16, "wide"), flow("narrow", 2, "narrow")]
    assert ends(rows, {"wide": 10, "narrow": 4}) == {"both": 1.5, "wide": 2.0, "narrow": 1.0}


def test_a_flow_with_a_limit_leaves_the_rest_to_others() -> None:
    rows = [flow("slow", 2, "l", rate_max_bytes_per_s=2), flow("fast", 12, "l")]
    assert ends(rows, {"l": 10}) == {"slow": 1.0, "fast": 1.4}


def test_a_link_that_can_serve_all_slows_nobody() -> None:
    rows = [flow(name, 6, "l", rate_max_bytes_per_s=2) for name in "abcde"]
    assert set(ends(rows, {"l": 10}).values()) == {3.0}


def test_under_priority_the_lower_number_interrupts_and_the_other_goes_on_later() -> None:
    rows = [flow("low", 20, "l", priority=1), flow("high", 10, "l", priority=-1, release_s=1.0)]
    assert ends(rows, {"l": 10}, sharing="priority") == {"low": 3.0, "high": 2.0}
    assert ends(rows, {"l": 10}, sharing="fair") == {"low": 3.0, "high": 3.0}


def test_under_priority_a_flow_gets_what_the_lower_number_leaves_and_equals_share() -> None:
    rows = [
        flow("first", 8, "l", rate_max_bytes_per_s=4),
        flow("a", 6, "l", priority=1),
        flow("b", 12, "l", priority=1),
        flow("last", 1, "l", priority=2),
    ]
    # 4, 3, 3, 0 until 2 s; then b has 6 left and the link alone; then the last
    assert ends(rows, {"l": 10}, sharing="priority") == {"first": 2, "a": 2, "b": 2.6, "last": 2.7}


def test_a_paused_flow_waits_for_one_link_and_then_for_the_next() -> None:
    rows = [
        flow("low", 10, "a", "b", priority=2),
        flow("on a", 20, "a"),
        flow("on b", 30, "b", priority=1, release_s=1.0),
    ]
    assert ends(rows, {"a": 10, "b": 10}, sharing="priority") == {"on a": 2, "on b": 4, "low": 5}


def test_a_flow_that_goes_on_pauses_others_on_a_link_where_nothing_else_happened() -> None:
    # until 1 s "bulk" has 6 of b and "both" nothing of a; then "both" has those 6, and "bulk" them again at last
    rows = [
        flow("on a", 10, "a"),
        flow("both", 12, "a", "b", priority=1),
        flow("slow", 40, "b", rate_max_bytes_per_s=4),
        flow("bulk", 18, "b", priority=2),
    ]
    assert ends(rows, {"a": 10, "b": 10}, sharing="priority") == {"on a": 1, "both": 3, "bulk": 5, "slow": 10}


def test_all_that_are_paused_go_on_where_a_link_has_room_for_all_again() -> None:
    rows = [
        flow("first", 20, "l"),
        *(flow(name, 4, "l", priority=1, rate_max_bytes_per_s=4) for name in "ab"),
    ]
    rows += [flow("last", 2, "l", priority=2, rate_max_bytes_per_s=2)]
    assert ends(rows, {"l": 10}, sharing="priority") == {"first": 2, "a": 3, "b": 3, "last": 3}


def test_a_thousand_flows_each_paused_by_the_next_end_last_come_first() -> None:
    n = 1000
    tasks = tasks_from_columns(
        np.zeros(n),
        priority=-np.arange(n),
        release_s=np.arange(n) / 2,
        size_bytes=1.0,
        crosses=(np.r_[np.arange(n), np.arange(n)], np.repeat([0, 1], n)),
        link_bytes_per_s=[1.0, 2.0],
        sharing="priority",
    )
    # each has half a second before the next comes; then the last has its whole, the others half of it each
    wanted = (n - 1) / 2 + 1 + (n - 1 - np.arange(n)) / 2
    assert execute(tasks).end_s.tolist() == wanted.tolist()


def test_cores_are_a_link_of_core_seconds() -> None:
    threads = [flow(name, 1.0, "cpu", rate_max_bytes_per_s=1.0) for name in "abc"]
    assert set(ends(threads, {"cpu": 2}).values()) == {1.5}
    assert set(ends(threads[:2], {"cpu": 2}).values()) == {1.0}


def test_bytes_flow_after_the_latency_and_only_then_compete() -> None:
    late = flow("late", 10, "l", duration_s=1.0)
    answer = done([late, flow("now", 10, "l")], {"l": 10})
    assert answer.first_byte_s.tolist() == [1.0, 0.0]
    assert answer.end_s.tolist() == [2.0, 1.0]
    assert answer.bound_s == 2.0


def test_a_size_without_a_path_is_limited_by_its_own_rate_only() -> None:
    rows = [flow("limited", 6, rate_max_bytes_per_s=2), flow("free", 6), flow("after", 0, after=["free"])]
    assert ends(rows) == {"limited": 3, "free": 0, "after": 0}


def test_an_infinite_link_takes_no_time() -> None:
    rows = [flow("a", 6, "inf"), flow("b", 6, "inf", "l"), flow("c", 6, "l")]
    assert ends(rows, {"inf": math.inf, "l": 6}) == {"a": 0, "b": 2, "c": 2}


def test_transfers_that_end_together_but_for_rounding_end_at_one_instant() -> None:
    assert 0.3 / 0.1 < 3.0
    rows = [
        flow("rounded", 0.3, "slow"),
        flow("exact", 3.0, "fast"),
        on("worse", 1.0, priority=2, after=["rounded"]),
        on("better", 1.0, priority=1, after=["exact"]),
    ]
    assert ends(rows, {"slow": 0.1, "fast": 1.0}) == {"rounded": 3, "exact": 3, "better": 4, "worse": 5}


def test_transfers_that_end_a_billionth_apart_do_not() -> None:
    rows = [
        flow("sooner", 3.0 - 3e-9, "a"),
        flow("later", 3.0, "b"),
        on("worse", 1.0, priority=2, after=["sooner"]),
        on("better", 1.0, priority=1, after=["later"]),
    ]
    answer = done(rows, {"a": 1.0, "b": 1.0})
    assert answer.end_s[1] - answer.end_s[0] == pytest.approx(3e-9, rel=1e-6)
    assert answer.start_s[2] < answer.start_s[3]


def test_a_ring_all_reduce_takes_what_the_formula_says() -> None:
    # 2 (N - 1) (latency + size / N / bandwidth): Patarasuk and Yuan, "Bandwidth optimal all-reduce", 2009
    ranks, size, latency_s, bandwidth = 4, 80.0, 0.5, 10.0
    steps, links = 2 * (ranks - 1), [f"{way}{rank}" for way in ("out", "in") for rank in range(ranks)]
    rows = [
        Row(
            f"{step}.{rank}",
            latency_s,
            size_bytes=size / ranks,
            path=[f"out{rank}", f"in{(rank + 1) % ranks}"],
            after=[f"{step - 1}.{rank}", f"{step - 1}.{(rank - 1) % ranks}"] if step else [],
        )
        for step in range(steps)
        for rank in range(ranks)
    ]
    answer = done(rows, dict.fromkeys(links, bandwidth))
    assert answer.makespan_s == answer.bound_s == steps * (latency_s + size / ranks / bandwidth) == 15.0


# --- resources ----------------------------------------------------------------------------------


def on(name: str, duration: float, resource: str = "r", **more: Any) -> Row:
    return Row(name, duration, resource=resource, **more)


def test_a_resource_takes_the_lowest_priority_then_the_first_ready_then_the_first_index() -> None:
    rows = [
        on("holder", 5.0),
        on("later", 1.0, priority=1, release_s=2.0),
        on("sooner", 1.0, priority=1, release_s=1.0),
        on("same", 1.0, priority=1, release_s=2.0),
        on("urgent", 1.0, priority=0, release_s=4.0),
    ]
    assert ends(rows) == {"holder": 5, "urgent": 6, "sooner": 7, "later": 8, "same": 9}
    in_order = {"holder": 5, "sooner": 6, "later": 7, "same": 8, "urgent": 9}
    assert ends(rows, in_order=["r"]) == in_order


def test_priorities_of_any_size_keep_their_order() -> None:
    most, least = 2**63 - 1, -(2**63)
    rows = [on("c", 1.0, priority=most), on("b", 1.0, priority=0), on("a", 1.0, priority=least)]
    assert ends(rows) == {"a": 1, "b": 2, "c": 3}
    assert ends([on("b", 1.0, priority=2**31), on("a", 1.0, priority=2**31 - 1)]) == {"a": 1, "b": 2}


def test_a_task_holds_its_resource_until_its_last_byte() -> None:
    rows = [on("send", 1.0, size_bytes=10, path=["l"]), on("next", 1.0)]
    assert ends(rows, {"l": 10}) == {"send": 2, "next": 3}


def test_what_becomes_ready_at_an_instant_competes_for_it_however_many_joins_lie_between() -> None:
    rows = [
        on("first", 1.0, "other"),
        on("worse", 1.0, priority=2, after=["first"]),
        Row("join", after=["first"]),
        Row("another", after=["join"]),
        on("better", 1.0, priority=1, after=["another"]),
    ]
    assert ends(rows) == {"first": 1, "join": 1, "another": 1, "better": 2, "worse": 3}


@pytest.mark.parametrize("release_s", [0.0, 1.0])
def test_of_those_ready_at_an_instant_the_lowest_index_goes_first_whatever_readied_it(
    release_s: float,
) -> None:
    rows = [
        on("joined", 1.0, after=["join"]),
        on("released", 1.0, release_s=release_s),
        Row("join", release_s=release_s),
    ]
    assert ends(rows) == {"join": release_s, "joined": release_s + 1, "released": release_s + 2}


def test_a_task_of_no_length_on_a_resource_ends_after_the_others_have_been_chosen() -> None:
    rows = [
        on("mark", 0.0, "other"),
        on("worse", 1.0, priority=2),
        on("better", 1.0, priority=1, after=["mark"]),
    ]
    assert ends(rows) == {"mark": 0, "worse": 1, "better": 2}


def test_the_critical_path_follows_what_each_waited_for() -> None:
    rows = [
        on("holder", 2.0),
        on("queued", 1.0, priority=1),
        Row("other", 2.5),
        Row("sends", 0.5, size_bytes=10, path=["l"], after=["queued", "other"]),
        Row("aside", 0.1, after=["other"]),
        Row("released", 0.1, release_s=4.0, after=["other"]),
    ]
    tasks = tasks_from_rows(rows, {"l": 10})
    answer = execute(tasks)
    assert answer.blocker.tolist() == [-1, 0, -1, 1, 2, -1]
    assert [rows[i].name for i in critical_path(tasks, answer)] == ["holder", "queued", "sends"]
    assert answer.makespan_s == 4.5
    assert answer.bound_s == 4.1


def test_the_bound_knows_the_longest_path_the_busiest_resource_and_the_busiest_link() -> None:
    rows = [Row("a", 1.0, release_s=1.0), flow("b", 10, "l", duration_s=0.5, after=["a"])]
    assert done(rows, {"l": 10}).bound_s == 3.5
    assert done([on("a", 1.0), on("b", 2.0, size_bytes=10, path=["l"])], {"l": 10}).bound_s == 4.0
    assert done([flow(name, 10, "l") for name in "abc"], {"l": 10}).bound_s == 3.0


# --- anomalies ----------------------------------------------------------------------------------


def anomaly(bandwidth: float) -> float:
    """A scheduling anomaly after Lundqvist and Stenström, RTSS 1999, fig. 1, and Graham, 1969.

    "b" queues for "two" when "a" has arrived, "c" when "x" is over. Whoever comes first holds up
    the other, without pre-emption; but only behind "c" there is much to do.
    """
    rows = [
        flow("a", 4, "l"),
        on("b", 5.0, "two", after=["a"]),
        on("x", 3.0, "one"),
        on("c", 2.0, "two", after=["x"]),
        on("d", 6.0, "one", after=["c"]),
    ]
    return done(rows, {"l": bandwidth}).makespan_s


def test_a_faster_link_can_make_everything_later() -> None:
    assert anomaly(bandwidth=1.0) == 11.0  # a 0-4, c 3-5, b 5-10, d 5-11
    assert anomaly(bandwidth=2.0) == 15.0  # a 0-2, b 2-7, c 7-9, d 9-15


def test_a_dependency_less_can_make_everything_later() -> None:
    rows = [
        on("x", 3.0, "one"),
        on("b", 5.0, "two"),
        on("c", 2.0, "two", after=["x"]),
        on("d", 6.0, "one", after=["c"]),
    ]
    with_one = [*rows[:1], on("b", 5.0, "two", after=["x"], priority=1), *rows[2:]]
    assert done(with_one).makespan_s == 11.0  # x 0-3, c 3-5, d 5-11, b 5-10
    assert done(rows).makespan_s == 13.0  # b 0-5, c 5-7, d 7-13


def test_grahams_nine_tasks_on_cores_that_are_shared_by_priority() -> None:
    """His example (SIAM J. Appl. Math. 17(2), 1969) where the lower number interrupts, by hand.

    Without pre-emption it ends at 12, here at 16: T9, last in the list, is interrupted at 4 with 8
    to go until T5 to T7 are over, and at 8 goes on beside T8.
    """
    seconds, after = [3, 2, 2, 2, 4, 4, 4, 4, 9], {9: ["T1"], **{i: ["T4"] for i in (5, 6, 7, 8)}}
    rows = [
        Row(f"T{i}", size_bytes=s, rate_max_bytes_per_s=1, priority=i, path=["cpu"], after=after.get(i, []))
        for i, s in enumerate(seconds, 1)
    ]
    wanted = {"T1": 3, "T2": 2, "T3": 2, "T4": 4, "T5": 8, "T6": 8, "T7": 8, "T8": 12, "T9": 16}
    assert ends(rows, {"cpu": 3}, sharing="priority") == wanted


# --- what is refused ----------------------------------------------------------------------------


def columns(**changed: Any) -> Tasks:
    """Two tasks on one resource and one link, the second after the first, with a change."""
    given: dict[str, Any] = {
        "duration_s": [1.0, 1.0],
        "resource": [0, 0],
        "priority": [0, 0],
        "release_s": [0.0, 0.0],
        "size_bytes": [1.0, 0.0],
        "rate_max_bytes_per_s": [math.inf, math.inf],
        "path_start": [0, 1, 1],
        "path": [0],
        "dep_start": [0, 0, 1],
        "dep": [0],
        "resources": 1,
        "in_order": [False],
        "link_bytes_per_s": [1.0],
    }
    return Tasks(
        **{k: v if k in ("resources", "sharing") else np.array(v) for k, v in (given | changed).items()}
    )


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"duration_s": [1.0, -1.0]}, "task 1 has duration_s = -1.0"),
        ({"duration_s": [math.nan, 1.0]}, "task 0 has duration_s = nan"),
        ({"duration_s": [math.inf, 1.0]}, "task 0 has duration_s = inf"),
        ({"release_s": [0.0, -0.5]}, "task 1 has release_s = -0.5"),
        ({"size_bytes": [math.nan, 0.0]}, "task 0 has size_bytes = nan"),
        ({"rate_max_bytes_per_s": [0.0, 0.0]}, "task 0 has rate_max_bytes_per_s = 0.0"),
        ({"rate_max_bytes_per_s": [1.0, math.nan]}, "task 1 has rate_max_bytes_per_s = nan"),
        ({"resource": [0, 1]}, "task 1 holds resource 1 of 1"),
        ({"resource": [-2, 0]}, "task 0 holds resource -2 of 1"),
        ({"path": [1]}, "path of task 0 names link 1 of 1"),
        ({"path": [-1]}, "path of task 0 names link -1 of 1"),
        ({"dep": [2]}, "dep of task 1 names task 2 of 2"),
        ({"path": [0, 0], "path_start": [0, 2, 2]}, "task 0 crosses link 0 twice"),
        ({"link_bytes_per_s": [0.0]}, "link 0 has 0 bytes/s, and task 0 moves bytes over it"),
        ({"link_bytes_per_s": [-1.0]}, "link 0 has link_bytes_per_s = -1.0"),
        ({"link_bytes_per_s": [math.nan]}, "link 0 has link_bytes_per_s = nan"),
        ({"path_start": [0, 2, 1]}, "path_start[2] = 1 is no start"),
        ({"path_start": [0, 0, 0]}, "path_start[2] = 0 is no start"),
        ({"dep_start": [1, 1, 1]}, "dep_start[0] = 1 is no start"),
        ({"dep_start": [0, 1]}, "dep_start has the shape (2,)"),
        ({"resource": [0]}, "resource has the shape (1,)"),
        ({"in_order": []}, "in_order has the shape (0,)"),
        ({"path": [[0]]}, "path has the shape (1, 1)"),
        ({"resource": [0.5, 0.0]}, "resource holds float64"),
        ({"in_order": [1]}, "in_order holds int64"),
        ({"sharing": "equal"}, "sharing is 'equal'"),
        ({"dep": [1]}, "tasks wait in a circle: task 1 after task 1"),
        ({"duration_s": [1e308, 1e308]}, "more seconds away than a float can say"),
        ({"link_bytes_per_s": [1e-320], "size_bytes": [1e10, 0.0]}, "more seconds away than a float can say"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changed: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError) as caught:
        execute(columns(**changed))
    assert what in caught.value.what
    assert caught.value.remedy


def test_unused_links_may_be_dead_and_whole_numbers_may_be_narrow() -> None:
    dead = columns(link_bytes_per_s=[1, 0], resource=np.array([0, 0], dtype=np.int8))
    assert execute(dead).makespan_s == 3.0
    nothing_to_move = columns(link_bytes_per_s=[0.0], size_bytes=[0.0, 0.0])
    assert execute(nothing_to_move).makespan_s == 2.0


def test_a_long_circle_is_named_in_part_and_what_merely_waits_for_it_is_not() -> None:
    rows = [Row("victim", after=["0"]), *(Row(f"{i}", after=[f"{(i + 1) % 20}"]) for i in range(20))]
    with pytest.raises(InputError, match="first 8 of 20") as caught:
        done(rows)
    assert "task 0 " not in caught.value.what


def test_a_starved_flow_never_hangs_the_executor() -> None:
    rows = [flow("low", 5, "a", "b", priority=2), flow("one", 7, "a"), flow("two", 9, "b", priority=1)]
    assert ends(rows, {"a": 1, "b": 1}, sharing="priority") == {"one": 7, "two": 9, "low": 14}


def test_nothing_to_execute() -> None:
    answer = done([])
    assert (answer.makespan_s, answer.bound_s, len(answer.end_s)) == (0.0, 0.0, 0)
    assert critical_path(tasks_from_rows([], {}), answer).tolist() == []


@pytest.mark.parametrize(
    ("rows", "more", "what"),
    [
        ([Row("a"), Row("a")], {}, "two tasks have one name"),
        ([Row("a", after=["b"])], {}, "'a' names 'b'"),
        ([Row("a", path=["wire"])], {}, "'a' names 'wire'"),
        ([Row("a")], {"in_order": ["gpu"]}, "'in_order' names 'gpu'"),
    ],
)
def test_names_that_are_not_there_are_refused(rows: list[Row], more: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        tasks_from_rows(rows, {}, **more)


def test_pairs_of_tasks_that_are_not_there_are_refused() -> None:
    with pytest.raises(InputError, match="waits names a task that is not there"):
        tasks_from_columns([1.0], waits=([1], [0]))


def test_pairs_in_any_order_become_columns() -> None:
    tasks = tasks_from_columns(
        [1.0, 1.0, 1.0], waits=([2, 1, 2], [1, 0, 0]), crosses=([2], [0]), link_bytes_per_s=[1]
    )
    assert (tasks.dep_start.tolist(), tasks.dep.tolist()) == ([0, 0, 1, 3], [0, 1, 0])
    assert (tasks.path_start.tolist(), tasks.path.tolist()) == ([0, 0, 0, 1], [0])


def test_numba_is_not_imported_before_something_is_executed() -> None:
    code = "import sys; import hemiola.kernels.executor; print('numba' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_warming_up_changes_nothing() -> None:
    warm_up()
