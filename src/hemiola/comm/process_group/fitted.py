"""Large collectives of a group by schedules that fit its network.

To begin one may wait for the first rank to call it too: it chooses for all, once for each kind and size, and all measure the
network between the same two collectives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from torch import Tensor

from hemiola.comm.process_group.balanced import Balanced, Turn
from hemiola.comm.process_group.collectives import Channel, put_back
from hemiola.comm.process_group.memory import Reduction, contiguous
from hemiola.comm.process_group.worker import Pending
from hemiola.comm.schedule_executor.flow import Join
from hemiola.comm.schedule_executor.runner import InFlightCount, Put, Runner
from hemiola.comm.stragglers.all_reduce import Stragglers
from hemiola.comm.transport import Endpoint, Handle
from hemiola.core.collective.schedule import FEWEST_BYTES, Collective, CollectiveSchedule
from hemiola.plan.collective.balance import NAME

__all__ = ["LATE", "Fitted", "Refresh", "all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter"]


# When a group measures its network again: after a while, and when collectives have become slower or
# faster.

_TAG = (3 << 61) + 64
"""Beside those of the probe."""
EVERY, EVERY_BYTES = 8, 2 << 20
"""Collectives, or bytes of them, from one turn to the next: a turn costs one small message to each rank."""
SHARE = 0.01
"""Of the time, measuring takes no more than this where nothing has changed."""
CHANGED, SURELY = 1.3, 1.6
"""So many times as long as after the last measurement, or as short, twice or once, and it is measured again at once."""
FIRST, SETTLED_S = 4, 1.0
"""The least of the first ones after it, but for the very first, is what they usually take; of fewer where they take
long. TCP has to find its rates again after the bursts of measuring: at 400 Mbit/s, 2 MiB took 69 to 105 ms then."""
QUIET_S = 0.5
"""Not before. Twice as long each time that it is due again within `OFTEN` times as long, up to what `SHARE` allows:
what comes and goes, as a rank that is late now and then, does not have everybody measure all the time."""
OFTEN = 4
_FIRST_S = 0.2
"""What measuring again takes, as long as it has not been done; the first time is more thorough."""


class Refresh:
    """One rank's side."""

    def __init__(
        self,
        end: Endpoint,
        timeout_s: float,
        renew: Callable[[float], object],
        balanced: Balanced | None = None,
        follows: bool = False,
    ) -> None:
        """Over a connected endpoint.

        Args:
            renew: measures, with all other ranks, and is told how much slower links may have become.
            balanced: what follows changes by itself, if anything does.
            follows: whether it does from the beginning.
        """
        self._end, self._timeout_s, self._renew, self._balanced = end, timeout_s, renew, balanced
        self._follows = follows
        self._count = self._bytes = 0
        self._decided = Turn.NOTHING
        self._coming: Handle | None = None
        self._word = bytearray(1)
        self._first: dict[tuple[str, int], list[float]] = {}
        """Of each kind and size, those after the last measurement, until it is known what is usual."""
        self._took: dict[tuple[str, int], tuple[float, ...]] = {}
        """The last two of each kind and size."""
        self._usual_s: dict[tuple[str, int], float] = {}
        self._measured_s = 0.0
        self._cost_s = _FIRST_S
        self._quiet_s = QUIET_S

    def due(self, size_bytes: int) -> Turn:
        """What to do before the next collective, of this size; asked by all ranks before each one.

        Raises:
            TransportError: the first rank is gone.
        """
        self._count += 1
        self._bytes += size_bytes
        if self._count < EVERY and self._bytes < EVERY_BYTES:
            return Turn.NOTHING
        self._count = self._bytes = 0
        if self._end.rank == 0:
            now, self._decided = self._decided, Turn.NOTHING if self._decided else self._wanted()
            word = bytes([self._decided])
            for rank in range(1, self._end.ranks):
                self._end.send(rank, _TAG, word, priority=-1)
            return now
        now = Turn.NOTHING
        if self._coming is not None:
            self._coming.wait(self._timeout_s)
            now = Turn(self._word[0])
        self._coming = self._end.receive(0, _TAG, self._word)
        return now

    def measure(self) -> None:
        """Now. How long it takes counts."""
        begun_s = time.monotonic()
        waited_s = begun_s - self._measured_s
        most_s = max(QUIET_S, self._cost_s / SHARE)
        self._quiet_s = min(2 * self._quiet_s, most_s) if waited_s < OFTEN * self._quiet_s else QUIET_S
        self._renew(max([1.0, *(recent[-1] / usual_s for recent, usual_s in self._known())]))
        if self._measured_s:
            self._cost_s = time.monotonic() - begun_s
        self.learn()

    def learn(self) -> None:
        """What collectives usually take is to be learnt anew."""
        self._measured_s = time.monotonic()
        self._first.clear()
        self._took.clear()
        self._usual_s.clear()

    def took(self, kind: str, size_bytes: int, seconds: float) -> None:
        """A collective took so long, at the first rank."""
        key = kind, size_bytes
        if key in self._usual_s:
            self._took[key] = (*self._took.get(key, ())[-1:], seconds)
            return
        first = self._first.setdefault(key, [])
        first.append(seconds)
        if len(first) == FIRST or (len(first) > 1 and time.monotonic() - self._measured_s > SETTLED_S):
            self._usual_s[key] = min(first[1:])

    def _wanted(self) -> Turn:
        balanced = self._balanced
        if balanced is not None and balanced.active:
            return balanced.turn()
        can_follow = balanced is not None and balanced.is_possible()
        if can_follow and self._follows:
            return Turn.BALANCE
        since_s = time.monotonic() - self._measured_s
        if since_s < self._quiet_s:
            return Turn.NOTHING
        changed = any(
            recent[-1] > SURELY * usual_s
            or (len(recent) == 2 and (min(recent) > CHANGED * usual_s or max(recent) * CHANGED < usual_s))
            for recent, usual_s in self._known()
        )
        if changed and can_follow and all(kind == "all-reduce" for kind, _ in list(self._took)):
            return Turn.BALANCE
        return Turn.MEASURE if changed or since_s * SHARE > self._cost_s else Turn.NOTHING

    def _known(self) -> list[tuple[tuple[float, ...], float]]:
        """What was noted of every kind and size, and how long it usually takes."""
        return [
            (recent, usual_s)
            for key, recent in list(self._took.items())
            if (usual_s := self._usual_s.get(key)) is not None
        ]


