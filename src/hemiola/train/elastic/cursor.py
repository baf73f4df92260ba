"""How far an epoch has come: a place in one order of the entries, the same at every rank. Knows no PyTorch.

What is before the place has been trained on, what is behind it has not. A global step takes the next entries, as many
as the members of that moment train on together, and moves the place behind them. So whoever is lost, joins or
resumes, and however often: what is left is the order from the place on, and it is dealt out anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import InputError

__all__ = ["Agreement", "Cursor", "Deck", "agreed", "whole"]


def whole(name: str, value: Any, least: int = 0) -> int:
    """The value, if it is a whole number and not below the least.

    Raises:
        InputError: if it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name} is {value!r}", f"give a whole number, {least} or more")
    return int(value)


@dataclass(frozen=True)
class Deck:
    """What is dealt out in every epoch, and how. The same at all ranks.

    Attributes:
        length: entries of the data set.
        batch_size: entries for each member in a global step.
        seed: of the shuffles; every epoch has one of its own.
        shuffle: whether an epoch goes through the entries in a random order.
        drop_last: whether an epoch ends where less than a whole global step is left. That leaves out fewer entries
            than one global step has; otherwise the last step is a smaller one, and nothing is left out.
    """

    length: int
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        for name, words, least in (
            ("length", "the length of the data set", 0),
            ("batch_size", "batch_size", 1),
            ("seed", "seed", 0),
        ):
            object.__setattr__(self, name, whole(words, getattr(self, name), least))

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Every entry once, in the order of an epoch: 8 bytes each, 20 while it is made.

        Entries are sorted by random keys, ties by their number. It stays the same in every version of NumPy and on
        every machine, as a saved place asks for: NumPy promises that of a bit generator's integers, and not of
        `Generator.permutation` (NumPy, "Compatibility policy"); PyTorch does not promise it of `randperm`.
        """
        if not self.shuffle:
            return np.arange(self.length, dtype=np.int64)
        random = np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(epoch,)))
        return np.argsort(random.random_raw(self.length), kind="stable").astype(np.int64, copy=False)


@dataclass(frozen=True)
class Cursor:
    """A place in an epoch, and who goes on from there. A value: send it to other ranks as it is.

    Attributes:
        members: who trains, by numbers that stay theirs for the whole run; the k-th has the k-th share of a step.
        membership_epoch: greater with every change of members.
        position: entries of the epoch before the place.
        steps_done: global steps that led there.
        ended: whether the epoch had come to its end there, for the members who took the last step. With `drop_last`,
            fewer could take one more of what is left out.
    """

    deck: Deck
    members: tuple[int, ...]
    membership_epoch: int = 0
    epoch: int = 0
    position: int = 0
    steps_done: int = 0
    ended: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(whole("a member", member) for member in self.members))
        if not self.members or len(set(self.members)) < len(self.members):
            raise InputError(f"the members are {self.members}", "name at least one, and each once")
        for name in ("membership_epoch", "epoch", "position", "steps_done"):
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        if self.position > self.deck.length:
            raise InputError(
                f"position {self.position} lies behind the {self.deck.length} entries of the data set",
                "use the data set that the place was saved with",
            )

    @property
    def global_batch(self) -> int:
        """Entries of the next global step, of all members together; 0 at the end of the epoch."""
        left, full = self.deck.length - self.position, self.deck.batch_size * len(self.members)
        return full if left >= full else 0 if self.deck.drop_last else left

    @property
    def steps_left(self) -> int:
        """Global steps to the end of the epoch, with these members."""
        steps, rest = divmod(self.deck.length - self.position, self.deck.batch_size * len(self.members))
        return steps + (rest > 0 and not self.deck.drop_last)

    def share(self, rank: int) -> slice:
        """Where a member's part of the next global step lies in the order of the epoch.

        Parts differ by one entry at most. They are empty for some where a last step has fewer entries than members.
        """
        if rank not in self.members:
            raise InputError(
                f"rank {rank} is not among the members {self.members}",
                "only members train; a rank that joins is named in the next membership",
            )
        number = self.members.index(rank)
        each, longer = divmod(self.global_batch, len(self.members))
        start = self.position + number * each + min(number, longer)
        return slice(start, start + each + (number < longer))

    def after(self, steps: int = 1) -> Cursor:
        """The place so many global steps further."""
        if steps > self.steps_left:
            raise InputError(
                f"epoch {self.epoch} has {self.steps_left} global steps left, not {steps}",
                "begin the next one with set_epoch()",
            )
        full = self.deck.batch_size * len(self.members)
        position = min(self.position + steps * full, self.deck.length)
        place = replace(self, position=position, steps_done=self.steps_done + steps)
        return replace(place, ended=not place.global_batch)

    def regrouped(self, members: Iterable[int], membership_epoch: int) -> Cursor:
        """The same place, from where these go on."""
        return replace(self, members=tuple(members), membership_epoch=membership_epoch)

    def begins(self, epoch: int) -> Cursor:
        """The first place of an epoch."""
        return replace(self, epoch=epoch, position=0, steps_done=0, ended=False)

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and position: the greater of two has more behind it."""
        return self.epoch, self.position


