"""First bytes, gates, phases and totals: known answers by hand, and what must always hold."""

from __future__ import annotations

import threading
import time
import weakref
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import patience

from hemiola.profiler.trace import profile
from hemiola.profiler.trace.keeper import Keeper
from hemiola.profiler.trace.merge import collect
from hemiola.profiler.trace.parts import PartWriter, read_parts
from hemiola.profiler.trace.recorder import IterationRecorder, cut
from hemiola.profiler.trace.server import Totals, exposition, union_ns
from hemiola.profiler.trace.values import (
    FirstBytes,
    Iteration,
    IterationDraft,
    PartHead,
    RecordedTransfer,
    TransferGate,
    is_settled,
    settle,
)


def transfer(enqueue: int, last: int | None, thread: int = 0) -> RecordedTransfer:
    made = RecordedTransfer(0, "", "all-reduce", 0, 8, enqueue, lambda: 0)
    made.last, made.thread = last, thread
    return made


def rows(*transfers: RecordedTransfer) -> list[tuple[int | None, ...]]:
    draft = IterationDraft(0, 0)
    draft.end, draft.transfers = 1000, list(transfers)
    return [row[5:] for row in settle(draft, int, FirstBytes()).transfers]


def test_a_transfer_begins_when_its_thread_is_free() -> None:
    found = rows(transfer(10, 50, 7), transfer(20, 40, 8), transfer(30, 90, 8), transfer(60, 70, 7))
    assert [row[1] for row in found] == [10, 20, 40, 60]


def test_without_a_thread_it_begins_when_any_is_free() -> None:
    found = rows(transfer(10, 50, 7), transfer(20, 45, 8), transfer(30, 90))
    assert [row[1] for row in found] == [10, 20, 45]


def test_at_a_gate_buckets_are_released_in_their_order() -> None:
    gate = TransferGate(100)
    gate.released = 160
    buckets = [transfer(10, 90, 1), transfer(20, 150, 2), transfer(30, 120, 1)]
    for bucket in buckets:
        bucket.gate = gate
    assert [row[3:] for row in rows(*buckets)] == [(100, 100), (100, 150), (100, 150)]


def test_a_last_byte_told_late_is_no_later_than_the_release() -> None:
    late = transfer(10, 80, 1)
    late.needed, late.released = 20, 70
    assert rows(late) == [(10, 10, 70, 20, 70)]


def test_what_has_not_ended_has_no_last_byte_and_is_waited_for() -> None:
    draft = IterationDraft(0, 0)
    draft.end, draft.transfers = 5, [transfer(1, None)]
    assert not is_settled(draft, lambda instant: True)
    assert settle(draft, int, FirstBytes()).transfers[0][5:] == (1, None, None, None, None)


class Handle:
    """Stands for the work that a script has been given."""


def test_an_iteration_is_kept_until_nobody_can_wait_for_its_transfers_any_more(tmp_path: Path) -> None:
    """Two that are waited for in the next iteration, or not at all."""
    recorder, handles = IterationRecorder(), [Handle(), Handle()]
    writer = PartWriter(tmp_path / "rank00000-1-1", 10)
    head = PartHead(rank=0, world_size=1, host="", device="", pid=1, mode="light", monotonic_ns=0, unix_ns=0)
    keeper = Keeper(recorder, writer, lambda: head)
    keeper._identify()

    def kept() -> int:
        keeper._take()
        keeper._drain(force=False)
        return keeper.totals.iterations

    awaited, forgotten = (recorder.transfer("all-reduce", 0, 4, recorder.now()) for _ in handles)
    awaited.handle, forgotten.handle = map(weakref.ref, handles)
    awaited.last, forgotten.last = recorder.now(), recorder.now()
    recorder.boundary()
    assert kept() == 0
    awaited.needed, awaited.released = recorder.now(), recorder.now()
    assert kept() == 0
    handles.pop()
    assert kept() == 1
    writer.close()
    (part,) = read_parts(tmp_path)
    first, second = (row for iteration in part.iterations for row in iteration.transfers)
    assert first[8:] == (awaited.needed, awaited.released)
    assert second[8:] == (None, None)


def test_the_end_waits_for_word_of_what_has_ended(tmp_path: Path) -> None:
    """The backend's thread has yet to say so, when whoever waited has gone on already."""
    recorder = IterationRecorder()
    writer = PartWriter(tmp_path / "rank00000-1-1", 10)
    head = PartHead(rank=0, world_size=1, host="", device="", pid=1, mode="light", monotonic_ns=0, unix_ns=0)
    keeper = Keeper(recorder, writer, lambda: head)
    ended, gated, _ = (recorder.transfer("all-reduce", 0, 4, recorder.now()) for _ in range(3))
    ended.needed, ended.released = recorder.now(), recorder.now()
    gated.gate = TransferGate(recorder.now())
    gated.gate.released = recorder.now()
    recorder.boundary()

    def say() -> None:
        ended.last = gated.last = recorder.now()

    word = threading.Timer(0.1, say)
    word.start()
    keeper.start()
    keeper.finish("", 10.0)
    word.join()
    (part,) = read_parts(tmp_path)
    assert [row[7] is None for one in part.iterations for row in one.transfers] == [False, False, True]


