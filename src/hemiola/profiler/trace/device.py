"""Times on a CUDA device: events recorded on streams, read later and brought onto the host's clock.

A training loop runs ahead of its device. So a phase's beginning and end, and a consumer's coming and
going, are events on the stream that does the work; a collective's last byte is an event on a stream that
PyTorch lets follow the collective. Written after CUDA's and PyTorch's documentation; the tests
run its arithmetic, and the rest only where there is a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hemiola.profiler.trace.values import Instant

__all__ = ["DeviceClock"]

_RENEW_NS = 10_000_000_000
"""An anchor is used for so long: CUDA tells elapsed milliseconds in single precision."""


class DeviceClock:
    """Makes events and reads them. An anchor is an event whose time on the host's clock is known."""

    def __init__(self, now: Callable[[], int]) -> None:
        import torch

        self._now = now
        self._cuda = torch.cuda
        self._stream = torch.cuda.Stream()
        self._anchor: tuple[Any, int] | None = None
        self.anchor()

    def stream_now(self) -> Any:
        """An event for the time at which the current stream has done what was asked of it so far."""
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def is_known(self, event: Any) -> bool:
        """Whether the device has passed the event."""
        return bool(event.query())

    def resolve(self, instant: Instant) -> int:
        """Nanoseconds on the host's clock."""
        if isinstance(instant, int):
            return instant
        if self._anchor is None or self._now() - self._anchor[1] > _RENEW_NS:
            self.anchor()
        assert self._anchor is not None
        event, host_ns = self._anchor
        instant.synchronize()
        return host_ns + int(event.elapsed_time(instant) * 1e6)

    def anchor(self) -> None:
        """Take a new anchor, on a stream of its own that has nothing else to do."""
        event = self._cuda.Event(enable_timing=True)
        event.record(self._stream)
        event.synchronize()
        self._anchor = (event, self._now())
