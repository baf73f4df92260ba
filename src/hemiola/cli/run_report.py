"""What `hemiola run` says once all ranks have ended: who failed, what was predicted, measured and exposed."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hemiola.cli.output import terminal

if TYPE_CHECKING:
    from hemiola.analysis.job.metrics import JobMetrics
    from hemiola.core.plan import Acceleration
    from hemiola.profiler.trace.values import TraceOptions
    from hemiola.train.launch import Failure, HostNumber, LaunchOutcome

__all__ = ["conclude"]

_HINT = "nothing was predicted or measured: --trace FILE records the job, hemiola.accelerate in the script speeds it up"


def conclude(
    outcome: LaunchOutcome,
    command: tuple[str, ...],
    recording: TraceOptions | None,
    report: Path | None,
    nodes: HostNumber | None = None,
    since_ns: int = 0,
) -> None:
    """Say it on standard error, and write the report if one was asked for.

    Of hosts that were started by hand (`nodes`) the first knows of all: the others leave the recording to it.

    Args:
        since_ns: when the recording began; see `merged`.

    Raises:
        InputError: the report cannot be written.
    """
    from hemiola.report.job.table import print_acceleration, print_measured

    console = terminal(stderr=True, highlight=False)
    if outcome.failure is not None:
        console.print(_failed(outcome, outcome.failure), soft_wrap=True)
    knows = nodes is None or nodes.rank == 0
    metrics = _measured(recording, outcome, nodes, since_ns) if recording is not None and knows else None
    acceleration = _acceleration(outcome)
    if acceleration is not None:
        print_acceleration(console, acceleration)
    elif metrics is not None:
        print_measured(console, metrics)
    elif recording is None and outcome.failure is None and knows:
        console.print(_HINT, soft_wrap=True, style="dim")
    if report is not None:
        _write(report, _as_json(outcome, command, acceleration, recording, metrics))


def _failed(outcome: LaunchOutcome, failure: Failure) -> str:
    """Who failed first and how, and what it said last."""
    from hemiola.train.launch import ending

    where = f" on {failure.host}" if failure.host else ""
    who = (
        f"rank {failure.rank}{where}"
        if failure.rank is not None
        else f"the connection to {failure.host or 'the ranks'}"
    )
    how = ending(failure.status)
    if outcome.interrupted:
        return f"hemiola run: interrupted; {who} ended with {how}"
    others, first = ("; the others were ended", " first") if outcome.ranks > 1 else ("", "")
    said = "".join(f"\n  | {line}" for line in failure.last_words) if outcome.ranks > 1 else ""
    return f"hemiola run: {who} failed{first}, with {how}{others}" + (
        f". It said last:{said}" if said else ""
    )


def _measured(
    recording: TraceOptions, outcome: LaunchOutcome, nodes: HostNumber | None, since_ns: int
) -> JobMetrics | None:
    """Of the recording, which is put together now; ranks that others have started may take a while longer."""
    from hemiola.analysis.job.metrics import job_metrics
    from hemiola.cli.trace import merged
    from hemiola.profiler.trace.api import wait_for_parts

    parts = Path(recording.parts)
    if nodes is not None and parts.is_dir():
        wait_for_parts(parts, outcome.ranks, crashed=outcome.status != 0, since_ns=since_ns)
    timeline = merged(recording, since_ns)
    return job_metrics(timeline) if timeline is not None and len(timeline.iterations) > 1 else None


def _acceleration(outcome: LaunchOutcome) -> Acceleration | None:
    """What hemiola.accelerate has left; None if the script did not use it, or is of another version."""
    from hemiola.core.errors import InputError
    from hemiola.trace.struct_json import read_acceleration

    if not outcome.report:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "acceleration.json"
        path.write_text(outcome.report, encoding="utf-8")
        try:
            return read_acceleration(path)
        except InputError as error:
            print(f"hemiola run: what rank 0 left cannot be read: {error.what}", file=sys.stderr)
            return None


def _as_json(
    outcome: LaunchOutcome,
    command: tuple[str, ...],
    acceleration: Acceleration | None,
    recording: TraceOptions | None,
    metrics: JobMetrics | None,
) -> dict[str, Any]:
    import msgspec

    from hemiola.trace.struct_json import as_text

    measured: dict[str, float | None] = {"iteration_s": None, "exposed_s": None}
    if metrics is not None:
        whole_s = metrics.iteration_s.median
        measured = {
            "iteration_s": whole_s,
            "exposed_s": metrics.exposed_share * whole_s,
        }
    said = msgspec.to_builtins(outcome)
    del said["report"]
    words = [as_text(word) for word in command]
    return {
        "schema": "hemiola.run/1", "command": words, **said, "acceleration": acceleration,
        "trace": as_text(recording.path) if recording is not None else None, **measured,
    }  # fmt: skip


def _write(path: Path, value: dict[str, Any]) -> None:
    import msgspec

    from hemiola.trace.atomic import replacing

    with replacing(path) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
