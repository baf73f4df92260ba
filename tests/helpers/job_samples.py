"""Timelines and foreign traces for the tests of readers and writers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from hemiola.core.job_timeline import (
    SPAN_KINDS,
    Iterations,
    JobTimeline,
    Rank,
    Spans,
    TimelineBuilder,
    TransferLog,
)

COLLECTIVES = [
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "broadcast",
    "barrier",
    "send",
    "recv",
    "shuffle",
]

_seconds = st.floats(-1e6, 1e6, allow_nan=False)
_maybe = st.one_of(st.just(math.nan), _seconds)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
_object = st.dictionaries(st.text(max_size=4), _json, max_size=3)
_texts = st.lists(st.text(max_size=6), min_size=1, max_size=3, unique=True)


@st.composite
def timelines(draw):
    """Any valid timeline, small; what is legal is drawn, not what is likely."""
    numbers = draw(st.lists(st.integers(0, 5000), min_size=1, max_size=3, unique=True))
    error_s = st.one_of(st.just(math.inf), st.floats(0, 1e3))
    ranks = tuple(Rank(n, draw(st.text(max_size=3)), "cpu", draw(_seconds), draw(error_s)) for n in numbers)
    lanes, names = draw(_texts), [*COLLECTIVES, *(name + "'" for name in draw(_texts))]
    groups = draw(
        st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple), max_size=2, unique=True)
    )

    def index(values):
        return st.integers(0, len(values) - 1)

    def interval():
        return sorted((draw(_seconds), draw(_seconds)))

    sent = [
        (
            draw(index(ranks)), draw(index(names)), draw(index(COLLECTIVES)), draw(st.integers(-1, len(groups) - 1)),
            draw(st.one_of(st.just(math.nan), st.floats(0, 1e20))), draw(_maybe), *interval(), draw(_maybe),
            draw(_maybe), draw(st.integers(-1, 9)),
        )
        for _ in range(draw(st.integers(0, 4)))
    ]  # fmt: skip
    spans = []
    for _ in range(draw(st.integers(0, 7))):
        rank = draw(index(ranks))
        mine = [-1, *(place for place, row in enumerate(sent) if row[0] == rank)]
        spans.append(
            (
                rank, draw(index(lanes)), draw(index(names)), draw(index(SPAN_KINDS)), *interval(),
                draw(st.integers(-1, 9)), draw(st.sampled_from(mine)), draw(st.integers(-1, 9)),
            )
        )  # fmt: skip
    iterations = [
        (draw(index(ranks)), draw(st.integers(0, 99)), *interval()) for _ in range(draw(st.integers(0, 3)))
    ]
    pairs = []
    if len(spans) > 1:
        pair = st.tuples(index(spans), index(spans)).filter(lambda two: two[0] != two[1])
        pairs = draw(st.lists(pair, max_size=4))
    attributes = tuple(draw(_object) for _ in spans) if draw(st.booleans()) else ()
    return JobTimeline(
        name=draw(st.text(max_size=4)),
        ranks=ranks,
        lanes=tuple(lanes),
        names=tuple(names),
        groups=tuple(groups),
        spans=Spans.from_rows(spans),
        transfers=TransferLog.from_rows(sent),
        iterations=Iterations.from_rows(iterations),
        dependencies=np.array(pairs, dtype=np.int64).reshape(-1, 2),
        attributes=attributes,
        predicted=draw(st.booleans()),
        origin_unix_s=draw(st.floats(0, 2e9)),
        facts=draw(_object),
        source=draw(st.text(max_size=4)),
    ).check()


def two_ranks():
    """Two ranks, one iteration of 10 s: forward 2 s, backward 4 s, one all-reduce from 5 s to 8 s, a wait, a step."""
    builder = TimelineBuilder("two ranks")
    for number in (0, 1):
        rank = builder.rank(number, host=f"host {number}", device="cpu")
        transfer = builder.transfer(
            rank,
            "bucket 0",
            "all-reduce",
            4e6,
            4.0,
            5.0,
            8.0,
            group=(0, 1),
            needed_s=6.0,
            released_s=8.5,
            iteration=0,
        )
        forward = builder.span(rank, "main thread", "forward", "compute", 0.0, 2.0, iteration=0)
        backward = builder.span(rank, "main thread", "backward", "compute", 2.0, 4.0, iteration=0)
        builder.span(
            rank, "main thread", "hook", "other", 4.0, 6.0, iteration=0, attributes={"why": ["a", 1]}
        )
        sent = builder.span(
            rank, "gloo", "all-reduce", "communication", 5.0, 8.0, iteration=0, transfer=transfer
        )
        wait = builder.span(rank, "main thread", "wait", "wait", 6.0, 8.5, iteration=0, transfer=transfer)
        step = builder.span(rank, "main thread", "step", "compute", 8.5, 10.0, iteration=0)
        for before, after in ((forward, backward), (backward, sent), (sent, step)):
            builder.depend(before, after)
        builder.iteration(rank, 0, 0.0, 10.0)
        assert wait
    builder.depend(1, 9)  # across ranks: rank 0's backward and rank 1's all-reduce
    return builder.build(facts={"strategy": "ddp"}, source="a test")


def nccl_trace(rank, *, host="node-a", ahead_s=0.0, late_s=0.0):
    """What the profiler writes for one rank of a two-GPU job, in its documented form; times in µs.

    One step of 1,000 µs: a compute kernel from 120 to 320, an all-reduce of 1,024 floats on another
    stream, asked for at 200 and on the wire from 330 (later by `late_s`) to 630, an all-gather without
    arguments of its own (older PyTorch) and a copy. The host's clock runs `ahead_s` ahead.
    """
    late, us = late_s * 1e6, 5000.0

    def event(category, name, start, duration, tid, args, pid=77):
        return {
            "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": us + start, "dur": duration,
            "args": args,
        }  # fmt: skip

    def launched(correlation, name, start, duration, stream, at, category="kernel", **more):
        args = {
            "External id": correlation,
            "device": rank,
            "stream": stream,
            "correlation": correlation,
            **more,
        }
        return [
            event("cuda_runtime", "cudaLaunchKernel", at, 5.0, 77, {"External id": correlation, "correlation": correlation}),
            {"ph": "s", "id": correlation, "pid": 77, "tid": 77, "ts": us + at, "cat": "ac2g", "name": "ac2g"},
            event(category, name, start, duration, stream, args, pid=rank),
            {
                "ph": "f", "id": correlation, "pid": rank, "tid": stream, "ts": us + start, "cat": "ac2g",
                "name": "ac2g", "bp": "e",
            },
        ]  # fmt: skip

    said = {
        "Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 2,
        "dtype": "Float", "In split size": "[]", "Out split size": "[]", "Process Group Name": "0",
        "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]", "Seq": 7,
    }  # fmt: skip
    gathered = said | {
        "Collective name": "_allgather_base",
        "In msg nelems": 512,
        "dtype": "BFloat16",
        "Seq": 8,
    }
    events = [
        {"ph": "M", "name": "process_name", "ts": us, "pid": 77, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "ts": us, "pid": 77, "tid": 80, "args": {"name": "thread 80 (autograd)"}},
        event("user_annotation", "ProfilerStep#4", 0.0, 1000.0, 77, {}),
        event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10.0, 40.0, 77, {}),
        event("cpu_op", "aten::mm", 90.0, 30.0, 77, {"External id": 1, "Record function id": 3}),
        *launched(1, "ampere_sgemm_128x64_tn", 120.0, 200.0, 7, 100.0),
        event("cpu_op", "record_param_comms", 195.0, 20.0, 80, {"External id": 2, **said}),
        *launched(2, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 330.0 + late,
                  300.0 - late, 20, 200.0, **said),
        event("cpu_op", "record_param_comms", 695.0, 20.0, 80, {"External id": 3, **gathered}),
        *launched(3, "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)", 710.0 + late, 50.0 - late, 20, 700.0),
        *launched(4, "Memcpy DtoH (Device -> Pinned)", 1010.0, 15.0, 7, 990.0, category="gpu_memcpy", bytes=64),
        event("gpu_user_annotation", "nccl:all_reduce", 330.0, 300.0, 20, {}, pid=rank),
        {"ph": "i", "s": "g", "name": "Iteration Start: PyTorch Profiler", "pid": "Traces", "tid": "Trace", "ts": us},
    ]  # fmt: skip
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": rank, "name": "NVIDIA A100"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
        "host_name": host,
        "baseTimeNanoseconds": 1_700_000_000_000_000_000 + round(ahead_s * 1e9),
        "traceEvents": events,
        "traceName": f"rank{rank}.json",
    }


def write_json(value, path: Path) -> Path:
    path.write_text(json.dumps(value))
    return path
