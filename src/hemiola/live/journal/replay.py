"""A run of the journal decided once more: the same events, and what the policy says to them today."""

from __future__ import annotations

import msgspec

from hemiola.sched.loop import Gate, is_quiet
from hemiola.live.journal.encoding import DECISIONS
from hemiola.live.journal.journal import Journal
from hemiola.live.journal.records import Instant, Opening
from hemiola.simulator.cluster import SimulatedEstimates
from hemiola.core.decisions import Decision
from hemiola.cost.iteration import IterationModel
from hemiola.sched.machine import StateMachine
from hemiola.sched.policies import policy_from_text
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView
from hemiola.trace.topologies.native import read_native

__all__ = ["ReplayDifference", "ReplayResult", "replay"]

Answered = tuple[tuple[Decision, str], ...]


class ReplayDifference(msgspec.Struct, frozen=True):
    """An instant that is decided otherwise now.

    Attributes:
        written, decided: each decision with why it was refused ("" if not).
    """

    instant: int
    time_s: float
    written: Answered
    decided: Answered


class ReplayResult(msgspec.Struct, frozen=True):
    """How far a replay came.

    Attributes:
        instants, decisions: how many were the same.
        difference: the first that was not, and the last to be compared: what follows was decided on another view.
    """

    instants: int
    decisions: int
    difference: ReplayDifference | None


def replay(journal: Journal, run: int, policy: Policy | None = None) -> ReplayResult:
    """Feed a run's events to a fresh state machine and compare what is decided, to the byte.

    Ends where the journal was cut off: at an instant whose decisions were never written.

    Args:
        policy: the policy to ask; the run's own unless given.

    Raises:
        InputError: there is no such run.
        JournalError: the journal cannot be read, or holds what this version does not know.
        PolicyError: the run's policy is not known here.
    """
    record = journal.run(run)
    policy = policy or policy_from_text(record.opening.policy)
    machine = _machine(record.opening, record.began_s, f"the topology of run {run} of {journal.name}")
    gate = Gate(machine, record.opening.supported)
    instants = decisions = 0
    for instant in journal.instants(run):
        if instant.decisions is None:
            break
        decided = _decide(machine, gate, policy, instant)
        if DECISIONS.encode(decided) != DECISIONS.encode(instant.decisions):
            return ReplayResult(
                instants, decisions, ReplayDifference(instant.instant, machine.view.now, instant.decisions, decided)
            )
        instants, decisions = instants + 1, decisions + len(decided)
    return ReplayResult(instants, decisions, None)


def _machine(opening: Opening, began_s: float, where: str) -> StateMachine:
    topology = read_native(opening.topology, where)
    model = IterationModel(topology, fitted=opening.fitted)
    return StateMachine(ClusterView(topology, SimulatedEstimates(model, opening.costs), now=began_s))


def _decide(machine: StateMachine, gate: Gate, policy: Policy, instant: Instant) -> Answered:
    """As `run_loop` does; written and read back, so that 1 and 1.0 do not differ."""
    machine.apply(*instant.events)
    if not instant.events or is_quiet(instant.events):
        return ()
    return DECISIONS.decode(DECISIONS.encode(gate.decide(policy)), "a decision")
