"""A job's timeline from whatever files there are: the format is recognised by content, never by name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hemiola.core.errors import FormatError, InputError
from hemiola.core.job_timeline import JobTimeline
from hemiola.trace.jobs.chakra.from_chakra import from_chakra
from hemiola.trace.jobs.chakra.nodes import CHAKRA_LIST, read_chakra_json, read_et
from hemiola.trace.jobs.execution_trace import EXECUTION_LIST, join, read_execution_trace
from hemiola.trace.jobs.json_stream import JsonStream, looks_like_json, opened
from hemiola.trace.jobs.kineto.file import KINETO_LIST
from hemiola.trace.jobs.kineto.timeline import read_kineto_job
from hemiola.trace.jobs.perfetto import JOB_PERFETTO_SCHEMA, read_perfetto
from hemiola.trace.jobs.timeline_json import JOB_TIMELINE_SCHEMA, read_timeline
from hemiola.trace.struct_json import as_text

__all__ = ["Recognised", "read_job", "recognise"]

TIMELINE, PERFETTO, KINETO, EXECUTION, CHAKRA_JSON, CHAKRA_ET = (
    "Hemiola's job timeline", "Hemiola's Perfetto file", "PyTorch profiler trace (Kineto)",
    "PyTorch execution trace", "Chakra JSON", "Chakra .et",
)  # fmt: skip

_LOOKED_FOR = (
    f"looked for: schema {JOB_TIMELINE_SCHEMA!r}; schema {JOB_PERFETTO_SCHEMA!r}; a list {KINETO_LIST!r} of events; "
    f"a schema with 'chakra' and a list {EXECUTION_LIST!r}; a list {CHAKRA_LIST!r}; protobuf messages with lengths; "
    "of a network [[hosts]] in TOML; of a schedule its schema, or MSCCL's <algo>"
)
_ENDINGS = (".json", ".et", ".gz")
_PART = "hemiola.record-part/"
"""The schema of what each rank of a recording leaves, before it is put together."""
_RANK = re.compile(r"\.(\d+)\.(?:et|json)(?:\.gz)?$")


class Recognised(NamedTuple):
    """A format, and the sign by which a file was recognised to be of it."""

    format: str
    sign: str


def read_job(paths: Sequence[Path | str], *, salvage: bool = False) -> JobTimeline:
    """The timeline of one job from its files: one of Hemiola's own, or the traces of its ranks.

    PyTorch's execution traces join the Kineto traces of the same processes. The timeline's `source`
    says which format was taken and why.

    Args:
        paths: files, or folders of such files.
        salvage: of damaged Kineto files read what stands before the damage.

    Raises:
        FormatError: if a format is unknown, or the files are of formats that do not go together.
        InputError: if a file is missing, damaged, or does not fit the others.
    """
    files = [file for path in paths for file in _files(Path(path))]
    if not files:
        raise InputError("no trace file is named", "name the files of one job, or their folder")
    found = [recognise(file) for file in files]
    by_format: dict[str, list[Path]] = {}
    for file, (kind, _) in zip(files, found, strict=True):
        by_format.setdefault(kind, []).append(file)
    try:
        timeline = _read(by_format, salvage)
    except InputError as error:
        if isinstance(error, FormatError) or any(file.name in error.what for file in files):
            raise
        named = ", ".join(file.name for file in files[:4]) + (" ..." if len(files) > 4 else "")
        raise InputError(f"{named}: {error.what}", error.remedy) from error
    signs = "; ".join(dict.fromkeys(f"read as {kind}: {sign}" for kind, sign in found))
    return replace(timeline, source="; ".join(filter(None, (timeline.source, signs))))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.is_file() and file.name.endswith(_ENDINGS))
    files = files or sorted(path.glob("*.jsonl"))[:1]  # which says whose parts these are
    if not files:
        raise InputError(
            f"no trace file is in {str(path)!r}", f"looked for names that end in {', '.join(_ENDINGS)}"
        )
    return files


def _read(by_format: dict[str, list[Path]], salvage: bool) -> JobTimeline:
    formats = set(by_format)
    if formats <= {KINETO, EXECUTION}:
        if KINETO not in formats:
            raise InputError(
                f"{str(by_format[EXECUTION][0])!r} is an execution trace: it says what ran, and no times",
                "give the Kineto trace of the same run too: prof.export_chrome_trace(...)",
            )
        job = read_kineto_job(by_format[KINETO], salvage=salvage)
        traces = [read_execution_trace(path) for path in by_format.get(EXECUTION, ())]
        return join(job, traces) if traces else job.timeline
    if formats <= {CHAKRA_JSON, CHAKRA_ET}:
        paths = [*by_format.get(CHAKRA_ET, ()), *by_format.get(CHAKRA_JSON, ())]
        return _read_chakra(paths, by_format.get(CHAKRA_JSON, ()))
    if len(formats) > 1:
        named = "; ".join(f"{kind}: {paths[0].name!r}" for kind, paths in by_format.items())
        raise FormatError(
            f"the files are of different formats ({named})", "give the files of one job in one format"
        )
    ((kind, paths),) = by_format.items()
    if len(paths) > 1:
        raise FormatError(
            f"each of the {len(paths)} files is a whole job ({kind})",
            "read them one by one, or compare two: hemiola inspect FILE --against OTHER",
        )
    return _read_own(paths[0], kind, salvage)


def _read_own(path: Path, kind: str, salvage: bool) -> JobTimeline:
    try:
        return read_timeline(path) if kind == TIMELINE else read_perfetto(path)
    except InputError as error:
        if not salvage and "salvage" not in error.remedy:
            raise
        raise InputError(
            error.what,
            f"copy or make it again: {kind} has columns, of which a damaged file holds none that is whole",
        ) from error


def _read_chakra(paths: Sequence[Path], as_json: Sequence[Path]) -> JobTimeline:
    traces = [read_chakra_json(path) if path in as_json else read_et(path) for path in paths]
    matches = [_RANK.search(path.name) for path in paths]
    ranks = [int(match[1]) for match in matches if match]
    if len(ranks) != len(paths) or len(set(ranks)) != len(ranks):
        ranks = list(range(len(paths)))
    named = as_text(paths[0].name) + " ..." * (len(paths) > 1)
    return from_chakra(traces, ranks, source=f"Chakra, {len(paths)} files: {named}")


def recognise(path: Path) -> Recognised:
    """What a file is, by its content.

    Raises:
        FormatError: if it is none of the formats, with what was looked for.
        InputError: if it cannot be read, or is damaged before it says what it is.
    """
    if not looks_like_json(path):
        return _binary(path)
    seen: dict[str, str] = {}
    with JsonStream(path, [KINETO_LIST, EXECUTION_LIST, CHAKRA_LIST, ""]).members() as members:
        for key, value in members:
            told = _told(key, value, seen)
            if told:
                return told
            about = value.get("schema") if key == "otherData" and isinstance(value, dict) else value
            seen[key] = about if isinstance(about, str) else ""
            if key in ("schema", "otherData", "") and seen[key].startswith("hemiola."):
                raise _other(path, seen[key])
    names = ", ".join(map(repr, list(seen)[:8]))
    raise _unknown(path, f"it has the members {names}" if names else "no member of it holds anything")


def _told(key: str, value: Any, seen: dict[str, str]) -> Recognised | None:
    """What this member says of the format, after those that were seen before it; None if nothing yet."""
    if key == "schema" and value == JOB_TIMELINE_SCHEMA:
        return Recognised(TIMELINE, f"its schema is {value!r}")
    if key == "otherData" and isinstance(value, dict) and value.get("schema") == JOB_PERFETTO_SCHEMA:
        return Recognised(PERFETTO, f"its schema is {JOB_PERFETTO_SCHEMA!r}")
    if key == CHAKRA_LIST:
        return Recognised(CHAKRA_JSON, f"it has a list {CHAKRA_LIST!r}")
    if key == EXECUTION_LIST and "chakra" in seen.get("schema", ""):
        return Recognised(
            EXECUTION, f"its schema is {seen['schema']!r}, and it has a list {EXECUTION_LIST!r}"
        )
    events = key in (KINETO_LIST, "") and isinstance(value, dict) and "ph" in value
    if events and not seen.get("otherData", "").startswith("hemiola."):
        return Recognised(
            KINETO, f"it has a list {key!r} of trace events" if key else "it is a list of trace events"
        )
    return None


def _binary(path: Path) -> Recognised:
    """Chakra's files begin with the length of a message whose first field is 1 or 2, both of them texts."""
    with opened(path) as stream:
        begin = stream.read(11)
    length = next((at for at, byte in enumerate(begin) if byte < 128), len(begin)) + 1
    if begin[:1] == b"\0" or begin[length : length + 1] in (b"\x0a", b"\x12"):
        return Recognised(CHAKRA_ET, "it begins with the length of a protobuf message and its first field")
    raise _unknown(path, f"it begins with {begin[:8]!r}" if begin else "it is empty")


def _other(path: Path, schema: str) -> FormatError:
    """The error for a file of Hemiola's that holds no job, or one that this version cannot read."""
    if schema.startswith(_PART):
        folder = path.parent
        whole = folder.with_suffix("") if folder.suffix == ".parts" else "run.trace.json"
        command = shlex.join(["python", "-m", "hemiola.profiler.trace", str(folder), str(whole)])
        return FormatError(
            f"{str(path)!r} is a rank's part of a recording", f"put the parts together first: {command}"
        )
    family, _, version = schema.rpartition("/")
    for known in (JOB_TIMELINE_SCHEMA, JOB_PERFETTO_SCHEMA):
        stem, _, read = known.rpartition("/")
        if family == stem and version.isdecimal() and int(version) > int(read):
            return FormatError(
                f"{str(path)!r} is of schema {schema!r}, newer than the {known!r} that this Hemiola reads",
                "inspect it with the Hemiola that wrote it, or update this one",
            )
    return FormatError(
        f"{str(path)!r} is Hemiola's, of schema {schema!r}, and no job's timeline", _LOOKED_FOR
    )


def _unknown(path: Path, found: str) -> FormatError:
    return FormatError(f"{str(path)!r} is no trace of a job that is known: {found}", _LOOKED_FOR)
