"""How `hemiola trace` reaches the processes of a job: through the environment, which they all inherit."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from hemiola.run.record.session import Session
from hemiola.run.record.values import Options

__all__ = ["environment", "start"]

_VARIABLE = "HEMIOLA_RECORD"


def environment(options: Options) -> dict[str, str]:
    """This process's environment, changed so that every Python started in it records itself."""
    inject = str(Path(__file__).with_name("inject"))
    inherited = os.environ.get("PYTHONPATH")
    return os.environ | {
        "PYTHONPATH": f"{inject}{os.pathsep}{inherited}" if inherited else inject,
        _VARIABLE: msgspec.json.encode(options).decode(),
        "HEMIOLA_RECORD_HOME": str(Path(__file__).parents[3]),
    }


def start() -> None:
    """Arm a recording with the options that the environment holds."""
    options = msgspec.json.decode(os.environ[_VARIABLE], type=Options)
    if Session.active is None:
        Session(options).arm()
