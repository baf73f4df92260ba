"""Policies by name and parameter, and a policy from a file that this project has never seen."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from replays import check_run, cluster, job, replay, times

from hemiola.core.errors import PolicyError
from hemiola.sched.placement import BestFit, Random, Yarn
from hemiola.sched.policies import POLICIES, parameters, policy_from_text, policy_text
from hemiola.sched.policies.fifo import Fifo
from hemiola.sched.policies.tiresias import Tiresias

OUTSIDE = '''
from dataclasses import dataclass
from hemiola.core.decisions import Start
from hemiola.sched.placement import Rule, TierAware, find
from hemiola.sched.policy import Policy

@dataclass(frozen=True)
class LastFirst(Policy):
    """Whoever came last goes first."""

    placement: Rule = TierAware()
    patience_s: float = 0.0
    most: int = 99
    shout: bool = False
    greeting: str = "hello"

    def decide(self, view):
        for job in reversed(view.waiting.copy().values()):
            placement = find(view.inventory, job, self.placement)
            if placement is not None:
                yield Start(job.id, placement, self.greeting)

class Plain:
    def decide(self, view):
        return ()

class Needy(Policy):
    def __init__(self, what):
        self.what = what
    def decide(self, view):
        return ()

def function(view):
    return ()
'''


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package of someone else's on the path."""
    package = tmp_path / "someones_lab"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "ideas.py").write_text(OUTSIDE)
    (package / "broken.py").write_text("import no_such_module_anywhere\n")
    (package / "exits.py").write_text("raise SystemExit(0)\n")
    (package / "typo.py").write_text("import math\nmath.sqroot(2)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "someones_lab.ideas"
    for name in [name for name in sys.modules if name.startswith("someones_lab")]:
        del sys.modules[name]


def test_a_policy_from_outside_plays_like_any_other(outside: str) -> None:
    topology = cluster([4])
    jobs = [job("a", 0, 4, 10), job("b", 1, 4, 5), job("c", 2, 4, 3)]
    run = replay(jobs, topology, f"{outside}:LastFirst,placement=best-fit")
    check_run(run, jobs, topology)
    assert times(run) == {"a": (0, 10), "b": (13, 18), "c": (10, 13)}
    assert {entry.decision.reason for entry in run.decisions} == {"hello"}
    assert run.policy == f"{outside}:LastFirst,placement=best-fit"


def test_its_parameters_are_read_by_their_types(outside: str) -> None:
    text = f"{outside}:LastFirst,placement=yarn,patience_s=2.5,most=3,shout=yes,greeting=hi there"
    policy = policy_from_text(text)
    fields = {name: getattr(policy, name) for name in parameters(type(policy))}
    assert fields == {
        "placement": Yarn(), "patience_s": 2.5, "most": 3, "shout": True, "greeting": "hi there",
    }  # fmt: skip
    assert policy_from_text(f"{outside}:LastFirst,shout=off").shout is False  # type: ignore[attr-defined]
    assert policy_from_text(f"{outside}:Plain").decide(None) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{0}:Nothing", "no 'Nothing'"),
        ("{0}", "no ''"),
        ("{0}:function", "no method decide"),
        ("{0}:LastFirst,colour=red", "no parameter is called 'colour'"),
        ("{0}:LastFirst,most=2.5", "most='2.5' is not a int"),
        ("{0}:LastFirst,patience_s=soon", "patience_s='soon' is not a float"),
        ("{0}:LastFirst,shout=maybe", "shout='maybe' is not a bool"),
        ("{0}:LastFirst,most", "'most' has no value"),
        ("{0}:LastFirst,placement=nearest", "no placement is called 'nearest'"),
        ("{0}:LastFirst,most=1,most=2", "most"),
        ("{0}:Needy", "what"),
        ("someones_lab.broken:Any", "no_such_module_anywhere"),
        ("someones_lab.absent:Any", "someones_lab.absent"),
        ("someones_lab.exits:Any", "it ends the program"),
        ("someones_lab.typo:Any", "AttributeError: module 'math' has no attribute 'sqroot'"),
        ("nobodys_lab.ideas:Any", "nobodys_lab"),
        ("nobodys_lab:Any", "nobodys_lab"),
        ("nobodys_lab.py:Any", "nobodys_lab.py"),
        ("./my_policy.py:MyPolicy", "there is no file './my_policy.py'"),
        (".:MyPolicy", "'.' is no module"),
        (":MyPolicy", "'' is no module"),
    ],
)
def test_whatever_is_wrong_with_it_is_named(outside: str, text: str, what: str) -> None:
    with pytest.raises(PolicyError) as caught:
        policy_from_text(text.format(outside))
    assert what in caught.value.what
    assert caught.value.remedy


def test_known_policies_by_name_and_parameter() -> None:
    assert policy_from_text("fifo") == Fifo()
    assert policy_from_text("fifo:placement=best-fit") == Fifo(BestFit())
    drawn, text = Fifo(Random(7)), "fifo:placement=random:seed=7"
    assert policy_from_text(text) == drawn and policy_text(drawn) == text
    assert policy_from_text("tiresias:thresholds=5/10,promote=0") == Tiresias(thresholds="5/10", promote=0)
    for name, policy in POLICIES.items():
        assert type(policy_from_text(name)) is policy


def test_a_policy_of_a_file_needs_no_path_of_modules(tmp_path: Path) -> None:
    (tmp_path / "my_policy.py").write_text(OUTSIDE)
    text = f"{tmp_path}/my_policy.py:LastFirst"
    policy = policy_from_text(f"{text},most=3")
    assert type(policy) is type(policy_from_text(text))  # loaded once
    assert policy.most == 3  # type: ignore[attr-defined]


def test_a_near_miss_is_guessed() -> None:
    with pytest.raises(PolicyError) as caught:
        policy_from_text("tiresia:promote=0")
    assert "did you mean 'tiresias'?" in caught.value.remedy


@pytest.mark.parametrize("text", ["fifoo", "fifoo:placement=yarn", "", "FIFO", " fifo"])
def test_an_unknown_name_is_answered_with_the_known_ones(text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        policy_from_text(text)
    assert all(name in caught.value.remedy for name in POLICIES)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_an_unknown_parameter_is_answered_with_the_known_ones(name: str) -> None:
    with pytest.raises(PolicyError) as caught:
        policy_from_text(f"{name}:colour=red")
    assert "'colour'" in caught.value.what
    assert all(known in caught.value.remedy for known in parameters(POLICIES[name]))


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_parameter_refuses_what_is_no_value_of_its_type(name: str) -> None:
    for parameter, field in parameters(POLICIES[name]).items():
        if field.type in ("float", "int", "bool", "Rule"):
            with pytest.raises(PolicyError, match=f"{parameter}|placement"):
                policy_from_text(f"{name}:{parameter}=certainly-not")


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("value", ["nan", "-1", "inf", "-inf"])
def test_no_parameter_that_is_a_number_may_be_nan_or_negative(name: str, value: str) -> None:
    """Where such a value is accepted it must at least be finite sense: a run with it ends."""
    for parameter, field in parameters(POLICIES[name]).items():
        if field.type != "float":
            continue
        try:
            policy = policy_from_text(f"{name}:{parameter}={value}")
        except PolicyError:
            continue
        assert value != "nan", f"{name}:{parameter}=nan was accepted"
        jobs = [job("a", 0, 4, 100), job("b", 1, 4, 10), job("c", 2, 2, 30)]
        run = replay(jobs, cluster([4]), policy)
        check_run(run, jobs, cluster([4]))
        assert {r.status for r in run.records} == {"finished"}, f"{name}:{parameter}={value}"
