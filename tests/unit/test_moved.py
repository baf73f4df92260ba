"""Modules and names that README and guides showed under other names: whoever imports them is told the new ones."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import msgspec
import pytest

import hemiola
from hemiola._moved import MODULES, NAMES
from hemiola.core.collective.shapes import ring
from hemiola.core.events import Arrived
from hemiola.core.job import Batch, Elastic, Objective, Service
from hemiola.plan.collective.synthesis import Candidate

ALL = sorted(MODULES)
MODULE_NAMES = [(module, old, new) for module, names in NAMES.items() for old, new in names.items()]
LIVING = ("cost.prediction", "lab", "plan.problem", "plan.shares")
"""Modules that stayed where they were, with a name or more that changed."""


@pytest.mark.parametrize("old", ALL)
def test_an_old_module_says_its_new_name(old: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=re.escape(f"hemiola.{old} is now hemiola.")):
        importlib.import_module(f"hemiola.{old}")


@pytest.mark.parametrize("old", ALL)
def test_the_new_module_is_there(old: str) -> None:
    for word in re.findall(r"[\w.]+", MODULES[old]):
        if word != "and":
            importlib.import_module(f"hemiola.{word}")


@pytest.mark.parametrize(("module", "old", "new"), MODULE_NAMES)
def test_a_new_name_is_there_and_the_old_one_is_not(module: str, old: str, new: str) -> None:
    home = importlib.import_module(f"hemiola.{module}")
    assert hasattr(home, new) and old not in vars(home)


@pytest.mark.parametrize("module", LIVING)
def test_an_old_name_in_a_module_that_stayed_says_its_new_one(module: str) -> None:
    for old, new in NAMES[module].items():
        with pytest.raises(ImportError, match=f"hemiola.{module}.{old} is now hemiola.{module}.{new}"):
            getattr(importlib.import_module(f"hemiola.{module}"), old)


def test_a_name_that_never_was_is_missing_as_usual() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'hemiola\.nothing'"):
        importlib.import_module("hemiola.nothing")
    assert not hasattr(importlib.import_module("hemiola.plan.shares"), "nothing")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("import hemiola.run.elastic", "hemiola.run.elastic is now hemiola.train.elastic (State is TrainingState)"),
        ("from hemiola.run.transport import Options", "hemiola.comm.transport (Options is TransportOptions)"),
        ("import hemiola.run.elastic.roll", "hemiola.run.elastic.roll is now hemiola.train.elastic.roll"),
        ("import hemiola.run", "hemiola.run is now hemiola.comm, hemiola.profiler and hemiola.train"),
    ],
)  # fmt: skip
def test_an_import_is_told_of_the_module_it_asked_for_not_of_its_package(line: str, told: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=re.escape(told)):
        exec(line, {})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("run.calibrate.links", "profiler.calibrate.links"), ("run.elastic.keeper", "train.elastic.keeper"),
        ("run.probe", "comm.probe"), ("run.record", "profiler.trace"), ("control.web.shadow", "live.web.shadow"),
    ],
)  # fmt: skip
def test_a_module_that_is_run_says_so_too(old: str, new: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", f"hemiola.{old}"], capture_output=True, text=True, check=False
    )
    assert ran.returncode and f"hemiola.{old} is now hemiola.{new}" in ran.stderr


def test_the_old_job_is_made_still_and_says_its_new_name() -> None:
    facts = {"id": "a", "submit_s": 0.0, "gpus": 2, "duration_s": 1.0}
    with pytest.warns(DeprecationWarning, match=r"hemiola.Job\(...\) is now hemiola.batch_job"):
        job = hemiola.Job(**facts)  # type: ignore[operator]
    assert job == hemiola.batch_job(**facts)
    with pytest.warns(DeprecationWarning):
        assert isinstance(hemiola.Job(**facts, gpus_max=4), Elastic)  # type: ignore[operator]


def test_every_kind_of_job_is_a_job() -> None:
    service = Service(id="s", submit_s=0.0, gpus=1, objective=Objective(0.1))
    jobs = (hemiola.batch_job(id="a", submit_s=0.0, gpus=1, duration_s=1.0), service)
    assert all(isinstance(job, hemiola.Job) for job in jobs)
    assert not isinstance("a", hemiola.Job)
    for job in jobs:
        assert msgspec.json.decode(msgspec.json.encode(Arrived(0.0, job)), type=Arrived).job == job
    assert isinstance(jobs[0], Batch)


def test_the_old_name_of_a_candidates_schedule_works_and_says_its_new_one() -> None:
    candidate = Candidate(ring([0, 1]), 1.0)
    with pytest.warns(DeprecationWarning, match=r"Candidate.strategy is now Candidate.schedule"):
        assert candidate.strategy is candidate.schedule  # type: ignore[attr-defined]
    assert not hasattr(candidate, "nothing")
