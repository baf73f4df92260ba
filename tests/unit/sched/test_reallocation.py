"""Several changes at once: all or none, and what a swap leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replays import CheckedMachine, cluster, job, replay

from hemiola.core.decisions import Change, Decision, Move, Placement, Reallocate, Resize, Start, Stop
from hemiola.core.events import Arrived, Blocked
from hemiola.core.job import Configuration
from hemiola.sched.job_state import RUNNING
from hemiola.sched.machine import StateMachine
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView

HOSTS, GPUS = 3, 4
FULL, HALF = (1 << GPUS) - 1, 0b11


def at(host: int, mask: int = FULL) -> Placement:
    return Placement((host,), (mask,))


def two_running() -> StateMachine:
    """Two jobs that fill a host each; a third waits, and one host is free."""
    machine = CheckedMachine(ClusterView(cluster([GPUS] * HOSTS), estimates=None))  # type: ignore[arg-type]
    machine.apply(*(Arrived(0.0, job(name, 0.0, GPUS, 100.0)) for name in "abw"))
    assert not machine.execute(Start("a", at(0), ""))
    assert not machine.execute(Start("b", at(1), ""))
    return machine


def everything(view: ClusterView) -> Any:
    """All that a decision could change."""
    states = [msgspec.structs.astuple(state) for state in view.jobs.values()]
    inventory = view.inventory
    books = (inventory.masks, inventory.counts, inventory.free, inventory.blocked, inventory.owed)
    spans = (inventory.releases, inventory.released_gpus, view.sizes, view.wanted_gpus)
    return repr((states, list(view.waiting), list(view.running), books, spans))


def test_two_jobs_swap_places_which_neither_could_alone() -> None:
    machine = two_running()
    assert "occupied" in machine.execute(Move("a", at(1), ""))
    swap = Reallocate((Move("a", at(1), "swap"), Move("b", at(0), "swap")), "swap")
    assert machine.execute(swap) == ""
    jobs = machine.view.jobs
    assert (jobs["a"].placement, jobs["b"].placement) == (at(1), at(0))
    assert (jobs["a"].migrations, jobs["a"].preemptions) == (1, 0)


def test_one_stops_for_another_that_starts() -> None:
    machine = two_running()
    assert machine.execute(Reallocate((Start("w", at(0), ""), Stop("a", "")), "")) == ""
    assert machine.view.jobs["w"].placement == at(0) and "a" in machine.view.waiting


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ((), "changes nothing"),
        ((Stop("a", ""), Start("a", at(2), "")), "'a' twice"),
        ((Stop("a", ""), Stop("nobody", "")), "nobody: no job"),
        ((Stop("a", ""), Stop("w", "")), "w: it is not running"),
        ((Stop("a", ""), Start("b", at(2), "")), "b: it is not waiting"),
        ((Stop("a", ""), Start("w", at(1), "")), "w: some of these GPUs are occupied"),
        ((Stop("a", ""), Move("b", at(0, HALF), "")), "b: it wants 4 GPUs"),
        ((Stop("a", ""), Resize("b", at(2), "")), "b: it is not elastic"),
        ((Move("a", at(2), ""), Start("w", at(2), "")), "w: some of these GPUs are occupied"),
        ((Move("a", at(9), ""), Stop("b", "")), "a: some of these GPUs are occupied, down or not there"),
    ],
)
def test_if_one_cannot_be_none_is(changes: tuple[Change, ...], why: str) -> None:
    machine = two_running()
    before = everything(machine.view)
    refused = machine.execute(Reallocate(changes, ""))
    assert why in refused
    assert everything(machine.view) == before


def test_what_is_no_change_is_refused() -> None:
    machine = two_running()
    whole = Reallocate((Reallocate((Stop("a", ""),), ""),), "")  # type: ignore[arg-type]
    assert "no Start, Stop, Move or Resize" in machine.execute(whole)


def test_what_is_owed_of_a_host_is_no_room_for_the_others() -> None:
    machine = two_running()
    machine.apply(Blocked(1.0, 0, GPUS))
    before = everything(machine.view)
    assert "occupied" in machine.execute(Reallocate((Stop("a", ""), Start("w", at(0), "")), ""))
    assert everything(machine.view) == before


PLACES = st.builds(
    lambda pairs: Placement(tuple(pairs), tuple(pairs.values())),
    st.dictionaries(st.integers(-1, HOSTS), st.integers(0, FULL), max_size=2),
)
IDS = st.sampled_from(["a", "b", "c", "d", "nobody"])
CHANGES = st.one_of(
    st.builds(Stop, IDS, st.just("")),
    *(st.builds(kind, IDS, PLACES, st.just("")) for kind in (Start, Move, Resize)),
)


def oracle(view: ClusterView, changes: tuple[Change, ...]) -> bool:
    """Whether all of it can be, by counting every GPU."""
    ids = [change.job_id for change in changes]
    if not changes or len(set(ids)) < len(ids) or not view.jobs.keys() >= set(ids):
        return False
    taken: dict[tuple[int, int], str] = {}
    for state in view.running.values():
        for change in changes:
            if change.job_id == state.id:
                break
        else:
            assert state.placement is not None
            taken |= dict.fromkeys(state.placement.ranks(), state.id)
    for change in changes:
        state = view.jobs[change.job_id]
        if (state.status == RUNNING) is isinstance(change, Start):
            return False
        if isinstance(change, Resize) and not state.elastic:
            return False
        if isinstance(change, Stop):
            continue
        ranks = change.placement.ranks()
        if len(ranks) not in state.job.sizes or 0 in change.placement.masks:
            return False
        if any(not 0 <= host < HOSTS or rank in taken for rank in ranks for host in rank[:1]):
            return False
        taken |= dict.fromkeys(ranks, state.id)
    return True


@given(starts=st.lists(CHANGES, max_size=6), wholes=st.lists(st.lists(CHANGES, max_size=4), max_size=4))
def test_all_or_none_as_counted_by_hand(starts: list[Decision], wholes: list[list[Change]]) -> None:
    machine = CheckedMachine(ClusterView(cluster([GPUS] * HOSTS), estimates=None))  # type: ignore[arg-type]
    sizes = {"a": {"gpus_min": 1, "gpus_max": 6}, "b": {}, "c": {}, "d": {"gpus_max": 4}}
    jobs = [job(name, 0.0, 2, 100.0, **more) for name, more in sizes.items()]
    machine.apply(*(Arrived(0.0, one) for one in jobs))
    for decision in starts:
        machine.execute(decision)
    for changes in wholes:
        before, can = everything(machine.view), oracle(machine.view, tuple(changes))
        refused = machine.execute(Reallocate(tuple(changes), ""))
        assert (not refused) is can, refused
        if refused:
            assert everything(machine.view) == before
        for change in () if refused else changes:
            assert machine.view.jobs[change.job_id].placement == getattr(change, "placement", None)


class Swaps(Policy):
    """Starts two jobs and has them swap places at the first arrival after that."""

    name = "swaps"

    def decide(self, view: ClusterView) -> Iterator[Decision]:
        if view.now == 0:
            yield Start("a", at(0), "")
            yield Start("b", at(1), "")
        elif "w" in view.waiting and {"a", "b"} <= view.running.keys():
            yield Reallocate((Move("a", at(1), ""), Move("b", at(0), "")), "swap")
        elif "w" in view.waiting and not view.running:
            yield Start("w", at(0), "")


def test_a_simulated_swap_waits_until_both_have_saved() -> None:
    jobs = [job("a", 0.0, GPUS, 100.0), job("b", 0.0, GPUS, 100.0), job("w", 10.0, GPUS, 50.0)]
    from hemiola.simulator.cluster import Costs

    run = replay(jobs, cluster([GPUS] * 2), Swaps(), costs=Costs(checkpoint_s=5.0, restore_s=25.0))
    found = {record.id: record.finish_s for record in run.records}
    assert found == {"a": 130.0, "b": 130.0, "w": 180.0}, "10 s, then 5 to save and 25 to load, then 90 more"


CONFIGURATIONS = (Configuration(2, 32), Configuration(4, 16, 2))


def configured() -> StateMachine:
    machine = CheckedMachine(ClusterView(cluster([GPUS] * HOSTS), estimates=None))  # type: ignore[arg-type]
    one = job("a", 0.0, 2, 100.0, gpus_max=4, configurations=CONFIGURATIONS)
    machine.apply(Arrived(0.0, one), Arrived(0.0, job("b", 0.0, 2, 100.0)))
    return machine


def test_a_job_is_told_how_to_split_its_batch() -> None:
    machine = configured()
    state = machine.view.jobs["a"]
    assert machine.execute(Start("a", at(0, HALF), "", CONFIGURATIONS[0])) == ""
    assert state.configuration == CONFIGURATIONS[0]
    assert machine.execute(Move("a", at(1, HALF), "")) == ""
    assert state.configuration == CONFIGURATIONS[0], "it moved as it was"
    assert machine.execute(Resize("a", at(1), "", CONFIGURATIONS[1])) == ""
    assert state.configuration == CONFIGURATIONS[1] and state.configuration.batch == 128
    assert machine.execute(Stop("a", "")) == "" and state.configuration is None


@pytest.mark.parametrize(
    ("decision", "why"),
    [
        (Start("a", at(0), "", CONFIGURATIONS[0]), "is for 2 GPUs, not for 4"),
        (Start("a", at(0, HALF), "", Configuration(2, 64)), "none of its configurations"),
        (Start("b", at(0, HALF), "", CONFIGURATIONS[0]), "none of its configurations"),
        (Reallocate((Start("a", at(0), "", CONFIGURATIONS[0]),), ""), "a: the configuration is for 2"),
    ],
)
def test_a_batch_that_the_job_cannot_split_so(decision: Decision, why: str) -> None:
    machine = configured()
    before = everything(machine.view)
    assert why in machine.execute(decision)
    assert everything(machine.view) == before
