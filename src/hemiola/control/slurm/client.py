"""Slurm's own commands, as argument lists and never through a shell.

The command line is what all versions have in common: the REST interface of Slurm 22.05 refuses node lists.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from hemiola.control.failpoints import failpoint
from hemiola.core.errors import EngineError

__all__ = ["UNKNOWN", "Slurm"]

UNKNOWN = "Invalid job id"
"""What Slurm says if it knows none of the jobs that were asked for; of some it knows it tells."""
_HEADER = re.compile(r"[A-Z][A-Z_]{3,}\b")
_PREFIXES = ("SLURM_", "SQUEUE_", "SINFO_", "SCONTROL_")


class Slurm:
    """One cluster's commands.

    Args:
        conf: its slurm.conf; where the commands look by themselves unless given.
        limit_s: so long a command may take: a controller that is gone is tried for 9 s by the commands themselves.
    """

    def __init__(self, conf: Path | None = None, limit_s: float = 15.0) -> None:
        self._limit_s = limit_s
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_PREFIXES)}
        conf = conf or (Path(os.environ["SLURM_CONF"]) if os.environ.get("SLURM_CONF") else None)
        self.environ = {**kept, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
        if conf is not None:
            self.environ["SLURM_CONF"] = str(conf)

    def ask(self, command: str, *arguments: str) -> str:
        """What a command prints.

        Raises:
            EngineError: it is not there, takes too long, or fails.
        """
        done = self._run([command, *arguments], "")
        if done.returncode:
            raise EngineError(
                f"{command} failed: {_last_line(done.stderr)}", "is the controller up? try: scontrol ping"
            )
        return done.stdout

    def table(self, command: str, *arguments: str) -> str:
        """The lines of squeue or sinfo below their header, which is what tells an empty table from no answer at all.

        Raises:
            EngineError: as `ask`; or there is no header.
        """
        text = self.ask(command, *arguments)
        header, end, lines = text.partition("\n")
        if not end or not _HEADER.match(header):
            raise EngineError(
                f"{command} printed {header[:200]!r} where a header should be",
                "half an answer is not used; it is asked again",
            )
        return lines

    def tell(self, orders: Sequence[str]) -> str:
        """Several orders of `scontrol` in one call, each carried out whether or not others fail; what it complained of.

        Raises:
            EngineError: it is not there, or takes too long: some of the orders may have been carried out.
        """
        if not orders:
            return ""
        bad = next((order for order in orders if any(ord(sign) < 32 for sign in order)), None)
        if bad is not None:
            raise EngineError(f"the order {bad!r} has control characters", "report this")
        return self._run(["scontrol"], "".join(f"{order}\n" for order in orders) + "quit\n").stderr

    def _run(self, command: list[str], given: str) -> subprocess.CompletedProcess[str]:
        failpoint(f"slurm.{command[0]}.before")
        try:
            done = subprocess.run(
                command, input=given, env=self.environ, capture_output=True, text=True, errors="replace",
                timeout=self._limit_s, check=False, start_new_session=True,
            )  # fmt: skip
        except FileNotFoundError:
            raise EngineError(
                f"there is no {command[0]} on this host", "install Slurm's clients: apt install slurm-client"
            ) from None
        except subprocess.TimeoutExpired:
            raise EngineError(
                f"{command[0]} gave no answer within {self._limit_s:g} s",
                "is the controller up? try: scontrol ping",
            ) from None
        failpoint(f"slurm.{command[0]}.after")
        return done


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1].strip()