@dataclass(frozen=True)
class Agreement:
    """Where all go on after a rank was lost.

    Attributes:
        cursor: the place.
        holders: the ranks that are there, in order: the first sends its parameters and its optimizer's state to all.
    """

    cursor: Cursor
    holders: tuple[int, ...]


def agreed(cursors: Mapping[int, Cursor], steps: int = 1) -> Agreement:
    """The greatest confirmed place among the survivors, and who has the parameters that belong to it.

    A rank that confirmed a step has the reduced gradient of all its entries in its parameters: an all-reduce that is
    complete anywhere has the parts of every member in it, of those that died too. So that step is whole where it is
    confirmed, and the others miss its result only. The least place would be wrong, with the parameters that belong
    to the greatest: entries would be trained on twice. Where those that are ahead went back a step, the least would be
    right, but each would have to keep its parameters of the step before. If only a lost rank confirmed, no survivor
    has the result, none says so, and the step is dealt out again.

    This asks that one rank has all of a step's result. Where parameters or the optimizer's state are sharded among the
    ranks (FSDP, ZeRO), a part was lost: go back to a checkpoint, and its place with `load_state_dict`.

    Args:
        cursors: `ElasticSampler.cursor` of every survivor, by its rank; not of those that join.
        steps: global steps that one `confirm` takes (with gradients of several steps accumulated).

    Raises:
        InputError: if there are none, if they are of different decks, or if one is further behind than one `confirm`:
            then its rank was no part of the same training.
    """
    if not cursors:
        raise InputError("no cursors to agree on", "give those of all survivors, your own among them")
    first = max(cursors.values(), key=lambda cursor: (cursor.place, cursor.membership_epoch))
    for rank, cursor in sorted(cursors.items()):
        if cursor.deck != first.deck:
            raise InputError(
                f"rank {rank} deals out {cursor.deck}, others {first.deck}",
                "use the same arguments at all ranks",
            )
        if not _leads(cursor, first, whole("steps", steps, least=1)):
            raise InputError(
                f"rank {rank} stands at entry {cursor.position} of epoch {cursor.epoch}, another at "
                f"{first.position} of {first.epoch}: more than one confirmed step lies between",
                "go back to a checkpoint, with load_state_dict()",
            )
    return Agreement(first, tuple(sorted(rank for rank, c in cursors.items() if c.place == first.place)))


def _leads(behind: Cursor, ahead: Cursor, steps: int) -> bool:
    """Whether the one comes to the other by so many steps, or by those that its epoch has left."""
    if behind.ended and ahead.position == 0:
        return True
    for _ in range(steps):
        if behind.place == ahead.place or not behind.global_batch:
            break
        behind = behind.after()
    return behind.place == ahead.place or (not behind.global_batch and ahead.position == 0)
