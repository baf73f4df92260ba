"""What a run leaves behind, as bytes and back: the same bytes wherever it ran. Knows nothing of how runs are spread.

A run's figures, records, spans and decisions are its result; how long it took to compute them here stands beside it.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np

from hemiola.core.result import LoggedDecision, Run
from hemiola.core.timeline import Timeline, TrafficLog

__all__ = ["Result", "RunAnswer", "answer_of", "encode_exactly"]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What one task gives.

    Attributes:
        run: with the seconds that it took.
        notes: what was assumed while its workload was read.
    """

    run: Run
    notes: tuple[str, ...]


class RunAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A result on its way from where it was computed.

    Attributes:
        result: the bytes that depend on nothing but the task.
        wall_s, cpu_s: what the replay took.
        decision_p50_s, decision_p99_s: what the policy took to decide.
        interrupted: it was stopped before the end.
    """

    result: bytes
    wall_s: float
    cpu_s: float
    decision_p50_s: float | None = None
    decision_p99_s: float | None = None
    interrupted: bool = False

    def read(self) -> Result:
        """The values.

        Raises:
            ValueError, msgspec.MsgspecError: the bytes are none of a result.
        """
        kept = msgspec.msgpack.decode(self.result, type=_Kept)
        run = msgspec.structs.replace(
            kept.run, semantics=kept.semantics, wall_s=self.wall_s, cpu_s=self.cpu_s,
            decision_p50_s=self.decision_p50_s, decision_p99_s=self.decision_p99_s, timeline=_timeline(kept.timeline), traffic=_traffic(kept.traffic),
            decisions=_decisions(kept.decisions),
        )  # fmt: skip
        return Result(run=run, notes=kept.notes)


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A result with every value in a form that has one encoding."""

    run: Run
    semantics: dict[str, Any]
    notes: tuple[str, ...]
    decisions: bytes  # as JSON, which has whole numbers of any size, as the masks of large hosts are
    timeline: dict[str, Any] | None
    traffic: dict[str, Any] | None


def answer_of(run: Run, notes: tuple[str, ...]) -> RunAnswer:
    """A run, ready to be sent or kept."""
    bare = msgspec.structs.replace(
        run, semantics={}, wall_s=0.0, cpu_s=0.0, decision_p50_s=None, decision_p99_s=None, timeline=None,
        traffic=None, decisions=(),
    )  # fmt: skip
    kept = _Kept(
        run=bare, semantics=run.semantics, notes=notes, decisions=_as_json(run.decisions),
        timeline=vars(run.timeline) if run.timeline is not None else None,
        traffic=vars(run.traffic) if run.traffic is not None else None,
    )  # fmt: skip
    return RunAnswer(
        result=encode_exactly(kept), wall_s=run.wall_s, cpu_s=run.cpu_s, decision_p50_s=run.decision_p50_s,
        decision_p99_s=run.decision_p99_s, interrupted=run.interrupted,
    )  # fmt: skip


def encode_exactly(value: object) -> bytes:
    """Values of Hemiola as bytes: equal ones give equal bytes, arrays with their type and shape."""
    return msgspec.msgpack.encode(value, enc_hook=_of_numpy)


def _as_json(decisions: tuple[LoggedDecision, ...]) -> bytes:
    """Only Python's own JSON has infinite times, and it is slow: a policy that asks for one is refused, and rare."""
    text = msgspec.json.encode(decisions)
    return text if b":null" not in text else json.dumps(msgspec.to_builtins(decisions)).encode()


def _decisions(text: bytes) -> tuple[LoggedDecision, ...]:
    try:
        return msgspec.json.decode(text, type=tuple[LoggedDecision, ...])
    except msgspec.DecodeError:
        return msgspec.convert(json.loads(text), tuple[LoggedDecision, ...])


def _of_numpy(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} cannot be kept")


def _array(packed: tuple[str, list[int], bytes]) -> np.ndarray:
    kind, shape, content = packed
    return np.frombuffer(content, dtype=np.dtype(kind)).reshape(shape)


def _timeline(columns: dict[str, Any] | None) -> Timeline | None:
    if columns is None:
        return None
    return Timeline(**{name: _array(column) for name, column in columns.items()})


def _traffic(columns: dict[str, Any] | None) -> TrafficLog | None:
    if columns is None:
        return None
    hosts = tuple(tuple(row) for row in columns["hosts"])
    factors = tuple(None if row is None else tuple(row) for row in columns["factors"])
    arrays = {name: _array(column) for name, column in columns.items() if name not in ("hosts", "factors")}
    return TrafficLog(**arrays, hosts=hosts, factors=factors)
