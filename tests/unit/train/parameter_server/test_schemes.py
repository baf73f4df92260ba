"""The rule by which workers go on, on paper."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.core.errors import InputError
from hemiola.train.parameter_server.schemes import Clocks, PullRequest, scheme_of


@pytest.mark.parametrize(
    ("name", "bound", "pipelined", "needs"),
    [
        ("bsp", None, False, (7, 7)),  # everybody's seven updates
        ("ssp", 0, False, (7, 7)),  # is bsp, but for when gradients are applied
        ("ssp", 3, True, (6, 4)),
        ("ssp", 3, False, (7, 4)),
        ("asp", None, True, (6, 0)),
        ("asp", None, False, (7, 0)),
    ],
)
def test_what_iteration_seven_needs(name, bound, pipelined, needs):
    assert scheme_of(name, bound, None, pipelined).needs(7) == needs


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("sync", None, None), "'sync'"),
        (("ssp", None, None), "'ssp' without a bound"),
        (("bsp", 2, None), "'bsp' with a bound"),
        (("local", None, None), "'local' without a period"),
        (("asp", None, 4), "'asp' with a period"),
        (("ssp", -1, None), "bound is -1"),
        (("local", None, 0), "period is 0"),
        (("bsp", None, None, True), "'bsp' lets nobody be ahead"),
        (("ssp", 0, None, True), "'ssp' lets nobody be ahead"),
    ],
)
def test_what_cannot_be_is_named(given, words):
    with pytest.raises(InputError, match=words):
        scheme_of(*given)


def test_a_request_waits_for_ones_own_update_and_for_the_slowest():
    clocks = Clocks({0, 1}, [3, 1])
    clocks.waiting = {0: PullRequest(own=4, floor=0), 1: PullRequest(own=1, floor=2)}
    assert clocks.answerable() == []
    clocks.applied[0] = 4
    assert clocks.answerable() == [0]
    clocks.applied[1] = 2
    assert clocks.answerable() == [1]
    assert clocks.waiting == {}


def test_who_has_left_holds_nobody_up():
    present = {0, 1, 2}
    clocks = Clocks(present, [9, 2, 8])
    clocks.waiting = {0: PullRequest(own=9, floor=8)}
    assert clocks.answerable() == []
    present.discard(1)
    assert clocks.answerable() == [0]


def test_a_meeting_is_of_all_who_are_present():
    present = {0, 1, 2}
    clocks = Clocks(present, [5, 6, 0])
    clocks.waiting = {0: PullRequest(5, 0, meeting=1), 1: PullRequest(7, 0, meeting=1)}
    present.discard(2)
    assert clocks.answerable() == []
    clocks.applied[1] = 7
    assert clocks.answerable() == [0, 1]


def test_who_waits_to_meet_holds_nobody_up():
    clocks = Clocks({0, 1}, [5, 2])
    clocks.waiting = {0: PullRequest(own=5, floor=4)}
    assert clocks.answerable() == []
    clocks.waiting[1] = PullRequest(own=2, floor=0, meeting=1)
    assert clocks.answerable() == [0]
    clocks.applied[0] = 9
    clocks.waiting[0] = PullRequest(own=9, floor=0, meeting=1)
    assert clocks.answerable() == [1, 0]


def test_from_a_meeting_on_everybodys_updates_count_anew():
    scheme, clocks = scheme_of("ssp", 2, None), Clocks({0, 1}, [12, 7])
    clocks.waiting = {0: PullRequest(12, 0, meeting=1), 1: PullRequest(7, 0, meeting=1)}
    clocks.answerable()
    assert clocks.floor == 0
    assert scheme.needs(12, met=12) == (12, 0)
    assert scheme.needs(15, met=12) == (15, 1)
    clocks.waiting = {0: PullRequest(*scheme.needs(15, met=12))}
    clocks.applied = [15, 7]
    assert clocks.answerable() == []
    clocks.applied = [15, 8]
    assert clocks.answerable() == [0]


@given(st.integers(0, 4) | st.none(), st.booleans(), st.lists(st.integers(0, 2), max_size=200))
def test_nobody_is_ever_further_ahead_than_the_bound(bound, pipelined, turns):
    """Workers get their turns in any order; each begins an iteration only when the rule lets it."""
    scheme = scheme_of("asp" if bound is None else "ssp", bound, None, pipelined and bound != 0)
    clocks = Clocks({0, 1, 2}, [0, 0, 0])
    known = [(0, 0)] * 3
    for worker in turns:
        iteration = clocks.applied[worker]
        own, floor = scheme.needs(iteration)
        if known[worker][0] < own or known[worker][1] < floor:
            clocks.waiting[worker] = PullRequest(own, floor)
            for one in clocks.answerable():
                known[one] = (clocks.applied[one], clocks.floor)
        if known[worker][0] >= own and known[worker][1] >= floor:
            assert iteration - min(clocks.applied) <= (math.inf if bound is None else bound)
            clocks.applied[worker] += 1
    if bound is None:
        assert sum(clocks.applied) == len(turns)
