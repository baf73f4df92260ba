"""The seam between the loop and an engine, and the loop itself.

The same loop runs a simulation and a live cluster: only the driver differs, and nothing above it
asks which one it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from hemiola.core.decisions import Decision, WakeAt
from hemiola.core.errors import PolicyError
from hemiola.core.events import Event, Measured
from hemiola.sched.machine import StateMachine
from hemiola.sched.policy import Policy

__all__ = ["Driver", "run_loop"]

REFUSALS_PER_INSTANT = 10_000


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
        Decisions made, and how many of them were refused.
    """
    apply, execute, view = machine.apply, machine.execute, machine.view
    decide, carry_out = policy.decide, driver.execute
    made = refused = 0
    for events in driver.events():
        for event in events:
            apply(event)
        if len(events) and type(events[-1]) is Measured:
            continue  # a change of speed alone asks for no decision
        before = refused
        for decision in decide(view):
            if note is not None:
                note(decision, "")
            problem = execute(decision)
            if type(decision) is not WakeAt:
                made += 1
            if not problem:
                carry_out(decision)
                continue
            refused += 1
            if note is not None:
                note(decision, problem)
            if refused - before > REFUSALS_PER_INSTANT:
                raise PolicyError(
                    f"the policy {policy.name or type(policy).__name__!r} repeats a refused decision at "
                    f"{view.now} s: {decision}: {problem}",
                    "look at what the view says of the job after the refusal",
                )
    return made, refused
