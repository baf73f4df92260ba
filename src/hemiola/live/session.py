"""One run: a view, a machine and a driver from their beginning to the reason why they end."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import msgspec

from hemiola.core.decisions import EVERY_KIND, Decision, asks_engine
from hemiola.core.errors import HemiolaError, InternalError, PolicyError
from hemiola.core.topology import Topology
from hemiola.cost.iteration import IterationModel
from hemiola.live.driver_wrappers import JournalingDriver, ObserveDriver
from hemiola.live.job_store import JobStore
from hemiola.live.journal import Journal, JournaledJob, Mode, Opening
from hemiola.live.journal.records import DECISION
from hemiola.live.leadership import Leadership
from hemiola.live.live_driver import LiveDriver, Topologies, renumbered
from hemiola.live.logging_setup import is_thrown
from hemiola.live.polling_driver import APART_MOST_S, Clock
from hemiola.live.profiling_driver import ProfilingDriver
from hemiola.sched.loop import run_loop
from hemiola.sched.machine import StateMachine
from hemiola.sched.policies import policy_from_text
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import Costs, SimulatedEstimates
from hemiola.trace.reports import Reports
from hemiola.trace.topologies.native import topology_text

__all__ = [
    "BrokenPolicyError",
    "EngineWatcher",
    "Guarded",
    "MakeDriver",
    "OneRun",
    "Session",
    "SessionSettings",
    "is_killed",
]

_log = logging.getLogger("hemiola.serve")
ENDED_MOST = 20_000
"""A run ends after so many jobs have: its view keeps them all."""
INSTANTS_MOST = 20_000
"""Or after so many instants: who asks for its story reads it whole, and none of it is forgotten before it ends."""


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to serve.

    Attributes:
        policy, fallback: as `hemiola simulate --policy` takes them; the fallback takes over from a policy that breaks.
        mode: "observe" decides and leaves it at that, "advise" writes it down at the engine's jobs, "enforce" carries
            it out.
        engine: its name and version, for the journal.
        policy_limit_s: so long a policy may compute for one decision.
        kill_switch: a file; while it is there, nothing is carried out.
        alive: a file that says when the loop last turned.
        reports: the folder in which jobs and hosts report (`trace.reports`).
        keep_s: the journal forgets what ended so long ago; None: nothing.
        costs: of checkpoints.
        show_requests: say what the engine would be asked for each decision.
    """

    policy: str
    fallback: str = "fifo-backfill"
    mode: Mode = "observe"
    engine: str = ""
    policy_limit_s: float = 5.0
    kill_switch: Path | None = None
    alive: Path | None = None
    reports: Path | None = None
    keep_s: float | None = None
    costs: Costs = Costs()
    show_requests: bool = False


class Session(msgspec.Struct):
    """What a driver is made for.

    Attributes:
        acts: whether it is to carry decisions out.
        recovered: the journal's jobs that had not ended.
        may_act: asked before each request.
        turned: called at each turn.
    """

    machine: StateMachine
    clock: Clock
    acts: bool
    recovered: Sequence[JournaledJob]
    may_act: Callable[[], bool]
    turned: Callable[[], None]


MakeDriver = Callable[[Session], LiveDriver]


class EngineWatcher(Protocol):
    """Looks on from the loop's own thread, where nothing changes meanwhile. It must be quick, and never raise."""

    def turned(
        self,
        view: ClusterView,
        driver: LiveDriver,
        run: int,
        *,
        seen: bool,
        recovered: Sequence[JournaledJob],
    ) -> None:
        """The loop has come around.

        Args:
            seen: whether the engine has been looked at in this run.
            recovered: jobs that had not ended when it began.
        """

    def decided(self, now_s: float, decision: object, refused: str) -> None:
        """A decision, and again if it was refused."""

    def thought(self, seconds: float) -> None:
        """So long the policy has computed at this instant."""


def is_killed(settings: SessionSettings) -> bool:
    """Whether the kill switch is thrown."""
    return settings.kill_switch is not None and is_thrown(settings.kill_switch)


