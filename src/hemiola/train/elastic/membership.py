"""Training that goes on without the ranks that are lost, and takes in those that join: `Membership`."""

from __future__ import annotations

import functools
import gc
import logging
import os
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from hemiola.comm.transport.home import store_is_kept
from hemiola.core.errors import InputError, TransportError
from hemiola.train.elastic.board import Epoch, reached
from hemiola.train.elastic.roll import EpochWatch, RollCall, RollCallRules, Silence

try:
    import torch.distributed as dist

    from hemiola.train.elastic.state import TrainingState
except ModuleNotFoundError as error:
    raise InputError(
        "a membership needs PyTorch, which is not installed", "pip install 'hemiola[torch]'"
    ) from error

__all__ = ["Membership"]

Result = TypeVar("Result")
_log = logging.getLogger("hemiola.elastic")
_LOOK_AGAIN_S = 0.02
_TRIES = 3
"""So often all begin again from one commit though nobody was lost."""
_MEETING_S = 10.0
"""Who was there a moment ago, and does not meet the others within this time, is waited for no longer."""


class _ChangeWanted(Exception):  # noqa: N818 - no error
    """Somebody waits to join."""


class Membership:
    """Who trains, from the launched ranks on, through all losses and joins. Makes the process group, and makes it anew.

        with Membership(ranks_min=2) as membership:
            sampler = ElasticSampler(data, rank=membership.member, ranks=membership.members, batch_size=32)
            state = TrainingState(model=model, optimizer=optimizer, sampler=sampler)

            @membership.run
            def train(state): ...

            train(state)

    Reads what torchrun and `hemiola run` set: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Members talk through a store
    there. Rank 0 keeps it, unless TORCHELASTIC_USE_AGENT_STORE says that somebody else does; where the store is lost,
    all end.
    """

    epoch: int
    members: tuple[int, ...]

    def __init__(
        self,
        backend: str = "hemiola",
        *,
        ranks_min: int = 1,
        on_loss: Literal["continue", "fail"] | None = None,
        join: bool = False,
        silence_s: float = 3.0,
        timeout_s: float = 300.0,
    ) -> None:
        """Nothing is begun before it is entered.

        Args:
            backend: of the process group; it has to carry tensors in host memory.
            ranks_min: with fewer left, all end.
            on_loss: "fail" ends all with the first that is lost. As HEMIOLA_ON_LOSS says unless given, else "continue".
            join: this process was not launched with the others; it waits until they take it in.
            silence_s: of whom nothing is heard for so long is lost.
            timeout_s: of a collective; ten seconds more are waited for those that are there, but do not come to agree.
                With gloo, whose collectives cannot be ended from outside, a loss may take so long to be seen.

        Raises:
            InputError: a value is impossible.
        """
        on_loss = on_loss or os.environ.get("HEMIOLA_ON_LOSS", "continue")  # type: ignore[assignment]
        if on_loss not in ("continue", "fail"):
            raise InputError(f"on_loss is {on_loss!r}", 'give "continue" or "fail"')
        for name, value in (("ranks_min", ranks_min), ("silence_s", silence_s), ("timeout_s", timeout_s)):
            if not value > 0:
                raise InputError(f"{name} is {value}", "give a number above 0")
        ranks_min = max(ranks_min, _number("HEMIOLA_RANKS_MIN", "1"))
        self._rules = RollCallRules(silence_s, timeout_s + _MEETING_S, ranks_min, on_loss == "continue")
        self._backend, self._join, self._timeout_s = backend, join, timeout_s
        self._keeps: Any = None
        self._trains = False
        self._has_state = not join
        self._tries = 0

    @property
    def member(self) -> int:
        """This process's number, which stays its own for the whole run."""
        return self._me

    @property
    def rank(self) -> int:
        """In the present process group."""
        return self.members.index(self._me)

    @property
    def ranks(self) -> int:
        """Of the present process group."""
        return len(self.members)

    def __enter__(self) -> Self:
        address, port = _variable("MASTER_ADDR"), _number("MASTER_PORT")
        timeout_s, patience_s = self._timeout_s, max(10.0, 5 * self._rules.silence_s)
        if not self._join and _number("RANK") == 0 and not store_is_kept():
            try:
                self._keeps = dist.TCPStore("0.0.0.0", port, is_master=True, wait_for_workers=False)
            except RuntimeError as problem:
                raise TransportError(
                    f"the store cannot be kept at port {port}: {str(problem).splitlines()[0]}",
                    "give another MASTER_PORT",
                ) from None
        self._address, self._port = address, port
        self._board = reached(address, port, timeout_s, patience_s)
        self._me, self._launched = self._introduced()
        self._watch = EpochWatch(self._board, self._me, self._rules)
        try:
            self._meet(
                RollCall(
                    self._board,
                    self._me,
                    None,
                    -1 if self._join else 0,
                    self._launched,
                    self._rules,
                    time.monotonic,
                )
            )
        except BaseException as problem:
            self._leave(type(problem).__name__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, where: TracebackType | None
    ) -> None:
        if problem is not None:
            self._disband()
            words = str(problem).strip().splitlines()
            self._leave(f"it ended with {type(problem).__name__}" + (f": {words[0]}" if words else ""))
            return
        if dist.is_initialized():
            dist.destroy_process_group()
        self._leave("it has come to its end")
        if self._keeps is not None:
            self._outlast()

    def run(self, train: Callable[[TrainingState], Result]) -> Callable[[TrainingState], Result]:
        """Make the function one that is begun again, from the last commit, whenever others train from there on.

        It has to go on where the state stands; what is bound to the process group (DistributedDataParallel, a loader's
        iterator) it makes itself. All members have to come to its end alike.

        Raises, when it is called:
            TransportError: this process is no member any more, or all end, and why.
        """

        @functools.wraps(train)
        def elastic(state: TrainingState) -> Result:
            if self._trains:
                raise InputError(
                    "a membership trains once", "make one state and one function of all there is to train"
                )
            self._trains = True
            state._begin(self._heed)
            finished: list[Result] = []
            while True:
                try:
                    state._bring(self._epoch, self._me)
                    self._has_state = True
                    finished[:] = [train(state)]
                    dist.barrier()
                    self._board.finished(self._epoch.number, True)
                    return finished[0]
                except Exception as problem:
                    why = self._loss(problem)
                    traceback.clear_frames(problem.__traceback__)
                if not self._go_on(state, why) and finished:
                    return finished[0]

        return elastic

    def _introduced(self) -> tuple[int, int]:
        """This one's number, and how many were launched."""
        if not self._join:
            me, ranks = _number("RANK"), _number("WORLD_SIZE")
            if self._board.beat(me, 0):
                raise InputError(
                    f"the store at {self._address}:{self._port} has seen a rank {me} already",
                    "a process that comes later joins with join=True; another run needs another store",
                )
            if (said := self._board.launched(ranks)) != ranks:
                raise InputError(
                    f"rank {me} was started as one of {ranks}, another as one of {said}",
                    "give all ranks the same WORLD_SIZE; another run needs another store",
                )
            return me, ranks
        until_s = time.monotonic() + self._timeout_s
        while not (ranks := self._board.launched()):
            if time.monotonic() > until_s:
                raise TransportError(
                    f"nobody trains at {self._address}:{self._port}", "start the job that is to be joined"
                )
            time.sleep(_LOOK_AGAIN_S)
        return ranks + self._board.ask_to_join() - 1, ranks

    def _heed(self) -> None:
        """At a commit: is there a reason to begin again?"""
        self._tries = 0
        if self._watch.alarm or self._watch.asked > self._epoch.asked:
            raise _ChangeWanted(self._watch.alarm or "somebody waits to join")

    def _loss(self, problem: Exception) -> str:
        """Why the epoch is over; raises what has nothing to do with other members."""
        if isinstance(problem, _ChangeWanted):
            return str(problem)
        known = isinstance(problem, TransportError | dist.DistError)
        patience_s = self._rules.silence_s + 3 * self._rules.beat_s
        if not known and not (isinstance(problem, RuntimeError) and self._watch.wait_for_alarm(patience_s)):
            raise problem
        self._tries += 1
        if self._tries > _TRIES:
            raise problem
        words = problem.what if isinstance(problem, TransportError) else str(problem)
        return words.strip().partition("\n")[0] or type(problem).__name__

    def _go_on(self, state: TrainingState, why: str) -> bool:
        """The next epoch; False if there is nothing left to train."""
        begun_s = time.monotonic()
        before = self._epoch
        self._board.alarm(before.number, f"member {self._me}: {why}")
        self._disband()
        commits = state.commits if self._has_state else -1
        roll = RollCall(self._board, self._me, before, commits, self._launched, self._rules, time.monotonic)
        if not self._meet(roll):
            return False
        if self._epoch.lost or len(self.members) > len(before.members):
            self._tries = 0
        if self.rank == 0:
            _log.warning(
                "%s", _told(self._epoch, before, max(self._epoch.commits), time.monotonic() - begun_s)
            )
        return True

    def _meet(self, roll: RollCall) -> bool:
        """Make the process group of the next epoch, or of the one after that if it fails; False: there is none."""
        while True:
            epoch = roll.poll()
            if roll.finished:
                return False
            if epoch is None:
                time.sleep(_LOOK_AGAIN_S)
                continue
            try:
                self._form(epoch)
                return True
            except (TransportError, RuntimeError) as problem:
                self._tries += 1
                if self._tries > _TRIES:
                    raise
                self._board.alarm(epoch.number, f"member {self._me}: {str(problem).partition(chr(10))[0]}")
                self._disband()
                roll.again()

    def _form(self, epoch: Epoch) -> None:
        store = dist.TCPStore(
            self._address, self._port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_MEETING_S)
        )  # fmt: skip
        dist.init_process_group(
            self._backend, store=dist.PrefixStore(f"hemiola/elastic/group/{epoch.number}", store),
            rank=epoch.members.index(self._me), world_size=len(epoch.members), timeout=timedelta(seconds=self._timeout_s),
        )  # fmt: skip
        self._epoch, self.epoch, self.members = epoch, epoch.number, epoch.members
        group = dist.group.WORLD
        assert group is not None
        self._watch.follow(epoch, group.abort)

    def _disband(self) -> None:
        """Leave the group at once, whatever it is about; gloo's connections end with the last who knows it."""
        self._watch.forget()
        if dist.is_initialized():
            group = dist.group.WORLD
            assert group is not None
            group.abort()
            dist.destroy_process_group()
            del group
            gc.collect()

    def _leave(self, why: str) -> None:
        try:
            self._board.left(self._me, why)
        except TransportError as problem:  # nobody is left to be told
            _log.debug("%s", problem)
        self._watch.close()

    def _outlast(self) -> None:
        """Keep the store as long as somebody may need it."""
        silence = Silence(self._board, self._rules, time.monotonic)
        until_s = time.monotonic() + self._timeout_s
        others = [member for member in self.members if member != self._me]
        while others and time.monotonic() < until_s:
            silence.look(others)
            others = [member for member in others if not silence.gone(member)]
            time.sleep(_LOOK_AGAIN_S)


def _told(epoch: Epoch, before: Epoch, commits: int, took_s: float) -> str:
    lost = [f"member {member} was lost ({why})" for member, why in sorted(epoch.lost.items())]
    new = [f"member {member} has joined" for member in epoch.members if member not in before.members]
    what = "; ".join(lost + new) or "all begin again"
    return f"{what}. Epoch {epoch.number}: {len(epoch.members)} members go on from commit {commits}, agreed in {took_s:.2f} s"


def _variable(name: str, unless_set: str | None = None) -> str:
    value = os.environ.get(name, unless_set)
    if value is None:
        raise InputError(f"{name} is not set", "start the script with hemiola run, or set what torchrun sets")
    return value


def _number(name: str, unless_set: str | None = None) -> int:
    value = _variable(name, unless_set)
    try:
        return int(value)
    except ValueError:
        raise InputError(f"{name} is {value!r}", "give a whole number") from None
