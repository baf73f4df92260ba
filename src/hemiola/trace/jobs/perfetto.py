"""A job's timeline as Chrome trace events for https://ui.perfetto.dev, and back without loss.

A rank is a process, a lane a thread; where spans of a lane overlap without one lying inside the
other, the lane has several threads, because the format cannot say it otherwise. Arrows lead from
where a transfer was handed over to its first byte, and from its last byte to where its consumer
went on. A counter shows the bytes in flight. What the events round off stands in their arguments.

Format: "Trace Event Format", Google, JSON object form.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hemiola.core.errors import InputError
from hemiola.core.job_timeline import SPAN_KINDS, JobTimeline, Spans
from hemiola.trace.atomic import replacing
from hemiola.trace.jobs.json_stream import JsonStream, decoding
from hemiola.trace.jobs.timeline_json import timeline_from_json, timeline_to_json, without_spans

__all__ = ["JOB_PERFETTO_SCHEMA", "read_perfetto", "write_perfetto"]

JOB_PERFETTO_SCHEMA = "hemiola.job-perfetto/1"

_MICROSECONDS = 1e6
_BACK = 64  # how many spans to look back for the one around an instant: nesting is not deeper


def write_perfetto(timeline: JobTimeline, path: Path) -> None:
    """Write the timeline for Perfetto; compressed if the path ends in ".gz".

    Raises:
        InputError: if the path cannot be written, or a fact or attribute is no plain JSON value.
    """
    timeline_to_json(
        replace(timeline, dependencies=timeline.dependencies[:0])
    )  # refuses what JSON cannot keep
    encode = msgspec.json.Encoder().encode
    before, after = timeline.dependencies.T.tolist() if len(timeline.dependencies) else ([], [])
    about = {
        "schema": JOB_PERFETTO_SCHEMA,
        "spans": len(timeline.spans),
        "with_attributes": bool(timeline.attributes),
        "dependencies": {"before": before, "after": after},
        "job": msgspec.Raw(timeline_to_json(without_spans(timeline))),
    }
    with replacing(path) as stream:
        stream.write(b'{"displayTimeUnit":"ms","otherData":' + encode(about) + b',"traceEvents":[\n')
        separator = b""
        for event in _Events(timeline).all():
            stream.write(separator + encode(event))
            separator = b",\n"
        stream.write(b"\n]}\n")


class _Events:
    """The events of a timeline."""

    def __init__(self, timeline: JobTimeline) -> None:
        self._timeline = timeline
        spans = timeline.spans
        self._start_s: list[float] = spans.start_s.tolist()
        self._end_s: list[float] = spans.end_s.tolist()
        self._rank: list[int] = spans.rank.tolist()
        self._lane: list[int] = spans.lane.tolist()
        begins = (spans.start_s, timeline.iterations.start_s, timeline.transfers.first_byte_s)
        self._base_s = min((float(times.min()) for times in begins if len(times)), default=0.0)
        self._order = sorted(range(len(spans)), key=lambda row: (self._start_s[row], -self._end_s[row], row))
        self._threads: dict[tuple[int, int, int], int] = {}
        self._thread = self._threads_of_spans()
        self._begun: dict[int, list[int]] = defaultdict(list)
        kinds = spans.kind.tolist()
        for row in self._order:
            if SPAN_KINDS[kinds[row]] != "communication":
                self._begun[self._rank[row]].append(row)
        self._begun_s = {rank: [self._start_s[row] for row in rows] for rank, rows in self._begun.items()}

    def all(self) -> Iterator[dict[str, Any]]:
        """Names, then spans, iterations, arrows and counters."""
        yield from self._names()
        for row in self._order:
            yield self._span(row)
        yield from self._iterations()
        yield from self._arrows()
        yield from self._in_flight()

    def _names(self) -> Iterator[dict[str, Any]]:
        for place, rank in enumerate(self._timeline.ranks):
            where = ", ".join(filter(None, (rank.host, rank.device)))
            yield _meta(
                "process_name", place, 0, {"name": f"rank {rank.rank}" + (f" ({where})" if where else "")}
            )
            yield _meta("process_sort_index", place, 0, {"sort_index": place})
            yield _meta("thread_name", place, 0, {"name": "iterations"})
        for (place, lane, part), thread in self._threads.items():
            name = self._timeline.lanes[lane] + (f" ({part + 1})" if part else "")
            yield _meta("thread_name", place, thread, {"name": name})
            yield _meta("thread_sort_index", place, thread, {"sort_index": lane + 1})

    def _threads_of_spans(self) -> dict[int, int]:
        """The thread of each span: the first of its lane in which it lies inside or after all others."""
        open_: dict[tuple[int, int, int], list[float]] = defaultdict(list)
        threads = {}
        for row in self._order:
            part = 0
            while True:
                key = (self._rank[row], self._lane[row], part)
                ends = open_[key]
                while ends and ends[-1] <= self._start_s[row]:
                    ends.pop()
                if not ends or self._end_s[row] <= ends[-1]:
                    ends.append(self._end_s[row])
                    threads[row] = self._threads.setdefault(key, len(self._threads) + 1)
                    break
                part += 1
        return threads

    def _span(self, row: int) -> dict[str, Any]:
        timeline, spans = self._timeline, self._timeline.spans
        start_s, end_s = self._start_s[row], self._end_s[row]
        args: dict[str, Any] = {"row": row, "lane": self._lane[row], "start_s": start_s, "end_s": end_s}
        for name in ("iteration", "transfer", "operation"):
            if (value := int(getattr(spans, name)[row])) != -1:
                args[name] = value
        transfer = args.get("transfer", -1)
        if transfer >= 0 and not math.isnan(size_bytes := float(timeline.transfers.size_bytes[transfer])):
            args["size_bytes"] = size_bytes
        if timeline.attributes and timeline.attributes[row]:
            args["said"] = timeline.attributes[row]
        kind, name = SPAN_KINDS[spans.kind[row]], timeline.names[spans.name[row]]
        return _slice(self._ticks(start_s), self._ticks(end_s)) | {
            "name": name, "cat": kind, "pid": self._rank[row], "tid": self._thread[row], "args": args,
        }  # fmt: skip

    def _iterations(self) -> Iterator[dict[str, Any]]:
        columns = (column.tolist() for column in self._timeline.iterations.columns().values())
        for rank, number, start_s, end_s in zip(*columns, strict=True):
            name = {"name": f"iteration {number}", "cat": "iteration", "pid": rank, "tid": 0}
            yield _slice(self._ticks(start_s), self._ticks(end_s)) | name

    def _arrows(self) -> Iterator[dict[str, Any]]:
        sent = self._timeline.transfers
        shown = self._shown()
        columns = (
            sent.rank,
            sent.enqueue_s,
            sent.first_byte_s,
            sent.last_byte_s,
            sent.needed_s,
            sent.released_s,
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for transfer, (rank, enqueue_s, first_s, last_s, needed_s, released_s) in enumerate(rows):
            thread = shown.get(transfer)
            if thread is None:
                continue
            on_wire = (rank, thread)
            asked = self._around(rank, enqueue_s)
            if asked is not None:
                yield from self._arrow(2 * transfer, (rank, asked), enqueue_s, on_wire, first_s)
            goes_on_s = needed_s if math.isnan(released_s) else released_s
            gone = self._around(rank, goes_on_s)
            if gone is not None and goes_on_s >= last_s:
                yield from self._arrow(2 * transfer + 1, on_wire, last_s, (rank, gone), goes_on_s)

    def _shown(self) -> dict[int, int]:
        """The thread of the first communication span of each transfer."""
        spans = self._timeline.spans
        is_one = (spans.kind == SPAN_KINDS.index("communication")) & (spans.transfer >= 0)
        shown: dict[int, int] = {}
        for row in np.flatnonzero(is_one).tolist():
            shown.setdefault(int(spans.transfer[row]), self._thread[row])
        return shown

    def _arrow(
        self, number: int, source: tuple[int, int], from_s: float, target: tuple[int, int], to_s: float
    ) -> Iterator[dict[str, Any]]:
        both = {"name": "transfer", "cat": "transfer", "id": number}
        yield both | {"ph": "s", "pid": source[0], "tid": source[1], "ts": self._ticks(from_s)}
        yield both | {"ph": "f", "bp": "e", "pid": target[0], "tid": target[1], "ts": self._ticks(to_s)}

    def _around(self, rank: int, time_s: float) -> int | None:
        """The thread of the innermost span that is no communication and holds the instant."""
        rows = self._begun.get(rank, [])
        if math.isnan(time_s) or not rows:
            return None
        last = bisect_right(self._begun_s[rank], time_s)
        for row in reversed(rows[max(0, last - _BACK) : last]):
            if self._end_s[row] >= time_s:
                return self._thread[row]
        return None

    def _in_flight(self) -> Iterator[dict[str, Any]]:
        sent = self._timeline.transfers
        for rank in range(len(self._timeline.ranks)):
            mine = np.flatnonzero((sent.rank == rank) & ~np.isnan(sent.size_bytes))
            times = np.concatenate((sent.first_byte_s[mine], sent.last_byte_s[mine]))
            change = np.concatenate((sent.size_bytes[mine], -sent.size_bytes[mine]))
            order = np.argsort(times, kind="stable")
            for time_s, size in zip(times[order].tolist(), np.cumsum(change[order]).tolist(), strict=True):
                value = {"bytes": max(0.0, size)}
                yield {
                    "ph": "C",
                    "name": "in flight",
                    "pid": rank,
                    "tid": 0,
                    "ts": self._ticks(time_s),
                    "args": value,
                }

    def _ticks(self, time_s: float) -> float:
        return round((time_s - self._base_s) * _MICROSECONDS, 3)


def _slice(start: float, end: float) -> dict[str, Any]:
    return {"ph": "X", "ts": start, "dur": round(end - start, 3)}


def _meta(name: str, process: int, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": args}


def read_perfetto(path: Path) -> JobTimeline:
    """Read a file of `write_perfetto` back, equal to what was written.

    Raises:
        InputError: if it is damaged, or was not written by Hemiola.
    """
    about: dict[str, Any] | None = None
    rows: list[tuple[int, dict[str, Any]]] = []
    with JsonStream(path, ["traceEvents"]).members() as members:
        for key, value in members:
            with decoding(str(path), "Perfetto file of Hemiola"):
                if key == "otherData" and value.get("schema") == JOB_PERFETTO_SCHEMA:
                    about = value
                elif key == "traceEvents" and value["ph"] == "X" and "row" in value.get("args", ()):
                    rows.append((value["args"]["row"], value))
    if about is None:
        raise InputError(
            f"{str(path)!r} is no Perfetto file of a job that Hemiola wrote",
            "name one, or the trace's source",
        )
    with decoding(str(path), "Perfetto file of Hemiola"):
        return _timeline(about, [event for _, event in sorted(rows, key=lambda pair: pair[0])])


def _timeline(about: dict[str, Any], events: list[dict[str, Any]]) -> JobTimeline:
    rest = timeline_from_json(msgspec.json.encode(about["job"]), "otherData.job")
    if len(events) != about["spans"] or any(event["args"]["row"] != row for row, event in enumerate(events)):
        raise ValueError(f"{len(events)} of {about['spans']} spans are there")
    names = {name: place for place, name in enumerate(rest.names)}
    spans = [_row(event, names) for event in events]
    before, after = about["dependencies"]["before"], about["dependencies"]["after"]
    return replace(
        rest,
        spans=Spans.from_rows(spans),
        dependencies=np.array([before, after], dtype=np.int64).T.copy(),
        attributes=tuple(event["args"].get("said", {}) for event in events)
        if about["with_attributes"]
        else (),
    ).check()


def _row(event: dict[str, Any], names: dict[str, int]) -> tuple[float, ...]:
    args = event["args"]
    return (
        event["pid"], args["lane"], names[event["name"]], SPAN_KINDS.index(event["cat"]), args["start_s"],
        args["end_s"], args.get("iteration", -1), args.get("transfer", -1), args.get("operation", -1),
    )  # fmt: skip
