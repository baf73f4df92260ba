"""Where bytes are: files, http(s) ranges, S3 and whatever fsspec reads, behind three methods.

A source says its size and its version once, and reads a range of that version or fails: an object that has changed
is an error that names it, never a mix of two. Lengths are verified here, and retries are not made here.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from hemiola.core.errors import InputError, StoreError

__all__ = [
    "ByteSource",
    "FileSource",
    "FsspecSource",
    "HttpSource",
    "S3Source",
    "StoreBusyError",
    "StoreChangedError",
    "hang_up",
    "open_source",
]

TIMEOUT_S = 20.0
PORTION_BYTES = 1 << 17
"""How much is read before it is counted as arrived."""

Arrived = Callable[[int], None]
"""Is told how many more bytes are there; may raise to break the read off. The first call may say 0: the first byte."""


class StoreBusyError(StoreError):
    """The store asks for patience, or a connection broke: the request may be made again.

    Args:
        retry_after_s: before which it should not be.
        denied: by 401 or 403: credentials may have expired.
    """

    def __init__(self, what: str, *, retry_after_s: float = 0.0, denied: bool = False) -> None:
        super().__init__(
            what, "look at the store: requests are made again for a while, and this one never came through"
        )
        self.retry_after_s = retry_after_s
        self.denied = denied


class StoreChangedError(StoreError):
    """An object is not the one that it was when reading began."""

    def __init__(self, url: str) -> None:
        super().__init__(
            f"{url} has changed since it was first read",
            "begin the epoch again, or give the object a new name when it changes",
        )


class ByteSource(ABC):
    """One object whose bytes can be read in ranges, from several threads at once.

    Attributes:
        url: as it was named.
    """

    url: str

    @abstractmethod
    def size(self) -> int:
        """Its length in bytes."""

    @abstractmethod
    def version(self) -> str:
        """By what this content is known: ETag, or time and size. Settled when it is first asked."""

    @abstractmethod
    def read(self, offset: int, into: memoryview, arrived: Arrived) -> None:
        """Fill `into` with the bytes from `offset` on.

        Raises:
            StoreBusyError: it may be tried again.
            StoreChangedError: it is another version by now.
            StoreError: it cannot be read.
        """


def open_source(url: str) -> ByteSource:
    """The source behind a URL: a path, file://, http(s)://, s3://, or what fsspec knows.

    Raises:
        InputError: nothing here reads such a URL.
    """
    scheme = urlsplit(url).scheme if "://" in url else "file"
    if scheme == "file":
        return FileSource(url.removeprefix("file://"))
    if scheme in ("http", "https"):
        return HttpSource(url)
    if scheme in ("s3", "gs", "az"):
        return S3Source(url)
    return FsspecSource(url)


class FileSource(ByteSource):
    """A local file; its version is the time of its last change, and its size."""

    def __init__(self, path: str) -> None:
        self.url = path

    @cached_property
    def _first(self) -> tuple[int, int]:
        return self._now()

    def _now(self) -> tuple[int, int]:
        try:
            found = Path(self.url).stat()
        except OSError as error:
            raise StoreError(f"{self.url}: {error.strerror}", "is the path right?") from error
        return found.st_size, found.st_mtime_ns

    def size(self) -> int:
        """Its length in bytes."""
        return self._first[0]

    def version(self) -> str:
        """Time of last change and size."""
        return f"{self._first[1]}-{self._first[0]}"

    def read(self, offset: int, into: memoryview, arrived: Arrived) -> None:
        """Read a range; see `ByteSource.read`."""
        with Path(self.url).open("rb", buffering=0) as stream:
            at = 0
            while at < len(into):
                count = os.preadv(stream.fileno(), [into[at : at + (1 << 20)]], offset + at)
                if not count:
                    raise StoreChangedError(self.url)
                at += count
                arrived(count)
        if self._now() != self._first:
            raise StoreChangedError(self.url)


class HttpSource(ByteSource):
    """An object behind http(s), in ranges; each thread keeps a connection of its own.

    Args:
        url: of the object.
        headers: sent with every request, such as an authorization.
    """

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        self.url, self._headers = url, dict(headers or {})
        parts = urlsplit(url)
        if not parts.hostname:
            raise InputError(f"the URL {url!r} names no host", "write http://HOST/PATH")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    @cached_property
    def _found(self) -> tuple[int, str, bool]:
        """Size, ETag, whether it may be asked for."""
        answer = self._ask({"Range": "bytes=0-0"})
        answer.read()
        tag = answer.headers.get("ETag") or ""
        if answer.status == 416:  # an empty object
            return 0, tag, False
        whole = (answer.headers.get("Content-Range") or "").rpartition("/")[2]
        if answer.status == 206 and whole.isdigit():
            return int(whole), tag or (answer.headers.get("Last-Modified") or ""), bool(tag)
        if answer.status == 200 and (answer.headers.get("Content-Length") or "").isdigit():
            return int(answer.headers["Content-Length"]), tag, bool(tag)
        return self._refused(answer)

    def size(self) -> int:
        """Its length in bytes."""
        return self._found[0]

    def version(self) -> str:
        """Its ETag, or the time of its last change where it has none."""
        return self._found[1]

    def read(self, offset: int, into: memoryview, arrived: Arrived) -> None:
        """Read a range; see `ByteSource.read`."""
        size, tag, pinned = self._found
        span = {"Range": f"bytes={offset}-{offset + len(into) - 1}"}
        answer = self._ask({**span, "If-Match": tag} if pinned and not tag.startswith("W/") else span)
        try:
            self._check(answer, offset, len(into), size, tag)
            arrived(0)
            at = 0
            while at < len(into):
                count = answer.readinto(into[at : at + PORTION_BYTES])
                if not count:
                    raise StoreBusyError(f"{self.url}: an answer ended after {at} of {len(into)} bytes")
                at += count
                arrived(count)
            answer.read(1)  # the end of the answer, so that the connection can be used again
        except (OSError, http.client.HTTPException) as error:
            _drop(self)
            raise StoreBusyError(f"{self.url}: {error}") from error
        except BaseException:
            _drop(self)
            raise

    def _check(self, answer: http.client.HTTPResponse, offset: int, length: int, size: int, tag: str) -> None:
        if answer.status == 412 or (tag and answer.headers.get("ETag", tag) != tag):
            raise StoreChangedError(self.url)
        if answer.status == 200 and (offset > 0 or length != size):
            raise StoreError(
                f"{self.url}: the server sends the whole object where a range was asked for",
                "it does not support ranges: serve it by one that does (nginx, S3)",
            )
        if answer.status not in (200, 206):
            self._refused(answer)
        told = answer.headers.get("Content-Length")
        if told is not None and int(told) != length:
            raise StoreBusyError(f"{self.url}: an answer of {told} bytes where {length} were asked for")
        whole = (answer.headers.get("Content-Range") or "").rpartition("/")[2]
        if whole.isdigit() and int(whole) != size:
            raise StoreChangedError(self.url)

    def _refused(self, answer: http.client.HTTPResponse) -> NoReturn:
        answer.read()
        what = f"{self.url}: {answer.status} {answer.reason}"
        if answer.status in (408, 429) or answer.status >= 500:
            raise StoreBusyError(what, retry_after_s=_seconds(answer.headers.get("Retry-After")))
        if answer.status in (401, 403):
            raise StoreBusyError(what, denied=True)
        raise StoreError(what, "is the URL right, and may you read it?")

    def _ask(self, headers: dict[str, str]) -> http.client.HTTPResponse:
        """Send one request on this thread's connection: again on a new one where the old was closed meanwhile."""
        for again in (False, True):
            connection, fresh = _connection(self._secure, self._host, self._port)
            try:
                connection.request("GET", self._path, headers={**self._headers, **headers})
                return connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                _drop(self)
                if again or fresh or isinstance(error, TimeoutError):
                    raise StoreBusyError(f"{self.url}: {error or type(error).__name__}") from error
        raise AssertionError

    @property
    def key(self) -> tuple[bool, str, int | None]:
        """By which connections are kept."""
        return self._secure, self._host, self._port


