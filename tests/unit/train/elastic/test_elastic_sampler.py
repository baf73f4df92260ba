"""Every entry once, whoever is there to train on it: by hand, by Hypothesis and with PyTorch's own loader."""

from __future__ import annotations

import copy
import json
from collections import Counter, deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from hemiola.core.errors import InputError
from hemiola.train.elastic import Agreement, Cursor, Deck, ElasticSampler, EmptyAsNone, agreed


def group(length: int, ranks: int, batch_size: int, **others: Any) -> list[ElasticSampler]:
    """One sampler for each rank."""
    return [
        ElasticSampler(length, rank=rank, ranks=ranks, batch_size=batch_size, **others)
        for rank in range(ranks)
    ]


def in_order(length: int, ranks: int, batch_size: int, **others: Any) -> list[ElasticSampler]:
    """The same, with entries in their own order."""
    return group(length, ranks, batch_size, shuffle=False, **others)


def test_shares_by_hand() -> None:
    samplers = in_order(10, ranks=3, batch_size=2)
    assert [list(sampler) for sampler in samplers] == [[[0, 1], [6, 7]], [[2, 3], [8]], [[4, 5], [9]]]
    assert [len(sampler) for sampler in samplers] == [2, 2, 2]
    assert [samplers[0].global_batch_of(step) for step in (0, 1)] == [6, 4]


def test_fewer_entries_than_members_leave_some_without() -> None:
    assert [list(sampler) for sampler in in_order(7, ranks=3, batch_size=2)] == [
        [[0, 1], [6]],
        [[2, 3], []],
        [[4, 5], []],
    ]


def test_drop_last_leaves_out_less_than_one_global_step() -> None:
    samplers = in_order(11, ranks=3, batch_size=2, drop_last=True)
    assert [list(sampler) for sampler in samplers] == [[[0, 1]], [[2, 3]], [[4, 5]]]
    samplers[0].confirm()
    assert len(samplers[0]) == 0
    samplers[0].set_epoch(1)  # the five entries are left out, as asked


def test_an_epoch_that_has_ended_is_over_for_fewer_members_too() -> None:
    sampler = in_order(60, ranks=4, batch_size=8, drop_last=True)[0]
    next(iter(sampler))
    sampler.confirm()
    assert len(sampler) == 0  # 28 entries are left, of 32 that a step takes
    saved = json.loads(json.dumps(sampler.state_dict()))
    sampler.regroup([0, 1, 2], 1)  # whose step takes 24
    resumed = in_order(60, ranks=3, batch_size=8, drop_last=True)[0]
    resumed.load_state_dict(saved)
    one_on = sampler.cursor.begins(1)
    assert agreed({0: sampler.cursor.regrouped([0], 2), 1: one_on}) == Agreement(one_on, (1,))
    for each in (sampler, resumed):
        each.set_epoch(1)
        assert (each.cursor.epoch, len(each)) == (1, 2)


def test_an_epoch_that_goes_on_with_fewer_members_has_to_end_again() -> None:
    sampler = in_order(60, ranks=4, batch_size=8, drop_last=True)[0]
    next(iter(sampler))
    sampler.confirm()
    sampler.regroup([0], 1)
    next(iter(sampler))
    sampler.confirm()
    with pytest.raises(InputError, match="of epoch 0, 20 entries are not confirmed"):
        sampler.set_epoch(1)


def test_a_lost_rank_by_hand() -> None:
    first, _, last = samplers = in_order(10, ranks=3, batch_size=2)
    for sampler in samplers:
        assert len(list(sampler)) == 2  # both steps are drawn, one is trained on
        sampler.confirm()
    for sampler in (first, last):
        sampler.regroup((0, 2), membership_epoch=1)
    assert list(first) == [[6, 7]]
    assert list(last) == [[8, 9]]


