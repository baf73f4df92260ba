"""`hemiola serve` without its command line: leads, runs the loop, and begins anew where it has to.

A run ends when the policy breaks, when the view no longer fits what the engine shows, when the kill switch is
thrown, when the wall clock has gone elsewhere than its own, when it has become long, or when the lease is lost. The
next one begins with what is there.
"""

from __future__ import annotations

import logging
import threading
import time

from hemiola.core.errors import HemiolaError, InternalError, PolicyError
from hemiola.core.topology import Topology
from hemiola.live.journal import Deposed, Journal, JournalError, Leader
from hemiola.live.leadership import LEASE_S, Leadership, is_gone, process_identity
from hemiola.live.live_driver import LiveDriver
from hemiola.live.logging_setup import check_folder
from hemiola.live.polling_driver import APART_MOST_S, Clock
from hemiola.live.session import EngineWatcher, MakeDriver, OneRun, Session, SessionSettings, is_killed
from hemiola.sched.policies import policy_from_text
from hemiola.sched.view import ClusterView
from hemiola.trace.reports import check_reports

__all__ = ["EngineWatcher", "LiveService", "MakeDriver", "Session", "SessionSettings"]

_log = logging.getLogger("hemiola.serve")
STANDBY_S = 1.0
AGAIN_S, AGAIN_MOST_S = 1.0, 60.0
FORGET_EVERY_S, REST_S = 86400.0, 0.1
"""Between two pieces of what is forgotten it rests, so that the loop can write (`Journal.forget`)."""