_open: set[http.client.HTTPConnection] = set()
"""Of all threads. A forked process keeps them: to close one whose lock a thread held would wait for ever."""


class _Connections(dict[Any, http.client.HTTPConnection]):
    """A thread's connections, closed when the thread ends."""

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()

    def __del__(self) -> None:
        if self._pid == os.getpid() and not sys.is_finalizing():
            for connection in self.values():
                _open.discard(connection)
                connection.close()


_ours = threading.local()


def _connection(secure: bool, host: str, port: int | None) -> tuple[http.client.HTTPConnection, bool]:
    """This thread's connection to a host, and whether it is new; a forked process makes its own."""
    if getattr(_ours, "pid", None) != os.getpid():
        _ours.pid, _ours.connections = os.getpid(), _Connections()
    known: _Connections = _ours.connections
    found = known.get((secure, host, port))
    if found is not None:
        return found, False
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    found = known[secure, host, port] = kind(host, port, timeout=TIMEOUT_S)
    _open.add(found)
    return found, True


def hang_up(*, close: bool = False) -> None:
    """Break off what any thread of this process reads over http, or close it where none reads: for the process's end."""
    for connection in list(_open):
        if close:
            connection.close()
        elif connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)


def _drop(source: HttpSource) -> None:
    connection = getattr(_ours, "connections", {}).pop(source.key, None)
    if connection is not None:
        _open.discard(connection)
        connection.close()


