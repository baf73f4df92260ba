"""Runs under a peer's rules, every step checked: what the tests of the peers share."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

from replays import CheckedMachine, check_run

from hemiola.core.job import Job
from hemiola.core.result import Run
from hemiola.core.topology import Topology
from hemiola.simulator.rules import semantics_by_name
from hemiola.simulator.simulate import Recording, simulate


def under(semantics: str, jobs: Sequence[Job], topology: Topology, policy: str) -> Run:
    """One run, in which everything adds up, with the state machine checked at every step."""
    with patch("hemiola.simulator.simulate.StateMachine", CheckedMachine):
        run = simulate(
            jobs,
            topology,
            [policy],
            semantics=semantics_by_name(semantics),
            recording=Recording(decisions=True),
        ).runs[0]
    check_run(run, jobs, topology)
    return run


def completion_s(run: Run) -> dict[str, float | None]:
    """Completion time of each job."""
    return {record.id: record.jct_s for record in run.records}


def stops(run: Run) -> dict[str, int]:
    """Pre-emptions of each job."""
    return {record.id: record.preemptions for record in run.records}