LATE = ("", "wait", "relay", "carry-over")
"""What is done about ranks that are late: waited for, or not (`comm.stragglers`)."""


class Chosen(Protocol):
    """Which schedules fit."""

    @property
    def epoch(self) -> int:
        """How often others were chosen."""

    def choose(
        self, collective: Collective, size_bytes: int, root: int, epoch: int | None
    ) -> CollectiveSchedule | None:
        """As `Choose`."""


class Fitted:
    """One rank's side.

    Attributes:
        rank, ranks: within the group.
        used: names of the schedules that were used, by collective.
        begun: what is under way here.
    """

    def __init__(
        self, runner: Runner, chosen: Chosen, timeout_s: float, refresh: Refresh | None, late: str = "",
        balanced: Balanced | None = None, probing: Endpoint | None = None,
    ) -> None:  # fmt: skip
        """With what carries them out.

        Args:
            chosen: the same at every rank.
            refresh: when the network is measured again; None for never.
            late: one of `LATE`.
            balanced: how all-reduces go while the network changes, if not as chosen.
            probing: over which it is measured; closed with this.
        """
        self._probing = probing
        end = runner.end
        self._runner, self._timeout_s = runner, timeout_s
        self.rank, self.ranks = end.rank, end.ranks
        self._chosen, self._refresh, self._balanced = chosen, refresh, balanced
        took = partial(self._took, "all-reduce")
        self._late = (
            Stragglers(end, self._used, lambda: chosen.epoch, timeout_s, late == "carry-over", took)
            if late not in LATE[:2]
            else None
        )
        self._guard = threading.Lock()
        self._holds = False  # whether something that holds connections back was begun since they were let go
        self._usual = InFlightCount("collectives")
        """Those that go the usual way."""
        self.used: dict[Collective, set[str]] = {}
        self.begun: set[Pending] = set()

    def start(
        self, kind: Collective, given: Tensor, join: Join, put: Put, result: list[Tensor], root: int = 0,
        keeps: bool = False,
    ) -> Pending | None:  # fmt: skip
        """Begin one, as `Runner.start`; None if it is to go the usual way.

        Args:
            keeps: whether what is given must not change: a copy of it is worked on.
        """
        size_bytes = given.nbytes * (self.ranks if kind == "all-gather" else 1)
        if size_bytes <= FEWEST_BYTES:
            return None
        with self._guard:  # the order of collectives is that in which they get here
            self._renew(size_bytes)
            if self._balanced is not None and self._balanced.active and kind == "all-reduce":
                self._holds = True
                self.used.setdefault(kind, set()).add(NAME)
                pending = Pending("a collective", self._timeout_s)
                self._balanced.start(given, join, put, partial(pending.end, result))
                pending.note_in(self.begun)
                return pending
            schedule = self._used(kind, size_bytes, root)
            if schedule is None:
                return None
            self._holds = self._holds or bool(schedule.paces)
            pending = Pending("a collective", self._timeout_s)
            begun_s = time.monotonic()

            def ended(problem: BaseException | None) -> None:
                self._took(kind, size_bytes, time.monotonic() - begun_s)
                pending.end(result, problem)

            self._runner.start(schedule, given.clone() if keeps else given, join, put, ended)
            pending.note_in(self.begun)
        return pending

    def add_up(self, given: Tensor, how: Reduction, put: Put, result: list[Tensor]) -> Pending | None:
        """An all-reduce in place; without ranks that are late, if it is to begin without them."""
        late = self._late
        if late is None or given.nbytes <= FEWEST_BYTES or not late.takes(given, how):
            return self.start("all-reduce", given, how.join, put, result)
        with self._guard:
            self._renew(given.nbytes)
            self._holds = True
            pending = Pending("a collective", self._timeout_s)
            late.start(given, how, put, partial(pending.end, result))
            pending.note_in(self.begun)
        return pending

    def timed(
        self, kind: Collective, size_bytes: int, action: Callable[[Channel], None]
    ) -> Callable[[Channel], None]:
        """One that goes the usual way: how long it takes from now on tells of the network too."""
        if size_bytes <= FEWEST_BYTES or self._refresh is None:
            return action
        begun_s = time.monotonic()
        self._usual.begin()

        def noted(channel: Channel) -> None:
            try:
                action(channel)
                self._took(kind, size_bytes, time.monotonic() - begun_s)
            finally:
                self._usual.end()

        return noted

    def let_go(self) -> None:
        """Something else is to be sent: as fast as it goes."""
        if self._holds:
            self._holds = False
            self._runner.let_go()

    def abort(self) -> None:
        """Wait for nobody any more."""
        if self._late is not None:
            self._late.abort()
        if self._probing is not None:
            self._probing.close(0.0)

    def close(self) -> None:
        """Leave."""
        if self._late is not None:
            self._late.close()
        if self._probing is not None:
            self._probing.close()

    def _renew(self, size_bytes: int) -> None:
        """Measure the network again if it is time, before a collective of so many bytes."""
        if self._refresh is None:
            return
        turn = self._refresh.due(size_bytes)
        if self._balanced is not None:
            if turn == Turn.BALANCE:
                self._balanced.enter()
            elif turn != Turn.NOTHING and self._balanced.active:
                self._balanced.leave()
                self.let_go()
        if turn == Turn.MEASURE:
            self._runner.wait_idle(self._timeout_s)
            self._usual.wait_idle(self._timeout_s)
            if self._late is not None:
                self._late.wait_idle(self._timeout_s)
            self._refresh.measure()
        elif turn != Turn.NOTHING:
            self._refresh.learn()

    def _used(
        self, kind: Collective, size_bytes: int, root: int, epoch: int | None = None
    ) -> CollectiveSchedule | None:
        schedule = self._chosen.choose(kind, size_bytes, root, epoch)
        if schedule is not None:
            self.used.setdefault(kind, set()).add(schedule.name)
        return schedule

    def _took(self, kind: Collective, size_bytes: int, seconds: float) -> None:
        if self._refresh is not None:
            self._refresh.took(kind, size_bytes, seconds)


