"""What `hemiola doctor` reads in Slurm's configuration."""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from hemiola.live.query.health_checks import Check, alive_checks
from hemiola.live.engines.slurm.client import Slurm
from hemiola.core.errors import EngineError
from hemiola.core.units import format_duration

__all__ = [
    "clock_check",
    "gate_checks",
    "privilege_checks",
    "rule_checks",
    "select_checks",
    "version_check",
]

OLDEST = (20, 11)
OFFSET_WARN_S, OFFSET_FAIL_S = 2.0, 60.0
AGE_LEAST_S = 30
QUICK = ("sched_interval", "sched_min_interval", "batch_sched_delay")
"""Of SchedulerParameters: with these set low, a released job starts after 0.4 s in the median, not after 2.6 s."""


def version_check(version: str, took_s: float) -> Check:
    """Whether this Slurm is one that Hemiola was meant for."""
    found = re.search(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        return Check(
            "WARN", "slurm", f"{version}: tested with 22.05, 24.11 and 26.05, meant for 20.11 and newer", "try with --mode observe first"
        )  # fmt: skip
    return Check(
        "OK", "slurm", f"{version}; its controller answers ({1000 * took_s:.0f} ms for two questions)"
    )


def clock_check(text: str, before_s: float, after_s: float) -> Check:
    """The controller says what time it is there: "Configuration data as of ..."."""
    found = re.match(r"Configuration data as of (\d+)", text)
    if found is None:
        return Check(
            "WARN", "clocks", "the controller does not say its time", "compare by hand: date on both hosts"
        )
    there_s = float(found[1])  # of a second that had begun
    offset_s = there_s - after_s if there_s > after_s else min(0.0, there_s + 1.0 - before_s)
    if abs(offset_s) < OFFSET_WARN_S:
        return Check(
            "OK", "clocks", "this host's clock and the controller's agree, as far as whole seconds tell"
        )
    way = "ahead of" if offset_s > 0 else "behind"
    return Check(
        "FAIL" if abs(offset_s) > OFFSET_FAIL_S else "WARN", "clocks",
        f"the controller's clock is {format_duration(abs(offset_s))} {way} this host's",
        "set both by NTP or PTP: chronyc tracking",
    )  # fmt: skip


def select_checks(settings: dict[str, str]) -> Iterator[Check]:
    """Whether Slurm shares out GPUs."""
    kind, types = settings.get("SelectType", ""), settings.get("GresTypes", "")
    if kind == "select/cons_tres":
        yield Check("OK", "select", f"{kind}, {settings.get('SelectTypeParameters', '')}")
    else:
        yield Check(
            "FAIL", "select", f"SelectType is {kind or 'not set'}: GPUs cannot be shared out",
            "set SelectType=select/cons_tres in slurm.conf and restart slurmctld",
        )  # fmt: skip
    if "gpu" not in types.split(","):
        yield Check("FAIL", "gres", f"GresTypes is {types!r}, without gpu", "set GresTypes=gpu in slurm.conf")


def privilege_checks(
    slurm: Slurm, settings: dict[str, str], serious: Literal["WARN", "FAIL"]
) -> Iterator[Check]:
    """Whether this user may release others' jobs: as root, as SlurmUser, or as an operator of the accounting."""
    uid, told = os.geteuid(), settings.get("SlurmUser", "")
    owner = re.search(r"\((\d+)\)", told)
    if uid == 0 or (owner is not None and int(owner[1]) == uid):
        yield Check(
            "OK", "privileges", f"{_user(uid)} may release and requeue others' jobs (SlurmUser is {told})"
        )
        return
    try:
        level = slurm.ask("sacctmgr", "-nP", "show", "user", _user(uid), "format=adminlevel").strip()
    except EngineError:
        level = ""
    if level in ("Operator", "Administrator"):
        yield Check("OK", "privileges", f"{_user(uid)} is {level} in Slurm's accounting")
        return
    yield Check(
        serious, "privileges",
        f"{_user(uid)} may not release others' jobs: it is neither root, nor SlurmUser ({told}), nor an operator",
        f"run as SlurmUser, or: sacctmgr modify user {_user(uid)} set adminlevel=operator",
    )  # fmt: skip
    if hidden := {"jobs", "nodes"} & set(settings.get("PrivateData", "").split(",")):
        yield Check(
            "FAIL", "privileges", f"PrivateData hides others' {' and '.join(sorted(hidden))} from this user", "run as SlurmUser"
        )  # fmt: skip


def gate_checks(
    settings: dict[str, str], partition: str, alive: Path | None, serious: Literal["WARN", "FAIL"]
) -> Iterator[Check]:
    """Whether jobs are held at submission."""
    lua = Path(settings.get("SLURM_CONF", "/etc/slurm/slurm.conf")).parent / "job_submit.lua"
    if "lua" not in settings.get("JobSubmitPlugins", "").split(","):
        yield Check(
            serious, "job_submit", "JobSubmitPlugins has no lua: Slurm may start a job before Hemiola sees it",
            f"copy Hemiola's job_submit.lua to {lua.parent}, set JobSubmitPlugins=lua, and: scontrol reconfigure",
        )  # fmt: skip
        return
    try:
        text = lua.read_text(errors="replace")
    except OSError as problem:
        yield Check(
            "WARN", "job_submit", f"{lua} cannot be read here ({problem.strerror}); it may be on the controller alone",
            "look there whether it names the partition",
        )  # fmt: skip
        return
    code = re.sub(r"--.*", "", text)
    if f'["{partition}"]' not in code and f'"{partition}"' not in code:
        yield Check(
            serious, "job_submit", f"{lua} does not name the partition {partition!r}: its jobs are not held",
            f'write local managed = {{ ["{partition}"] = true }} there, and: scontrol reconfigure',
        )  # fmt: skip
        return
    if "may_name_nodes" not in code:
        yield Check(
            "WARN", "job_submit", f"{lua} is of an earlier Hemiola: its users can get past the queue",
            f"copy Hemiola's job_submit.lua to {lua.parent} anew, and: scontrol reconfigure",
        )  # fmt: skip
    yield Check("OK", "job_submit", f"{lua} holds the jobs of {partition} at submission")
    yield from _alive(lua, code, alive, serious)


def _alive(lua: Path, code: str, alive: Path | None, serious: Literal["WARN", "FAIL"]) -> Iterator[Check]:
    """Whether jobs are held only while the daemon lives, and whether both mean the same file."""
    found = re.search(r'alive_file, silent_s = "([^"]*)", (\d+)', code)
    told = found[1] if found is not None else ""
    if not told:
        yield Check(
            "WARN", "job_submit", f"{lua} looks at no alive file: it holds jobs even while Hemiola is silent",
            'write local alive_file, silent_s = "/run/hemiola/alive", 60 there, and serve with --alive /run/hemiola/alive',
        )  # fmt: skip
    elif alive is not None and str(alive) != told:
        yield Check(
            serious, "job_submit", f"{lua} looks at {told}, and the daemon writes {alive}: jobs are not held",
            "let both name the same file",
        )  # fmt: skip
    elif alive is None and serious == "FAIL":
        yield alive_checks(Path(told), time.time())


def rule_checks(settings: dict[str, str]) -> Iterator[Check]:
    """What of Slurm's own behaviour gets in the way, or slows it down."""
    if settings.get("JobRequeue") == "1":
        yield Check(
            "OK", "requeue", "JobRequeue=1: jobs can be pre-empted, unless submitted with --no-requeue"
        )
    else:
        yield Check(
            "WARN", "requeue", "JobRequeue=0: only jobs submitted with --requeue can be pre-empted",
            "set JobRequeue=1 in slurm.conf, if jobs resume from checkpoints",
        )  # fmt: skip
    preempt = settings.get("PreemptMode", "OFF")
    if preempt == "OFF":
        yield Check("OK", "preempt", "PreemptMode=OFF: nobody but Hemiola pre-empts")
    else:
        yield Check(
            "WARN", "preempt", f"PreemptMode={preempt}: Slurm pre-empts by itself, too", "set PreemptMode=OFF for this partition"
        )  # fmt: skip
    parameters = settings.get("SchedulerParameters", "")
    if any(name in parameters for name in QUICK):
        yield Check("OK", "latency", f"SchedulerParameters={parameters}")
    else:
        yield Check(
            "WARN", "latency", f"SchedulerParameters={parameters}: a released job may wait some seconds for its start",
            "add sched_interval=1,sched_min_interval=0,batch_sched_delay=0 if the controller has room for it",
        )  # fmt: skip
    age = re.match(r"\d+", settings.get("MinJobAge", ""))
    if age is not None and 0 < int(age[0]) < AGE_LEAST_S:
        yield Check(
            "WARN", "memory", f"MinJobAge is {age[0]} s: how a job ended may be forgotten before Hemiola asks",
            "set MinJobAge=300 in slurm.conf, Slurm's own",
        )  # fmt: skip


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
