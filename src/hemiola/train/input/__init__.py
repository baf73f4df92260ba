"""Input pipelines that keep up with training: sources, a reader that tunes itself, and batches read ahead."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hemiola.train.input.batches import PrefetchLoader, prefetch
    from hemiola.train.input.reader import RangeReader
    from hemiola.train.input.samples import RemoteFile, StoredSamples
    from hemiola.train.input.source import ByteSource, open_source

__all__ = [
    "ByteSource",
    "PrefetchLoader",
    "RangeReader",
    "RemoteFile",
    "StoredSamples",
    "open_source",
    "prefetch",
]

_HOMES = {
    "ByteSource": "source",
    "open_source": "source",
    "RangeReader": "reader",
    "RemoteFile": "samples",
    "StoredSamples": "samples",
    "PrefetchLoader": "batches",
    "prefetch": "batches",
}


def __getattr__(name: str) -> Any:
    """Import late: a probe needs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
