"""What members say to each other through PyTorch's store, and the process that can keep such a store. Decides nothing.

Every question is one that a store answers at once (`add`, `compare_set`): one who asks is never held up by a key that
is not there, and a store that does not answer is noticed.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import msgspec

from hemiola.core.errors import TransportError

__all__ = ["Epoch", "MemberBoard", "TorchStore", "reached"]

_PREFIX = "hemiola/elastic/"
_NOTHING = "?"
"""Nobody says this."""
_PARTS = 20


class Epoch(msgspec.Struct, frozen=True):
    """Who trains together, as it was decided once for all.

    Attributes:
        number: greater with every decision.
        members: by numbers that stay theirs for the whole run, in order: the k-th has rank k.
        commits: how many commits each of them has of the state; -1 for one that joins.
        lost: who was a member before and is no more, and why.
        asked: how many had asked to join by then.
        end: why all of them end instead; "" if they go on.
    """

    number: int
    members: tuple[int, ...]
    commits: tuple[int, ...]
    lost: dict[int, str] = {}
    asked: int = 0
    end: str = ""


class TorchStore(Protocol):
    """As much of `torch.distributed.Store` as is needed."""

    def add(self, key: str, amount: int, /) -> int:
        """Of a counter; 0 reads it."""
        ...

    def compare_set(self, key: str, expected: str, wanted: str, /) -> bytes:
        """What stands there afterwards. A key that is not there counts as "", and is made; where anything else is expected
        it is not, and that comes back.
        """
        ...


class MemberBoard:
    """What one member says and reads."""

    def __init__(self, store: TorchStore) -> None:
        self._store = store

    def beat(self, member: int, beats: int = 1) -> int:
        """How often this member has said that it is there; 0 to ask."""
        return self._store.add(f"{_PREFIX}beat/{member}", beats)

    def ask_to_join(self, asking: int = 1) -> int:
        """How many have asked to join, this one among them; 0 to ask that."""
        return self._store.add(f"{_PREFIX}asked", asking)

    def launched(self, ranks: int = 0) -> int:
        """How many ranks were launched, as one of them has said; 0 if none has."""
        return int(self._once("launched", str(ranks) if ranks else "") or 0)

    def here(self, epoch: int, member: int, commits: int | None = None) -> int | None:
        """How many commits the member has, if it has come to decide on this epoch."""
        said = self._once(f"here/{epoch}/{member}", "" if commits is None else str(commits))
        return int(said) if said else None

    def decided(self, epoch: int) -> Epoch | None:
        """What was decided."""
        said = self._once(f"epoch/{epoch}")
        return msgspec.json.decode(said, type=Epoch) if said else None

    def decide(self, wanted: Epoch) -> Epoch:
        """What is decided now: the first to say something has decided."""
        said = self._once(f"epoch/{wanted.number}", msgspec.json.encode(wanted).decode())
        return msgspec.json.decode(said, type=Epoch)

    def ready(self, epoch: int, member: int, is_so: bool = False) -> bool:
        """Whether the member knows that it is one, and has nothing left but to meet the others."""
        return bool(self._once(f"ready/{epoch}/{member}", "1" if is_so else ""))

    def alarm(self, epoch: int, why: str = "") -> str:
        """Why this epoch is over, by whoever saw it first; "" while it is not."""
        return self._once(f"alarm/{epoch}", why)

    def silent(self, member: int, beats: int, is_so: bool = False) -> bool:
        """Whether one has waited in vain for more than so many beats of the member: nobody else has to."""
        return bool(self._once(f"silent/{member}/{beats}", "1" if is_so else ""))

    def left(self, member: int, why: str = "") -> str:
        """Why the member has ended; "" if nobody has said so."""
        return self._once(f"left/{member}", why)

    def finished(self, epoch: int, is_so: bool = False) -> bool:
        """Whether all members of this epoch have come to the end of the training."""
        return bool(self._once(f"finished/{epoch}", "1" if is_so else ""))

    def _once(self, key: str, wanted: str = "") -> str:
        """Write where nothing was written before; what stands there. Whoever only reads leaves no key behind."""
        change = ("", wanted) if wanted else (_NOTHING, _NOTHING)
        said = bytes(self._store.compare_set(_PREFIX + key, *change)).decode()
        return "" if said == _NOTHING else said


class _Reached:
    """A store behind a thread of its own: PyTorch's waits for an answer without end.

    Patience is counted in parts, of which no more than one passes while this process is stopped. What was asked in vain
    may still be done later: whatever members say stays true.
    """

    def __init__(self, store: Any, address: str, patience_s: float) -> None:
        self._store, self._address, self._patience_s = store, address, patience_s
        self._asked: queue.SimpleQueue[tuple[Callable[[Any], Any], queue.SimpleQueue[Any]]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._run, name="hemiola-store", daemon=True).start()

    def add(self, key: str, amount: int) -> int:
        return int(self._ask(lambda store: store.add(key, amount)))

    def compare_set(self, key: str, expected: str, wanted: str) -> bytes:
        return bytes(self._ask(lambda store: store.compare_set(key, expected, wanted)))

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        answered: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asked.put((question, answered))
        for _ in range(_PARTS):
            try:
                answer = answered.get(timeout=self._patience_s / _PARTS)
            except queue.Empty:
                continue
            if isinstance(answer, Exception):
                raise self._gone(str(answer).splitlines()[0]) from None
            return answer
        raise self._gone(f"nothing was heard of it for {self._patience_s:g} s")

    def _run(self) -> None:
        while True:
            question, answered = self._asked.get()
            try:
                answered.put(question(self._store))
            except Exception as problem:
                answered.put(problem)

    def _gone(self, why: str) -> TransportError:
        return TransportError(
            f"the store of this job at {self._address} is gone: {why}",
            "nothing can be agreed on without it: start the job again from a checkpoint",
        )


def reached(address: str, port: int, opening_s: float, patience_s: float) -> MemberBoard:
    """The board in a store that somebody keeps.

    Args:
        opening_s: so long the store may come later than this process.
        patience_s: so long it may take over an answer.

    Raises, in everything that the board does too:
        TransportError: the store is not there, or does not answer.
    """
    import torch.distributed as dist

    try:
        store = dist.TCPStore(
            address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=opening_s)
        )
    except RuntimeError as problem:
        raise TransportError(
            f"there is no store at {address}:{port}: {str(problem).splitlines()[0]}",
            "rank 0 keeps it, or python -m hemiola.train.elastic.keeper PORT",
        ) from None
    return MemberBoard(_Reached(store, f"{address}:{port}", patience_s))
