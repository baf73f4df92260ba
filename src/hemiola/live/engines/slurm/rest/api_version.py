"""What a slurmrestd offers, by its own OpenAPI document. Of several versions the newest is taken that is known here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from hemiola.core.errors import EngineError

__all__ = ["KNOWN", "Offer", "offer_of"]

KNOWN = ("v0.0.44", "v0.0.43", "v0.0.42", "v0.0.41", "v0.0.40")
"""Newest first. v0.0.45 (of Slurm 26.05.5) no longer says which jobs have whole nodes; those before refuse lists of nodes."""
TAKES_TIMES = "v0.0.42"
REQUEUES = "/slurm/v0.0.45/jobs/requeue"
"""Which v0.0.45 is the first to offer."""
NEEDED = frozenset({
    "required_nodes", "hold", "begin_time", "admin_comment", "minimum_nodes", "maximum_nodes", "tasks", "minimum_cpus",
    "priority",
})  # fmt: skip
"""Of a job's update."""
_VERSION = re.compile(r"/slurm/(v\d{1,3}\.\d{1,3}\.\d{1,3})/")
_SLURM = re.compile(r"Slurm-(\d{1,4}\.\d{1,4}[\w.-]{0,20})")
_BY_COMMAND = (
    "leave out --rest, and Slurm's own commands are used; Slurm 23.11 and newer take lists of nodes over REST"
)


@dataclass(frozen=True)
class Offer:
    """How this slurmrestd is spoken to.

    Attributes:
        version: of its answers: "v0.0.42".
        slurm: of Slurm: "24.11.5"; "" where it does not say.
        requeue: where running jobs are put back; "" where they cannot be.
    """

    version: str
    slurm: str
    requeue: str

    @property
    def takes_times(self) -> bool:
        """Whether one can ask for what has changed since: older ones stumble over the number."""
        return _order(self.version) >= _order(TAKES_TIMES)

    def path(self, what: str) -> str:
        """Where to ask for it."""
        return f"/slurm/{self.version}/{what}"


class _Info(msgspec.Struct):
    version: str


class _Components(msgspec.Struct):
    schemas: dict[str, Any]


class _Document(msgspec.Struct):
    info: _Info
    paths: dict[str, dict[str, Any]]
    components: _Components


def offer_of(body: bytes, where: str) -> Offer:
    """Of /openapi/v3.

    Raises:
        EngineError: it is no such document, or offers nothing that takes lists of nodes.
    """
    try:
        document = msgspec.json.decode(body, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineError(
            f"{where}/openapi/v3 is no OpenAPI document: {error}", "is it slurmrestd?"
        ) from None
    found = {match[1] for path in document.paths if (match := _VERSION.match(path))}
    version = next((known for known in KNOWN if known in found and _lacks(document, known) == ""), "")
    if not version:
        raise EngineError(f"{where} {_why(document, found)}", _BY_COMMAND)
    slurm = _SLURM.search(document.info.version)
    requeue = REQUEUES if "post" in document.paths.get(REQUEUES, {}) else ""
    return Offer(version, slurm[1] if slurm else "", requeue)


def _why(document: _Document, found: set[str]) -> str:
    """Why none of the versions will do."""
    known = [version for version in KNOWN if version in found]
    if known:
        return f"offers {known[0]} without {_lacks(document, known[0])}"
    if not found:
        return "offers nothing of Slurm's jobs: its plugin openapi/slurmctld is not loaded"
    listed = ", ".join(sorted(found))
    if max(map(_order, found)) < _order(KNOWN[-1]):
        return f"offers {listed}, which takes no list of nodes for a job"
    return f"offers {listed}, none of which is known here: {KNOWN[-1]} to {KNOWN[0]}"


def _order(version: str) -> list[int]:
    return [int(number) for number in version.removeprefix("v").split(".")]


def _lacks(document: _Document, version: str) -> str:
    """What is missing of it, in words; "" for nothing."""
    for path, method in (
        ("jobs/", "get"),
        ("job/{job_id}", "get"),
        ("job/{job_id}", "post"),
        ("nodes/", "get"),
    ):
        if method not in document.paths.get(f"/slurm/{version}/{path}", {}):
            return f"{method.upper()} {path}"
    return ", ".join(sorted(NEEDED - _updates(document, version)))


def _updates(document: _Document, version: str) -> set[str]:
    """What of a job can be changed."""
    post = document.paths[f"/slurm/{version}/job/{{job_id}}"]["post"]
    schema = _at(post, "requestBody", "content", "application/json", "schema")
    if isinstance(name := _at(schema, "$ref"), str):
        schema = document.components.schemas.get(name.rpartition("/")[2])
    properties = _at(schema, "properties")
    return set(properties) if isinstance(properties, Mapping) else set()


def _at(value: Any, *keys: str) -> Any:
    """What is there; None where it is not."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