def test_a_rank_that_missed_the_last_step_takes_the_others_place() -> None:
    samplers = in_order(12, ranks=3, batch_size=2)
    for sampler in samplers:
        list(sampler)
    samplers[1].confirm()  # at ranks 0 and 2 the all-reduce failed, and then rank 2 is lost
    agreement = agreed({0: samplers[0].cursor, 1: samplers[1].cursor})
    assert agreement == Agreement(samplers[1].cursor, holders=(1,))
    for sampler in samplers[:2]:
        sampler.regroup((0, 1), 1, agreement.cursor)
    assert [list(sampler) for sampler in samplers[:2]] == [[[6, 7], [10]], [[8, 9], [11]]]
    assert samplers[0].steps_done == 1


def test_the_lost_rank_alone_confirmed() -> None:
    samplers = in_order(12, ranks=3, batch_size=2)
    list(samplers[2])
    samplers[2].confirm()  # no survivor has what this step gave
    agreement = agreed({rank: samplers[rank].cursor for rank in (0, 1)})
    assert (agreement.cursor.position, agreement.holders) == (0, (0, 1))


def test_a_rank_that_is_in_the_next_epoch_is_ahead() -> None:
    samplers = in_order(4, ranks=2, batch_size=2)
    for sampler in samplers:
        list(sampler)
    samplers[0].confirm()
    samplers[0].set_epoch(1)
    agreement = agreed({rank: sampler.cursor for rank, sampler in enumerate(samplers)})
    assert (agreement.cursor.place, agreement.holders) == ((1, 0), (0,))


def test_survivors_may_have_regrouped_before_another_is_lost() -> None:
    samplers = in_order(40, ranks=4, batch_size=2)
    for sampler in samplers:
        list(sampler)
    samplers[0].confirm()
    samplers[0].regroup((0, 1, 2), 1)
    agreement = agreed({0: samplers[0].cursor, 1: samplers[1].cursor})
    assert agreement.cursor.position == 8
    samplers[1].regroup((0, 1), 2, agreement.cursor)
    assert next(iter(samplers[1])) == [10, 11]


def test_cursors_that_do_not_belong_together_are_refused() -> None:
    cursor = Cursor(Deck(100, 2), (0, 1, 2))
    with pytest.raises(InputError, match="no cursors"):
        agreed({})
    with pytest.raises(InputError, match="rank 0 stands at entry 0 of epoch 0, another at 12 of 0"):
        agreed({0: cursor, 1: cursor.after(2)})
    assert agreed({0: cursor, 1: cursor.after(2)}, steps=2).holders == (1,)
    assert agreed({0: cursor, 1: cursor.after(2)}, steps=2).cursor.steps_done == 2
    with pytest.raises(InputError, match="rank 0 stands at entry 100 of epoch 0, another at 6 of 1"):
        agreed({0: cursor.after(17), 1: cursor.begins(1).after()})
    with pytest.raises(InputError, match="rank 0 stands at entry 0 of epoch 0, another at 0 of 1"):
        agreed({0: cursor, 1: cursor.begins(1)})
    with pytest.raises(InputError, match=r"rank 1 deals out Deck\(length=99"):
        agreed({0: cursor, 1: Cursor(Deck(99, 2), (0, 1, 2))})


def test_every_rank_has_the_same_order_and_every_epoch_its_own() -> None:
    assert Deck(8, 1).order(0).tolist() == [6, 3, 1, 4, 5, 2, 7, 0]  # saved places rely on it, for ever
    seen = {tuple(Deck(50, 1, seed).order(epoch).tolist()) for seed in range(10) for epoch in range(10)}
    assert len(seen) == 100
    assert all(sorted(order) == list(range(50)) for order in seen)
    found = Counter(tuple(Deck(3, 1, seed).order(0).tolist()) for seed in range(3000))
    assert len(found) == 6
    assert all(400 < count < 600 for count in found.values())  # 500 expected, with a deviation of 20


