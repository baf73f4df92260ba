"""Values as JSON text and back, exactly. Knows no database.

JSON has no infinity, and msgspec writes null for it, which would be read as nothing or not at all. Where a value
does not come back equal, it is written with Python's words for them (Infinity, NaN) instead.
"""

from __future__ import annotations

import json
from typing import Any, Generic, TypeVar

import msgspec

from hemiola.live.journal.errors import JournalError
from hemiola.live.journal.records import JournaledJob, Opening
from hemiola.core.decisions import Decision
from hemiola.core.errors import InternalError
from hemiola.core.events import Event

__all__ = ["DECISION", "DECISIONS", "EVENTS", "JOB", "OPENING", "Codec"]

Value = TypeVar("Value")
_encode = msgspec.json.Encoder().encode


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
            return msgspec.convert(json.loads(text), self._kind)  # type: ignore[no-any-return]
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
