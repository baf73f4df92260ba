"""Gives held jobs back to Slurm's own scheduler. Needs no daemon and no journal, nothing but `scontrol`."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path

from hemiola.control.live.lease import STOPPED
from hemiola.control.slurm import orders
from hemiola.control.slurm.engine import Engine
from hemiola.control.slurm.jobs import begin_of, hosts_of, is_marked, is_user_held, names_nodes
from hemiola.control.slurm.rows import JobRow, Words
from hemiola.core.errors import EngineError

__all__ = ["HandingBack", "hand_back", "held_jobs", "silent_s"]

_log = logging.getLogger("hemiola.slurm")

AT_ONCE = 500
AGAIN_S = 1.0
WRITTEN = "give the file that `hemiola serve --alive` writes"


def held_jobs(slurm: Engine, partition: str) -> list[JobRow]:
    """Jobs of the partition that are held, but for those that an administrator holds, or Slurm by itself.

    Nor those that their own users hold, where job_submit.lua has marked them.
    """
    return [row for row, _ in _held(slurm, partition)]


def _held(slurm: Engine, partition: str) -> list[tuple[JobRow, Words]]:
    rows = [
        row for row in slurm.jobs(partition=partition, states="PENDING") if not row.priority and not row.kept
    ]
    words = slurm.words([row.id for row in rows])
    both = [(row, words.get(row.id, Words())) for row in rows]
    return [(row, said) for row, said in both if not is_user_held(said) and not names_nodes(said)]


def _parked(slurm: Engine, partition: str, wall_s: float) -> dict[str, float]:
    """Jobs that Slurm has to look after their dependencies, and when their users want them to begin."""
    rows = slurm.jobs(partition=partition, states="PENDING")
    words = slurm.words([row.id for row in rows if row.begins_far(wall_s)])
    begins = {name: begin_of(said) for name, said in words.items()}
    return {name: begin_s for name, begin_s in begins.items() if begin_s is not None}


def hand_back(slurm: Engine, partition: str) -> tuple[list[str], list[str]]:
    """Release them, unbound, to begin when their users want: (released, still held).

    Raises:
        EngineError: Slurm does not answer.
    """
    held = _held(slurm, partition)
    now = time.time()
    parked = _parked(slurm, partition, now)
    slurm.tell([orders.begin(name, begin_s - now) for name, begin_s in parked.items()])
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


class HandingBack:
    """Hands back, and again where that failed and as jobs come back held that had just been stopped.

    No longer than that: what users hold later is theirs.
    """

    def __init__(self, slurm: Engine, partition: str) -> None:
        self._slurm, self._partition = slurm, partition
        self._leaving: set[str] | None = None
        self._again = True  # a job may have been on its way in
        self._next_s = 0.0

    def do(self) -> bool:
        """Hand back; whether nothing was held any more."""
        try:
            released, held = hand_back(self._slurm, self._partition)
        except EngineError as problem:
            _log.error("held jobs could not be handed back: %s; try: hemiola release", problem.what)
            return False
        if released or held:
            _log.warning("handed back to Slurm: %d; still held: %d", len(released), len(held))
        return not held

    def seen(self, rows: Iterable[JobRow], now_s: float) -> None:
        """What a look has shown of the partition."""
        rows = list(rows)
        leaving = {row.id for row in rows if row.state == "COMPLETING"}
        if self._leaving is None:
            self._leaving = leaving
        held = {row.id for row in rows if row.state == "PENDING" and not row.priority}
        self._again = self._again or not held.isdisjoint(self._leaving)
        self._leaving &= leaving
        if self._again and now_s >= self._next_s:
            self._next_s = now_s + AGAIN_S
            self._again = not self.do()


def silent_s(alive: Path, now_s: float) -> float:
    """For how long Hemiola has said nothing; infinity if it never has.

    Raises:
        EngineError: the file cannot be read, or holds something else.
    """
    try:
        text = alive.read_text()
    except FileNotFoundError:
        return float("inf")
    except (OSError, UnicodeDecodeError) as problem:
        raise EngineError(f"{alive} cannot be read: {problem}", WRITTEN) from problem
    text = text.strip().removesuffix(STOPPED)
    if not text.isdecimal():
        raise EngineError(f"{alive} holds {text[:40]!r}, not a time", WRITTEN)
    return now_s - int(text)
