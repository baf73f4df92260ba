"""Gives held jobs back to Slurm's own scheduler. Needs no daemon and no journal, nothing but `scontrol`."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

from hemiola.core.errors import EngineError
from hemiola.live.engines.slurm import requests
from hemiola.live.engines.slurm.client import SlurmInterface
from hemiola.live.engines.slurm.job_spec import (
    begin_of,
    hosts_of,
    is_marked,
    is_user_held,
    names_nodes,
    unnamed,
)
from hemiola.live.engines.slurm.wire import SlurmJobRow, Words

__all__ = ["HandingBack", "hand_back", "held_jobs"]

_log = logging.getLogger("hemiola.slurm")

AT_ONCE = 500
AGAIN_S = 1.0


def held_jobs(slurm: SlurmInterface, partition: str) -> list[SlurmJobRow]:
    """Jobs of the partition that are held, but for those that an administrator holds, or Slurm by itself.

    Nor those that their own users hold, where job_submit.lua has marked them.
    """
    return [row for row, words in _waiting(slurm, partition) if _is_held(row, words)]


def _waiting(slurm: SlurmInterface, partition: str) -> list[tuple[SlurmJobRow, Words]]:
    return _worded(slurm, slurm.jobs(partition=partition, states="PENDING"))


def _worded(slurm: SlurmInterface, rows: Sequence[SlurmJobRow]) -> list[tuple[SlurmJobRow, Words]]:
    """With what is written of them."""
    words = slurm.words([row.id for row in rows])
    return [(row, words.get(row.id, Words())) for row in rows]


def _is_held(row: SlurmJobRow, words: Words) -> bool:
    return not (row.priority or row.kept or is_user_held(words))


def _unbind(slurm: SlurmInterface, waiting: Sequence[tuple[SlurmJobRow, Words]]) -> None:
    """Those of them that Hemiola has bound, whoever holds them."""
    told = [
        order
        for row, words in waiting
        if is_marked(words)
        for order in requests.give_back(
            unnamed(row) if names_nodes(row, words) else row, hosts_of(row, words)
        )
    ]
    for start in range(0, len(told), AT_ONCE):
        slurm.tell(told[start : start + AT_ONCE])


def hand_back(slurm: SlurmInterface, partition: str) -> tuple[list[str], list[str]]:
    """Release them, unbound, to begin when their users want: (released, still held).

    Those that were released already and have not begun are unbound, too.

    Raises:
        EngineError: Slurm does not answer.
    """
    waiting = _waiting(slurm, partition)
    held = [row.id for row, words in waiting if _is_held(row, words)]
    now = time.time()
    parked = [(row.id, begin_of(words)) for row, words in waiting if row.begins_far(now)]
    slurm.tell([requests.begin(name, begin_s - now) for name, begin_s in parked if begin_s is not None])
    _unbind(slurm, waiting)
    for start in range(0, len(held), AT_ONCE):
        slurm.tell([requests.release(held[start : start + AT_ONCE])])
    left = {row.id for row in held_jobs(slurm, partition)}
    return [name for name in held if name not in left], [name for name in held if name in left]


class HandingBack:
    """Hands back, and again where that failed and as jobs come back held that had just been stopped.

    No longer than that: what users hold later is theirs. What Slurm puts back later is unbound
    then: of a job that runs the nodes cannot be taken away.
    """

    def __init__(self, slurm: SlurmInterface, partition: str) -> None:
        self._slurm, self._partition = slurm, partition
        self._leaving: set[str] | None = None
        self._bound: set[str] = set()
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

    def seen(self, rows: Iterable[SlurmJobRow], now_s: float) -> None:
        """What a look has shown of the partition."""
        rows = list(rows)
        leaving = {row.id for row in rows if row.state == "COMPLETING"}
        waiting = [row for row in rows if row.state == "PENDING"]
        if self._leaving is None:
            self._leaving = leaving
        held = {row.id for row in waiting if not row.priority}
        self._again = self._again or not held.isdisjoint(self._leaving)
        self._leaving &= leaving
        if self._again and now_s >= self._next_s:
            self._next_s = now_s + AGAIN_S
            self._again = not self.do()
            return
        bound = {row.id: row for row in waiting if row.bound_to}
        self._bound &= bound.keys()
        self._unbind([row for name, row in bound.items() if name not in self._bound])

    def _unbind(self, rows: list[SlurmJobRow]) -> None:
        """Those of them that Hemiola has bound; at the next look again where that fails."""
        try:
            if rows:
                _unbind(self._slurm, _worded(self._slurm, rows))
        except EngineError as problem:
            _log.warning("jobs that are back in the queue could not be unbound: %s", problem.what)
            return
        self._bound |= {row.id for row in rows}
