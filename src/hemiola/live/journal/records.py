"""What the journal keeps, as values. Knows no database.

Every time is in Unix seconds: a live run's time has the same origin.
"""

from __future__ import annotations

import json
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from hemiola.core.decisions import EVERY_ABILITY, EVERY_KIND, Decision, Placement
from hemiola.core.errors import HemiolaError, InternalError
from hemiola.core.events import Event
from hemiola.core.job import Batch, Elastic, JobHistory
from hemiola.simulator.cluster import Costs

__all__ = [
    "DECISION",
    "DECISIONS",
    "EVENTS",
    "JOB",
    "OPENING",
    "Deposed",
    "Instant",
    "Intent",
    "IntentState",
    "JournalError",
    "JournaledJob",
    "Leader",
    "Mode",
    "Opening",
    "RunRecord",
    "Status",
]


class JournalError(HemiolaError):
    """The journal cannot be read or written. What was committed before is untouched; try again once the cause is gone."""


class Deposed(JournalError):  # noqa: N818 - what happened, not what failed
    """Who wrote this leads no more. Nothing was written."""

    def __init__(self, epoch: int, holder: str, now: int) -> None:
        who = f"{holder!r} leads, with epoch {now}" if holder else "nobody leads"
        super().__init__(
            f"epoch {epoch} of the journal's lease no longer leads: {who}",
            "decide nothing more; lead anew, and begin with what the engine and the journal say",
        )


Status = Literal["waiting", "held", "running", "ended"]
Mode = Literal["observe", "advise", "enforce"]
IntentState = Literal["open", "done", "failed", "dropped"]


class JournaledJob(JobHistory, frozen=True, kw_only=True):
    """All that is known of one job of the engine.

    Attributes:
        uuid: ours, and the job's id for policies.
        engine_id: the engine's ("1234", or "1234_7" of an array); it may be used again for another job.
        engine_submit_s: when it was submitted, as the engine says; with `engine_id` and `user` it finds the job again.
        user, name: owner, and the owner's name for it.
        job: as policies see it.
        status, since_s: where it stands, and since when. Its history is of before that, but for the work, which was done by
            `settled_s`.
        placement: where it runs, or ran last; by the hosts of its run's topology.
        settled_s, pace: when this was written, and how much of its work it did per second from then on; 0 unless it ran.
        service_gpu_s: GPU-seconds that it had in `served_s`; None: `job.gpus` all the time.
        speed: mean work per second over `served_s`; None where nobody measured it.
        binds_failed: how often the engine did not take a placement.
        submitted_s, first_started_s, ended_s: when; None: not yet.
        unwatched: whether it ran and ended while nobody watched, nobody knows when: `ended_s` and `served_s` are at most.
        outcome: how it ended ("finished", "failed: ...", "cancelled"); "" before.
        predicted_s, predicted_iteration_s: run time and iteration time that were predicted on its last placement, alone, when
            it started there; None where it had no profile then.
        iteration_s: what it reported last; None where it never did.
        note: why it waits or runs here: the last decision's reason.
        memory: what the engine's driver wants back after a restart, to find the job again.
    """

    uuid: str
    engine_id: str
    engine_submit_s: float
    user: str
    name: str = ""
    job: Batch | Elastic
    status: Status
    placement: Placement | None = None
    since_s: float
    settled_s: float = 0.0
    pace: float = 0.0
    service_gpu_s: float | None = None
    speed: float | None = None
    binds_failed: int = 0
    submitted_s: float
    first_started_s: float | None = None
    ended_s: float | None = None
    unwatched: bool = False
    outcome: str = ""
    predicted_s: float | None = None
    predicted_iteration_s: float | None = None
    iteration_s: float | None = None
    note: str = ""
    memory: str = ""