class HungDevice:
    """Stands for a GPU that hangs: it comes to no event, and who wants to know when it did hangs, too."""

    def __init__(self) -> None:
        self.freed = threading.Event()

    def is_known(self, event: object) -> bool:
        return self.freed.is_set()

    def resolve(self, event: object) -> int:
        self.freed.wait(60)
        return event if isinstance(event, int) else time.perf_counter_ns()


def test_what_a_device_hangs_on_is_named_meanwhile(tmp_path: Path) -> None:
    recorder, device = IterationRecorder(), HungDevice()
    writer = PartWriter(tmp_path / "rank00000-1-1", 10)
    head = PartHead(rank=0, world_size=1, host="", device="", pid=1, mode="light", monotonic_ns=0, unix_ns=0)
    keeper = Keeper(recorder, writer, lambda: head, patience_s=0.1)
    keeper.device = device
    keeper._identify()
    hangs = recorder.transfer("all-reduce", 0, 4, recorder.now())
    recorder.boundary()
    hangs.last = object()
    keeper.start()
    end_s = time.monotonic() + patience(30)
    while not (found := read_parts(tmp_path)[0].under_way) and time.monotonic() < end_s:
        time.sleep(0.02)
    device.freed.set()
    keeper.finish("", 10.0)
    assert [row[2] for row in found] == ["all-reduce"]
    (part,) = read_parts(tmp_path)
    assert [row[7] is None for one in part.iterations for row in one.transfers] == [False]


class Event:
    """Stands for what PyTorch's profiler tells of one event."""

    def __init__(self, name: str, device: str, *, annotation: bool = False) -> None:
        self.name, self.device_type = (lambda: name), (lambda: device)
        self.is_user_annotation = lambda: annotation
        self.start_ns = self.duration_ns = self.device_resource_id = self.start_thread_id = lambda: 7


class Results:
    def __init__(self, *events: Event) -> None:
        self.events = lambda: events


def test_beside_a_gpu_the_host_only_asks_and_annotations_are_no_work() -> None:
    host, gemm = Event("aten::mm", "DeviceType.CPU"), Event("sgemm", "DeviceType.CUDA")
    around = Event("FSDP::all_gather (layers.0)", "DeviceType.CUDA", annotation=True)
    found = profile.rows(Results(host, gemm, around), 0)
    assert [(name, kind) for _, name, kind, _, _ in found] == [("aten::mm", "other"), ("sgemm", "compute")]
    assert [kind for _, _, kind, _, _ in profile.rows(Results(host), 0)] == ["compute"]


def test_what_fails_beside_the_training_is_said_in_the_part(tmp_path: Path) -> None:
    def refuse(draft: IterationDraft, iteration: Iteration) -> None:
        raise ValueError("something of ours")

    recorder, ended = IterationRecorder(), []
    writer = PartWriter(tmp_path / "rank00000-1-1", 10)
    head = PartHead(rank=0, world_size=1, host="", device="", pid=1, mode="light", monotonic_ns=0, unix_ns=0)
    keeper = Keeper(recorder, writer, lambda: head)
    keeper.on_iteration.append(refuse)
    keeper.at_end.append(lambda: ended.append(True))
    keeper.start()
    recorder.boundary()
    keeper.finish("", 10.0)
    assert ended == [True]
    assert collect(tmp_path).facts["partial"] == ["rank 0: recording failed: ValueError: something of ours"]


def test_a_wait_in_a_later_iteration_is_cut_out_of_that_ones_phases(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path / "rank00000-1-1", 10)
    writer.write(
        PartHead(rank=0, world_size=1, host="", device="", pid=1, mode="light", monotonic_ns=0, unix_ns=0)
    )
    row = (0, "", "all-reduce", 0, 4, 10, 10, 90, 60, 90)
    writer.write(Iteration(0, 0, 50, True, False, [("backward", "compute", 0, 50)], [row]))
    writer.write(Iteration(1, 50, 100, True, False, [("backward", "compute", 50, 100)], []))
    writer.close()
    timeline = collect(tmp_path)
    spans = timeline.spans
    main = spans.lane == timeline.lanes.index("main")
    names = [timeline.names[name] for name in spans.name[main]]
    found = zip(names, (1e9 * spans.start_s[main]).round(), (1e9 * spans.end_s[main]).round(), strict=True)
    assert sorted(found, key=lambda span: span[1]) == [
        ("backward", 0, 50), ("backward", 50, 60), ("wait for all-reduce", 60, 90), ("backward", 90, 100)
    ]  # fmt: skip


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted).map(tuple), max_size=8)


