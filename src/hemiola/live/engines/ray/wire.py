"""What the agent answers, read by a strict grammar: an answer that does not fit it is refused as a whole."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from hemiola.core.errors import EngineError
from hemiola.live.engines.ray.kv_store import GROUP, JOB

__all__ = ["ENDED", "GroupRow", "RayJobRow", "RayNodeRow", "RayReply", "read_answer"]

ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
Hex = Annotated[str, Meta(pattern=r"^([0-9a-f]{8,64})?$")]


class RayJobRow(msgspec.Struct, frozen=True, gc=False):
    """A job as Ray's table has it.

    Attributes:
        id: Ray's submission id.
        start_ms, end_ms: when it was submitted and when it ended, Unix time; 0: it has not.
        exit_code: of its entry point; None if that has not ended by itself.
        words: what its user says of it, under "hemiola" in its metadata.
    """

    id: Annotated[str, Meta(pattern=f"^{JOB.pattern}$")]
    status: Literal["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED"]
    start_ms: int
    exit_code: int | None
    words: str
    end_ms: int = 0


class GroupRow(msgspec.Struct, frozen=True, gc=False):
    """A placement group of ours.

    Attributes:
        id: in hex.
        nodes: id by bundle; "" where it has none yet.
    """

    name: Annotated[str, Meta(pattern=f"^{GROUP.pattern}$")]
    state: Literal["PENDING", "PREPARED", "CREATED", "RESCHEDULING", "REMOVED"]
    id: Hex = ""
    nodes: tuple[Hex, ...] = ()

    @property
    def job(self) -> str:
        """Whose it is."""
        return self.name.split(":")[1]

    @property
    def number(self) -> int:
        """Its own, of those of the job."""
        return int(self.name.split(":")[2])


class RayNodeRow(msgspec.Struct, frozen=True, gc=False):
    """A node that lives.

    Attributes:
        names: that it may be called by, the most deliberate one first.
        free_gpus: neither used nor reserved.
        draining: it is to be gone soon, and takes nothing new.
        cpus: None where nobody said.
        free_cpus: neither used nor reserved.
    """

    id: Hex
    names: tuple[str, ...]
    gpus: int
    free_gpus: float
    labels: dict[str, str]
    draining: bool = False
    cpus: float | None = None
    free_cpus: float = 0.0


class RayReply(msgspec.Struct, frozen=True):
    """One look.

    Attributes:
        notes: of the board, by key.
    """

    groups: tuple[GroupRow, ...]
    notes: dict[str, str]
    jobs: tuple[RayJobRow, ...]
    nodes: tuple[RayNodeRow, ...]


def read_answer(text: msgspec.Raw) -> RayReply:
    """Of the request "look".

    Raises:
        EngineError: it says what cannot be; then nothing of it is used.
    """
    try:
        return msgspec.json.decode(text, type=RayReply)
    except msgspec.DecodeError as problem:
        raise EngineError(
            f"Ray says what is not understood: {problem}",
            "this version of Ray is not known; please report its version",
        ) from None
