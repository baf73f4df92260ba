"""A running rank over HTTP: metrics for Prometheus, health, and a trace on demand.

Only for this host unless told otherwise: whoever reaches it can slow the job by asking for traces.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hemiola.core.errors import InputError

__all__ = ["MOST_ITERATIONS", "TraceServer", "parse_address"]

MOST_ITERATIONS = 1000
_ANSWER_S = 10.0


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of "PORT" or "HOST:PORT"; the host is 127.0.0.1 unless given.

    Raises:
        InputError: if there is no port between 0 and 65535.
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise InputError(f"{text!r} is no address to listen on", 'give a port, "9600", or "HOST:PORT"')
    return host or "127.0.0.1", int(port)


class TraceServer:
    """Serves until closed, on a thread of its own.

    Args:
        address: host and port; port 0 takes any free one.
        metrics: makes the text for GET /metrics.
        health: makes the answer to GET /healthz; unhealthy if its "recording" is false.
        trace: starts a trace of so many iterations within so many seconds, and makes the answer to POST /trace.

    Raises:
        OSError: if the port is taken.
    """

    def __init__(
        self,
        address: tuple[str, int],
        metrics: Callable[[], str],
        health: Callable[[], dict[str, Any]],
        trace: Callable[[int, float], dict[str, Any] | None],
    ) -> None:
        handler = type("Handler", (_Handler,), {"texts": (metrics, health, trace)})
        self._server = ThreadingHTTPServer(address, handler)
        self._server.daemon_threads = True
        host, port = self._server.server_address[:2]
        self.address = f"{host!s}:{port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="hemiola-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    texts: Any
    timeout = 10
    server_version = "hemiola"

    def do_GET(self) -> None:
        metrics, health, _ = self.texts
        path = urlsplit(self.path).path
        if path == "/metrics":
            self._answer(200, metrics(), "text/plain; version=0.0.4; charset=utf-8")
        elif path == "/healthz":
            state = health()
            self._json(200 if state["recording"] else 503, state)
        elif path == "/trace":
            self._json(405, {"error": "ask with POST", "example": "curl -X POST .../trace?iterations=5"})
        else:
            self._json(404, {"error": f"nothing at {path}", "try": ["/metrics", "/healthz", "/trace"]})

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        asked = parse_qs(url.query).get("iterations", ["5"])[-1]
        if url.path != "/trace":
            self._json(404, {"error": f"nothing to post to at {url.path}", "try": ["/trace"]})
        elif self.headers.get("Origin"):
            self._json(403, {"error": "web pages may not ask for traces"})
        elif not asked.isdecimal() or not 0 < int(asked) <= MOST_ITERATIONS:
            self._json(400, {"error": f"iterations={asked}: give 1 to {MOST_ITERATIONS}"})
        else:
            answer = self.texts[2](int(asked), _ANSWER_S)
            self._json(
                202 if answer else 503, answer or {"error": "another trace is running: ask again later"}
            )

    def _json(self, status: int, value: dict[str, Any]) -> None:
        self._answer(status, json.dumps(value) + "\n", "application/json")

    def _answer(self, status: int, text: str, kind: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: the script's output is the script's."""