@given(intervals=intervals)
def test_the_union_counts_each_instant_once(intervals: list[tuple[int, int]]) -> None:
    assert union_ns(intervals) == len({t for start, end in intervals for t in range(start, end)})


@given(
    phases=st.lists(
        st.tuples(
            st.sampled_from([("forward", "compute"), ("backward", "compute"), ("input", "input")]),
            st.integers(0, 60),
            st.integers(0, 60),
        ),
        max_size=6,
    ),
    waits=intervals,
)
def test_each_instant_of_an_iteration_is_one_thing(
    phases: list[tuple[tuple[str, str], int, int]], waits: list[tuple[int, int]]
) -> None:
    window = (0, 60)
    given_phases = [(*which, min(a, b), max(a, b)) for which, a, b in phases]
    pieces = cut(given_phases, waits, window)
    covered = [t for _, _, start, end in pieces for t in range(start, end)]
    waited = {t for start, end in waits for t in range(start, end)}
    assert sorted(covered) == sorted(set(range(*window)) - waited)


@given(
    kinds=st.lists(st.tuples(st.booleans(), st.integers(-5, 65), st.integers(0, 30)), max_size=8),
    waits=intervals,
    window=st.none() | st.just((0, 60)),
)
def test_an_instant_is_the_waits_or_else_the_inputs_or_else_of_what_began_last(
    kinds: list[tuple[bool, int, int]], waits: list[tuple[int, int]], window: tuple[int, int] | None
) -> None:
    phases = [
        ("forward", "compute", 0, 0),  # that one is known
        *((f"{k}", "input" if loads else "compute", at, at + long) for k, (loads, at, long) in enumerate(kinds)),
    ]  # fmt: skip
    found: dict[int, str] = {}
    for name, _, start, end in cut(phases, waits, window):
        assert start < end and not found.keys() & set(range(start, end))
        found |= dict.fromkeys(range(start, end), name)
    wanted: dict[int, str] = dict.fromkeys(range(60), "other") if window else {}
    for name, _, start, end in sorted(phases, key=lambda phase: (phase[1] != "input", -phase[2]))[::-1]:
        wanted |= dict.fromkeys(range(start, end), name)
    waited = {t for start, end in waits for t in range(start, end)}
    assert found == {t: name for t, name in wanted.items() if t not in waited}


def test_the_forward_pass_is_what_lies_before_the_backward_pass_if_nobody_tells() -> None:
    pieces = cut([("input", "input", 0, 10), ("backward", "compute", 40, 70)], [(60, 65)], (0, 80))
    assert pieces == [
        ("input", "input", 0, 10), ("forward", "compute", 10, 40), ("backward", "compute", 40, 60),
        ("backward", "compute", 65, 70), ("other", "other", 70, 80),
    ]  # fmt: skip


def test_totals_are_those_of_the_iterations() -> None:
    totals = Totals()
    row = (0, "", "all-reduce", 0, 64, 0, 0, 0, 4_000_000, 7_000_000)
    loading = ("input", "input", 0, 2_000_000)
    for number in range(2):
        totals.add(Iteration(number, 0, 20_000_000, True, False, [loading], [row, row]))
    totals.add(Iteration(2, 0, 20_000_000, False, False, [], [row]))
    assert totals.iterations == 2
    assert totals.bytes == {"all-reduce": 5 * 64}
    assert totals.exposed_s == 2 * 0.003
    assert totals.take_window() == pytest.approx(0.015)
    assert totals.take_window() is None
    text = exposition(totals, {"rank": "0", "host": 'a"b\\'}, recording=True)
    assert 'hemiola_iteration_seconds_bucket{rank="0",host="a\\"b\\\\",le="0.03"} 2' in text
    assert 'hemiola_iteration_seconds_bucket{rank="0",host="a\\"b\\\\",le="0.01"} 0' in text
    assert "straggler" not in text


@pytest.mark.parametrize(
    ("phases", "awaited", "expected_s"),
    [
        ([("next batch", "input", 0, 40), ("input", "input", 5, 40)], [], (0.0, 0.04, 0.06)),
        ([("input", "input", 0, 40)], [(10, 40)], (0.03, 0.01, 0.06)),
    ],
)
def test_what_is_loading_and_what_waits_count_once(
    phases: list[tuple[str, str, int, int]], awaited: list[tuple[int, int]], expected_s: tuple[float, ...]
) -> None:
    """A span around the loader; a broadcast inside the loader's call."""
    totals, ms = Totals(), 1_000_000
    scaled = [(name, kind, start * ms, end * ms) for name, kind, start, end in phases]
    rows = [(0, "", "broadcast", 0, 64, 0, 0, 0, needed * ms, released * ms) for needed, released in awaited]
    totals.add(Iteration(0, 0, 100 * ms, True, False, scaled, rows))
    assert (totals.exposed_s, totals.input_s, totals.compute_s) == pytest.approx(expected_s)
