"""How members decide: by hand, and by Hypothesis with deaths, stops and joins between any two words that are exchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch.distributed as dist
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hemiola.core.errors import TransportError
from hemiola.train.elastic.board import Epoch, MemberBoard
from hemiola.train.elastic.roll import RollCall, RollCallRules, Silence

RULES = RollCallRules(silence_s=6.0, patience_s=1000.0)
BEAT_S = RULES.beat_s


class Dies(BaseException):
    """The member is killed between two words."""


class Store:
    """A real store; what is to happen between two words of a member happens there."""

    def __init__(self, store: dist.HashStore, between: Callable[[], None]) -> None:
        self._store, self._between = store, between

    def add(self, key: str, amount: int) -> int:
        self._between()
        return int(self._store.add(key, amount))

    def compare_set(self, key: str, expected: str, wanted: str) -> bytes:
        self._between()
        return bytes(self._store.compare_set(key, expected, wanted))


@dataclass
class Member:
    """Somebody who trains in an epoch, or is on the way to one.

    Attributes:
        faults: whether it was ever stopped or killed.
        plan: what happens after so many words of its next look.
    """

    me: int
    clock: Callable[[], float]
    launched: int
    store: dist.HashStore
    state: str = "runs"
    epoch: Epoch | None = None
    commits: int = 0
    error: str = ""
    faults: bool = False
    plan: tuple[int, Callable[[], None]] | None = None
    looks: bool = False
    seen: dict[int, Epoch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.board = MemberBoard(Store(self.store, self.between))
        self.commits = 0 if self.me < self.launched else -1
        self.roll: RollCall | None = self._roll(None)
        self.silence: Silence | None = None

    def between(self) -> None:
        if self.plan is not None:
            words, then = self.plan
            self.plan = (words - 1, then) if words else None
            if not words:
                then()

    def look(self) -> None:
        """What its loop does, once."""
        if self.state != "runs" or self.error or self.looks:
            return
        self.looks = True
        try:
            self._train() if self.roll is None else self._decide(self.roll)
        except TransportError as problem:
            self.error = str(problem)
        except Dies:
            self.state, self.faults = "dead", True
        finally:
            self.looks, self.plan = False, None

    def _roll(self, before: Epoch | None) -> RollCall:
        return RollCall(self.board, self.me, before, self.commits, self.launched, RULES, self.clock)

    def _train(self) -> None:
        assert self.epoch is not None and self.silence is not None
        others = [member for member in self.epoch.members if member != self.me]
        self.silence.look(others)
        if any(map(self.silence.gone, others)) or self.board.ask_to_join(0) > self.epoch.asked:
            self.board.alarm(self.epoch.number, "a member is gone")
        if self.board.alarm(self.epoch.number):
            self.roll = self._roll(self.epoch)

    def _decide(self, roll: RollCall) -> None:
        epoch = roll.poll()
        if epoch is not None:
            assert self.me in epoch.members
            assert self.epoch is None or epoch.number > self.epoch.number
            self.epoch, self.roll, self.seen[epoch.number] = epoch, None, epoch
            self.commits = max(epoch.commits)
            self.silence = Silence(self.board, RULES, self.clock)


class Deciding(RuleBasedStateMachine):
    """A job of a few members."""

    @initialize(ranks=st.integers(1, 4))
    def launch(self, ranks: int) -> None:
        self.now_s, self.depth = 0.0, 0
        self.store = dist.HashStore()
        self.ranks = ranks
        self.members = [self._member(rank) for rank in range(ranks)]

    def _member(self, me: int) -> Member:
        MemberBoard(self.store).beat(me)  # who never was there is waited for much longer
        return Member(me, lambda: self.now_s, self.ranks, self.store)

    def _of(self, number: int) -> Member:
        return self.members[number % len(self.members)]

    @rule(passes=st.integers(1, 12))
    def time_passes(self, passes: int) -> None:
        for _ in range(passes):
            self.now_s += BEAT_S
            for member in self.members:
                if member.state == "runs" and not member.error:
                    MemberBoard(self.store).beat(member.me)  # from a thread of its own
                    member.look()

    @rule(first=st.integers(0, 7))
    def the_whole_host_sleeps(self, first: int) -> None:
        self.now_s += 3 * RULES.silence_s
        self._of(first).look()
        self.time_passes(1)

    @rule(numbers=st.lists(st.integers(0, 7), max_size=6))
    def some_look(self, numbers: list[int]) -> None:
        for number in numbers:
            self._of(number).look()

    @rule(number=st.integers(0, 7), other=st.integers(0, 7), words=st.integers(0, 12))
    def one_looks_amid_the_words_of_another(self, number: int, other: int, words: int) -> None:
        if self._of(number) is not self._of(other):
            self._of(number).plan = (words, self._of(other).look)
            self._of(number).look()

    @precondition(lambda self: sum(member.state == "runs" for member in self.members) > 1)
    @rule(number=st.integers(0, 7), words=st.integers(0, 12))
    def one_is_killed_amid_its_words(self, number: int, words: int) -> None:
        def dies() -> None:
            raise Dies

        self._of(number).plan = (words, dies)
        self._of(number).look()

    @precondition(lambda self: sum(member.state == "runs" for member in self.members) > 1)
    @rule(number=st.integers(0, 7))
    def one_is_stopped(self, number: int) -> None:
        if self._of(number).state == "runs":
            self._of(number).state, self._of(number).faults = "stopped", True

    @rule(number=st.integers(0, 7))
    def one_continues(self, number: int) -> None:
        if self._of(number).state == "stopped":
            self._of(number).state = "runs"

    @precondition(lambda self: len(self.members) < 6)
    @rule()
    def one_asks_to_join(self) -> None:
        self.members.append(self._member(self.ranks + MemberBoard(self.store).ask_to_join() - 1))

    @invariant()
    def nobody_disagrees_on_an_epoch(self) -> None:
        for member in getattr(self, "members", []):
            for number, epoch in member.seen.items():
                assert all(other.seen.get(number, epoch) == epoch for other in self.members)

    @invariant()
    def one_group_at_most_can_train(self) -> None:
        members = {member.me: member for member in getattr(self, "members", [])}
        trains = {
            me: member.epoch.number for me, member in members.items()
            if member.state == "runs" and not member.error and member.roll is None and member.epoch is not None
        }  # fmt: skip
        whole = {
            number for me, number in trains.items()
            if all(trains.get(other) == number for other in members[me].seen[number].members)
        }  # fmt: skip
        assert len(whole) <= 1

    @invariant()
    def who_had_no_accident_is_no_loss(self) -> None:
        for member in getattr(self, "members", []):
            if member.error and not member.faults:
                assert "nobody is left who has the state" in member.error
                assert all(other.faults for other in self.members if other.me < self.ranks)

    def teardown(self) -> None:
        """In the end all who are there train together."""
        if not hasattr(self, "members"):
            return
        for member in self.members:
            member.plan = None
        self.time_passes(200)
        there = [member for member in self.members if member.state == "runs" and not member.error]
        for member in there:
            if any(other.me < self.ranks for other in there):
                assert member.roll is None and member.epoch is not None
                assert member.epoch.members == tuple(sorted(other.me for other in there))


TestDeciding = Deciding.TestCase
TestDeciding.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def rolls(
    members: int, commits: dict[int, int], rules: RollCallRules = RULES
) -> tuple[list[float], MemberBoard, dict[int, RollCall]]:
    """Those with commits have come to decide, out of so many; the clock can be put forward."""
    board, clock = MemberBoard(dist.HashStore()), [0.0]
    before = board.decide(Epoch(0, tuple(range(members)), (0,) * members))
    for member in range(members):
        board.beat(member)
    return clock, board, {
        me: RollCall(board, me, before, own, members, rules, lambda: clock[0]) for me, own in commits.items()
    }  # fmt: skip


def until_decided(clock: list[float], board: MemberBoard, calls: dict[int, RollCall]) -> dict[int, Epoch]:
    found: dict[int, Epoch] = {}
    while len(found) < len(calls):
        clock[0] += BEAT_S
        assert clock[0] < 100
        for me, call in calls.items():
            board.beat(me)
            if me not in found and (epoch := call.poll()):
                found[me] = epoch
    return found


def test_who_is_silent_is_lost_after_the_time_that_was_stated() -> None:
    clock, board, calls = rolls(3, {0: 5, 2: 6})
    found = until_decided(clock, board, calls)
    assert found[0] == found[2] == Epoch(
        1, (0, 2), (5, 6), {1: "nothing was heard of it for 6 s"}
    )  # fmt: skip
    assert clock[0] <= RULES.silence_s + 3 * BEAT_S


def test_one_that_was_stopped_itself_does_not_take_the_others_for_dead() -> None:
    board, clock = MemberBoard(dist.HashStore()), [0.0]
    silence = Silence(board, RULES, lambda: clock[0])
    board.beat(1)
    silence.look([1])
    clock[0] = 1000.0
    silence.look([1])
    assert not silence.gone(1)
    for _ in range(6):
        clock[0] += BEAT_S
        silence.look([1])
    assert silence.gone(1) == "nothing was heard of it for 6 s"


def test_who_has_said_that_it_ends_is_not_waited_for() -> None:
    clock, board, calls = rolls(3, {1: 4, 2: 4})
    board.left(0, "its process ended with signal 9 (SIGKILL)")
    assert until_decided(clock, board, calls)[1].lost == {0: "its process ended with signal 9 (SIGKILL)"}
    assert clock[0] <= 2 * BEAT_S


def test_with_too_few_left_all_end() -> None:
    clock, board, calls = rolls(3, {0: 1, 2: 1}, RollCallRules(6.0, 1000.0, ranks_min=3))
    with pytest.raises(TransportError, match=r"member 1 was lost: nothing .*; 2 are left of at least 3"):
        until_decided(clock, board, calls)
    for late in (
        RollCall(board, 1, calls[0].before, 1, 3, RULES, lambda: clock[0]),  # it was stopped
        RollCall(board, 3, None, -1, 3, RULES, lambda: clock[0]),  # it asks to join
    ):
        with pytest.raises(TransportError, match=r"2 are left of at least 3\n.*start the job again"):
            late.poll()


def test_who_does_not_come_is_waited_for_with_patience_and_then_no_more() -> None:
    clock, board, calls = rolls(2, {0: 1}, RollCallRules(6.0, 50.0))
    while (epoch := calls[0].poll()) is None:
        board.beat(1)  # it is there, and never comes
        clock[0] += BEAT_S
    assert clock[0] == 50.0
    assert epoch.lost == {1: "it did not come to decide with the others"}


def test_who_was_stopped_itself_waits_on_for_those_who_come_to_decide() -> None:
    clock, board, calls = rolls(2, {0: 1}, RollCallRules(6.0, 50.0))
    assert calls[0].poll() is None
    clock[0] += 1000.0  # the host sleeps
    board.beat(1)
    assert calls[0].poll() is None
    late = RollCall(board, 1, calls[0].before, 1, 2, RULES, lambda: clock[0])
    for _ in range(3):
        for call in (late, calls[0]):
            epoch = call.poll()
    assert epoch is not None and epoch.members == (0, 1)


def test_who_joins_and_was_stopped_waits_on_to_be_taken_in() -> None:
    board, clock = MemberBoard(dist.HashStore()), [0.0]
    joins = RollCall(board, 2, None, -1, 2, RollCallRules(6.0, 50.0), lambda: clock[0])
    assert joins.poll() is None
    clock[0] += 1000.0
    assert joins.poll() is None
    with pytest.raises(TransportError, match="nobody took this process in within 50 s"):
        for _ in range(60):
            clock[0] += RULES.beat_s
            joins.poll()


def test_whoever_looks_leaves_nothing_in_the_store() -> None:
    store, clock = dist.HashStore(), [0.0]
    board = MemberBoard(store)
    silence = Silence(board, RULES, lambda: clock[0])
    board.beat(1)
    kept = store.num_keys()
    for _ in range(20):
        board.beat(1)
        silence.look([1])
        assert not silence.gone(1)
        assert (board.launched(), board.here(0, 1), board.decided(0), board.alarm(0)) == (0, None, None, "")
    assert store.num_keys() == kept
    board.alarm(0, "member 1: it fell over")
    assert board.alarm(0) == board.alarm(0, "member 2: it did too") == "member 1: it fell over"


def test_nobody_is_waited_for_once_all_had_finished() -> None:
    _, board, calls = rolls(3, {1: 9})
    board.finished(0, True)  # and member 0, which beats on, evaluates
    assert calls[1].poll() is None
    assert calls[1].finished


def test_nothing_is_decided_once_all_had_finished() -> None:
    _, board, calls = rolls(2, {0: 9})
    board.finished(0, True)
    board.left(1, "it has come to its end")
    assert calls[0].poll() is None
    assert calls[0].finished
