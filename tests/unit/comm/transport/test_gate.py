"""Gates: open for all who wait, also behind one who was interrupted as it went through."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from patience import patience

from hemiola.comm.transport.messages import Gate


class Interrupting:
    """A lock whose owner is interrupted the first time that it has it."""

    def __init__(self, lock: Any) -> None:
        self._lock, self._strikes = lock, True

    def acquire(self, timeout: float) -> bool:
        got = bool(self._lock.acquire(timeout=timeout))
        if got and self._strikes:
            self._strikes = False
            raise KeyboardInterrupt
        return got

    def release(self) -> None:
        self._lock.release()


def test_it_is_waited_for_no_longer_than_was_said() -> None:
    gate, begun_s = Gate(), time.monotonic()
    assert not gate.wait(0.05)
    assert not gate.wait(0.0)
    assert 0.05 <= time.monotonic() - begun_s < patience(5)
    gate.open()
    assert gate.wait() and gate.wait(0.0)


def test_whoever_is_interrupted_behind_it_shuts_it_for_nobody() -> None:
    gate = Gate()
    others = [threading.Thread(target=gate.wait) for _ in range(2)]
    gate._lock = Interrupting(gate._lock)  # type: ignore[assignment]
    opening = threading.Timer(0.1, gate.open)
    opening.start()
    with pytest.raises(KeyboardInterrupt):
        gate.wait()
    for other in others:
        other.start()
        other.join(patience(5))
    opening.join()
    assert gate.wait(0.0)
    assert not any(other.is_alive() for other in others)


def test_who_stood_before_it_goes_on_soon() -> None:
    gate = Gate()
    stands = threading.Thread(target=gate.wait)
    stands.start()
    gate.is_open = True  # opened, and the lock was kept by one who was interrupted
    stands.join(patience(5))
    assert not stands.is_alive()


def test_that_all_is_stopped_for_long_counts_as_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, looks = [0.0], []

    class Stopping:
        """A lock that is not to be had, and hours go by at the first look."""

        def acquire(self, timeout: float) -> bool:
            looks.append(timeout)
            now_s[0] += timeout if looks[1:] else 1e4
            return False

    gate = Gate()
    gate._lock = Stopping()  # type: ignore[assignment]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    assert not gate.wait(3.5)
    assert looks == [1.0, 1.0, 1.0, 0.5]
