"""Gives held jobs back to Slurm's own scheduler. Needs no daemon and no journal, nothing but `scontrol`."""

from __future__ import annotations

import time
from pathlib import Path

from hemiola.control.slurm import orders
from hemiola.control.slurm.engine import Engine
from hemiola.control.slurm.jobs import hosts_of, is_marked, is_user_held, names_nodes
from hemiola.control.slurm.rows import JobRow, Words
from hemiola.core.errors import EngineError

__all__ = ["hand_back", "held_jobs", "silent_s"]

AT_ONCE = 500


def held_jobs(slurm: Engine, partition: str) -> list[JobRow]:
    """Jobs of the partition that are held, but for those that an administrator holds.

    Nor those that their own users hold, where job_submit.lua has marked them.
    """
    return [row for row, _ in _held(slurm, partition)]


def _held(slurm: Engine, partition: str) -> list[tuple[JobRow, Words]]:
    rows = [
        row
        for row in slurm.jobs(partition=partition, states="PENDING")
        if not row.priority and row.reason != "JobHeldAdmin"
    ]
    words = slurm.words([row.id for row in rows])
    both = [(row, words.get(row.id, Words())) for row in rows]
    return [(row, said) for row, said in both if not is_user_held(said) and not names_nodes(said)]


def hand_back(slurm: Engine, partition: str) -> tuple[list[str], list[str]]:
    """Release them, unbound: (released, still held).

    Raises:
        EngineError: Slurm does not answer.
    """
    held = _held(slurm, partition)
    slurm.tell(
        [
            f"update jobid={row.id} StartTime=now"
            for row in slurm.jobs(partition=partition, states="PENDING")
            if row.is_parked(time.time())
        ]
    )
    for start in range(0, len(held), AT_ONCE):
        some = held[start : start + AT_ONCE]
        slurm.tell(
            [
                orders.unbind(row, hosts_of(row, words))
                for row, words in some
                if row.bound_to and is_marked(words)
            ]
        )
        slurm.tell([orders.release([row.id for row, _ in some])])
    left = {row.id for row in held_jobs(slurm, partition)}
    ids = [row.id for row, _ in held]
    return [name for name in ids if name not in left], [name for name in ids if name in left]


def silent_s(alive: Path, now_s: float) -> float:
    """For how long Hemiola has said nothing; infinity if it never has.

    Raises:
        EngineError: the file holds something else.
    """
    try:
        text = alive.read_text()
    except FileNotFoundError:
        return float("inf")
    if not text.strip().isdigit():
        raise EngineError(
            f"{alive} holds {text[:40]!r}, not a time", "give the file that `hemiola serve --alive` writes"
        )
    return now_s - int(text)
