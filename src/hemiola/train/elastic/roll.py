"""How members decide who goes on: a roll is called until all who are on it have answered. Knows no PyTorch and no clock.

A decision is one key of the store that is written once (`compare_set`), so two groups can never go on in one epoch,
whatever anybody believes of the others. Everything else serves a good decision:

1. Whoever finds the epoch broken raises its alarm, and comes: `here`.
2. The lowest member that is here proposes all who are, once everybody else has gone: has said so, or beats no more.
3. Who reads the decision and is in it says `ready`; who is not in it ends.
4. All who are in it are ready: they meet. Somebody goes before that: its alarm is raised, and the next roll is called
   among the members of this one.

Time is counted while this member itself runs: one that was stopped does not take the others for dead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from hemiola.core.errors import TransportError
from hemiola.train.elastic.board import Epoch, MemberBoard

__all__ = ["EpochWatch", "RollCall", "RollCallRules", "Silence"]


@dataclass(frozen=True)
class RollCallRules:
    """What the members ask of each other, the same at all of them.

    Attributes:
        silence_s: of whom nothing is heard for so long is gone; six beats.
        patience_s: who is there, but does not come to decide for so long, goes too.
        ranks_min: fewer do not go on.
        goes_on: whether a loss is lived with at all.
    """

    silence_s: float
    patience_s: float
    ranks_min: int = 1
    goes_on: bool = True

    @property
    def beat_s(self) -> float:
        """Between two signs of life."""
        return self.silence_s / 6


class _Awake:
    """How long this member itself was there. Looks that are far apart count as two beats: who knows what was in between.

    Attributes:
        whole_s: from the first moment on to the last look.
    """

    def __init__(self, rules: RollCallRules, clock: Callable[[], float]) -> None:
        self._most_s, self._clock = 2 * rules.beat_s, clock
        self._looked_s = clock()
        self.whole_s = 0.0

    def look(self) -> float:
        """How long since the last look."""
        now = self._clock()
        passed_s = min(now - self._looked_s, self._most_s)
        self._looked_s = now
        self.whole_s += passed_s
        return passed_s


class Silence:
    """How long others have been silent, while this one looked."""

    def __init__(self, board: MemberBoard, rules: RollCallRules, clock: Callable[[], float]) -> None:
        self._board, self._rules = board, rules
        self._beats: dict[int, int] = {}
        self._silent_s: dict[int, float] = {}
        self._awake = _Awake(rules, clock)

    def look(self, members: Iterable[int]) -> None:
        """Listen to these."""
        passed_s = self._awake.look()
        for member in members:
            beats = self._board.beat(member, 0)
            if beats != self._beats.get(member):
                self._beats[member], self._silent_s[member] = beats, 0.0
            else:
                self._silent_s[member] += passed_s

    def gone(self, member: int) -> str:
        """Why this one is gone; "" if it is there, or has never been."""
        if why := self._board.left(member):
            return why
        beats = self._beats.get(member)
        if beats and self._board.silent(member, beats, self._silent_s[member] > self._rules.silence_s):
            return f"nothing was heard of it for {self._rules.silence_s:g} s"
        return ""


@dataclass
class RollCall:
    """One member's way into the next epoch: `poll` until it says which.

    Attributes:
        board: of the job.
        me: this member.
        before: the epoch that is over; None for one that is in none yet.
        commits: that this one has.
        launched: ranks that the job began with.
        finished: all had come to the end of the training when the epoch broke: there is nothing to decide.
    """

    board: MemberBoard
    me: int
    before: Epoch | None
    commits: int
    launched: int
    rules: RollCallRules
    clock: Callable[[], float]
    finished: bool = False
    _number: int = field(init=False)
    _decided: Epoch | None = field(init=False, default=None)
    _silence: Silence = field(init=False)
    _awake: _Awake = field(init=False)
    _lost: dict[int, str] = field(init=False, default_factory=dict)
    """Before an epoch that did not come about."""

    def __post_init__(self) -> None:
        self._call(0 if self.before is None else self.before.number + 1)

    def poll(self) -> Epoch | None:
        """Look once at what the others have said; the epoch, once all its members are ready, with this one among them.

        Raises:
            TransportError: this one is no member any more, or all end.
        """
        self._awake.look()
        if self._decided is None:
            self._decided = self._admitted(self._found() or self._proposed())
            if self._decided is None:
                return None
            self.board.ready(self._number, self.me, True)
        epoch = self._decided
        missing = [member for member in epoch.members if not self.board.ready(self._number, member)]
        if missing:
            self._follow(epoch, missing)
        return None if missing else epoch

    def again(self) -> None:
        """The members of the epoch that `poll` gave did not all meet: call the next roll among them."""
        assert self._decided is not None
        self.before = self._decided
        self._lost |= self._decided.lost
        self._call(self.before.number + 1)

    def _call(self, number: int) -> None:
        self._number, self._decided = number, None
        self._silence = Silence(self.board, self.rules, self.clock)
        self._awake = _Awake(self.rules, self.clock)
        if self.before is not None:
            self.board.here(number, self.me, self.commits)

    def _found(self) -> Epoch | None:
        """What the others have decided."""
        joins = self.before is None and self.me >= self.launched
        found = self.board.decided(self._number)
        while joins and found and not found.end and self.me not in found.members:
            self._number += 1  # it was before this one asked
            found = self.board.decided(self._number)
        return found

    def _admitted(self, epoch: Epoch | None) -> Epoch | None:
        if epoch is None:
            return None
        if epoch.end:
            raise TransportError(epoch.end, "start the job again from a checkpoint")
        if self.me not in epoch.members:
            why = epoch.lost.get(self.me, "the others do not know it")
            raise TransportError(
                f"member {self.me} is none any more from epoch {epoch.number} on: {why}",
                "the others go on without it; a new process can join them with join=True",
            )
        return epoch

    def _proposed(self) -> Epoch | None:
        """What this one decides, if it is the one to do it and it is time."""
        if self.before is None:
            return self._first()
        self.finished = self.board.finished(self.before.number)
        if self.finished:
            return None  # who was through before it broke does not come to decide
        members = self.before.members
        others = [member for member in members if member != self.me]
        self._silence.look(others)
        here = {member: self.board.here(self._number, member) for member in members}
        lost = {member: why for member in others if (why := self._silence.gone(member))}
        late = [member for member in members if here[member] is None and member not in lost]
        if late and self._awake.whole_s < self.rules.patience_s:
            return None
        lost |= dict.fromkeys(late, "it did not come to decide with the others")
        able = {
            member: commits for member, commits in here.items() if member not in lost and commits is not None
        }
        if min(able, default=None) != self.me:
            return None
        return self.board.decide(self._next(self.before, able, lost))

    def _first(self) -> Epoch | None:
        """Of the launched, any can say who they are. One that joins waits, as long as there is somebody to wait for."""
        if self.me < self.launched:
            ranks = range(self.launched)
            return self.board.decide(Epoch(0, tuple(ranks), tuple(0 for _ in ranks)))
        if self._number and self.board.finished(self._number - 1):
            raise TransportError(
                "the training that this process asked to join has ended", "start it again from a checkpoint"
            )
        if self._awake.whole_s > self.rules.patience_s:
            raise TransportError(
                f"nobody took this process in within {self.rules.patience_s:g} s",
                "members take others in when they call state.commit(): do they?",
            )
        return None

    def _next(self, before: Epoch, able: dict[int, int], lost: dict[int, str]) -> Epoch:
        asked = self.board.ask_to_join(0)
        new = range(self.launched + before.asked, self.launched + asked)
        joining = {member: -1 for member in new if not self._silence.gone(member)}
        both = dict(sorted((able | joining).items()))
        epoch = Epoch(self._number, tuple(both), tuple(both.values()), self._lost | lost, asked)
        return msgspec.structs.replace(epoch, end=self._why_to_end(epoch))

    def _why_to_end(self, epoch: Epoch) -> str:
        who = "; ".join(f"member {member} was lost: {why}" for member, why in sorted(epoch.lost.items()))
        if epoch.lost and not self.rules.goes_on:
            return f"{who}; all end, as on_loss says"
        if len(epoch.members) < self.rules.ranks_min:
            return (
                f"{who or 'members left'}; {len(epoch.members)} are left of at least {self.rules.ranks_min}"
            )
        if max(epoch.commits) < 0:
            return f"{who}; nobody is left who has the state"
        return ""

    def _follow(self, epoch: Epoch, missing: list[int]) -> None:
        """Somebody is not ready yet. If it is gone, or anything else has happened, the next roll is called."""
        others = [member for member in epoch.members if member != self.me]
        self._silence.look(others)
        gone = {member: why for member in others if (why := self._silence.gone(member))}
        if not gone and self._awake.whole_s > self.rules.patience_s:
            gone = dict.fromkeys(missing, "it did not come")
        for member, why in gone.items():
            self.board.alarm(epoch.number, f"member {member}: {why}")
        if self.board.alarm(epoch.number):
            self.again()


# Says that this member is there, and sees to it that it notices when an epoch is over: one thread, beside
# the training.


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
