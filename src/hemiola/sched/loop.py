"""The seam between the loop and an engine, and the loop itself.

The same loop runs a simulation and a live cluster: only the driver differs, and nothing above it
asks which one it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence, Set

import msgspec

from hemiola.core.decisions import (
    JOB_KINDS,
    Align,
    Decision,
    Lend,
    Move,
    Pace,
    Reallocate,
    Reclaim,
    Resize,
    Scale,
    Start,
    Stop,
    WakeAt,
    needs,
)
from hemiola.core.errors import PolicyError
from hemiola.core.events import Event, Measured, Profiled, Timer, Undone
from hemiola.core.job import Configuration
from hemiola.sched.machine import StateMachine, no_decision
from hemiola.sched.policy import Policy

__all__ = ["DecisionGate", "Driver", "cannot", "is_quiet", "missing", "run_loop", "why_not"]

QUIET = frozenset({Measured, Profiled, Undone})
"""An instant of these alone asks for no decision: no GPU is wanted or free that was not before."""
IDLE = QUIET | {Timer}
"""What a policy can bring about for ever without getting on; of all else there is an end."""
INSTANTS_WITHOUT_TIME = 10_000
DECISIONS_PER_INSTANT = 100_000


class Driver(ABC):
    """Hands on one engine.

    Attributes:
        supports: the kinds of decision that it can carry out, and `Configuration` where it can tell jobs how to split their
            batch; the loop refuses all others, with the reason. A driver around another one supports what that one does.
    """

    supports: Set[type] = JOB_KINDS

    @abstractmethod
    def events(self) -> Iterator[list[Event]]:
        """What happened, one list per instant, until there is nothing left to wait for."""

    @abstractmethod
    def execute(self, decision: Decision) -> None:
        """Carry out a decision that it supports, and that the state machine has accepted."""

    @abstractmethod
    def render(self, decision: Decision) -> str:
        """The exact request that `execute` would make, for people to read; of what it does not support, why not."""


def cannot(decision: Decision) -> str:
    """Why an engine without the means for such a decision refuses it."""
    match decision:
        case Start():
            return "this engine cannot start jobs: it decides by itself when they run"
        case Stop():
            return "this engine cannot stop jobs: what runs there runs to its end"
        case Move():
            return "this engine cannot move jobs: they end where they began"
        case Resize():
            return "this engine cannot resize jobs: they keep the number of GPUs that they began with"
        case Pace():
            return "this engine cannot pace jobs: it has no way to set a job's share of the network"
        case WakeAt():
            return "this engine cannot wake policies: it has no timers"
        case Align():
            return "this engine cannot align jobs: it has no way to shift when a job sends"
        case Scale():
            return "this engine cannot scale services: it runs none"
        case Lend():
            return "this engine cannot lend hosts: it knows no virtual clusters"
        case Reclaim():
            return "this engine cannot reclaim hosts: it knows no virtual clusters"
        case Reallocate():
            return "this engine cannot reallocate: it has no way to change several jobs at once"
        case _:
            raise no_decision(decision)


NO_CONFIGURATION = "this engine cannot configure jobs: it has no way to tell a job how to split its batch"


def missing(decision: Decision, supports: Set[type]) -> type | None:
    """What an engine that supports these lacks for a decision: a kind, or `Configuration`; None for nothing."""
    kind = type(decision)
    if kind not in supports:
        return kind
    if kind is Start or kind is Resize:
        return None if decision.configuration is None or Configuration in supports else Configuration  # type: ignore[union-attr]
    if kind is not Reallocate:
        return None
    return next((need for need in needs(decision) if need not in supports), None)


def why_not(decision: Decision, supports: Set[type]) -> str:
    """Why an engine that supports these refuses a decision; "" if it does not."""
    lacks = missing(decision, supports)
    if lacks is None:
        return ""
    if lacks is Configuration:
        return NO_CONFIGURATION
    parts = decision.changes if isinstance(decision, Reallocate) else ()
    return cannot(next((part for part in parts if type(part) is lacks), decision))


class DecisionGate:
    """Lets through to the state machine what the engine supports, and refuses the rest.

    A refusal tells nothing new when the policy asks the same of the same job again, as some do at every event: it is
    recorded once.

    Args:
        supports: the kinds of decision that the engine can carry out.
    """

    def __init__(self, machine: StateMachine, supports: Set[type]) -> None:
        self._machine, self._supports = machine, supports
        self._last: dict[tuple[type, str], Decision] = {}

    def is_told(self, decision: Decision) -> bool:
        """Whether the engine supports no such decision, and that was the answer to the same one the last time, too."""
        lacks = missing(decision, self._supports)
        if lacks is None or lacks not in self._machine.view.cannot:
            return False
        return self._last.get((type(decision), decision.job_id)) == _without_reason(decision)

    def execute(self, decision: Decision) -> str:
        """Have the state machine carry it out; return "" or why it was refused."""
        lacks = missing(decision, self._supports)
        if lacks is None:
            return self._machine.execute(decision)
        why = why_not(decision, self._supports)
        self._last[type(decision), decision.job_id] = _without_reason(decision)
        return self._machine.refuse(decision, lacks, why)

    def decide(self, policy: Policy) -> tuple[tuple[Decision, str], ...]:
        """What a policy decides now, each carried out or refused before the next, as `run_loop` records it."""
        return tuple(
            (decision, self.execute(decision))
            for decision in policy.decide(self._machine.view)
            if not self.is_told(decision)
        )


def _without_reason(decision: Decision) -> Decision:
    return msgspec.structs.replace(decision, reason="")


def is_quiet(events: Sequence[Event]) -> bool:
    """Whether an instant asks for no decision."""
    return type(events[-1]) in QUIET and QUIET.issuperset(map(type, events))


def run_loop(
    driver: Driver,
    machine: StateMachine,
    policy: Policy,
    note: Callable[[Decision, str], None] | None = None,
) -> tuple[int, int]:
    """Events in, decisions out, until the driver has no more events.

    Args:
        note: called before each decision is carried out, with it and why it was refused ("" if not).

    Returns:
        Decisions made, timers among them only where they were refused, and how many of them were refused.
    """
    apply, execute, view, jobs = machine.apply, machine.execute, machine.view, machine.view.jobs
    decide, carry_out, supports = policy.decide, driver.execute, driver.supports
    gate = DecisionGate(machine, supports)
    made = refused = 0
    then, standstill = view.now, 0
    for events in driver.events():
        apply(*events)
        if is_quiet(events):
            continue
        now = view.now
        if now > then or not IDLE.issuperset(map(type, events)):
            then, standstill = now, 0
        else:
            standstill += 1
            if standstill > INSTANTS_WITHOUT_TIME:
                raise _never_ends(policy, f"wakes itself up again and again at {then} s")
        problem = ""
        for here, decision in enumerate(decide(view)):
            if here > DECISIONS_PER_INSTANT and here > 10 * len(jobs):
                last = f"the last: {decision}" + (f", refused: {problem}" if problem else "")
                raise _never_ends(policy, f"made {here} decisions at {view.now} s; {last}")
            if type(decision) is Start and decision.configuration is None:  # the common case, asked first
                supported = Start in supports
            elif type(decision) is WakeAt:
                supported = WakeAt in supports
            else:
                supported = missing(decision, supports) is None
            if not supported and gate.is_told(decision):
                continue
            if note is not None:
                note(decision, "")
            problem = execute(decision) if supported else gate.execute(decision)
            if problem or type(decision) is not WakeAt:
                made += 1
            if not problem:
                carry_out(decision)
            else:
                refused += 1
                if note is not None:
                    note(decision, problem)
    return made, refused


def _never_ends(policy: Policy, what: str) -> PolicyError:
    return PolicyError(
        f"the policy {policy.name or type(policy).__name__!r} never ends: it {what}",
        "look at what the view says of a job after the decision, and stop when nothing is left to decide",
    )
