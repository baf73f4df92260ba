"""Where Slurm's programs are, and what to install where they are not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from hemiola.core.errors import LabError

__all__ = ["PACKAGES", "REST_PACKAGES", "check_programs", "check_rest", "program", "rest_version"]

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge")
"""Debian's and Ubuntu's names of what a Slurm lab needs, and nothing that it does not."""

REST_PACKAGES = ("slurmrestd", "slurm-wlm-jwt-plugin")
"""What it needs beside them to have a slurmrestd."""

NEEDED = ("munged", "slurmctld", "slurmd", "slurmstepd", "sinfo", "squeue", "scontrol", "scancel", "sbatch")
DAEMONS_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where daemons are; an ordinary user's PATH leaves these out."""


def program(name: str) -> Path | None:
    """The path of one of Slurm's programs; None where it is not installed."""
    folders = [*os.environ.get("PATH", os.defpath).split(os.pathsep), *DAEMONS_FOLDERS]
    found = shutil.which(name, path=os.pathsep.join(folders))
    return Path(found) if found else None


def check_programs() -> None:
    """Refuse at once what could only fail later.

    Raises:
        LabError: not Linux, or a program is missing.
    """
    if not sys.platform.startswith("linux"):
        raise LabError(f"a Slurm on {sys.platform}", "run this in a virtual machine with Linux")
    missing = [name for name in NEEDED if program(name) is None]
    if missing:
        raise LabError(
            f"Slurm's programs are missing: {', '.join(missing)}",
            f"apt-get install -y --no-install-recommends {' '.join(PACKAGES)}",
        )


def check_rest() -> None:
    """As `check_programs`, of what a slurmrestd needs.

    Raises:
        LabError: it is not installed.
    """
    if program("slurmrestd") is None:
        raise LabError(
            "there is no slurmrestd here",
            f"apt-get install -y --no-install-recommends {' '.join(REST_PACKAGES)}",
        )


def rest_version() -> tuple[int, int]:
    """Of slurmrestd, such as (24, 11); zeros where there is none."""
    path = program("slurmrestd")
    said = subprocess.run([path, "-V"], capture_output=True, text=True, check=False).stdout if path else ""
    found = re.search(r"(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)
