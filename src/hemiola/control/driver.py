"""The seam between the loop and an engine, and the loop itself.

The same loop runs a simulation and a live cluster: only the driver differs, and nothing above it
asks which one it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from hemiola.core.decisions import Decision, WakeAt
from hemiola.core.errors import PolicyError
from hemiola.core.events import Event, Measured, Profiled, Timer, Undone
from hemiola.sched.machine import StateMachine
from hemiola.sched.policy import Policy

__all__ = ["Driver", "is_quiet", "run_loop"]

QUIET = frozenset({Measured, Profiled, Undone})
"""An instant of these alone asks for no decision: no GPU is wanted or free that was not before."""
IDLE = QUIET | {Timer}
"""What a policy can bring about for ever without getting on; of all else there is an end."""
INSTANTS_WITHOUT_TIME = 10_000
DECISIONS_PER_INSTANT = 100_000


class Driver(ABC):
    """Hands on one engine."""

    @abstractmethod
    def events(self) -> Iterator[list[Event]]:
        """What happened, one list per instant, until there is nothing left to wait for."""

    @abstractmethod
    def execute(self, decision: Decision) -> None:
        """Carry out a decision that the state machine has accepted."""

    @abstractmethod
    def render(self, decision: Decision) -> str:
        """The exact request that `execute` would make, for people to read."""


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
    decide, carry_out = policy.decide, driver.execute
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
        for here, decision in enumerate(decide(view)):
            if note is not None:
                note(decision, "")
            problem = execute(decision)
            if problem or type(decision) is not WakeAt:
                made += 1
            if not problem:
                carry_out(decision)
            else:
                refused += 1
                if note is not None:
                    note(decision, problem)
            if here > DECISIONS_PER_INSTANT and here > 10 * len(jobs):
                last = f"the last: {decision}" + (f", refused: {problem}" if problem else "")
                raise _never_ends(policy, f"made {here} decisions at {view.now} s; {last}")
    return made, refused


def _never_ends(policy: Policy, what: str) -> PolicyError:
    return PolicyError(
        f"the policy {policy.name or type(policy).__name__!r} never ends: it {what}",
        "look at what the view says of a job after the decision, and stop when nothing is left to decide",
    )
