"""Where Hemiola and the jobs that wait for it leave each other notes: Ray's own key-value store.

holds            Hemiola's last turn, Unix time. While it is there, jobs wait for their places
wrapper:JOB      what `hemiola hold` does, by its own word
place:JOB        where the job is to run; written once its placement group stands
group:NAME       a placement group that is there, or is about to be: Ray has no list of those that still are
advice:JOB       where it would be put
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import msgspec

__all__ = [
    "ADVICE",
    "ALONE",
    "GROUP",
    "GROUPS",
    "HOLDS",
    "JOB",
    "NAMESPACE",
    "NODE",
    "PLACE",
    "TYPE",
    "WRAPPER",
    "JobPlace",
    "RayStore",
    "Wrapper",
    "group_name",
    "use_token",
]

NAMESPACE = "hemiola"
HOLDS, WRAPPER, PLACE, GROUPS, ADVICE = "holds", "wrapper:", "place:", "group:", "advice:"
JOB = re.compile(r"[\w.-]{1,128}")
"""Submission ids that Hemiola takes."""
ALONE = 0
"""The number of a group that Ray placed by itself."""
GROUP = re.compile(rf"hemiola:({JOB.pattern}):(\d{{1,9}})")
NODE, TYPE = "ray.io/node-id", "ray.io/accelerator-type"
"""Labels that Ray gives its nodes: their ids, and what their GPUs are."""
LIMIT_S = 5.0


class JobPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job is to run.

    Attributes:
        token: of the wrapper that is meant.
        number: grows with each placement group of the job.
        group: its name; "" while the job is to wait.
        group_id: in hex.
        nodes: by rank.
    """

    token: str
    number: int
    group: str = ""
    group_id: str = ""
    nodes: tuple[str, ...] = ()


class Wrapper(msgspec.Struct, frozen=True, kw_only=True):
    """What a job's `hemiola hold` does.

    Attributes:
        token: drawn when it began.
        state: it waits for a place, runs its command there, or ends it.
        number: of the group in which it does, or did last; `ALONE` where Ray chose.
        grace_s: so long the command may take to end.
        since_s: since when it does what it does, Unix time by its host's clock; 0 where it did not say.
    """

    token: str
    state: Literal["waits", "runs", "leaves"]
    number: int = ALONE
    grace_s: float = 0.0
    since_s: float = 0.0


def group_name(job: str, number: int) -> str:
    """Of a placement group."""
    return f"hemiola:{job}:{number}"


def use_token(environ: MutableMapping[str, str]) -> None:
    """Have Ray show its token where there is one and nothing else is said: so does `ray start`."""
    told = environ.get("RAY_AUTH_TOKEN") or environ.get("RAY_AUTH_TOKEN_PATH")
    if told or (Path.home() / ".ray" / "auth_token").exists():
        environ.setdefault("RAY_AUTH_MODE", "token")


class RayStore:
    """The notes of one Ray cluster.

    Args:
        address: of its head: "10.0.0.1:6379".
    """

    def __init__(self, address: str) -> None:
        use_token(os.environ)
        self._gcs: Any = import_module("ray._raylet").GcsClient(address=address)

    def get(self, key: str) -> bytes | None:
        """One note; None if it is not there."""
        found: bytes | None = self._gcs.internal_kv_get(key.encode(), NAMESPACE.encode(), LIMIT_S)
        return found

    def put(self, key: str, value: bytes) -> None:
        """Write it, over what was there."""
        self._gcs.internal_kv_put(key.encode(), value, True, NAMESPACE.encode(), LIMIT_S)

    def delete(self, key: str) -> bool:
        """Take it away; whether it was there."""
        return bool(self._gcs.internal_kv_del(key.encode(), False, NAMESPACE.encode(), LIMIT_S))

    def keys(self, prefix: str, namespace: str = NAMESPACE) -> list[str]:
        """All that begin so."""
        found = self._gcs.internal_kv_keys(prefix.encode(), namespace.encode(), LIMIT_S)
        return [key.decode(errors="replace") for key in found]

    def many(self, keys: Iterable[str], namespace: str = NAMESPACE) -> dict[str, bytes]:
        """Several notes; those that are there."""
        wanted = [key.encode() for key in keys]
        if not wanted:
            return {}
        found = self._gcs.internal_kv_multi_get(wanted, namespace.encode(), LIMIT_S)
        return {key.decode(): value for key, value in found.items()}