class Intent(msgspec.Struct, frozen=True):
    """A decision that the engine is to carry out, written down before it is asked.

    Attributes:
        job: the job's UUID.
        state: "open" until the engine's answer is known; "dropped": it was not asked, and will not be, or its job has ended.
        epoch: who wrote it.
        outcome: the engine's words.
    """

    id: int
    job: str
    decision: Decision
    state: IntentState
    epoch: int
    made_s: float
    outcome: str = ""


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What a run began with: all that its decisions depend on beside its events.

    Attributes:
        policy: as `policy_from_text` reads it.
        fallback: the policy that takes over where that one fails; "" for none.
        engine: its name and version.
        topology: the cluster, as `topology_text` writes it.
        version: of Hemiola.
        costs, fitted: the estimates that the policy is told (`simulator.cluster.SimulatedEstimates`, `IterationModel`).
        supports: names of the kinds of decision that the engine could carry out; None: nobody asked, and none was refused
            for that.
    """

    policy: str
    fallback: str = ""
    engine: str
    mode: Mode
    topology: str
    version: str
    costs: Costs = Costs()
    fitted: bool = False
    supports: tuple[str, ...] | None = None

    @property
    def supported(self) -> frozenset[type]:
        """The kinds of decision that it could carry out, as far as this Hemiola knows them."""
        names = self.supports
        return EVERY_KIND if names is None else frozenset(k for k in EVERY_ABILITY if k.__name__ in names)


class RunRecord(msgspec.Struct, frozen=True):
    """A stretch of the journal that is replayed by itself; its view begins at `began_s`.

    Attributes:
        ended_s, reason: None and "" while it goes on.
    """

    id: int
    epoch: int
    opening: Opening
    began_s: float
    ended_s: float | None
    reason: str


class Instant(msgspec.Struct, frozen=True):
    """What happened at one instant, and what was decided.

    Attributes:
        decisions: each with why it was refused ("" if not); None: nobody was asked, or it was cut off before.
    """

    instant: int
    events: tuple[Event, ...]
    decisions: tuple[tuple[Decision, str], ...] | None


class Leader(NamedTuple):
    """Whose lease it is, and until when."""

    holder: str
    epoch: int
    until_s: float


# Values as JSON text and back, exactly. Knows no database.

Value = TypeVar("Value")
_encode = msgspec.json.Encoder().encode


def _as_now(value: Any) -> Any:
    """What an earlier Hemiola wrote, as it would be written now: its jobs did not say of which kind they are."""
    if isinstance(value, list):
        return [_as_now(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "duration_s" in value and "kind" not in value:
        value["kind"] = "elastic" if value.get("gpus_min") or value.get("gpus_max") else "batch"
    return {name: _as_now(each) for name, each in value.items()}


class Codec(Generic[Value]):
    """One type of value as text."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._decode = msgspec.json.Decoder(kind).decode

    def encode(self, value: Value) -> str:
        """The value as text that `decode` gives back equal.

        Raises:
            InternalError: no such value, or text that is not Unicode.
        """
        try:
            data = _encode(value)
            if self._same(data, value):
                return data.decode()
            text = json.dumps(msgspec.to_builtins(value), separators=(",", ":"))
            msgspec.convert(json.loads(text), self._kind)
        except (msgspec.MsgspecError, TypeError, UnicodeError) as error:
            raise InternalError(f"the journal cannot hold {value!r}: {error}", "please report it") from error
        return text

    def _same(self, data: bytes, value: Value) -> bool:
        try:
            return bool(self._decode(data) == value)
        except msgspec.MsgspecError:
            return False

    def decode(self, text: str, where: str, version: str = "") -> Value:
        """The value.

        Args:
            where: what to call the place in an error.
            version: the Hemiola that wrote it, where that is known.

        Raises:
            JournalError: it is none that this Hemiola knows.
        """
        try:
            return self._decode(text)  # type: ignore[no-any-return]
        except msgspec.MsgspecError as error:
            problem: Exception = error
        try:
            return msgspec.convert(_as_now(json.loads(text)), self._kind)  # type: ignore[no-any-return]
        except msgspec.ValidationError as error:
            problem = error
        except ValueError:
            pass
        by = f" (Hemiola {version})" if version else ""
        raise JournalError(
            f"{where} cannot be understood: {problem}",
            f"read it with the Hemiola that wrote it{by}, or a newer one; else the journal is damaged",
        ) from problem


EVENTS: Codec[tuple[Event, ...]] = Codec(tuple[Event, ...])
DECISIONS: Codec[tuple[tuple[Decision, str], ...]] = Codec(tuple[tuple[Decision, str], ...])
DECISION: Codec[Decision] = Codec(Decision)
JOB: Codec[JournaledJob] = Codec(JournaledJob)
OPENING: Codec[Opening] = Codec(Opening)
