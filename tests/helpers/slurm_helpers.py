"""Looks at what a Slurm lab does and leaves, by other means than its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from patience import patience, until

from hemiola.lab import namespaces
from hemiola.lab.slurm import SlurmLab


def cli(verb: str, *words: str) -> list[str]:
    """`hemiola lab slurm VERB ...`, as words for subprocess."""
    code = (
        "import sys; from cyclopts import App; from hemiola.cli import lab_slurm;"
        "from hemiola.core.errors import HemiolaError\n"
        "app = App(); app.command(getattr(lab_slurm, sys.argv[1]))\n"
        "try: app(sys.argv[1:])\n"
        "except HemiolaError as error: sys.exit(str(error))"
    )
    return [sys.executable, "-c", code, verb, *words]


def processes_of(base: str) -> list[str]:
    """The command lines of processes that carry a folder's path in their command line or environment."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                said = line + (path / "environ").read_bytes().decode(errors="replace")
                opened = [str(handle.readlink()) for handle in (path / "fd").iterdir()]
            except OSError:
                continue
            if f"{base}/" in said or any(name.startswith(f"{base}/") for name in opened):
                found.append(line)
    return found


def left_of(name: str) -> list[str]:
    """Folders, namespaces and processes that are left of a Slurm, this user being root."""
    base = f"/run/hemiola/slurm-{name}"
    folders = (Path("/run/hemiola"), Path("/run/netns"))
    paths = [str(p) for folder in folders if folder.is_dir() for p in folder.iterdir() if name in p.name]
    return paths + processes_of(base)


def apart_from_the_machine(work: Callable[[], None]) -> None:
    """Do it on a network of its own, so that this machine's stays as other tests expect it."""

    def within() -> None:
        assert namespaces.LIBC.unshare(namespaces.NEW_NET) == 0
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        work()

    namespaces.apart(within)


def cables() -> list[str]:
    """The devices that lead from this thread's network into one of a Slurm."""
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    return [line.split("@")[0] for line in links.splitlines() if line.startswith("hml")]


def submit(slurm: SlurmLab, *options: str, script: str) -> str:
    """Submit a job and return its number."""
    words = ["sbatch", "--parsable", "--chdir=/", *options, f"--wrap={script}"]
    return slurm.run(words).strip()


def state_of(slurm: SlurmLab, job: str) -> str:
    """A job's state and reason: "RUNNING None", "PENDING JobHeldUser"."""
    return slurm.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T %r"]).strip()


def wait_for(slurm: SlurmLab, job: str, state: str) -> None:
    until(lambda: state_of(slurm, job).startswith(state))


def jobs_of(slurm: SlurmLab) -> set[int]:
    """The processes of all jobs that the lab itself knows as such."""
    return {pid for pid, role in slurm.processes().items() if role.kind == "job"}


def as_nobody(slurm: SlurmLab, *words: str) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands as a user who is no operator."""
    return subprocess.run(
        words,
        env={"PATH": "/usr/bin:/bin", **slurm.environ},
        user=65534,
        group=65534,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=patience(30),
    )
