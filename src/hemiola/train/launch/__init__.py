"""Starts a training job's ranks, on this host or several, as torchrun does, and ends them together.

One agent per host (`agent.py`, plain Python, sent along) starts that host's ranks and is all that touches
processes; the launcher talks to agents only, in the same way here and behind a remote shell.
"""

from hemiola.train.launch.launcher import launch
from hemiola.train.launch.output import Output
from hemiola.train.launch.places import World
from hemiola.train.launch.values import REMOTE_SHELL, Failure, LaunchSpec, HostNumber, LaunchOutcome, ending

__all__ = ["REMOTE_SHELL", "Failure", "LaunchSpec", "HostNumber", "LaunchOutcome", "Output", "World", "ending", "launch"]
