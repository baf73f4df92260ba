"""How `hemiola trace` reaches the processes of a job: through the environment, which they all inherit."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hemiola.profiler.trace.session import TraceSession
from hemiola.profiler.trace.values import TraceOptions

__all__ = ["RECORD", "start", "variables"]

RECORD = "HEMIOLA_RECORD"
"""Says how to record."""


def variables(options: TraceOptions, environment: Mapping[str, str]) -> dict[str, str]:
    """What to set in an environment so that every Python started in it records itself."""
    inject = str(Path(__file__).with_name("inject"))
    inherited = environment.get("PYTHONPATH")
    return {
        "PYTHONPATH": f"{inject}{os.pathsep}{inherited}" if inherited else inject,
        RECORD: json.dumps(msgspec.to_builtins(options)),  # in ASCII: a path need not be text
        "HEMIOLA_RECORD_HOME": str(Path(__file__).parents[3]),
    }


def start() -> None:
    """Arm a recording with the options that the environment holds."""
    options = msgspec.convert(json.loads(os.environ[RECORD]), TraceOptions)
    if TraceSession.active is None:
        TraceSession(options).arm()
