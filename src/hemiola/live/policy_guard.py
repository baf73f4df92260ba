"""A policy that may fail: it is stopped, and the failure says so. Another one then begins on a view built anew."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from hemiola.core.decisions import EVERY_KIND, Decision
from hemiola.core.errors import InternalError, PolicyError
from hemiola.live.journal.records import DECISION
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView

__all__ = ["BrokenPolicyError", "Guarded"]

KINDS = tuple(EVERY_KIND)


class BrokenPolicyError(PolicyError):
    """A policy raised, took too long, or decided what is no decision."""


class Guarded(Policy):
    """Another policy, watched. Between two of its decisions it may compute for `limit_s`.

    The limit interrupts Python code, and holds in the main thread; elsewhere there is none.

    Args:
        thought: called after each instant with the seconds that the policy has computed in it.
    """

    def __init__(
        self, policy: Policy, limit_s: float, thought: Callable[[float], None] = lambda seconds: None
    ) -> None:
        self._policy, self._limit_s, self._thought = policy, limit_s, thought

    def decide(self, view: ClusterView) -> Iterator[Decision]:
        """What the policy decides.

        Raises:
            BrokenPolicyError: whatever went wrong with it. The view may be damaged.
        """
        who = self._policy.name or type(self._policy).__name__
        decisions: Any = None
        spent_s = 0.0
        while True:
            began_s = time.perf_counter()
            try:
                with _limited(self._limit_s):
                    decisions = iter(self._policy.decide(view)) if decisions is None else decisions
                    decision = next(decisions)
            except StopIteration:
                self._thought(spent_s + time.perf_counter() - began_s)
                return
            except _TooLong:
                raise BrokenPolicyError(
                    f"the policy {who!r} computed for more than {self._limit_s:g} s",
                    "its fallback takes over",
                ) from None
            except Exception as problem:
                raise BrokenPolicyError(
                    f"the policy {who!r} raised {type(problem).__name__}: {problem}",
                    "its fallback takes over",
                ) from problem
            if why := _why_none(decision):
                raise BrokenPolicyError(
                    f"the policy {who!r} decided {str(decision)[:200]!r}, which is no decision{why}",
                    "its fallback takes over",
                )
            spent_s += time.perf_counter() - began_s
            yield decision

    def card(self) -> dict[str, str]:
        """The policy's own."""
        return self._policy.card()


def _why_none(decision: object) -> str:
    """Why nobody could carry it out, nor write it down; "" if it is a decision."""
    if not isinstance(decision, KINDS):
        return f": yield {', '.join(sorted(kind.__name__ for kind in EVERY_KIND))}"
    try:
        read = DECISION.decode(DECISION.encode(decision), "it")
    except InternalError as problem:
        return f": {problem.__cause__}"
    # A NaN equals nothing; that it is no time, the state machine says.
    alike = read == decision or repr(read) == repr(decision)
    return "" if alike else f": it should be {read}"


class _TooLong(BaseException):  # no `except Exception` of a policy may swallow it
    pass


@contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(_signal: int, _frame: FrameType | None) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(
        signal.ITIMER_REAL, limit_s, limit_s
    )  # again and again, should it be swallowed all the same
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
