"""A comparison as files: figures as JSON, jobs as CSV. Knows the files' schemas, not what made them.

`docs/reference/results.md` describes each file. Nothing is invented: what a run has not is null
in JSON and empty in CSV. A seeded run repeats to the byte, apart from `simulation_wall_s`,
`simulation_cpu_s` and what decisions took (`decision_p50_s`, `decision_p99_s`).
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from hemiola.analysis.cluster_metrics import finish_time_fairness, summary
from hemiola.core.errors import DAMAGED, FormatError, InputError
from hemiola.core.result import Comparison, JobRecord, Run, ServiceRecord
from hemiola.core.topology import Topology
from hemiola.trace.atomic import replacing

__all__ = [
    "comparison_as_json",
    "read_bytes",
    "read_comparison",
    "write_jobs_csv",
    "write_json",
    "wrong_schema",
]


# Result files opened, or refused in words. Knows nothing of what is in them.


def read_bytes(path: str | Path) -> bytes:
    """All of a file; one whose name ends in ".gz" unpacked.

    Raises:
        InputError: if it cannot be read.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {str(path)!r}: {reason}", "check the path") from error


def wrong_schema(path: str | Path, schema: str, found: str) -> FormatError:
    """The error for a file that is not of the schema."""
    return FormatError(
        f"{str(path)!r} is not a file of schema {schema!r}: {found}", "name a file that Hemiola wrote"
    )


COMPARISON_SCHEMA = "hemiola.comparison/1"

_NAMED = 3
_JOB_FIELDS = tuple(name for name in JobRecord.__struct_fields__ if name not in ("id", "tiers_s"))


def write_json(comparison: Comparison, path: Path) -> None:
    """Write the figures of every run (schema "hemiola.comparison/1").

    Raises:
        InputError: if the path cannot be written.
        InternalError: if a run's figures do not add up.
    """
    text = msgspec.json.format(msgspec.json.encode(comparison_as_json(comparison)), indent=2)
    with replacing(path) as stream:
        stream.write(text + b"\n")


def read_comparison(path: Path) -> dict[str, Any]:
    """Read a file of `write_json` back, as plain values.

    Raises:
        InputError: if it is missing or not such a file.
    """
    content = read_bytes(path)
    try:
        value = msgspec.json.decode(content)
    except DAMAGED as error:
        raise wrong_schema(path, COMPARISON_SCHEMA, str(error)) from error
    if not isinstance(value, dict) or value.get("schema") != COMPARISON_SCHEMA:
        found = value.get("schema") if isinstance(value, dict) else type(value).__name__
        raise wrong_schema(path, COMPARISON_SCHEMA, f"its schema is {found!r}")
    return value


def comparison_as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain values, ready for JSON (no NaN: null)."""
    return {
        "schema": COMPARISON_SCHEMA,
        "workload": {"name": comparison.workload_name, "format": comparison.workload_format},
        "topology": _topology(comparison.topology),
        "baseline": comparison.baseline,
        "notes": list(comparison.notes),
        "never_ran": [
            {"why": why, "jobs": len(names), "first": list(names[:_NAMED])}
            for why, names in comparison.never_ran.items()
        ],
        "runs": [_run(run, comparison.topology) for run in comparison.runs],
    }


def _run(run: Run, topology: Topology) -> dict[str, Any]:
    head = {"policy": run.policy, "seed": run.seed, "semantics": run.semantics}
    figures = msgspec.to_builtins(summary(run, topology))
    tail: dict[str, Any] = {
        "interrupted": run.interrupted,
        "origin_s": run.origin_s,
        "end_s": run.end_s,
        "events": run.events,
        "speed_changes": run.speed_changes,
    }
    if run.serving is not None:
        tail["services"] = [_service(one) for one in run.serving.services]
    return {**head, **figures, **tail}


def _service(record: ServiceRecord) -> dict[str, Any]:
    """A service's figures, without its rows over time."""
    return {name: getattr(record, name) for name in ServiceRecord.__struct_fields__ if name != "rows"}


def _topology(topology: Topology) -> dict[str, Any]:
    return {
        "name": topology.name,
        "hosts": len(topology.hosts),
        "gpus": topology.gpus,
        "gpu_types": [name for name in topology.gpu_types if name],
        "tiers": list(topology.tiers),
        "source": topology.source,
    }


def write_jobs_csv(comparison: Comparison, path: Path) -> None:
    """Write a row for each job of each run.

    Raises:
        InputError: if the path cannot be written.
    """
    tiers = [f"tier_{name}_s" for name in comparison.topology.tiers]
    header = ["policy", "seed", "interrupted", "job", *_JOB_FIELDS, "rho", *tiers]
    with replacing(path) as stream:
        stream.write(_csv([header]))
        for run in comparison.runs:
            stream.write(_csv(_job_rows(run, comparison.topology)))


def _csv(rows: Iterable[list[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _job_rows(run: Run, topology: Topology) -> Iterator[list[Any]]:
    head = [run.policy, run.seed, "yes" if run.interrupted else "no"]
    for record, rho in zip(run.records, finish_time_fairness(run, topology).tolist(), strict=True):
        fields = [getattr(record, name) for name in _JOB_FIELDS]
        spent = [*record.tiers_s, *[0.0] * (len(topology.tiers) - len(record.tiers_s))]
        yield [*head, record.id, *fields, None if math.isnan(rho) else rho, *spent]
