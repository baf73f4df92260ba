"""A running rank over HTTP: metrics for Prometheus, health, and a trace on demand.

Only for this host unless told otherwise: whoever reaches it can slow the job by asking for traces.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hemiola.core.errors import InputError
from hemiola.profiler.trace.values import Iteration

__all__ = ["Totals", "TraceServer", "exposition", "parse_address", "union_ns", "waits"]


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


# What a rank's iterations add up to, for Prometheus: counted as they end, nothing kept of each. Knows no
# PyTorch.

_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)


class Totals:
    """Sums since recording began, and over the window since the last `take_window`."""

    def __init__(self) -> None:
        self.iterations = 0
        self.last_iteration = -1
        self.seconds = 0.0
        self.exposed_s = 0.0
        self.input_s = 0.0
        self.compute_s = 0.0
        self.bytes: dict[str, int] = {}
        self.histogram = [0] * (len(_BUCKETS_S) + 1)
        self.straggler_index: float | None = None
        self.clock_error_s: float | None = None
        self.traces = 0
        self._window_s = 0.0
        self._window_iterations = 0

    def add(self, iteration: Iteration) -> None:
        """Count an iteration."""
        for row in iteration.transfers:
            self.bytes[row[2]] = self.bytes.get(row[2], 0) + row[4]
        if not iteration.complete:
            return
        duration = (iteration.end - iteration.start) / 1e9
        exposed = union_ns(waits(iteration)) / 1e9
        loading = [(start, end) for _, kind, start, end in iteration.phases if kind == "input"]
        input_s = union_ns([*loading, *waits(iteration)]) / 1e9 - exposed
        compute = max(0.0, duration - exposed - input_s)
        self.iterations += 1
        self.last_iteration = iteration.number
        self.seconds += duration
        self.exposed_s += exposed
        self.input_s += input_s
        self.compute_s += compute
        self.histogram[bisect_left(_BUCKETS_S, duration)] += 1
        self._window_s += compute
        self._window_iterations += 1

    def take_window(self) -> float | None:
        """Mean compute time of the iterations since it was last asked; None if none has ended."""
        seconds, iterations = self._window_s, self._window_iterations
        self._window_s, self._window_iterations = 0.0, 0
        return seconds / iterations if iterations else None


def waits(iteration: Iteration) -> list[tuple[int, int]]:
    """From when to when each transfer was waited for, where it was."""
    return [(row[8], row[9]) for row in iteration.transfers if row[8] is not None and row[9] is not None]


def union_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """How long at least one of the intervals lasts."""
    total, reached = 0, -(2**63)
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def exposition(totals: Totals, labels: dict[str, str], *, recording: bool) -> str:
    """The totals in Prometheus' text format, version 0.0.4."""
    common = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "\n".join(_lines(totals, common, recording)) + "\n"


def _lines(totals: Totals, labels: str, recording: bool) -> Iterator[str]:
    yield from _histogram(totals, labels)
    counters = (
        ("iterations_total", "counter", "Training iterations that have ended.", totals.iterations),
        ("exposed_communication_seconds_total", "counter",
         "Time in which this rank's computation stood still for communication.", totals.exposed_s),
        ("input_wait_seconds_total", "counter", "Time spent waiting for, or making, batches.", totals.input_s),
        ("compute_seconds_total", "counter",
         "Iteration time less exposed communication and input.", totals.compute_s),
        ("traces_total", "counter", "Full traces made on demand.", totals.traces),
        ("recording", "gauge", "1 while iterations are recorded, 0 after a failure of the recording.", int(recording)),
        ("straggler_index", "gauge",
         "This rank's compute time over the median of all ranks'.", totals.straggler_index),
        ("clock_error_seconds", "gauge",
         "Bound on the error of this rank's clock against rank 0's.", totals.clock_error_s),
    )  # fmt: skip
    for name, kind, about, value in counters:
        if value is not None:
            yield from _heading(name, kind, about)
            yield f"hemiola_{name}{{{labels}}} {value}"
    yield from _heading("communicated_bytes_total", "counter", "Bytes of tensors handed over, by collective.")
    for collective, size in sorted(totals.bytes.items()):
        yield f'hemiola_communicated_bytes_total{{{labels},collective="{_escaped(collective)}"}} {size}'


def _histogram(totals: Totals, labels: str) -> Iterator[str]:
    yield from _heading("iteration_seconds", "histogram", "How long iterations took.")
    count = 0
    for bound, number in zip((*map(str, _BUCKETS_S), "+Inf"), totals.histogram, strict=True):
        count += number
        yield f'hemiola_iteration_seconds_bucket{{{labels},le="{bound}"}} {count}'
    yield f"hemiola_iteration_seconds_sum{{{labels}}} {totals.seconds}"
    yield f"hemiola_iteration_seconds_count{{{labels}}} {totals.iterations}"


def _heading(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP hemiola_{name} {about}"
    yield f"# TYPE hemiola_{name} {kind}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