class Worker:
    """One rank: what it has trained on in this epoch stands for its parameters."""

    def __init__(self, sampler: ElasticSampler, trained: list[int]) -> None:
        self.sampler, self.trained = sampler, list(trained)
        self.begin()

    def begin(self) -> None:
        self.batches: Iterator[list[int]] = iter(self.sampler)
        self.ahead: deque[list[int]] = deque()

    def next(self) -> list[int]:
        return self.ahead.popleft() if self.ahead else next(self.batches)


class Training(RuleBasedStateMachine):
    """A job whose ranks are lost, join and resume at any moment."""

    @initialize(
        length=st.integers(0, 60), batch_size=st.integers(1, 4), ranks=st.integers(1, 5), accumulate=st.integers(1, 3),
        seed=st.integers(0, 2**70), shuffle=st.booleans(), drop_last=st.booleans(),
    )  # fmt: skip
    def begin(
        self,
        length: int,
        batch_size: int,
        ranks: int,
        accumulate: int,
        seed: int,
        shuffle: bool,
        drop_last: bool,
    ) -> None:
        self.length, self.accumulate = length, accumulate
        self.fixed: dict[str, Any] = {"seed": seed, "shuffle": shuffle, "drop_last": drop_last}
        self.start(ranks, batch_size)
        self.save()

    def start(self, ranks: int, batch_size: int) -> None:
        self.workers = {s.rank: Worker(s, []) for s in group(self.length, ranks, batch_size, **self.fixed)}
        self.batch_size, self.membership = batch_size, 0

    def regroup(self, members: list[int]) -> None:
        """As survivors do, with those that join."""
        known = {rank: worker.sampler.cursor for rank, worker in self.workers.items()}
        agreement = agreed(known, self.accumulate)
        trained = self.workers[agreement.holders[0]].trained
        self.membership += 1
        for rank in members:
            if rank not in self.workers:
                sampler = ElasticSampler(
                    self.length, rank=rank, ranks=[rank], batch_size=self.batch_size, **self.fixed
                )
                self.workers[rank] = Worker(sampler, [])
            self.workers[rank].sampler.regroup(members, self.membership, agreement.cursor)
            self.workers[rank].trained = list(trained)
            self.workers[rank].begin()

    def reduce(self) -> tuple[int, list[int]]:
        """Every member draws; the steps, and what all have together."""
        cursor = self.any().sampler.cursor
        assert all(worker.sampler.cursor == cursor for worker in self.workers.values())
        steps = min(self.accumulate, len(self.any().sampler))
        parts = [[self.workers[rank].next() for rank in cursor.members] for _ in range(steps)]
        for number, step in enumerate(parts):
            assert sum(map(len, step)) == self.any().sampler.global_batch_of(cursor.steps_done + number) > 0
            assert max(map(len, step)) - min(map(len, step)) <= 1
        order = cursor.deck.order(cursor.epoch)[cursor.position : cursor.after(steps).position].tolist()
        assert list(chain.from_iterable(chain.from_iterable(parts))) == order
        return steps, order

    def any(self) -> Worker:
        return next(iter(self.workers.values()))

    def turn(self, worker: Worker) -> None:
        """The epoch's end, at one rank: each entry once, or all but the last few."""
        own = worker.sampler.cursor
        assert len(set(worker.trained)) == len(worker.trained)
        missing = set(range(self.length)) - set(worker.trained)
        assert len(missing) < self.batch_size * len(own.members) if own.deck.drop_last else not missing
        worker.sampler.set_epoch(own.epoch + 1)
        worker.trained = []
        worker.begin()

    def step(self, who: set[int]) -> None:
        """One step, of which these see the result."""
        if not len(self.any().sampler):
            for rank in who:
                self.turn(self.workers[rank])
            return
        steps, together = self.reduce()
        for rank in who:
            self.workers[rank].sampler.confirm(steps)
            self.workers[rank].trained += together

    @rule(times=st.integers(1, 6))
    def steps(self, times: int) -> None:
        for _ in range(times):
            self.step(set(self.workers))

    @rule(data=st.data(), batches=st.integers(1, 4))
    def prefetch(self, data: st.DataObject, batches: int) -> None:
        worker = self.workers[data.draw(st.sampled_from(sorted(self.workers)))]
        worker.ahead.extend(islice(worker.batches, batches))

    @precondition(lambda self: len(self.workers) > 1)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        some = st.sets(st.sampled_from(sorted(self.workers)))
        self.step(data.draw(some))
        survivors = sorted(set(self.workers) - data.draw(some)) or [min(self.workers)]
        self.workers = {rank: self.workers[rank] for rank in survivors}
        self.regroup(data.draw(st.permutations(survivors)))

    @precondition(lambda self: len(self.workers) < 6)
    @rule(joiners=st.sets(st.integers(0, 20), min_size=1, max_size=2))
    def join(self, joiners: set[int]) -> None:
        self.regroup(sorted(set(self.workers) | joiners))

    @rule()
    def save(self) -> None:
        self.saved = json.dumps(self.any().sampler.state_dict()), list(self.any().trained)

    @rule(ranks=st.integers(1, 5), batch_size=st.integers(1, 4))
    def resume(self, ranks: int, batch_size: int) -> None:
        state, trained = self.saved
        self.start(ranks, batch_size)
        for worker in self.workers.values():
            worker.sampler.load_state_dict(json.loads(state))
            worker.trained = list(trained)

    def teardown(self) -> None:
        if hasattr(self, "workers"):
            while len(self.any().sampler):
                self.step(set(self.workers))
            self.step(set(self.workers))  # which looks at what was trained on


