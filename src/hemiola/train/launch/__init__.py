"""Starts a training job's ranks, on this host or several, as torchrun does, and ends them together.

One agent per host (`agent.py`, plain Python, sent along) starts that host's ranks and is all that touches
processes; the launcher talks to agents only, in the same way here and behind a remote shell.
"""

from hemiola.train.launch.launcher import launch
from hemiola.train.launch.output import Output
from hemiola.train.launch.places import (
    REMOTE_SHELL,
    Failure,
    HostNumber,
    LaunchOutcome,
    LaunchSpec,
    World,
    ending,
)

__all__ = [
    "REMOTE_SHELL",
    "Failure",
    "HostNumber",
    "LaunchOutcome",
    "LaunchSpec",
    "Output",
    "World",
    "ending",
    "launch",
]
