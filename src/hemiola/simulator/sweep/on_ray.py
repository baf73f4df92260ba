"""Runs on a Ray cluster. Ray queues, places and repeats tasks; nothing here schedules.

Scenarios travel with the tasks, so a worker needs Hemiola and nothing else: no trace, no file of the driver's.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hemiola.core.errors import EngineError, InputError
from hemiola.sched.policy import Policy
from hemiola.simulator.simulate import Recording
from hemiola.simulator.sweep.answers import RunAnswer
from hemiola.simulator.sweep.tasks import (
    Answers,
    Packed,
    PickledError,
    RunTask,
    Work,
    compute_packed,
    hemiola_digest,
)

__all__ = ["OnRay"]

REACH_S = 5.0
AWAY_S = 30.0
RETRIES = 5
TRIES = 3
POLL_S = 0.5
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
HTTP2_SETTINGS = b"\x04"
"""How a client of gRPC begins (RFC 9113, section 3.4), and the type of the frame that must answer it."""


@dataclass(frozen=True)
class OnRay:
    """On the Ray cluster at an address.

    Attributes:
        address: "HOST:PORT", "ray://HOST:PORT", "auto" for the one that this machine belongs to, or "local" for one
            of its own on this machine.
    """

    address: str

    def answers(self, work: Work) -> Answers:
        """Each task with its answer, as they end.

        Raises:
            InputError: Ray is not installed, or does not answer there.
            EngineError: it went away, or a task's worker died again and again.
        """
        ray, address = _imported(), self.address
        if address == "auto":  # as Ray does: what this leads to may be a client's address
            address = os.environ.get("RAY_ADDRESS") or address
        for task in work.tasks:
            _send_along(ray, task.policy)
        with _connected(ray, address):
            try:
                yield from _spread(ray, work, address)
            except KeyboardInterrupt:
                return
            except ray.exceptions.RayTaskError as error:
                raise _unwrapped(error) from error
            except (ray.exceptions.RayError, ConnectionError) as error:
                raise EngineError(
                    f"the Ray cluster at {address} failed: {_first_line(error)}",
                    "give --resume FOLDER, and start it again: finished runs are kept there",
                ) from error


def _spread(ray: Any, work: Work, address: str) -> Answers:
    remote = ray.remote(num_cpus=1, max_retries=RETRIES)(_work)
    sent = [_sent(ray, Packed.of(prepared)) for prepared in work.scenarios]
    running = {
        remote.remote(*sent[task.scenario], task, work.recording, hemiola_digest()): task
        for task in work.tasks
    }
    # from outside the cluster its own address of the head may lead nowhere
    head = _Head(address if address.startswith("ray://") else ray.get_runtime_context().gcs_address)
    while running:
        done, _ = ray.wait(list(running), num_returns=len(running), timeout=0)
        if not done:
            head.check()
            done, _ = ray.wait(list(running), timeout=POLL_S)
        for reference in done:
            task, answer = running.pop(reference), ray.get(reference)
            if isinstance(answer, PickledError):
                raise answer.error()
            yield task, answer


def _sent(ray: Any, packed: Packed) -> tuple[Any, str]:
    return ray.put(packed.content), packed.digest


def _work(
    content: bytes, digest: str, task: RunTask, recording: Recording, hemiola: str
) -> RunAnswer | PickledError:
    """On a worker."""
    if hemiola_digest() != hemiola:
        return PickledError(
            InputError,
            f"the Ray node {socket.gethostname()} has another Hemiola than this machine",
            "install the same one on every node",
        )
    return compute_packed(Packed(content, digest), task, recording)


def _imported() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise InputError(f"--ray needs Ray: {error}", "pip install 'hemiola[ray]'") from error
    return ray


def _send_along(ray: Any, policy: Policy) -> None:
    """Let a policy of the user's own travel with its program: its file is on this machine alone."""
    module = sys.modules[type(policy).__module__]
    if module.__name__.partition(".")[0] != "hemiola":
        ray.cloudpickle.register_pickle_by_value(module)


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    try:
        try:
            _reach(address)
            _init(ray, address)
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise InputError(
                f"no Ray cluster at {address!r}: {_cause(error)}",
                'start one ("ray start --head" prints its address), or use --ray local',
            ) from error
        yield
    finally:
        ray.shutdown()


def _init(ray: Any, address: str) -> None:
    """For "ray://" a busy head starts a server first, and may fail to: Ray leaves trying again to its clients."""
    for left in reversed(range(TRIES)):
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionAbortedError:
            if not left:
                raise
            ray.shutdown()  # it would be half connected
        else:
            return


def _reach(address: str) -> None:
    """Fail within seconds where nothing listens, or nothing of Ray's: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    with socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S) as connection:
        if os.environ.get("RAY_USE_TLS", "0") == "0":
            connection.sendall(HTTP2_GREETING)
            if connection.recv(9, socket.MSG_WAITALL)[3:4] != HTTP2_SETTINGS:
                raise ConnectionError("what listens there is not Ray (its dashboard has another port)")


class _Head:
    """The cluster's head, looked at now and then: without it Ray would end this process, after a minute, with no word."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._seen_s = self._looked_s = time.monotonic()

    def check(self) -> None:
        """Raise a ConnectionError once it has been away for `AWAY_S`."""
        now_s = time.monotonic()
        if now_s - self._looked_s < REACH_S:
            return
        self._looked_s = now_s
        try:
            _reach(self._address)
            self._seen_s = now_s
        except OSError as error:
            if now_s - self._seen_s > AWAY_S:
                raise ConnectionError(f"its head has been away for {AWAY_S:.0f} s ({error})") from error


def _unwrapped(error: Any) -> BaseException:
    cause = error.cause
    if isinstance(cause, ModuleNotFoundError) and cause.name == "hemiola":
        return InputError("Ray's workers have no Hemiola", "install it on every node, the same as here")
    return cause if isinstance(cause, BaseException) else error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _cause(error: BaseException) -> str:
    """Of a traceback that came as text, what it ends with."""
    return _first_line(error) if "Traceback" not in str(error) else str(error).strip().splitlines()[-1]