TestTraining = Training.TestCase
TestTraining.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


def test_a_state_goes_on_in_another_number_of_ranks() -> None:
    samplers = group(100, ranks=4, batch_size=8, seed=3)
    done = [next(iter(sampler)) for sampler in samplers]
    samplers[0].confirm()
    state = json.loads(json.dumps(samplers[0].state_dict()))
    resumed = group(100, ranks=3, batch_size=5, seed=3)
    for sampler in resumed:
        sampler.load_state_dict(state)
        sampler.set_epoch(0)  # as a loop over epochs says again
    assert [len(sampler) for sampler in resumed] == [5, 5, 5]  # 68 entries, 15 at a time
    later = chain.from_iterable(chain.from_iterable(resumed))
    assert sorted(chain(chain.from_iterable(done), later)) == list(range(100))
    assert resumed[2].state_dict() == state


class Numbers(Dataset[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, entry: int) -> int:
        return entry


def loader_of(sampler: ElasticSampler, persistent: bool) -> DataLoader[Any]:
    return DataLoader(
        Numbers(sampler.cursor.deck.length), batch_sampler=sampler, collate_fn=EmptyAsNone(), num_workers=2,
        prefetch_factor=2, persistent_workers=persistent, multiprocessing_context="fork",
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_with_workers_that_are_ahead(persistent: bool) -> None:
    samplers = group(31, ranks=2, batch_size=3, seed=1)
    loaders = [loader_of(sampler, persistent) for sampler in samplers]
    batches = [iter(loader) for loader in loaders]
    trained: list[int] = []
    for _ in range(2):
        for sampler, its in zip(samplers, batches, strict=True):
            trained += next(its).tolist()
            sampler.confirm()
    assert samplers[0]._drawn > samplers[0].steps_done == 2  # what the workers have is not trained on
    samplers[0].regroup([0], 1)  # rank 1 is lost
    with pytest.raises(InputError, match="dealt out anew"):
        list(batches[0])
    assert len(loaders[0]) == 7
    for batch in loaders[0]:
        trained += batch.tolist()
        samplers[0].confirm()
    assert sorted(trained) == list(range(31))
    samplers[0].set_epoch(1)
    assert sorted(torch.cat(list(loaders[0])).tolist()) == list(range(31))


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_loader_gives_none_for_an_empty_batch() -> None:
    sampler = ElasticSampler(Numbers(4), rank=2, ranks=3, batch_size=1, shuffle=False)
    first, second = loader_of(sampler, persistent=False)
    assert first.tolist() == [2]
    assert second is None
    assert EmptyAsNone(len)([5, 6]) == 2


def gradient(weights: torch.Tensor, entries: list[int], scale: float) -> torch.Tensor:
    """Of the scaled sum of losses, zeros for no entry."""
    weights = weights.detach().requires_grad_()
    x = torch.arange(40.0, dtype=torch.float64).reshape(20, 2)[entries]
    (scale * (torch.sin(x @ weights) ** 2).sum()).backward()
    assert weights.grad is not None
    return weights.grad


def test_weighted_gradients_give_the_mean_over_the_global_batch() -> None:
    samplers = group(20, ranks=4, batch_size=3)
    weights = torch.tensor([0.3, -0.2], dtype=torch.float64)
    sizes = []
    for step, parts in enumerate(zip(*samplers, strict=True)):
        together = samplers[0].global_batch_of(step)
        mean = sum(gradient(weights, part, 4 / together) for part in parts) / 4
        assert torch.allclose(mean, gradient(weights, list(chain(*parts)), 1 / together), rtol=1e-12)
        sizes.append([len(part) for part in parts])
    assert sizes == [[3, 3, 3, 3], [2, 2, 2, 2]]
    assert gradient(weights, [], 1.0).tolist() == [0.0, 0.0]


def test_what_is_confirmed_was_drawn_once() -> None:
    sampler = ElasticSampler(10, rank=0, ranks=1, batch_size=2)
    with pytest.raises(InputError, match="1 steps are confirmed where 0 were drawn"):
        sampler.confirm()
    next(iter(sampler))
    sampler.confirm()
    with pytest.raises(InputError, match="where 0 were drawn"):
        sampler.confirm()
    with pytest.raises(InputError, match="steps is 0"):
        sampler.confirm(0)
    assert sampler.steps_done == 1


def test_a_step_that_is_confirmed_or_behind_the_end_has_no_size() -> None:
    sampler = ElasticSampler(5, rank=0, ranks=1, batch_size=2)
    assert [sampler.global_batch_of(step) for step in (None, 0, 1, 2)] == [2, 2, 2, 1]
    with pytest.raises(InputError, match="step 3 is not among the steps from 0 on, of which 3 are left"):
        sampler.global_batch_of(3)
    next(iter(sampler))
    sampler.confirm()
    with pytest.raises(InputError, match="step 0 is not among the steps from 1 on"):
        sampler.global_batch_of(0)


def test_an_epoch_is_not_left_by_accident() -> None:
    sampler = ElasticSampler(5, rank=0, ranks=1, batch_size=2)
    sampler.set_epoch(3)  # nothing was drawn
    list(sampler)
    with pytest.raises(InputError, match="of epoch 3, 5 entries are not confirmed"):
        sampler.set_epoch(4)
    sampler.set_epoch(4, leave_rest=True)
    assert sampler.cursor.place == (4, 0)
    assert list(chain(*sampler)) == sampler.cursor.deck.order(4).tolist()


def test_impossible_values_are_refused() -> None:
    good: dict[str, Any] = {"rank": 0, "ranks": 2, "batch_size": 2}
    for wrong, said in (
        ({"rank": 2}, r"rank 2 is not among the members \(0, 1\)"),
        ({"ranks": 0}, "ranks is 0"),
        ({"ranks": []}, r"the members are \(\)"),
        ({"ranks": [0, 0]}, r"the members are \(0, 0\)"),
        ({"ranks": [0, -1]}, "a member is -1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 2.5}, "batch_size is 2.5"),
        ({"seed": -1}, "seed is -1"),
        ({"membership_epoch": -1}, "membership_epoch is -1"),
    ):
        with pytest.raises(InputError, match=said):
            ElasticSampler(10, **{**good, **wrong})
    with pytest.raises(InputError, match="the length of the data set is -1"):
        ElasticSampler(-1, **good)
    with pytest.raises(InputError, match="a tuple_iterator has no length"):
        ElasticSampler(iter(()), **good)  # type: ignore[arg-type]


def test_numpys_numbers_are_pythons_in_a_state() -> None:
    sampler = ElasticSampler(
        np.int64(9), rank=0, ranks=[np.int64(0)], batch_size=np.int64(2), seed=np.int64(3)
    )
    sampler.set_epoch(np.int64(1))
    next(iter(sampler))
    sampler.confirm(np.int64(1))
    assert json.loads(json.dumps(sampler.state_dict())) == sampler.state_dict()
    assert type(sampler.members[0]) is int


def test_memberships_and_cursors_only_go_forwards() -> None:
    sampler = ElasticSampler(10, rank=0, ranks=2, batch_size=2, membership_epoch=4)
    begin = sampler.cursor
    next(iter(sampler))
    sampler.confirm()
    with pytest.raises(InputError, match="rank 0 is not among"):
        sampler.regroup([1], 5)
    with pytest.raises(InputError, match=r"membership 4 of \(0,\) came after 4 of \(0, 1\)"):
        sampler.regroup([0], 4)
    with pytest.raises(InputError, match="membership 3"):
        sampler.regroup([0, 1], 3)
    with pytest.raises(InputError, match="stands at entry 0 of epoch 0, but entry 4 of 0 is confirmed"):
        sampler.regroup([0], 5, begin)
    with pytest.raises(InputError, match=r"the cursor is of Deck\(length=11"):
        sampler.regroup([0], 5, Cursor(Deck(11, 2), (0,), position=4))
    assert sampler.cursor == begin.after()  # nothing of it happened
    sampler.regroup([0], 5)
    next(iter(sampler))
    sampler.regroup([0], 5)
    with pytest.raises(InputError, match="where 0 were drawn"):
        sampler.confirm()
    assert list(sampler) == [sampler.cursor.deck.order(0)[n : n + 2].tolist() for n in (4, 6, 8)]


def test_states_of_another_order_are_refused() -> None:
    state = ElasticSampler(10, rank=0, ranks=1, batch_size=2).state_dict()
    for other in ({"length": 11}, {"seed": 1}, {"shuffle": False}):
        name = next(iter(other))
        with pytest.raises(InputError, match=f"saved with {name} "):
            ElasticSampler(10, rank=0, ranks=1, batch_size=2).load_state_dict({**state, **other})
    with pytest.raises(InputError, match="schema None"):
        ElasticSampler(10, rank=0, ranks=1, batch_size=2).load_state_dict({"epoch": 1})
    with pytest.raises(InputError, match="position 11 lies behind the 10 entries"):
        ElasticSampler(10, rank=0, ranks=1, batch_size=2).load_state_dict({**state, "position": 11})
    with pytest.raises(InputError, match="epoch is None"):
        ElasticSampler(10, rank=0, ranks=1, batch_size=2).load_state_dict({**state, "epoch": None})


def test_cursors_travel() -> None:
    cursor = Cursor(Deck(10, 2, seed=4), (3, 1), 2, epoch=1, position=4, steps_done=1)
    assert copy.deepcopy(cursor) == cursor
    assert cursor.share(1) == slice(6, 8)


def test_what_others_repeat_and_lose() -> None:
    """Of what the module's head says of PyTorch's samplers."""
    from torch.distributed.elastic.utils.data import ElasticDistributedSampler

    data = Numbers(10)
    shares = [list(DistributedSampler(data, num_replicas=4, rank=rank)) for rank in range(4)]
    assert Counter(Counter(chain(*shares)).values()) == {1: 8, 2: 2}
    first = [list(ElasticDistributedSampler(data, num_replicas=2, rank=rank))[:2] for rank in range(2)]
    then = list(ElasticDistributedSampler(data, num_replicas=1, rank=0, start_index=4))
    seen = Counter(chain(*first, then))
    assert set(range(10)) - set(seen)
    assert max(seen.values()) > 1
