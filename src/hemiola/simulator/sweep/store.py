"""Finished runs in a folder, so that a sweep that was killed goes on where it was. Knows files, not simulations."""

from __future__ import annotations

import errno
import hashlib
import os
import zlib
from pathlib import Path

import msgspec

from hemiola.simulator.sweep.answers import RunAnswer
from hemiola.core.errors import InputError
from hemiola.trace.atomic import replacing

__all__ = ["RunStore"]

MAGIC = b"hemiola.run/1\n"
DIGEST_BYTES = 32


class RunStore:
    """A file per run, named by the key of what determines it; each appears whole or not at all.

    Args:
        folder: made if it is not there. Several sweeps may share it, also at the same time.

    Raises:
        InputError: it can be neither made nor written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):  # it was there before
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise InputError(
                f"cannot keep runs in {str(folder)!r}: {error.strerror}", "name a folder that can be written"
            ) from error

    def get(self, key: str) -> RunAnswer | None:
        """A run that was kept; None if there is none.

        Raises:
            ValueError: there is a file, but it is damaged.
        """
        try:
            content = self._file(key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ValueError(error.strerror) from error
        digest, packed = content[len(MAGIC) :][:DIGEST_BYTES], content[len(MAGIC) + DIGEST_BYTES :]
        if not content.startswith(MAGIC) or hashlib.sha256(packed).digest() != digest:
            raise ValueError("it is damaged")
        return msgspec.msgpack.decode(zlib.decompress(packed), type=RunAnswer)

    def put(self, key: str, answer: RunAnswer) -> None:
        """Keep a run."""
        packed = zlib.compress(msgspec.msgpack.encode(answer), level=1)
        with replacing(self._file(key)) as stream:
            stream.write(MAGIC + hashlib.sha256(packed).digest() + packed)

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.run"
