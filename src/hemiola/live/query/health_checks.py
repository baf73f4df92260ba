"""What `hemiola doctor` looks at whatever the engine: the journal, the alive file, this host's clock and network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from hemiola.core.units import format_bytes, format_duration, format_rate
from hemiola.live.check import Check, alive_checks, problem_check
from hemiola.live.journal import Journal, RunRecord
from hemiola.live.leadership import LEASE_S
from hemiola.live.query.cluster import Daemon, read_daemon

__all__ = ["Check", "alive_checks", "host_checks", "journal_checks", "problem_check"]

ROOM_LEAST_BYTES, ROOM_LOW_BYTES = 100e6, 1e9
INTENT_OLD_S = 60.0
CLOCK_SLACK_S = 2.0
SHAPING = frozenset({"tbf", "htb", "netem", "cake", "hfsc"})


def journal_checks(journal: Journal, now_s: float) -> Iterator[Check]:
    """Schema (it could be opened), room, leader, clock, intents, binds that failed."""
    runs = journal.runs()
    yield from _room(journal.name)
    daemon = read_daemon(journal, now_s, runs)
    yield _leader(daemon, runs[-1] if runs else None, now_s)
    yield _clock_of(journal, runs, now_s)
    old = [intent for intent in journal.open_intents() if now_s - intent.made_s > INTENT_OLD_S]
    if old:
        age_s = now_s - min(intent.made_s for intent in old)
        yield Check(
            "WARN", "intents", f"{len(old)} requests to the engine have no answer, the oldest for {format_duration(age_s)}",
            "look at the daemon's log; a daemon that starts anew settles them",
        )  # fmt: skip
    else:
        yield Check("OK", "intents", "no request to the engine is without an answer")
    failing = [job for job in journal.open_jobs() if job.binds_failed]
    if failing:
        names = ", ".join(job.engine_id for job in failing[:5])
        yield Check(
            "WARN", "binds", f"the engine does not take the nodes of {len(failing)} jobs: {names}",
            f"hemiola explain {failing[0].engine_id}",
        )  # fmt: skip


def _room(name: str) -> Iterator[Check]:
    path = Path(name)
    if not path.is_file():
        yield Check("OK", "journal", f"{name} can be read, and has this version's schema")
        return
    size = sum(Path(name + end).stat().st_size for end in ("", "-wal") if Path(name + end).exists())
    usage = shutil.disk_usage(path.parent)
    text = f"{name} has this version's schema and {format_bytes(size)}; its disk has {format_bytes(usage.free)} left"
    remedy = f"make room on the disk of {path.parent}: nothing is decided that cannot be written down"
    if usage.free < ROOM_LEAST_BYTES:
        yield Check("FAIL", "journal", text, remedy)
    elif usage.free < ROOM_LOW_BYTES:
        yield Check("WARN", "journal", text, remedy)
    else:
        yield Check("OK", "journal", text)


def _leader(daemon: Daemon, run: RunRecord | None, now_s: float) -> Check:
    heard = f"{format_duration(max(0, round(now_s - daemon.heard_s)))} ago" if daemon.heard_s else "never"
    if daemon.state == "leads" and run is not None:
        return Check(
            "OK", "daemon", f"{daemon.holder.split('/')[0]} leads (epoch {daemon.epoch}), heard {heard}; "
            f"{run.opening.policy}, mode {run.opening.mode}",
        )  # fmt: skip
    if daemon.state == "silent":
        gone = ", and its process is gone" if daemon.gone else ""
        return Check(
            "FAIL", "daemon", f"{daemon.holder.split('/')[0]} led, and was last heard {heard}{gone}",
            'start "hemiola serve" again; until then "hemiola release" hands held jobs to the engine',
        )  # fmt: skip
    why = f"ended {heard}: {daemon.why}" if daemon.state == "stopped" else "has never run on this journal"
    return Check("WARN", "daemon", f"it {why}", 'start it: "hemiola serve"')


def _clock_of(journal: Journal, runs: list[RunRecord], now_s: float) -> Check:
    """A journal knows times that cannot have been yet if the clock was set back."""
    leader = journal.leader()
    times = [run.began_s for run in runs] + [run.ended_s for run in runs if run.ended_s is not None]
    latest_s = max([*times, leader.until_s - LEASE_S if leader is not None else 0.0], default=0.0)
    if latest_s > now_s + CLOCK_SLACK_S:
        return Check(
            "WARN", "clock steps", f"the journal knows of a time {format_duration(latest_s - now_s)} from now: the clock was set "
            "back, or another host's is ahead", "set the clocks by NTP or PTP (chronyc tracking); do not set them by hand",
        )  # fmt: skip
    return Check("OK", "clock steps", "no time in the journal lies ahead of this host's clock")


def host_checks() -> Iterator[Check]:
    """Congestion control and queueing of this host, as far as rates depend on them."""
    control = _kernel("net/ipv4/tcp_congestion_control")
    queueing = _kernel("net/core/default_qdisc")
    words = ", ".join(
        f"{name} {value}" for name, value in (("TCP by", control), ("queues by", queueing)) if value
    )
    yield Check("OK", "network", f"this host: {words or 'its kernel does not say'}")
    shaped = _shaped()
    if shaped is None:
        yield Check("OK", "qdiscs", "there is no tc on this host to ask")
    elif shaped:
        yield Check(
            "WARN", "qdiscs", f"rates are limited already: {', '.join(shaped)}",
            "if that is not on purpose: tc qdisc del dev DEVICE root",
        )  # fmt: skip
    else:
        yield Check("OK", "qdiscs", "no device of this host has its rate limited")


def _kernel(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return ""


def _shaped() -> list[str] | None:
    """Devices that shape, with their rates; None where nobody can be asked."""
    try:
        done = subprocess.run(
            ["tc", "-j", "qdisc", "show"], capture_output=True, text=True, timeout=5.0, check=True,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
        rows = json.loads(done.stdout or "[]")
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return [
        f"{row.get('dev', '?')} by {row['kind']}"
        + (f" to {format_rate(rate)}" if isinstance(rate := row.get("options", {}).get("rate"), int) else "")
        for row in rows
        if row.get("kind") in SHAPING
    ]
