"""What running jobs report of their iterations: how fast they run, and the profile that tells how they would elsewhere.

A job that names no model is nothing to the network until it has run for a while; one that runs again under its name
is known from the start.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import msgspec

from hemiola.core.events import Adopted, Arrived, Event, Measured, Profiled
from hemiola.core.job import Batch, Profile
from hemiola.cost.iteration import IterationModel, speed_at
from hemiola.cost.job_profile import LEARNT, learnt
from hemiola.live.job_labels import user_name
from hemiola.live.journal import Journal, JournaledJob, JournalError
from hemiola.live.live_driver import DriverWrapper, Identity, LiveDriver, is_same_place
from hemiola.live.polling_driver import Clock
from hemiola.sched.job_state import JobState
from hemiola.sched.view import ClusterView
from hemiola.trace.reports import HostReport, JobReport, Reported, Reports

__all__ = ["ProfilingDriver"]

_log = logging.getLogger("hemiola.serve")
READ_EVERY_S = 2.0
QUICKER, OTHER_SPEED = 0.95, 0.02
"""Learnt anew from iterations so much quicker than any before there; told where the speed is so much another one."""
RECALLED = 2000


class ProfilingDriver(DriverWrapper):
    """A driver whose jobs have the profiles that were learnt of them.

    Args:
        reports: where jobs and hosts report; None: nothing new is learnt.
    """

    def __init__(
        self, inner: LiveDriver, view: ClusterView, model: IterationModel, journal: Journal, clock: Clock,
        reports: Reports | None = None,
    ) -> None:  # fmt: skip
        super().__init__(inner)
        self._view, self._model, self._journal = view, model, journal
        self._clock, self._reports = clock, reports
        self._iteration_s: dict[str, float] = {}
        self._hosts: dict[str, HostReport] = {}
        self._quickest: dict[str, tuple[tuple[int, ...], float]] = {}
        self._recalled: dict[str, dict[tuple[str, int], Profile]] = {}
        self._next_s = 0.0
        self._said: set[str] = set()

    def events(self) -> Iterator[list[Event]]:
        """The inner one's, jobs with what is known of them or of others of their name."""
        for events in self._inner.events():
            yield [self._knowing(event) if type(event) in (Arrived, Adopted) else event for event in events]

    def identity(self, job_id: str) -> Identity | None:
        """The engine's, with what the job reports."""
        who = self._inner.identity(job_id)
        if who is None or job_id not in self._iteration_s:
            return who
        return msgspec.structs.replace(who, iteration_s=self._iteration_s[job_id])

    def counters(self) -> dict[str, HostReport]:
        """As last reported."""
        return self._hosts

    def turned(self) -> None:
        """Have new reports, if any are due, delivered at the next turn; on the loop's thread."""
        if self._reports is None or (now := self._clock.now_s()) < self._next_s:
            return
        self._next_s = now + READ_EVERY_S
        reported = list(self._reports.fresh())
        for name in self._reports.damaged - self._said:
            _log.warning("the report %r is none, and is left alone", name)
        self._said |= self._reports.damaged
        jobs = [one for one in reported if isinstance(one.report, JobReport)]
        for one in reported:
            if isinstance(one.report, HostReport) and one.uid in (0, os.getuid()):
                self._hosts[one.report.host] = one.report
        if jobs and (events := list(self._heard(jobs, now))):
            self._inner.add(events)

    def _heard(self, jobs: list[Reported], now: float) -> Iterator[Event]:
        running: dict[str, tuple[JobState, str]] = {}
        for state in self._view.running.values():
            if (who := self._inner.identity(state.id)) is not None:
                running[who.engine_id] = state, who.user
        for gone in self._iteration_s.keys() - self._view.running.keys():
            del self._iteration_s[gone]
            self._quickest.pop(gone, None)
        behind_s = self._clock.behind_s()
        for uid, report in jobs:
            assert isinstance(report, JobReport)
            if report.job not in running:
                continue
            state, user = running[report.job]
            if report.time_s < state.since_s + behind_s:  # it ran elsewhere then
                continue
            if uid not in (0, os.getuid()) and user and user_name(uid) != user:
                _log.warning(
                    "%s reports of job %s, which is %s's: left alone", user_name(uid), report.job, user
                )
                continue
            yield from self._one(state, report, now)

    def _one(self, state: JobState, report: JobReport, now: float) -> Iterator[Event]:
        """What a report of a running job tells."""
        place = state.placement
        assert place is not None
        self._iteration_s[state.id] = report.iteration_s
        job = state.job
        before, quickest_s = self._quickest.get(state.id, ((), 0.0))
        if before != place.hosts or report.iteration_s < QUICKER * quickest_s:
            self._quickest[state.id] = place.hosts, report.iteration_s
            job = msgspec.structs.replace(
                job, profile=learnt(self._model, job, place, report, self._name(job))
            )
            self._keep(job, state.asked_gpus)
            assert job.profile is not None
            yield Profiled(now, state.id, job.profile)
        speed = min(1.0, self._model.alone(job).best_s / report.iteration_s)
        speed *= speed_at(self._model, job, state.asked_gpus, state.gpus)
        if state.speed > 0 and abs(speed - state.speed) > OTHER_SPEED * state.speed:  # 0: it is suspended
            yield Measured(now, state.id, speed)

    # ---- jobs that run again

    def _knowing(self, event: Event) -> Event:
        assert isinstance(event, Arrived | Adopted)
        job, who = event.job, self._inner.identity(event.job.id)
        if isinstance(event, Adopted) and (own := self._learnt_there(event)) is not None:
            return msgspec.structs.replace(event, job=msgspec.structs.replace(job, profile=own))
        if job.profile is not None or who is None or not who.name:
            return event
        profile = self._of(job.user).get((who.name, job.gpus))
        if profile is None:
            return event
        return msgspec.structs.replace(event, job=msgspec.structs.replace(job, profile=profile))

    def _learnt_there(self, event: Adopted) -> Profile | None:
        """What a run before this one has learnt of a job where it still runs: what it reports first may be slower."""
        place, record = event.placement, self._before(event.job.id)
        if place is None or record is None or record.placement is None or record.iteration_s is None:
            return None
        profile = record.job.profile
        if (
            profile is None
            or not profile.name.startswith(LEARNT)
            or not is_same_place(record.placement, place)
        ):
            return None
        job = msgspec.structs.replace(event.job.sized(place.gpus), profile=profile)
        self._quickest[job.id] = place.hosts, self._model.alone_s(job, place)
        return profile

    def _before(self, job_id: str) -> JournaledJob | None:
        try:
            return self._journal.job(job_id)
        except JournalError as problem:
            _log.warning("what was learnt of job %s cannot be read: %s", job_id, problem.what)
            return None

    def _of(self, user: str) -> dict[tuple[str, int], Profile]:
        """What was learnt of a user's jobs, by their name and GPUs; of several of a name from the last one."""
        if user not in self._recalled:
            found: dict[tuple[str, int], Profile] = {}
            try:
                records = self._journal.jobs(user=user, limit=RECALLED)
            except JournalError as problem:
                _log.warning("what was learnt of the jobs of %s cannot be read: %s", user, problem.what)
                return found
            for record in records:
                profile = record.job.profile
                if record.name and profile is not None and profile.name.startswith(LEARNT):
                    found.setdefault((record.name, record.job.gpus), profile)
            self._recalled[user] = found
        return self._recalled[user]

    def _name(self, job: Batch) -> str:
        who = self._inner.identity(job.id)
        return (who.name if who is not None else "") or job.model or job.id

    def _keep(self, job: Batch, asked_gpus: int) -> None:
        who = self._inner.identity(job.id)
        if who is not None and who.name and job.profile is not None:
            self._of(job.user)[who.name, asked_gpus] = job.profile
