"""The engine of `examples/in_memory_engine.py`, as a test imports it: under the name by which commands load it."""

from __future__ import annotations

import sys

from repository import ROOT

if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

from examples.in_memory_engine import ENGINE, MemoryCluster, MemoryDriver

__all__ = ["ENGINE", "ENGINE_TEXT", "MemoryCluster", "MemoryDriver"]

ENGINE_TEXT = "examples.in_memory_engine:ENGINE"
