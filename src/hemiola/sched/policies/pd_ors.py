"""PD-ORS: which workers and parameter servers (or ring members) of which job run where and when, decided as jobs arrive.

In the style of Yu, Wu, Ji, Liu, "A Sum-of-Ratios Multi-Dimensional-Knapsack Decomposition ..." and "Toward Efficient Online
Scheduling for Distributed Machine Learning Systems" (arXiv 2108.02917), whose text beyond the abstract was not to be had:
the model is OASiS's (Bao, Peng, Wu, Li, INFOCOM'18) with locality, derived anew. Time is parted into slots.

    ALG1, on arrival of job i:  prices p = Q(rho); (lambda, pi) = ALG2(i, p, C - rho)
                                lambda > 0: admit, rho += usage(pi), for all slots of the plan; else decline
    ALG2: for each end t:       payoff = u_i(t) - Theta(t, work of i)
    ALG3: Theta(t, v) = min over sizes of theta(t, .) + Theta(t - 1, v - .)      (`optimise.curve`)
    ALG4: theta(t, v) = the cheapest placement in slot t: on one host, or on several (`optimise.curve`, or by an LP and
                        rounding, `optimise.rounding`)

`theory` is that: prices by the analysis's U and L, plans that are kept. Both bounds need all jobs; where they are not given
(`law`), those that have come so far stand for all. `practical` has prices by a scale that adapts itself (U at a share of the
90th percentile of utility per resource, L = U e^-kappa), plans anew from what is really left when a slot begins, and keeps
a running job where it is.

The paper is silent on what users see; chosen here: a declined job waits and takes what no plan uses (`declined`); a job
that says nothing of its utility has one (`optimise.offers.utility_of`); a utility is that of the end of a plan's last slot,
counted from the arrival; a job whose plan ran out before its work (restarts cost time) goes on with those that take what is
left; one that arrives within a slot is planned from the next (`theory`) or from this one (`practical`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from hemiola.core.decisions import Decision, Move, Placement, Resize, Start, Stop, WakeAt
from hemiola.core.errors import PolicyError
from hemiola.sched.inventory import pick
from hemiola.sched.job_state import ENDED, RUNNING, WAITING, JobState
from hemiola.sched.optimise.curve import Fabric, PricedPlan, SlotPlan, best_schedule
from hemiola.sched.optimise.offer import JobOffer
from hemiola.sched.optimise.offers import Offers, clipped, utility_of
from hemiola.sched.optimise.prices import Ledger, PriceLaw, law_in_theory
from hemiola.sched.optimise.rounding import Rounder
from hemiola.sched.placement import Rule, TierAware, find
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView, Index

__all__ = ["EarliestFinish", "PdOrs"]

KNOWN_OFFERS = 500
"""So many of the last jobs say what prices have to be."""
RECONSIDERED = 64
"""So many declined jobs are looked at again when a slot begins, those worth most per resource first."""
SCALE, SCALE_UP, SCALE_DOWN, LEAST_SCALE, MOST_SCALE = 0.3, 1.25, 0.9, 0.01, 3.0
FULL, EMPTY = 0.95, 0.7


@dataclass(frozen=True)
class PdOrs(Policy):
    """Primal-dual online scheduling.

    Args:
        mode: "practical" or "theory".
        kappa: ln(U / L) of the prices; in practice 3 unless given, in theory what the analysis says.
        slot_s: length of a slot.
        horizon_slots: that are planned ahead.
        levels: steps of work in the dynamic program.
        declined: "best-effort": declined jobs take what no plan uses; "reject": they never run.
        rounding: "" places by the curve; "packing" or "cover": by the LP, rounded in favour of these rows.
        delta: the rounding's chance to fail.
        seed: of the rounding.
        placement: where jobs go that take what no plan uses, and planned ones whose place is not free.
        law: the prices' bounds; found out unless given.
    """

    mode: str = "practical"
    kappa: float | None = None
    slot_s: float = 600.0
    horizon_slots: int = 20
    levels: int = 100
    declined: str = "best-effort"
    rounding: str = ""
    delta: float = 0.1
    seed: int = 0
    placement: Rule = TierAware()
    law: PriceLaw | None = None
    name = "pd-ors"
    source = "in the style of Yu et al., PD-ORS, arXiv 2108.02917; of Bao et al., OASiS, INFOCOM'18"
    priced: ClassVar[bool] = True
    separate: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for field, choices in (
            ("mode", ("practical", "theory")), ("declined", ("best-effort", "reject")), ("rounding", ("", "packing", "cover")),
        ):  # fmt: skip
            if getattr(self, field) not in choices:
                raise PolicyError(
                    f"{field} is {getattr(self, field)!r}",
                    f"choose one of {', '.join(filter(None, choices))}",
                )
        for field, least in (("slot_s", 1e-3), ("horizon_slots", 1), ("levels", 1)):
            if not least <= getattr(self, field) < math.inf:
                raise PolicyError(f"{field} is {getattr(self, field)}", f"give {least} or more")
        if self.kappa is not None and not 0 <= self.kappa <= 700:
            raise PolicyError(f"kappa is {self.kappa}", "give 0 to 700: a price below U e^-700 is none")
        if not 0 < self.delta < 1:
            raise PolicyError(f"delta is {self.delta}", "give a chance between 0 and 1")
        if self.law is not None and not isinstance(self.law, PriceLaw):
            raise PolicyError(f"law is {self.law!r}", "give a PriceLaw, in Python")

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        book: Book = view.index(BookFor(self))
        turned = book.turn(view)
        if turned and self.mode == "practical":
            book.plan_anew(view)
        for job in book.arrivals():
            book.consider(view, job)
        yield from self._follow(view, book)
        yield from self._fill_up(view, book)
        yield from self._wake(view, book)

    def card(self) -> dict[str, str]:
        return {
            "order": "by payoff: utility less the price of a plan",
            "slots": f"{self.horizon_slots} of {self.slot_s:g} s",
            "backfill": "waiting jobs take what no plan uses"
            if self.mode == "practical" or self.declined == "best-effort"
            else "none",
            "declined jobs": "take what no plan uses" if self.declined == "best-effort" else "never run",
            "preemption": "for jobs that have a plan, by those that have none",
            "remaining time": "known (oracle)",
        }

    # ---- what the plans say of this slot

    def _follow(self, view: ClusterView, book: Book) -> Iterator[Decision]:
        """Stop who is not to run now, and place who is."""
        due = book.due(view)
        if self.mode == "theory" and Stop not in view.cannot:
            for job_id in list(view.running):
                plan = book.plans.get(job_id)
                if plan and job_id not in due and plan.last >= book.slot and not view.jobs[job_id].job.pinned:
                    yield Stop(job_id, "its plan has nothing for it in this slot")
        for job_id, place in due.items():
            job = view.jobs[job_id]
            if job.status not in (WAITING, RUNNING) or self._stays(view, job, place):
                continue
            found = self._room(view, job, place, due)
            if found is None:
                continue
            for victim in found[0]:
                yield Stop(victim.id, f"{job.id} has a plan for its GPUs")
            yield self._put(job, found[1], f"{book.plans[job_id].reason}; slot {place.slot}")

    def _stays(self, view: ClusterView, job: JobState, place: SlotPlan) -> bool:
        """Whether it runs as planned (in practice anywhere, in theory on these hosts), or the engine has no way to change that."""
        if job.status != RUNNING or job.placement is None:
            return False
        if job.job.pinned:
            return True
        if job.placement.gpus != _gpus(job, place):
            return Resize in view.cannot
        return (
            Move in view.cannot
            or self.mode == "practical"
            or set(job.placement.everywhere) == set(place.hosts)
        )

    def _put(self, job: JobState, placement: Placement, reason: str) -> Decision:
        if job.status == WAITING:
            return Start(job.id, placement, reason)
        if placement.gpus != job.gpus:
            return Resize(job.id, placement, reason)
        return Move(job.id, placement, reason)

    def _room(
        self, view: ClusterView, job: JobState, place: SlotPlan, due: dict[str, SlotPlan]
    ) -> tuple[list[JobState], Placement] | None:
        """Who has to leave, and where the job then goes: as planned, or where there is room; None if nowhere."""
        spare = [
            other for other in reversed(view.running.values())
            if other.id not in due and not other.job.pinned and other is not job and Stop not in view.cannot
        ]  # fmt: skip
        with view.supposing() as trial:
            if job.status == RUNNING:
                trial.without([job])
            planned = self._as_planned(view, job, place)
            victims: list[JobState] = []
            while planned is None and (victim := _next_victim(view, spare, victims, place)) is not None:
                trial.without([victim])
                victims.append(victim)
                planned = self._as_planned(view, job, place)
            if planned is not None:
                return victims, planned
        return self._elsewhere(view, job, place, spare)

    def _as_planned(self, view: ClusterView, job: JobState, place: SlotPlan) -> Placement | None:
        """On the hosts of the plan, if these GPUs are free."""
        inventory, roles = view.inventory, job.job.roles
        per_worker = 1 if roles is None else roles.gpus_per_worker
        pairs = [(h, w * per_worker) for h, w in zip(place.hosts, place.workers, strict=True) if w]
        if any(inventory.down[h] or inventory.counts[h] < gpus for h, gpus in pairs):
            return None
        pairs.sort(key=lambda pair: inventory.rank_of_host[pair[0]])
        placement = Placement(
            tuple(h for h, _ in pairs),
            tuple(pick(inventory.masks[h], gpus, inventory.island_masks[h]) for h, gpus in pairs),
            tuple((h, s) for h, s in zip(place.hosts, place.servers, strict=True) if s),
        )
        return None if inventory.spare.lack(job, placement) else placement

    def _elsewhere(
        self, view: ClusterView, job: JobState, place: SlotPlan, spare: list[JobState]
    ) -> tuple[list[JobState], Placement] | None:
        """Anywhere, at the size of the plan, in place of as few as possible that have no plan."""
        if job.status == RUNNING:
            return None
        sized = view.at_size(job, _gpus(job, place)) if job.elastic else job
        gone: list[JobState] = []
        with view.supposing() as trial:
            for victim in (None, *spare):
                if victim is not None:
                    trial.without([victim])
                    gone.append(victim)
                placement = find(view.inventory, sized, self.placement)
                if placement is not None:
                    return [v for v in gone if _shares_host(v, placement)], placement
        return None

    # ---- what no plan uses

    def _fill_up(self, view: ClusterView, book: Book) -> Iterator[Decision]:
        """Waiting jobs take what is free: in practice all of them, in theory those without a plan."""
        if not view.waiting or not view.free:
            return
        failed: set[int] = set()
        for job in book.by_plan(view):
            if (self.mode == "theory" and book.has_plan(job)) or (self.declined == "reject" and job.declined):
                continue
            if not view.free:
                return
            if job.shape in failed:
                continue
            placement = self._largest(view, job)
            if placement is None:
                failed.add(job.shape)
            else:
                why = f"declined ({job.declined}), but " if job.declined else ""
                yield Start(job.id, placement, f"{why}no plan uses these GPUs now; {self.placement.says}")

    def _largest(self, view: ClusterView, job: JobState) -> Placement | None:
        """A place at the largest of its sizes, up to what it asked for, for which there is one."""
        for gpus in reversed(view.sizes_of(job)):
            if gpus <= min(job.asked_gpus, view.free):
                sized = view.at_size(job, gpus) if job.elastic else job
                placement = find(view.inventory, sized, self.placement)
                if placement is not None:
                    return placement
        return None

    def _wake(self, view: ClusterView, book: Book) -> Iterator[WakeAt]:
        """When the next slot begins, if that may change anything; not for ever while nothing runs."""
        if not (view.waiting or (self.mode == "theory" and book.plans) or book.is_elastic(view)):
            return
        if view.running:
            book.idle = 0
        if book.idle > self.horizon_slots or not (view.running or book.plans):
            return
        if (next_s := book.next_s(view.now)) > book.asked_s:
            book.idle += not view.running
            book.asked_s = next_s
            yield WakeAt(next_s, "", "the next slot begins")


@dataclass(frozen=True)
class EarliestFinish(PdOrs):
    """PD-ORS without prices: every job gets the earliest end that is left. What the prices are worth shows against it."""

    mode: str = "theory"
    name = "earliest-finish"
    source = "PD-ORS with all prices 0 (ablation)"
    priced = False


# ---- plans, and what they have promised


@dataclass(frozen=True)
class Promise:
    """What an admitted job was promised.

    Attributes:
        offer: what it was made of.
        places: by slot, counted from the first of all.
        reason: for the decisions that follow it.
    """

    offer: JobOffer
    places: dict[int, SlotPlan]
    reason: str

    @property
    def last(self) -> int:
        """Its last slot."""
        return max(self.places, default=-1)


@dataclass(frozen=True)
class BookFor:
    """Says which book a policy needs."""

    policy: PdOrs

    def build(self, view: ClusterView) -> Book:
        """Nothing is planned yet."""
        return Book(self.policy, view)


class Book(Index):
    """The plans of one view, the ledger of what they promise, and the jobs that have just come.

    Attributes:
        slot: the present one, counted from the first of all.
        plans: of the jobs that were admitted, by id.
        asked_s: the last time that was asked to be woken at.
        idle: slots in a row in which nothing ran.
    """

    tracks = False

    def __init__(self, policy: PdOrs, view: ClusterView) -> None:
        self._policy, self._since_s = policy, view.now
        self.offers = Offers(view.topology, policy.slot_s)
        self.ledger = Ledger(self.offers.capacity, policy.horizon_slots, policy.law)
        self._servers_apart = _server_hosts(view) if policy.separate else None
        for_servers = self._servers_apart
        if for_servers is None:
            for_servers = np.ones(len(self.offers.capacity), np.bool_)
        self._fabric = Fabric(self.offers.domains, self.offers.counts, for_servers)
        self.slot, self.asked_s, self.idle = 0, -math.inf, 0
        self.plans: dict[str, Promise] = {}
        self._fresh: dict[str, JobState] = {}
        self._known: list[JobOffer] = []
        self._densities: list[float] = []
        self._scale, self._dearest = SCALE, 0.0

    def enter(self, job: JobState, now: float) -> None:
        """A job waits; new ones are considered at the next decision."""
        if job.status == WAITING and job.id not in self.plans and not job.declined:
            self._fresh[job.id] = job

    def leave(self, job: JobState) -> None:
        """Of no interest here."""

    def arrivals(self) -> list[JobState]:
        """The jobs that were not considered yet."""
        fresh, self._fresh = self._fresh, {}
        return [job for job in fresh.values() if job.status == WAITING and job.id not in self.plans]

    def next_s(self, now: float) -> float:
        """When the next slot begins."""
        count = math.floor((now - self._since_s) / self._policy.slot_s + 1e-9) + 1
        return self._since_s + count * self._policy.slot_s

    def _begin_s(self, slot: int) -> float:
        return self._since_s + slot * self._policy.slot_s

    def turn(self, view: ClusterView) -> bool:
        """Go on to the present slot, and forget who has ended; whether a slot began since the last time."""
        slot = math.floor((view.now - self._since_s) / self._policy.slot_s + 1e-9)
        passed = slot - self.slot
        for job_id in [job_id for job_id in self.plans if view.jobs[job_id].status == ENDED]:
            self._forget(job_id)
        if passed <= 0:
            return False
        self._adapt()
        self.slot = slot
        self.ledger.pass_slots(passed)
        return True

    def due(self, view: ClusterView) -> dict[str, SlotPlan]:
        """The places of this slot, by job."""
        return {
            job_id: plan.places[self.slot] for job_id, plan in self.plans.items() if self.slot in plan.places
        }

    def has_plan(self, job: JobState) -> bool:
        """Whether a slot to come is its own."""
        plan = self.plans.get(job.id)
        return plan is not None and plan.last >= self.slot

    def by_plan(self, view: ClusterView) -> list[JobState]:
        """Waiting jobs: those that were admitted first, by their next slot, then by arrival."""

        def key(job: JobState) -> tuple[bool, int, int]:
            plan = self.plans.get(job.id)
            return plan is None, 0 if plan is None else min(plan.places, default=0), job.index

        return sorted(view.waiting.values(), key=key)

    def is_elastic(self, view: ClusterView) -> bool:
        """Whether a running job that has a plan may have another size."""
        return any(view.jobs[job_id].elastic for job_id in self.plans if job_id in view.running)

    def _forget(self, job_id: str) -> None:
        """Give back what was promised for this slot and later ones."""
        plan = self.plans.pop(job_id)
        for slot, place in plan.places.items():
            self._promise(plan.offer, slot, place, -1)

    def _promise(self, offer: JobOffer, slot: int, place: SlotPlan, sign: int) -> None:
        ahead = slot - self.slot
        if 0 <= ahead < self._policy.horizon_slots:
            workers, servers = np.array(place.workers, np.int64), np.array(place.servers, np.int64)
            taken = offer.takes(workers, servers, inside=place.scope == 0)
            self.ledger.promise(ahead, np.array(place.hosts, np.int64), sign * taken)

    # ---- ALG1

    def consider(self, view: ClusterView, job: JobState, *, admitted: bool = False) -> None:
        """Admit a job if its best plan pays, or decline it; one that was admitted keeps that if it has any plan."""
        offer, schedule = self._best(view, job)
        if schedule is not None and (schedule.payoff > 0 or admitted):
            assert offer is not None
            reason = f"payoff {schedule.payoff:.4g}: worth {schedule.utility:.4g}, and its plan costs {schedule.cost:.4g}"
            if schedule.note:
                reason += f" ({schedule.note})"
            self._admit(job, offer, {place.slot + self.slot: place for place in schedule.slots}, reason)
        elif not admitted:
            job.declined = _why(schedule)
            if schedule is not None and offer is not None:
                self._dearest = max(self._dearest, self._density(offer))

    def _admit(self, job: JobState, offer: JobOffer, places: dict[int, SlotPlan], reason: str) -> None:
        job.declined = ""
        self.plans[job.id] = Promise(offer, places, reason)
        for slot, place in places.items():
            self._promise(offer, slot, place, 1)

    def _best(self, view: ClusterView, job: JobState) -> tuple[JobOffer | None, PricedPlan | None]:
        """ALG2, over the types of GPU that it accepts."""
        policy, first = self._policy, self._first(view)
        found: tuple[JobOffer | None, PricedPlan | None] = (None, None)
        for offer in self._offers(view, job, first):
            if not np.isfinite(offer.rates).any():
                continue
            self._learn(offer)
            schedule = best_schedule(
                offer, self.ledger, self._fabric, levels=policy.levels, since=first, rounder=self._rounder()
            )
            if schedule is not None and (found[1] is None or schedule.payoff > found[1].payoff):
                found = offer, schedule
        return found

    def _first(self, view: ClusterView) -> int:
        """The first slot that may still be planned: the next one, unless this one has just begun or is not over in practice."""
        late = view.now > self._begin_s(self.slot) + 1e-9 * self._policy.slot_s
        return int(late and self._policy.mode == "theory" and self._policy.horizon_slots > 1)

    def _offers(self, view: ClusterView, job: JobState, first: int) -> Iterator[JobOffer]:
        start_s = self._begin_s(self.slot + first)
        practical, left_s = self._policy.mode == "practical", job.remaining_s(view.now)
        for offer in self.offers.of(
            view, job, arrival=first, start_s=start_s, work_s=left_s, sharp=practical
        ):
            if practical:
                offer = clipped(offer, self._policy.horizon_slots - first)
            yield offer if self._servers_apart is None else _apart(offer, self._servers_apart)

    def _rounder(self) -> Rounder | None:
        policy = self._policy
        return Rounder(policy.rounding, policy.delta, policy.seed) if policy.rounding else None

    # ---- prices

    def _learn(self, offer: JobOffer) -> None:
        """A job more that says what prices have to be."""
        policy = self._policy
        if not policy.priced or policy.law is not None:
            return
        self._known = [*self._known[-KNOWN_OFFERS + 1 :], offer]
        self._densities = [*self._densities[-KNOWN_OFFERS + 1 :], self._density(offer)]
        self._reprice()

    def _reprice(self) -> None:
        policy, law = self._policy, self.ledger.law
        if policy.mode == "theory":
            law = law_in_theory(self._known, self.offers.capacity, policy.horizon_slots)
            if policy.kappa is not None:
                law = PriceLaw(law.log_high, (policy.kappa,) * len(law.kappa))
        elif self._densities:
            high = self._scale * float(np.percentile(self._densities, 90)) / self._mean_host
            law = PriceLaw.scaled(3.0 if policy.kappa is None else policy.kappa, high.tolist())
        if law != self.ledger.law:
            self.ledger.set_law(law)

    @property
    def _mean_host(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        found: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = np.maximum(
            self.offers.capacity.mean(axis=0), 1e-12
        )
        return found

    def _density(self, offer: JobOffer) -> float:
        """What it is worth at best, for each slot of a mean host that it takes, whole slots counted."""
        share = (offer.workers[:, None] * offer.alpha + offer.servers[:, None] * offer.beta) / self._mean_host
        rates = np.where(np.isfinite(offer.rates), offer.rates, -np.inf).max(axis=0)
        slots = share.sum(axis=1) * np.ceil(offer.work / np.where(rates > 0, rates, 1e-300) - 1e-9)
        return offer.worth(offer.fewest_slots) / max(float(slots[rates > 0].min()), 1e-300)

    def _adapt(self) -> None:
        """Raise U while machines are full and jobs of more worth are declined, lower it while GPUs idle."""
        if self._policy.mode != "practical" or not self._densities:
            return
        gpus = self.ledger.capacity[:, 0].sum()
        busy = float(self.ledger.used[0, :, 0].sum() / gpus) if gpus else 0.0
        if busy > FULL and self._dearest > self._scale * float(np.percentile(self._densities, 90)):
            self._scale = min(MOST_SCALE, self._scale * SCALE_UP)
        elif busy < EMPTY:
            self._scale = max(LEAST_SCALE, self._scale * SCALE_DOWN)
        self._dearest = 0.0

    # ---- practice: all plans anew, from what is really left

    def plan_anew(self, view: ClusterView) -> None:
        """Rebuild the ledger: running jobs where they are, other admitted ones, then those that were declined."""
        self.ledger.clear()
        self._reprice()
        before, self.plans = self.plans, {}
        admitted = [view.jobs[job_id] for job_id in before]
        for job in sorted(admitted, key=lambda job: (job.status != RUNNING, job.index)):
            if job.status == RUNNING and (not job.elastic or job.job.pinned):
                self._stay(view, job, before[job.id])
            else:
                self.consider(view, job, admitted=True)
                if job.id not in self.plans:
                    self.plans[job.id] = Promise(before[job.id].offer, {}, before[job.id].reason)
        declined = [job for job in view.waiting.values() if job.declined]
        declined += [job for job in view.running.values() if job.declined]
        for job in sorted(declined, key=lambda job: (-self._worth_left(view, job), job.index))[:RECONSIDERED]:
            self.consider(view, job)

    def _worth_left(self, view: ClusterView, job: JobState) -> float:
        """What it is worth now for each GPU-second that it needs yet."""
        left_s = max(job.remaining_s(view.now), 1e-6)
        return utility_of(job.job).at(view.now - job.submit_s + left_s) / (left_s * job.asked_gpus)

    def _stay(self, view: ClusterView, job: JobState, plan: Promise) -> None:
        """A running job goes on where it is for as long as its work takes."""
        placement = job.placement
        assert placement is not None
        roles = job.job.roles
        servers = dict(placement.servers)
        gpus = {h: m.bit_count() for h, m in zip(placement.hosts, placement.masks, strict=True)}
        hosts = placement.everywhere
        workers = tuple((gpus.get(h, 0) if roles is None else roles.workers(gpus.get(h, 0))) for h in hosts)
        slots = math.ceil(
            (max(job.finish_s, view.now) - self._begin_s(self.slot)) / self._policy.slot_s - 1e-9
        )
        until = (
            min(self._policy.horizon_slots, max(1, slots))
            if job.finish_s < math.inf
            else self._policy.horizon_slots
        )
        place = SlotPlan(0, job.tier, hosts, workers, tuple(servers.get(h, 0) for h in hosts), 0.0)
        self._admit(job, plan.offer, {self.slot + t: place for t in range(until)}, plan.reason)


def _why(schedule: PricedPlan | None) -> str:
    """Why a job is declined, with payoff and price."""
    if schedule is None:
        return "no slots within the horizon have room for all of its work: no price would do"
    return f"payoff {schedule.payoff:.4g}: worth {schedule.utility:.4g} at best, and that plan's price is {schedule.cost:.4g}"


def _gpus(job: JobState, place: SlotPlan) -> int:
    """GPUs of all workers."""
    roles = job.job.roles
    return sum(place.workers) * (1 if roles is None else roles.gpus_per_worker)


def _next_victim(
    view: ClusterView, spare: list[JobState], gone: list[JobState], place: SlotPlan
) -> JobState | None:
    """The latest of those without a plan on a host of this plan."""
    hosts = set(place.hosts)
    for job in spare:
        if job not in gone and job.placement is not None and hosts.intersection(job.placement.everywhere):
            return job
    return None


def _shares_host(victim: JobState, placement: Placement) -> bool:
    assert victim.placement is not None
    return bool(set(victim.placement.everywhere).intersection(placement.everywhere))


def _server_hosts(view: ClusterView) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Hosts for servers alone: those without GPUs, or every fourth where all have some."""
    gpus = view.topology.hosts.gpus
    if (gpus == 0).any():
        return np.array(gpus == 0)
    return np.array([host % 4 == 3 for host in range(len(gpus))])


def _apart(offer: JobOffer, servers: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> JobOffer:
    """The same job with its workers off the hosts of servers, and none of it all on one host, if it has servers."""
    if not offer.servers.any():
        return offer
    rates = offer.rates.copy()
    rates[0] = -np.inf
    allowed = ~servers if offer.allowed is None else offer.allowed & ~servers
    return replace(offer, rates=rates, allowed=allowed)
