"""Says that this member is there, and sees to it that it notices when an epoch is over: one thread, beside the training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hemiola.core.errors import TransportError
from hemiola.train.elastic.board import MemberBoard, Epoch
from hemiola.train.elastic.roll import RollCallRules, Silence

__all__ = ["EpochWatch"]


class EpochWatch:
    """Beats from the first moment on, and follows one epoch after the other.

    A member listens to the next one in the ring of members only, and all of them to the epoch's alarm: a few questions
    to the store from each, at every beat.

    A store that does not answer in time is the epoch's end for this member, and it beats on as soon as there are answers
    again. That makes no second group: it trains on only in an epoch that it has found decided in that one store, and if
    the others have taken it for dead meanwhile, that is decided there too, and it ends. Were this thread to end, the
    others would drop a member that lives; were the member to, a store that was slow for all would end the job.

    Attributes:
        alarm: why the epoch that is followed is over; "" while it is not.
        asked: how many have asked to join.
    """

    def __init__(self, board: MemberBoard, me: int, rules: RollCallRules) -> None:
        self._board, self._me, self._rules = board, me, rules
        self.alarm = ""
        self.asked = 0
        self._epoch: Epoch | None = None
        self._abort: Callable[[], None] | None = None
        self._silence = Silence(board, rules, time.monotonic)
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="hemiola-members", daemon=True)
        self._thread.start()

    def follow(self, epoch: Epoch, abort: Callable[[], None]) -> None:
        """From now on.

        Args:
            abort: ends the collectives that this member waits for; called once, when the epoch is over.
        """
        with self._changed:
            self._silence = Silence(self._board, self._rules, time.monotonic)
            self.alarm, self._epoch, self._abort = "", epoch, abort

    def forget(self) -> None:
        """The epoch and its group: nothing is followed until the next one."""
        with self._changed:
            self._epoch = self._abort = None

    def wait_for_alarm(self, limit_s: float) -> str:
        """Why the epoch is over, if that is said in time; else ""."""
        with self._changed:
            self._changed.wait_for(lambda: self.alarm, limit_s)
            return self.alarm

    def close(self) -> None:
        """No more signs of life."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while not self._over:
            try:
                self._board.beat(self._me)
                self._look()
            except TransportError as problem:
                self._end(problem.what)
            with self._changed:
                self._changed.wait_for(lambda: self._over, self._rules.beat_s)

    def _look(self) -> None:
        with self._changed:
            epoch, silence = self._epoch, self._silence
        if epoch is None or self.alarm:
            return
        self.asked = self._board.ask_to_join(0)
        why = self._board.alarm(epoch.number)
        next_one = epoch.members[(epoch.members.index(self._me) + 1) % len(epoch.members)]
        if not why and next_one != self._me:
            silence.look([next_one])
            gone = silence.gone(next_one)
            if gone and not self._board.finished(epoch.number):
                why = self._board.alarm(epoch.number, f"member {next_one}: {gone}")
        with self._changed:
            current = epoch is self._epoch
        if why and current:
            self._end(why)

    def _end(self, why: str) -> None:
        with self._changed:
            self.alarm = why
            abort, self._abort = self._abort, None
            self._changed.notify_all()
        if abort is not None:
            abort()
