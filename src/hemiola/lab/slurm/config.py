"""The files that Slurm reads. Each function gives the text of one; `write` writes them all."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from hemiola.core.errors import LabError
from hemiola.lab.slurm.record import Record
from hemiola.lab.slurm.spec import OTHER_PARTITION

__all__ = ["check_programs", "check_rest", "program", "rest_version", "write"]


LUA = Path(__file__).with_name("job_submit.lua")
KEY_BYTES, JWT_KEY_BYTES = 128, 32
MEMORY_MB = 1000

FAST = {
    "SchedulerParameters": "bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0",
    "KillWait": "2",
    "SlurmdTimeout": "30",
    "MessageTimeout": "10",
    "ReturnToService": "2",
    "MinJobAge": "300",
}
"""What a person may want otherwise.

Scheduling as soon as the controller's loop of one second comes round (measured: a job starts after 0.4 s
in the median, with Slurm's own settings after 2.6 s). A node that comes back is used again at once. A
finished job is known to squeue and scontrol for MinJobAge seconds; log/jobs.txt keeps it after that.
"""

PLUGINS = {
    "AuthType": "auth/munge",
    "CredType": "cred/munge",
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "JobAcctGatherType": "jobacct_gather/none",
    "AccountingStorageType": "accounting_storage/none",
    "JobCompType": "jobcomp/filetxt",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CPU",
    "SchedulerType": "sched/backfill",
    "TopologyPlugin": "topology/tree",
    "SwitchType": "switch/none",
    "MpiDefault": "none",
    "SlurmdParameters": "config_overrides",  # believe this file, not the machine, about CPUs
    "MailProg": "/bin/true",
}
"""What works without systemd, cgroups, a database, and root."""


def write(record: Record) -> None:
    """Write all files that the daemons read, and make the GPUs."""
    etc = record.folder / "etc"
    _write_key(etc / "munge.key", KEY_BYTES)
    if record.spec.rest:
        _write_key(etc / "jwt.key", JWT_KEY_BYTES)
    texts = {
        "slurm.conf": slurm_conf(record),
        "gres.conf": gres_conf(record),
        "topology.conf": topology_conf(record),
    }
    if record.spec.hold:
        texts["job_submit.lua"] = job_submit_lua(record)
    for name, text in texts.items():
        (etc / name).write_text(text)
        (etc / name).chmod(0o644)
    for i in range(record.spec.gpus):
        # Slurm sets CUDA_VISIBLE_DEVICES for character devices only; a link to one is enough
        (record.folder / f"dev/nvidia{i}").symlink_to(os.devnull)
    for node in record.spec.nodes:
        (record.folder / "spool" / node).mkdir(mode=0o755)


def _write_key(path: Path, size_bytes: int) -> None:
    path.touch(mode=0o600)
    path.write_bytes(secrets.token_bytes(size_bytes))


def slurm_conf(record: Record) -> str:
    """The whole of slurm.conf."""
    spec = record.spec
    values = {**_places(record), **PLUGINS, **FAST}
    if spec.gpus:
        values["GresTypes"] = "gpu"
    if spec.hold:
        values["JobSubmitPlugins"] = "lua"
    if spec.rest:
        values |= {"AuthAltTypes": "auth/jwt", "AuthAltParameters": f"jwt_key={record.base}/etc/jwt.key"}
    values |= spec.settings
    lines = [f"{key}={value}" for key, value in values.items()]
    lines += [_node(record, node) for node in spec.nodes]
    everywhere = f"Nodes={','.join(spec.nodes)} MaxTime=INFINITE State=UP"
    lines += [
        f"PartitionName={spec.partition} Default=YES {everywhere}",
        f"PartitionName={OTHER_PARTITION} {everywhere}",
    ]
    return "\n".join(lines) + "\n"


def gres_conf(record: Record) -> str:
    """The GPUs of each node; Slurm sets CUDA_VISIBLE_DEVICES for those that a job gets."""
    spec = record.spec
    if not spec.gpus:
        return ""
    what = f"File={record.folder}/dev/nvidia[0-{spec.gpus - 1}] Flags=nvidia_gpu_env"
    if not spec.gpu_types:
        return f"Name=gpu {what}\n"
    lines = [f"NodeName={node} Name=gpu Type={spec.gpu_type(node)} {what}" for node in spec.nodes]
    return "\n".join(lines) + "\n"


def topology_conf(record: Record) -> str:
    """The racks as leaf switches, and the spine above them."""
    spec = record.spec
    leaves = [f"SwitchName=rack{i} Nodes={','.join(spec.rack(i))}" for i in range(spec.racks)]
    spine = [f"SwitchName=spine Switches=rack[0-{spec.racks - 1}]"] if spec.racks > 1 else []
    return "\n".join([*leaves, *spine]) + "\n"


def job_submit_lua(record: Record) -> str:
    """The gate that users install too, for this lab's partition and user."""
    text = LUA.read_text(encoding="utf-8")
    for line, own in (
        ('{ ["hemiola"] = true }', f'{{ ["{record.spec.partition}"] = true }}'),
        ('"/run/hemiola/alive", 60', '"", 60'),  # whoever tries this lab wants jobs held, Hemiola or not
        ('"/run/hemiola/wake"', f'"{record.wake}"'),
        ("{ [0] = true }", "{ " + ", ".join(f"[{uid}] = true" for uid in sorted({0, os.geteuid()})) + " }"),
    ):
        assert text.count(line) == 1
        text = text.replace(line, own)
    return text


def _places(record: Record) -> dict[str, str]:
    base, user = record.base, _user()
    return {
        "ClusterName": record.spec.name,
        "SlurmctldHost": f"{socket.gethostname().partition('.')[0]}({record.controller_address})",
        "SlurmctldPort": str(record.port),
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthInfo": f"socket={base}/run/munge.sock",
        "StateSaveLocation": f"{base}/state",
        "SlurmctldPidFile": f"{base}/run/slurmctld.pid",
        "SlurmctldLogFile": f"{base}/log/slurmctld.log",
        "SlurmdSpoolDir": f"{base}/spool/%n",
        "SlurmdPidFile": f"{base}/run/slurmd.%n.pid",
        "SlurmdLogFile": f"{base}/log/slurmd.%n.log",
        "JobCompLoc": f"{base}/log/jobs.txt",
    }


def _node(record: Record, node: str) -> str:
    spec = record.spec
    address, port = record.node_address(node)
    hostname = node if record.subnet else socket.gethostname().partition(".")[0]
    gres = f"Gres={spec.gres(node)} " if spec.gpus else ""
    return (
        f"NodeName={node} NodeHostname={hostname} NodeAddr={address} Port={port} "
        f"CPUs={spec.cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={spec.cpus} ThreadsPerCore=1 "
        f"RealMemory={MEMORY_MB} {gres}State=UNKNOWN"
    )


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's user without a name
        return str(os.geteuid())


# Where Slurm's programs are, and what to install where they are not.

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
