"""A job's timeline as JSON, column by column, and back without loss. Knows the schema, nothing else.

`docs/reference/traces.md` describes the file. Not-a-number ("nobody asked for it") is null, and so is
an infinite clock error ("nothing is known").
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any

import msgspec
import numpy as np

from hemiola.core.errors import InputError
from hemiola.core.job_timeline import Iterations, JobTimeline, Rank, Spans, TransferLog
from hemiola.trace.atomic import replacing
from hemiola.trace.jobs.json_stream import decoding, read_all

__all__ = [
    "JOB_TIMELINE_SCHEMA",
    "read_timeline",
    "timeline_from_json",
    "timeline_to_json",
    "without_spans",
    "write_timeline",
]

JOB_TIMELINE_SCHEMA = "hemiola.job-timeline/1"

_ELEMENTS = {np.float64: float | None, np.int64: int, np.int8: Annotated[int, msgspec.Meta(ge=0, le=127)]}


def _on_file(kind: Any) -> Any:
    """The type of a table in the file: a list for each column."""
    columns = [
        (name, GenericAlias(list, _ELEMENTS[element])) for name, element in kind.column_types().items()
    ]
    return msgspec.defstruct(kind.__name__, columns, forbid_unknown_fields=True)


_SpansOnFile, _TransfersOnFile, _IterationsOnFile = (
    _on_file(kind) for kind in (Spans, TransferLog, Iterations)
)


class _Attributes(msgspec.Struct, forbid_unknown_fields=True):
    span: list[int]
    values: list[dict[str, Any]]


class _Dependencies(msgspec.Struct, forbid_unknown_fields=True):
    before: list[int]
    after: list[int]


class _Rank(msgspec.Struct, forbid_unknown_fields=True):
    rank: int
    host: str
    device: str
    clock_offset_s: float
    clock_error_s: float | None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    name: str
    ranks: list[_Rank]
    lanes: list[str]
    names: list[str]
    groups: list[list[int]]
    spans: _SpansOnFile  # type: ignore[valid-type]
    transfers: _TransfersOnFile  # type: ignore[valid-type]
    iterations: _IterationsOnFile  # type: ignore[valid-type]
    dependencies: _Dependencies
    attributes: _Attributes | None
    predicted: bool
    origin_unix_s: float
    facts: dict[str, Any]
    source: str


def write_timeline(timeline: JobTimeline, path: Path) -> None:
    """Write the timeline (schema "hemiola.job-timeline/1"); compressed if the path ends in ".gz".

    Raises:
        InputError: if the path cannot be written, or a fact or attribute is no plain JSON value.
    """
    content = timeline_to_json(timeline)
    with replacing(path) as stream:
        stream.write(content)


def read_timeline(path: Path) -> JobTimeline:
    """Read a file of `write_timeline` back, equal to what was written.

    Raises:
        InputError: if it is missing, damaged, or says something impossible.
    """
    return timeline_from_json(read_all(path), str(path))


def timeline_to_json(timeline: JobTimeline) -> bytes:
    """The bytes that `write_timeline` writes, not compressed."""
    before, after = timeline.dependencies.T.tolist() if len(timeline.dependencies) else ([], [])
    file = _File(
        schema=JOB_TIMELINE_SCHEMA,
        name=timeline.name,
        ranks=[_Rank(*msgspec.structs.astuple(rank)) for rank in timeline.ranks],
        lanes=list(timeline.lanes),
        names=list(timeline.names),
        groups=[list(group) for group in timeline.groups],
        spans=_to_file(timeline.spans, _SpansOnFile),
        transfers=_to_file(timeline.transfers, _TransfersOnFile),
        iterations=_to_file(timeline.iterations, _IterationsOnFile),
        dependencies=_Dependencies(before, after),
        attributes=_sparse(timeline.attributes),
        predicted=timeline.predicted,
        origin_unix_s=timeline.origin_unix_s,
        facts=_plain(timeline.facts, "facts"),
        source=timeline.source,
    )
    try:
        return msgspec.json.encode(file) + b"\n"
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"the timeline cannot be kept in a file: {error}", "use Unicode text and 64-bit numbers"
        ) from error


def timeline_from_json(content: bytes, where: str) -> JobTimeline:
    """The timeline in the bytes of a file; `where` names it in errors.

    Raises:
        InputError: if it is damaged, or says something impossible.
    """
    with decoding(where, JOB_TIMELINE_SCHEMA):
        file = msgspec.json.decode(content, type=_File)
        if file.schema != JOB_TIMELINE_SCHEMA:
            raise ValueError(f"its schema is {file.schema!r}")
        spans = _from_file(file.spans, Spans)
        return JobTimeline(
            name=file.name,
            ranks=tuple(_rank(rank) for rank in file.ranks),
            lanes=tuple(file.lanes),
            names=tuple(file.names),
            groups=tuple(tuple(group) for group in file.groups),
            spans=spans,
            transfers=_from_file(file.transfers, TransferLog),
            iterations=_from_file(file.iterations, Iterations),
            dependencies=np.array([file.dependencies.before, file.dependencies.after], np.int64).T.copy(),
            attributes=_dense(file.attributes, len(spans)),
            predicted=file.predicted,
            origin_unix_s=file.origin_unix_s,
            facts=file.facts,
            source=file.source,
        ).check()


def without_spans(timeline: JobTimeline) -> JobTimeline:
    """The timeline less its spans and what refers to them: for formats that have a place of their own for those."""
    return replace(timeline, spans=Spans.empty(), dependencies=np.empty((0, 2), np.int64), attributes=())


def _rank(rank: _Rank) -> Rank:
    error_s = math.inf if rank.clock_error_s is None else rank.clock_error_s
    return Rank(rank.rank, rank.host, rank.device, rank.clock_offset_s, error_s)


def _to_file(table: Spans | TransferLog | Iterations, kind: Any) -> Any:
    return kind(**{name: column.tolist() for name, column in table.columns().items()})


def _from_file(columns: Any, kind: Any) -> Any:
    return kind(*(np.array(getattr(columns, name), element) for name, element in kind.column_types().items()))


def _sparse(attributes: tuple[dict[str, Any], ...]) -> _Attributes | None:
    if not attributes:
        return None
    places = [place for place, value in enumerate(attributes) if value]
    return _Attributes(places, _plain([attributes[place] for place in places], "attributes"))


def _dense(sparse: _Attributes | None, spans: int) -> tuple[dict[str, Any], ...]:
    if sparse is None:
        return ()
    dense: list[dict[str, Any]] = [{}] * spans
    for place, value in zip(sparse.span, sparse.values, strict=True):
        if not 0 <= place < spans:
            raise ValueError(f"attributes of span {place}, of {spans}")
        dense[place] = value
    return tuple(dense)


def _plain(value: Any, what: str) -> Any:
    """The value, if JSON gives it back unchanged: what would come back as something else is refused."""
    try:
        if msgspec.json.decode(msgspec.json.encode(value)) == value:
            return value
        problem = "they would come back changed"
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        problem = str(error)
    raise InputError(
        f"{what} cannot be kept in a file: {problem}", "use text, finite numbers, lists and objects only"
    )
