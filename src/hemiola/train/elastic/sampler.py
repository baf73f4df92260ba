"""A sampler for ranks that come and go: an epoch trains on every entry once.

It is a `batch_sampler`, not a `sampler`: how many entries a step has is decided for all ranks together, and a
DataLoader that makes batches of single entries would merge the parts of uneven steps. Progress is what the training
loop confirms. What was drawn says little: a DataLoader's workers are ahead of the loop by `prefetch_factor` batches
each.

Of others, after a change of ranks in an epoch, as their source says:

- PyTorch's `DistributedSampler` has no place: it begins the epoch again. It repeats up to ranks - 1 entries at the end
  to make shares equal, or leaves as many out (`drop_last`).
- TorchElastic's `ElasticDistributedSampler(start_index=k)` goes on with a permutation of the entries k..n-1, though
  the k that are done were drawn from all n: some are trained on twice and some never (pull request
  pytorch/pytorch#147967, closed).
- Horovod's `ElasticSampler` and DLRover's `ElasticDistributedSampler` do go on within one permutation, and repeat
  entries at the end to make shares equal. Horovod's place is as of the last commit: what came between is trained on
  again (issue horovod/horovod#3399).
- torchft's `DistributedSampler` is "inherently lossy": the share of a replica group that is down is not used
  (docs.pytorch.org/torchft/data.html).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import InputError
from hemiola.train.elastic.cursor import Cursor, Deck, whole

try:
    from torch.utils.data import Sampler, default_collate
except ModuleNotFoundError as error:
    raise InputError(
        "an elastic sampler needs PyTorch, which is not installed", "pip install 'hemiola[torch]'"
    ) from error

__all__ = ["ElasticSampler", "EmptyAsNone"]

SCHEMA = "hemiola.elastic-sampler/1"


@dataclass(frozen=True)
class EmptyAsNone:
    """A `collate_fn` that gives None for an empty batch, which others cannot collate.

    Attributes:
        collate: makes a batch of one sample or more.
    """

    collate: Callable[[list[Any]], Any] = default_collate

    def __call__(self, samples: list[Any]) -> Any:
        """The batch, or None."""
        return self.collate(samples) if samples else None


class ElasticSampler(Sampler[list[int]]):
    """The `batch_sampler` of one rank; ranks may be lost and join.

        sampler = ElasticSampler(dataset, rank=rank, ranks=ranks, batch_size=32)
        loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=EmptyAsNone(), num_workers=2)
        for batch in loader:
            ...                 # forward, backward, reduce the gradients, optimizer.step()
            sampler.confirm()

    All ranks have the same number of batches. Where a last step has fewer entries than members, some have an empty
    one: they take part in the collectives with a gradient of zeros. For the mean over all entries of a step, reduce
    with the mean over ranks of `sum of the losses * len(members) / global_batch_of()`; equal weights of ranks would
    give more weight to entries of shorter batches.

    Begin to iterate over the loader anew after `regroup`, `set_epoch` and `load_state_dict`: an iterator from before
    raises where it draws again, and what it drew before must not be trained on. The loader has to give batches in
    order (`in_order=True`, as it does unless told otherwise).
    """

    _cursor: Cursor
    _drawn: int  # steps of this epoch that an iterator gave out, or that are confirmed
    _dealing: object  # another one whenever the entries are dealt out anew

    def __init__(
        self,
        dataset: Sized | int,
        *,
        rank: int,
        ranks: int | Iterable[int],
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        membership_epoch: int = 0,
    ) -> None:
        """Nothing is shuffled before the first batch is drawn.

        Args:
            dataset: whose entries 0..n-1 are dealt out, or n.
            rank: of this process.
            ranks: who trains, in order, by numbers that stay theirs when others are lost; or how many, from 0 on.
            batch_size: entries of each rank in a global step.
            seed, shuffle, drop_last: as `Deck` has them.
            membership_epoch: of these ranks.

        Raises:
            InputError: if a value is impossible, the rank is not among the ranks, or the data set has no length.
        """
        super().__init__()
        members = tuple(
            range(whole("ranks", ranks, least=1)) if isinstance(ranks, int | np.integer) else ranks
        )
        deck = Deck(_length(dataset), batch_size, seed, shuffle, drop_last)
        self.rank = whole("rank", rank)
        self._order: tuple[int, NDArray[np.int64]] | None = None
        self._move(Cursor(deck, members, membership_epoch))

    @property
    def cursor(self) -> Cursor:
        """The confirmed place. `agreed` takes it of all survivors."""
        return self._cursor

    @property
    def members(self) -> tuple[int, ...]:
        """Who trains, in order."""
        return self._cursor.members

    @property
    def steps_done(self) -> int:
        """Global steps of this epoch that are confirmed, of all memberships."""
        return self._cursor.steps_done

    def __len__(self) -> int:
        """Global steps that are left from the confirmed place on: as many batches for every rank."""
        return self._cursor.steps_left

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's batches from the confirmed place on; an empty one too."""
        dealing, at = self._dealing, self._cursor
        while at.global_batch:
            entries = self._entries()[at.share(self.rank)].tolist()
            at = at.after()
            self._drawn = max(self._drawn, at.steps_done)
            yield entries
            if dealing is not self._dealing:
                raise InputError(
                    "the entries were dealt out anew while an iterator from before was in use",
                    "after regroup(), set_epoch() or load_state_dict() begin `for batch in loader` again",
                )

    def global_batch_of(self, step: int | None = None) -> int:
        """Entries of all members in a global step of this epoch, counted from 0; of the one to be confirmed next if None.

        Raises:
            InputError: if the step is confirmed already (its members may have been others), or behind the end.
        """
        ahead = 0 if step is None else whole("step", step) - self.steps_done
        if not 0 <= ahead < len(self):
            raise InputError(
                f"step {self.steps_done + ahead} is not among the steps from {self.steps_done} on, of which "
                f"{len(self)} are left",
                "ask before confirm(), of a step that is not confirmed",
            )
        return self._cursor.after(ahead).global_batch

    def confirm(self, steps: int = 1) -> None:
        """The next global steps are in the parameters of this rank: call it when `optimizer.step()` has succeeded.

        Args:
            steps: as many as one step of the optimizer took gradients from.

        Raises:
            InputError: if so many were not drawn.
        """
        if self.steps_done + whole("steps", steps, least=1) > self._drawn:
            raise InputError(
                f"{steps} steps are confirmed where {self._drawn - self.steps_done} were drawn",
                "confirm each step once, after it was trained on",
            )
        self._cursor = self._cursor.after(steps)

    def regroup(self, members: Iterable[int], membership_epoch: int, cursor: Cursor | None = None) -> None:
        """Others train from the confirmed place on: all that was drawn and not confirmed is dealt out again.

        It may be called again with the same. A rank that joins makes its sampler, and regroups it with the cursor too.

        Args:
            members: who goes on, in order; this rank among them.
            membership_epoch: greater than that of the members before.
            cursor: where they go on, as `agreed` says; None for the place that this rank has confirmed.

        Raises:
            InputError: if this rank is not a member, the membership is older than the present one, or the cursor lies
                behind what is confirmed here or is of another deck.
        """
        own = self._cursor
        new = (own if cursor is None else cursor).regrouped(members, membership_epoch)
        if new.deck != own.deck:
            raise InputError(
                f"the cursor is of {new.deck}, this sampler deals out {own.deck}",
                "use the same arguments at all ranks",
            )
        if new.place < own.place:
            raise InputError(
                f"the cursor stands at entry {new.position} of epoch {new.epoch}, but entry {own.position} of "
                f"{own.epoch} is confirmed here",
                "take what agreed() says; to go back to a checkpoint, use load_state_dict() and its parameters",
            )
        if membership_epoch < own.membership_epoch or (
            membership_epoch == own.membership_epoch and new.members != own.members
        ):
            raise InputError(
                f"membership {membership_epoch} of {new.members} came after {own.membership_epoch} of {own.members}",
                "number memberships upwards",
            )
        self._move(new)

    def set_epoch(self, epoch: int, *, leave_rest: bool = False) -> None:
        """Begin an epoch, unless it is the present one: that goes on where it stands, so that a resumed loop can say it.

        Args:
            leave_rest: end the present epoch early, with what is left of it.

        Raises:
            InputError: if the present one was begun and is not confirmed to its end.
        """
        own = self._cursor
        if whole("epoch", epoch) == own.epoch:
            return
        if self._drawn and own.global_batch and not own.ended and not leave_rest:
            raise InputError(
                f"of epoch {own.epoch}, {own.deck.length - own.position} entries are not confirmed",
                "call confirm() after every step; leave_rest=True ends an epoch early",
            )
        self._move(own.begins(epoch))

    def state_dict(self) -> dict[str, Any]:
        """The confirmed place, for a checkpoint: save it with the parameters that belong to it. JSON can hold it."""
        own = self._cursor
        return {
            "schema": SCHEMA,
            "length": own.deck.length,
            "seed": own.deck.seed,
            "shuffle": own.deck.shuffle,
            "epoch": own.epoch,
            "position": own.position,
            "steps_done": own.steps_done,
            "ended": own.ended,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was saved, with the members and the batch size that this sampler has.

        Raises:
            InputError: if it is no such state, or one of another order of entries.
        """
        if state.get("schema") != SCHEMA:
            raise InputError(
                f"a state of schema {state.get('schema')!r}", f"give what state_dict() returned, a {SCHEMA!r}"
            )
        own = self._cursor
        for name in ("length", "seed", "shuffle"):
            if state.get(name) != getattr(own.deck, name):
                raise InputError(
                    f"the state was saved with {name} {state.get(name)!r}, this sampler has {getattr(own.deck, name)!r}",
                    "make the sampler with what it was saved with: entries would be lost and repeated",
                )
        place = {name: whole(name, state.get(name)) for name in ("epoch", "position", "steps_done")}
        ended = state.get("ended") is True
        self._move(Cursor(own.deck, own.members, own.membership_epoch, **place, ended=ended))

    def _move(self, cursor: Cursor) -> None:
        """Deal out from here, and no longer from where iterators are."""
        cursor.share(self.rank)  # raises for a rank that is no member
        self._cursor = cursor
        self._drawn = cursor.steps_done
        self._dealing = object()

    def _entries(self) -> NDArray[np.int64]:
        """The order of the present epoch, made once."""
        epoch = self._cursor.epoch
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, self._cursor.deck.order(epoch))
        return self._order[1]


def _length(dataset: Sized | int) -> int:
    if isinstance(dataset, int | np.integer):
        return int(dataset)
    try:
        return len(dataset)
    except TypeError as error:
        raise InputError(
            f"a {type(dataset).__name__} has no length",
            "give a data set whose entries have numbers, or how many they are",
        ) from error