def _seconds(text: str | None) -> float:
    try:
        return max(0.0, float(text or 0))
    except ValueError:  # a date: a second is as good as any
        return 1.0


class S3Source(ByteSource):
    """An object of S3 (or of what speaks it), through obstore; credentials as obstore finds them.

    Args:
        url: s3://BUCKET/KEY.
        store: an obstore store of the bucket, where one is at hand.
    """

    def __init__(self, url: str, store: Any = None) -> None:
        self.url = url
        parts = urlsplit(url)
        self._key = parts.path.lstrip("/")
        if not parts.netloc or not self._key:
            raise InputError(f"the URL {url!r}", "write s3://BUCKET/KEY")
        self._store = store if store is not None else _bucket(f"{parts.scheme}://{parts.netloc}")

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"])  # type: ignore[misc]

    @cached_property
    def _head(self) -> Any:
        import obstore

        return self._guarded(lambda: obstore.head(self._store, self._key))

    def size(self) -> int:
        """Its length in bytes."""
        return int(self._head["size"])

    def version(self) -> str:
        """Its ETag."""
        return str(self._head.get("e_tag") or self._head.get("last_modified"))

    def read(self, offset: int, into: memoryview, arrived: Arrived) -> None:
        """Read a range; see `ByteSource.read`."""
        import obstore

        options: Any = {"range": (offset, offset + len(into))}
        if self._head.get("e_tag"):
            options["if_match"] = self._head["e_tag"]
        self._guarded(lambda: self._fill(obstore.get(self._store, self._key, options=options), into, arrived))

    def _fill(self, answer: Any, into: memoryview, arrived: Arrived) -> None:
        arrived(0)
        at = 0
        for portion in answer.stream(PORTION_BYTES):
            into[at : at + len(portion)] = memoryview(portion)
            at += len(portion)
            arrived(len(portion))
        if at != len(into):
            raise StoreBusyError(f"{self.url}: an answer ended after {at} of {len(into)} bytes")

    def _guarded(self, work: Callable[[], Any]) -> Any:
        from obstore import exceptions as told

        try:
            return work()
        except told.PreconditionError as error:
            raise StoreChangedError(self.url) from error
        except (told.PermissionDeniedError, told.UnauthenticatedError) as error:
            raise StoreBusyError(f"{self.url}: access denied", denied=True) from error
        except (FileNotFoundError, told.NotFoundError) as error:
            raise StoreError(f"{self.url}: there is no such object", "is the URL right?") from error
        except (told.GenericError, told.JoinError, OSError) as error:
            raise StoreBusyError(f"{self.url}: {str(error).partition(chr(10))[0]}") from error


def _bucket(url: str) -> Any:
    """An obstore store that leaves retries to the reader, which has to hear of failures."""
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise InputError(f"{url} needs obstore", "pip install 'hemiola[io]'") from error
    plain = (os.environ.get("AWS_ENDPOINT_URL") or "").startswith("http:")
    options: Any = {"timeout": f"{TIMEOUT_S:.0f}s", **({"allow_http": True} if plain else {})}
    return from_url(url, client_options=options, retry_config={"max_retries": 0})


class FsspecSource(ByteSource):
    """What fsspec reads; bytes are counted when a whole range is there."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise InputError(
                f"{url} needs fsspec, or is no URL", "pip install 'hemiola[io]' and its package"
            ) from error
        self.url = url
        try:
            self._files, self._path = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise InputError(f"{url}: {error}", "use a path, http://, s3://, or what fsspec knows") from error

    @cached_property
    def _first(self) -> tuple[int, str]:
        return self._now()

    def _now(self) -> tuple[int, str]:
        try:
            found = self._files.info(self._path)
        except (OSError, KeyError) as error:
            raise StoreError(f"{self.url}: {error}", "is the URL right?") from error
        tag = next((str(found[k]) for k in ("ETag", "etag", "mtime", "created") if found.get(k)), "")
        return int(found["size"]), f"{tag}-{found['size']}"

    def size(self) -> int:
        """Its length in bytes."""
        return self._first[0]

    def version(self) -> str:
        """Its ETag or time of change, and its size."""
        return self._first[1]

    def read(self, offset: int, into: memoryview, arrived: Arrived) -> None:
        """Read a range; see `ByteSource.read`."""
        try:
            data = self._files.cat_file(self._path, start=offset, end=offset + len(into))
        except (TimeoutError, OSError) as error:
            raise StoreBusyError(f"{self.url}: {error}") from error
        if len(data) != len(into):
            raise (
                StoreChangedError(self.url)
                if self._now() != self._first
                else StoreBusyError(f"{self.url}: {len(data)} bytes where {len(into)} were asked for")
            )
        into[:] = data
        arrived(len(data))
