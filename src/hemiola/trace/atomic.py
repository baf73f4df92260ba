"""Files that appear whole or not at all. Knows nothing of what is in them."""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from hemiola.core.errors import InputError

__all__ = ["replacing"]

_NAME_BYTES_MAX = 200
"""So much of a file's name is kept while it is written, to the last whole letter: most disks allow 255 bytes."""
_REMEDIES = {
    errno.ENOSPC: "free some space there, or name a path on another disk",
    errno.EDQUOT: "free some of your quota, or name a path on another disk",
    errno.EACCES: "name a path that you may write to",
    errno.EPERM: "name a path that you may write to",
    errno.EROFS: "name a path on a disk that can be written to",
    errno.ENOENT: "create the folder first, or name another path",
    errno.ENOTDIR: "name a path whose folder is a folder",
    errno.EISDIR: "name a file, not a folder",
    errno.ENAMETOOLONG: "choose a shorter name",
}


@contextmanager
def replacing(path: Path, *, follow: bool = True) -> Iterator[BinaryIO]:
    """Open a file for writing that takes the place of `path` once all is written.

    What was there before stays untouched until then, and stays if anything fails. A path that
    ends in ".gz" is compressed. Pipes and devices are written to directly, links are followed.

    Args:
        follow: whether what lies at `path` may say where the writing goes. In a folder that others may write to,
            it may not: then a link, pipe or device there is replaced itself.

    Raises:
        InputError: naming the path, if it cannot be written.
    """
    try:
        if follow and path.exists() and not path.is_file() and not path.is_dir():
            with path.open("wb") as stream:
                yield stream
        else:
            yield from _through_neighbour(path.resolve() if follow else path)
    except OSError as error:
        raise InputError(
            f"cannot write {str(path)!r}: {error.strerror or error}",
            _REMEDIES.get(error.errno or 0, "check the path and the disk, then run it again"),
        ) from error


def _through_neighbour(path: Path) -> Iterator[BinaryIO]:
    if path.is_dir() and not path.is_symlink():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    name = os.fsencode(path.name)[:_NAME_BYTES_MAX].decode(errors="ignore")
    neighbour = path.with_name(f".{name}.{os.getpid()}-{os.urandom(4).hex()}.part")
    try:
        with neighbour.open("xb") as raw:  # made anew, so that it is no link that somebody has left there
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield raw
        neighbour.replace(path)
    finally:
        neighbour.unlink(missing_ok=True)
