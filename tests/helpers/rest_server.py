"""A slurmrestd that says what a test wants, to the byte."""

from __future__ import annotations

import contextlib
import json
import socketserver
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Self

from hemiola.live.engines.slurm.client import Slurm
from hemiola.live.engines.slurm.rest.client import RestSlurm
from hemiola.live.engines.slurm.rest.http import Address, Http, Token

SAMPLES = Path(__file__).with_name("slurm_rest")
"""What real ones of several versions said, and squeue and sinfo at the same moment."""
SECRET = "c2VjcmV0LXNlY3JldC1zZWNyZXQ"
NONE, ONE = ({"set": True, "infinite": False, "number": number} for number in (0, 1))
EMPTY = {"jobs": [], "last_update": ONE, "errors": [], "warnings": []}


def slurm_at(fake: FakeRest, commands: Slurm | None = None, limit_s: float = 10.0) -> RestSlurm:
    """Whoever asks it."""
    return RestSlurm(Http(Address.of(fake.url), Token(text=SECRET), limit_s), commands)


def sample(version: str, name: str) -> Any:
    """What a real one said."""
    return json.loads((SAMPLES / version / f"{name}.json").read_text())


def sample_of(fake: FakeRest) -> Any:
    """Its jobs, but for the array whose list is cut off."""
    body = sample(fake.real, "jobs")
    body["jobs"] = [job for job in body["jobs"] if "..." not in job["array_task_string"]]
    return body


def answer(
    body: bytes | dict[str, Any], status: int = 200, kind: str = "application/json", more: str = ""
) -> bytes:
    """As it goes over the wire."""
    text = json.dumps(body).encode() if isinstance(body, dict) else body
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\n{more}\r\n"
    return head.encode() + text


class FakeRest:
    """Answers by method and path; what is not known has not been found.

    Args:
        place: of a socket; a port on this host unless given.
        tls: files of a certificate and its key.

    Attributes:
        real: whose answers it has.
        answers: for "GET /path" (with `?update_time=` or without), the bytes, or a function that writes some to the connection.
        asked: what was: method and path, headers, body.
    """

    def __init__(self, version: str, place: str | None = None, tls: tuple[Path, Path] | None = None) -> None:
        self.real = version
        self.answers: dict[str, bytes | Callable[[Any], None]] = {}
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        folder = SAMPLES / version
        sample = {path.stem: path.read_bytes() for path in folder.glob("*.json")}
        self.answers["GET /openapi/v3"] = answer(sample["openapi"])
        self.version = "v0.0.42" if version.startswith("24") else "v0.0.44"
        for path in ("jobs", "nodes"):
            if path in sample:
                self.say(f"GET {path}/", sample[path])
        self.released = threading.Event()
        server: type[socketserver.BaseServer] = (
            socketserver.ThreadingUnixStreamServer if place else socketserver.ThreadingTCPServer
        )
        self._server = server(place or ("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = False  # type: ignore[attr-defined]
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # whoever leaves has its reasons
        scheme = "https" if tls else "http"
        self.url = f"unix:{place}" if place else f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        if tls:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def say(self, what: str, body: bytes | dict[str, Any], status: int = 200, **more: str) -> None:
        """To "GET jobs/", below this version."""
        method, _, path = what.partition(" ")
        self.answers[f"{method} /slurm/{self.version}/{path}"] = answer(body, status, **more)

    def posts(self) -> list[tuple[str, Any]]:
        """What was to be changed."""
        return [
            (what.removeprefix("POST "), body) for what, _, body in self.asked if what.startswith("POST ")
        ]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(fake: FakeRest) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _say(self) -> None:
            what = f"{self.command} {self.path}"
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            fake.asked.append((what, {key.lower(): value for key, value in self.headers.items()}, body))
            known = what if what in fake.answers else what.partition("?update_time=")[0]
            said = fake.answers.get(known, answer(b"no such page", 404, "text/plain"))
            with contextlib.suppress(ConnectionError):
                if isinstance(said, bytes):
                    self.wfile.write(said)
                else:
                    said(self)

        do_GET = do_POST = _say  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

        def address_string(self) -> str:
            return ""

    return Handler
