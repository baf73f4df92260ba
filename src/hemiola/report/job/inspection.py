"""A job's figures as JSON (schema "hemiola.inspection/1"). What is not known is null."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from hemiola.analysis.job.breakdown import PARTS
from hemiola.analysis.job.metrics import JobMetrics, compare
from hemiola.core.job_timeline import SPAN_KINDS
from hemiola.trace.atomic import replacing

__all__ = ["INSPECTION_SCHEMA", "inspection_as_json", "write_inspection"]

INSPECTION_SCHEMA = "hemiola.inspection/1"


def write_inspection(metrics: JobMetrics, path: Path, other: JobMetrics | None = None) -> None:
    """Write the figures; with another job's also those, and the differences to it.

    Raises:
        InputError: if the path cannot be written.
    """
    text = msgspec.json.format(msgspec.json.encode(inspection_as_json(metrics, other)), indent=2)
    with replacing(path) as stream:
        stream.write(text + b"\n")


def inspection_as_json(metrics: JobMetrics, other: JobMetrics | None = None) -> dict[str, Any]:
    """The figures as plain values; NaN and infinity are None."""
    value: dict[str, Any] = {"schema": INSPECTION_SCHEMA, **_job(metrics)}
    if other is not None:
        value["against"] = _job(other)
        value["differences"] = msgspec.to_builtins(compare(other, metrics))
    return _known(value)  # type: ignore[no-any-return]


def _job(metrics: JobMetrics) -> dict[str, Any]:
    timeline, every = metrics.timeline, metrics.parts
    number = [timeline.ranks[rank].rank for rank in every.rank.tolist()]
    return {
        "name": timeline.name,
        "source": timeline.source,
        "predicted": timeline.predicted,
        "exposed_share": metrics.exposed_share,
        "exposed_share_worst": metrics.exposed_share_worst,
        "worst_rank": metrics.worst_rank,
        "evidence": metrics.evidence,
        "iteration_s": msgspec.to_builtins(metrics.iteration_s),
        "steady_iterations": list(metrics.steady),
        "warm_up_iterations": list(metrics.warm_up),
        "efficiency": msgspec.to_builtins(metrics.efficiency),
        "saving_s": metrics.saving_s,
        "waiting_share": metrics.waiting_share,
        "ranks": msgspec.to_builtins(metrics.ranks),
        "stragglers": msgspec.to_builtins(metrics.stragglers),
        "transfers": msgspec.to_builtins(metrics.transfers),
        "operations": msgspec.to_builtins(metrics.operations),
        "critical_path": {"iteration": metrics.path.number, "length_s": metrics.path.length_s, "pieces": _pieces(metrics)},
        "critical_path_items": msgspec.to_builtins(metrics.path_items),
        "iterations": [
            {"rank": rank, "number": int(every.number[i])}
            | {f"{part}_s": float(getattr(every, f"{part}_s")[i]) for part in ("duration", *PARTS, "wire")}
            for i, rank in enumerate(number)
        ],
        "notes": list(metrics.notes),
        "facts": timeline.facts,
    }  # fmt: skip


def _pieces(metrics: JobMetrics) -> list[dict[str, Any]]:
    path, timeline = metrics.path, metrics.timeline
    columns = (
        path.rank.tolist(),
        path.kind.tolist(),
        path.span.tolist(),
        path.start_s.tolist(),
        path.end_s.tolist(),
    )
    return [
        {
            "rank": timeline.ranks[rank].rank,
            "kind": SPAN_KINDS[kind] if kind >= 0 else "idle",
            "name": timeline.names[timeline.spans.name[span]] if kind >= 0 else "",
            "start_s": start,
            "end_s": end,
        }
        for rank, kind, span, start, end in zip(*columns, strict=True)
    ]


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _known(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_known(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