class OneRun:
    """A run, once its driver is made.

    Args:
        policy: as text.
        killed: whether the kill switch is thrown: then nothing is carried out, and the run ends once it is not.
        back_s: so far the clock was set back since the run before.

    Attributes:
        watcher: who looks on, if anybody.
    """

    def __init__(
        self, settings: SessionSettings, journal: Journal, topology: Topology, clock: Clock, leadership: Leadership, policy: str,
        killed: bool, back_s: float = 0.0,
    ) -> None:  # fmt: skip
        self._settings, self._journal, self._clock, self._leadership = settings, journal, clock, leadership
        self._policy, self._killed = policy, killed
        self._acts = settings.mode == "enforce" and not killed
        self._topology = topology
        self._model = IterationModel(topology)
        self.view = ClusterView(topology, SimulatedEstimates(self._model, settings.costs), now=clock.now_s())
        self._machine = StateMachine(self.view)
        left = journal.open_jobs()
        self._recovered = self._here(_earlier(left, back_s))
        journal.settle(
            [(intent.id, "dropped", "a new run began") for intent in journal.open_intents()],
            epoch=leadership.epoch,
        )
        self._others = [now for now, before in zip(self._recovered, left, strict=True) if now != before]
        self._number = 0
        self._reason = "it was asked to stop"
        self._turns = False
        self.watcher: EngineWatcher | None = None
        self._inner: ProfilingDriver
        self._journaled: JournalingDriver

    def _here(self, records: list[JournaledJob]) -> list[JournaledJob]:
        """Jobs by the hosts of this run's topology; the run before may have had others."""
        before = Topologies(self._journal.runs(), self._journal.name).at()
        if before is None:
            return records
        return [
            msgspec.structs.replace(record, placement=renumbered(record.placement, before, self._topology))
            for record in records
        ]

    def _opening(self, driver: LiveDriver) -> Opening:
        settings = self._settings
        return Opening(
            policy=self._policy, fallback=settings.fallback, engine=settings.engine,
            mode="observe" if self._killed else settings.mode, topology=topology_text(self._topology),
            version=version("hemiola"), costs=settings.costs,
            supports=tuple(sorted(kind.__name__ for kind in driver.supports)),
        )  # fmt: skip

    def make(self, make: MakeDriver) -> LiveDriver:
        """The driver; the run begins in the journal with what it supports."""
        inner = make(
            Session(self._machine, self._clock, self._acts, self._recovered, self._may_act, self._turned)
        )
        self._number = self._journal.begin_run(
            self._leadership.epoch, self._opening(inner), self.view.now, self._others
        )
        reports = Reports(self._settings.reports) if self._settings.reports else None
        self._inner = ProfilingDriver(inner, self.view, self._model, self._journal, self._clock, reports)
        return self._inner

    def loop(self) -> str:
        """Run; why it ended.

        Raises:
            HemiolaError: why it cannot go on.
        """
        inner, view, settings = self._inner, self.view, self._settings
        advises = settings.mode == "advise" and not self._killed
        driver = inner if self._acts else ObserveDriver(inner, view, advises=advises)
        store = JobStore(view, inner, self._model, self._recovered, acts=self._acts)
        journaled = self._journaled = JournalingDriver(
            driver, self._journal, self._number, store, intents=self._acts
        )

        def note(decision: Decision, refused: str) -> None:
            journaled.note(decision, refused)
            if isinstance(driver, ObserveDriver):
                driver.note(decision, refused)
            if self.watcher is not None:
                self.watcher.decided(view.now, decision, refused)
            if refused:
                _log.warning("refused: %s: %s", decision, refused)
            elif settings.show_requests and asks_engine(decision):
                _log.info("would ask: %s (%s)", driver.render(decision).replace("\n", "; "), decision.reason)

        thought = self.watcher.thought if self.watcher is not None else lambda seconds: None
        policy = Guarded(policy_from_text(self._policy), settings.policy_limit_s, thought)
        if self._killed and settings.mode == "enforce":
            self._leadership.turned(acts=False)  # what comes from now on is not held
            inner.hand_back()
        try:
            run_loop(journaled, self._machine, policy, note)
        except HemiolaError as problem:
            self._reason = problem.what
            raise
        finally:
            self._close()
        return self._reason

    def _may_act(self) -> bool:
        """Asked right before the engine is."""
        return self._leadership.holds() and not is_killed(self._settings)

    def _turned(self) -> None:
        """The driver has come around, or is about to for the first time: a run that breaks there has not turned."""
        if self._turns:
            self._leadership.turned(acts=self._acts)
        self._turns = True
        self._inner.turned()
        if self.watcher is not None:
            seen = self._journaled.instants > 0
            self.watcher.turned(self.view, self._inner, self._number, seen=seen, recovered=self._recovered)
        if not self._leadership.holds():
            self._end("the lease is lost")  # perhaps before there was a driver to be stopped
        elif is_killed(self._settings) != self._killed:
            self._end("the kill switch was taken back" if self._killed else "the kill switch was thrown")
        elif (behind_s := self._clock.behind_s()) > APART_MOST_S:
            self._end("the clock was set forward, or this host slept")
        elif behind_s < -APART_MOST_S:
            self._end("the clock was set back")
        elif (ended := self.view.ended + self.view.failed) > ENDED_MOST:
            self._end(f"{ended} jobs have ended in it")
        elif self._journaled.instants > INSTANTS_MOST:
            self._end(f"it has {self._journaled.instants} instants")

    def _end(self, reason: str) -> None:
        self._reason = reason
        self._inner.stop()

    def _close(self) -> None:
        try:
            self._journal.end_run(self._number, self._reason, self._clock.now_s())
        except HemiolaError as problem:
            _log.warning("the end of the run could not be written: %s", problem.what)


def _earlier(records: list[JournaledJob], by_s: float) -> list[JournaledJob]:
    """What was written by a clock that was so far ahead, for nobody to lose what it has had."""
    if not by_s:
        return records
    return [
        msgspec.structs.replace(record, since_s=record.since_s - by_s, settled_s=record.settled_s - by_s)
        for record in records
    ]


# A policy that may fail: it is stopped, and the failure says so. Another one then begins on a view built anew.

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