# PyTorch's collectives of one tensor by schedules; None where they are to go the usual way.


def all_reduce(fitted: Fitted | None, tensors: Sequence[Tensor], how: Reduction) -> Pending | None:
    """In place."""
    if fitted is None or len(tensors) != 1:
        return None
    tensor = tensors[0]

    def put(flat: Tensor) -> None:
        put_back(flat.div_(fitted.ranks) if how.average else flat, tensor)

    return fitted.add_up(contiguous(tensor).view(-1), how, put, [tensor])


def broadcast(fitted: Fitted | None, tensors: Sequence[Tensor], root: int) -> Pending | None:
    """In place."""
    if fitted is None or len(tensors) != 1:
        return None
    tensor = tensors[0]
    flat = contiguous(tensor).view(-1)
    return fitted.start("broadcast", flat, Tensor.add_, lambda found: put_back(found, tensor), [tensor], root)


def reduce(fitted: Fitted | None, tensors: Sequence[Tensor], how: Reduction, root: int) -> Pending | None:
    """In place at the root; elsewhere nothing changes."""
    if fitted is None or len(tensors) != 1:
        return None
    tensor = tensors[0]

    def put(flat: Tensor) -> None:
        if fitted.rank == root:
            tensor.copy_((flat.div_(fitted.ranks) if how.average else flat).view(tensor.shape))

    return fitted.start("reduce", contiguous(tensor).view(-1), how.join, put, [tensor], root, keeps=True)


def all_gather(fitted: Fitted | None, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Pending | None:
    """One behind the other."""
    if fitted is None or len(outputs) != 1:
        return None
    table = outputs[0]

    def put(rows: Tensor) -> None:
        table.copy_(rows.reshape(table.shape))

    return fitted.start("all-gather", contiguous(inputs[0]).view(-1), Tensor.add_, put, [table])


def reduce_scatter(
    fitted: Fitted | None, outputs: Sequence[Tensor], inputs: Sequence[Tensor], how: Reduction
) -> Pending | None:
    """Each rank's part."""
    if fitted is None or len(outputs) != 1:
        return None
    part = outputs[0]

    def put(own: Tensor) -> None:
        part.copy_((own.div_(fitted.ranks) if how.average else own).view(part.shape))

    return fitted.start("reduce-scatter", contiguous(inputs[0]).view(-1), how.join, put, [part], keeps=True)