class LiveService:
    """One instance; several may share a journal, and one of them leads.

    Raises:
        HemiolaError: no such policy, or a folder that is not there.

    Attributes:
        view: of the present run; None while there is none.
        driver: likewise.
        leads_s: since when it leads, Unix time; None while it does not. Between two runs it has neither view nor driver.
        broken: why the chosen policy was replaced; "" if it was not.
        watcher: who looks on, if anybody; set before `run`.
    """

    def __init__(
        self, settings: SessionSettings, journal: Journal, topology: Topology, make: MakeDriver
    ) -> None:
        self._settings, self._journal, self._topology, self._make = settings, journal, topology, make
        for text in (settings.policy, settings.fallback):
            policy_from_text(text)
        check_folder(settings.alive, "--alive", writes=True)
        check_folder(settings.kill_switch, "--kill-switch")
        if settings.reports is not None:
            check_reports(settings.reports)
        self._clock = Clock()
        self._stop = threading.Event()
        self._seen: tuple[Leader | None, float] = None, 0.0
        self.holder = process_identity()
        self.view: ClusterView | None = None
        self.driver: LiveDriver | None = None
        self.leads_s: float | None = None
        self.broken = ""
        self.watcher: EngineWatcher | None = None

    def stop(self) -> None:
        """End after the present instant; any thread or signal handler may ask."""
        self._stop.set()
        if (driver := self.driver) is not None:
            driver.stop()

    def run(self) -> None:
        """Serve until `stop`: lead where nobody else does, wait for one's turn otherwise."""
        _log.info("the journal is %s", self._journal.name)
        said = ""
        while not self._stop.is_set():
            try:
                epoch = self._take_lead()
                leader = None if epoch else self._journal.leader()
            except JournalError as problem:
                epoch, why = None, f"the journal cannot be used: {problem.what}"
            else:
                why = f"{leader.holder if leader else 'another instance'} leads; this one waits for its turn"
            if epoch is not None:
                _log.info("leads, epoch %d", epoch)
                self._lead(epoch)
                said = ""
                continue
            if why != said:
                _log.info("%s", why)
                said = why
            self._stop.wait(STANDBY_S)

    def _take_lead(self) -> int | None:
        # The earlier of both: that this host's clock was set is no reason to take over.
        now_s = min(time.time(), self._clock.now_s())
        epoch = self._journal.lead(self.holder, now_s, LEASE_S)
        if epoch is None and (self._inherit() or self._outwait()):
            epoch = self._journal.lead(self.holder, now_s, LEASE_S)
        return epoch

    def _outwait(self) -> bool:
        """Whether the leader has not renewed its lease for its whole length: another host's clock may be ahead of this one's."""
        leader, now = self._journal.leader(), time.monotonic()
        if leader is None or leader != self._seen[0]:
            self._seen = leader, now
            return leader is None
        return now - self._seen[1] > LEASE_S and self._take_from(leader)

    def _inherit(self) -> bool:
        """Whether the leader was a process of this very host that is gone, and its lease could be given back."""
        leader = self._journal.leader()
        return leader is not None and is_gone(leader.holder) and self._take_from(leader)

    def _take_from(self, leader: Leader) -> bool:
        """End the lease of a leader that is gone; not if it has been renewed meanwhile."""
        epoch = self._journal.lead(self.holder, leader.until_s, LEASE_S)
        if epoch is None:
            return False
        self._journal.resign(epoch)
        return True

    def _lead(self, epoch: int) -> None:
        leadership = Leadership(self._journal, epoch, self._settings.alive, self._lose)
        self.leads_s, pause_s = time.time(), 0.0
        over = threading.Event()
        forgetting = threading.Thread(target=self._forget, args=(leadership, over), name="hemiola-forget")
        forgetting.start()
        try:
            while not self._stop.wait(pause_s) and leadership.holds():
                began_s = time.monotonic()
                again_s = self._one_run(leadership, pause_s)
                # What has gone well for long is not the failure of before.
                pause_s = min(again_s, AGAIN_S) if time.monotonic() - began_s > AGAIN_MOST_S else again_s
        except Deposed as problem:
            _log.warning("no longer leads: %s", problem.what)
        finally:
            self.leads_s = None
            over.set()
            forgetting.join()
            leadership.end()

    def _forget(self, leadership: Leadership, over: threading.Event) -> None:
        """Now and then what is old, beside the loop: who leads does so, and nobody else."""
        keep_s = self._settings.keep_s
        while keep_s is not None and leadership.holds():
            try:
                self._journal.forget(
                    self._clock.now_s() - keep_s, lambda: leadership.holds() and not over.wait(REST_S)
                )
            except HemiolaError as problem:
                _log.warning("what is old could not be forgotten: %s", problem.what)
            if over.wait(FORGET_EVERY_S):
                return

    def _lose(self) -> None:
        _log.warning("the lease is lost")
        if (driver := self.driver) is not None:
            driver.stop()

    def _one_run(self, leadership: Leadership, paused_s: float) -> float:
        """Until it has to begin anew; how long to wait before."""
        killed = self._killed()
        if killed:
            switch = self._settings.kill_switch
            _log.warning("%s is there, or cannot be looked at: nothing is carried out", switch)
        text = self._settings.fallback if self.broken else self._settings.policy
        try:
            reason = self._loop(leadership, text, killed)
        except PolicyError as problem:
            if self.broken:
                _log.error("the fallback broke, too: %s", problem.what)
                return min(AGAIN_MOST_S, max(AGAIN_S, 2 * paused_s))
            self.broken = problem.what
            _log.error("%s; %s takes over", problem.what, self._settings.fallback)
            return 0.0
        except Deposed:
            raise
        except InternalError as problem:
            _log.warning("the view no longer fits, and is built anew: %s", problem.what)
            return min(AGAIN_MOST_S, max(AGAIN_S, 2 * paused_s))
        except HemiolaError as problem:
            _log.error("%s", problem)
            return min(AGAIN_MOST_S, max(AGAIN_S, 2 * paused_s))
        except Exception:
            _log.exception("a defect of Hemiola; please report it. It begins anew")
            return min(AGAIN_MOST_S, max(AGAIN_S, 2 * paused_s))
        finally:
            self.view = self.driver = None
        _log.info("the run ended: %s", reason)
        return 0.0

    def _loop(self, leadership: Leadership, text: str, killed: bool) -> str:
        back_s = 0.0
        if abs(behind_s := self._clock.behind_s()) > APART_MOST_S:
            self._clock, back_s = Clock(), max(0.0, -behind_s)
            self.leads_s = self._clock.now_s()
        run = OneRun(
            self._settings, self._journal, self._topology, self._clock, leadership, text, killed, back_s
        )
        run.watcher = self.watcher
        inner = run.make(self._make)
        self.view, self.driver = run.view, inner
        if self._stop.is_set():
            inner.stop()
        return run.loop()

    def _killed(self) -> bool:
        return is_killed(self._settings)
