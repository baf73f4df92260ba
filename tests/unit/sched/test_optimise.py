"""The curve, the rounding, the offline optimum and the certificate, against each other and against enumeration."""

from __future__ import annotations

import math
from itertools import product
from random import Random

import numpy as np
import pytest

from hemiola.sched.optimise.certificate import DualJob, certify
from hemiola.sched.optimise.curve import Fabric, best_schedule
from hemiola.sched.optimise.offer import JobOffer
from hemiola.sched.optimise.optimum import offline_optimum
from hemiola.sched.optimise.prices import Ledger, PriceLaw, law_in_theory
from hemiola.sched.optimise.programs import Budget
from hemiola.sched.optimise.rounding import Rounder, gain_for_cover, gain_for_packing, round_slot

SLOTS = 4


def drawn(
    chance: Random, count: int, hosts: int = 2, slots: int = SLOTS
) -> tuple[list[JobOffer], np.ndarray]:
    """Some jobs of the evaluation's kind on a few machines of two resources."""
    capacity = np.array([[chance.randint(2, 4), chance.randint(4, 8)] for _ in range(hosts)], float)
    return [one_job(chance, n, slots) for n in range(count)], capacity


def one_job(chance: Random, n: int, slots: int) -> JobOffer:
    most, gamma = chance.randint(1, 3), chance.randint(1, 3)
    workers = np.arange(1, most + 1)
    inside = chance.uniform(0.7, 1.5)
    rates = np.array([workers * inside, workers * inside * chance.uniform(0.4, 1.0)])
    top, urgency, due = chance.uniform(1, 100), chance.choice([0.0, 0.5, 4.0]), chance.uniform(1, slots)
    return JobOffer(
        str(n), chance.randrange(slots - 1), chance.uniform(1.0, 6.0), workers, -(-workers // gamma), rates,
        np.array([chance.randint(1, 2), chance.randint(1, 2)], float), np.array([0.0, 1.0]),
        lambda d: math.log(top) - math.log1p(math.exp(min(700.0, urgency * (d - due)))),
    )  # fmt: skip


def least_cost(free: np.ndarray, price: np.ndarray, offer: JobOffer, size: int, *, inside: bool) -> float:
    """theta by enumeration of every placement."""
    workers, servers = int(offer.workers[size]), int(offer.servers[size])
    best, hosts = math.inf, range(len(free))
    for w in product(range(workers + 1), repeat=len(free)):
        if sum(w) != workers:
            continue
        for s in product(range(servers + 1), repeat=len(free)):
            if sum(s) != servers or (inside and sum(a + b > 0 for a, b in zip(w, s, strict=True)) > 1):
                continue
            taken = offer.takes(np.array(w), np.array(s))
            if (taken <= free + 1e-9).all():
                best = min(best, float((taken * price).sum()))
    assert hosts
    return best


def test_the_curve_is_never_below_the_cheapest_placement_and_mostly_equal() -> None:
    chance, equal, count = Random(1), 0, 0
    for _ in range(60):
        (offer,), capacity = drawn(chance, 1, hosts=3)
        ledger = Ledger(capacity, 1, PriceLaw.scaled(3.0, [5.0, 2.0]))
        for host in range(3):
            ledger.promise(0, np.array([host]), np.floor(capacity[[host]] * chance.random()))
        size = len(offer.workers) - 1
        for scope in (0, 1):
            rates = np.full_like(offer.rates, -np.inf)
            rates[scope, size] = offer.work  # all of it in one slot, at that size and scope
            alone = JobOffer(
                "x",
                0,
                offer.work,
                offer.workers,
                offer.servers,
                rates,
                offer.alpha,
                offer.beta,
                lambda d: 0.0,
            )
            exact = least_cost(ledger.free[0], ledger.price[0], alone, size, inside=scope == 0)
            found = best_schedule(alone, ledger, Fabric.flat(3))
            cost = math.inf if found is None else found.cost
            assert cost >= exact - 1e-9
            count += 1
            equal += cost == exact or abs(cost - exact) < 1e-9 * max(1.0, exact)
    assert equal >= 0.95 * count


def test_theta_falls_with_no_work_and_grows_with_it() -> None:
    chance = Random(5)
    (offer,), capacity = drawn(chance, 1)
    ledger = Ledger(capacity, SLOTS, PriceLaw.scaled(3.0, [5.0, 2.0]))
    costs = []
    for share in (0.25, 0.5, 1.0):
        part = JobOffer(
            "x",
            0,
            offer.work * share,
            offer.workers,
            offer.servers,
            offer.rates,
            offer.alpha,
            offer.beta,
            lambda d: 9.0,
        )
        found = best_schedule(part, ledger, Fabric.flat(2))
        assert found is not None
        costs.append(found.cost)
        assert sum(place.work for place in found.slots) >= part.work * (1 - 1e-9)
    assert costs == sorted(costs)


@pytest.mark.parametrize(
    ("width", "gain"), [(5, 0.133265), (20, 0.324134), (100, 0.591641), (1000, 0.845617)]
)
def test_t4_gain_in_favour_of_packing(width: float, gain: float) -> None:
    found = gain_for_packing(401, width, 0.1)
    assert found == pytest.approx(gain, abs=1e-6)
    epsilon = (1 - found) / found
    assert math.exp(-(epsilon**2) * found * width / 3) == pytest.approx(0.1 / (3 * 401))


@pytest.mark.parametrize(("width", "gain"), [(5, 3.338173), (20, 1.876538), (100, 1.330017)])
def test_t4_gain_in_favour_of_cover(width: float, gain: float) -> None:
    assert gain_for_cover(2, width, 0.1) == pytest.approx(gain, abs=1e-6)


def test_rounding_in_favour_of_packing_holds_it_as_often_as_promised() -> None:
    free, price = np.full((3, 2), 40.0), np.array([[1.0, 1.0], [1.1, 0.9], [2.0, 2.0]])
    alpha, beta = np.array([1.0, 2.0]), np.array([0.0, 1.0])
    gain = gain_for_packing(7, 20.0, 0.1)
    held = 0
    from hemiola.sched.optimise import rounding

    relaxed = rounding.solve(
        rounding._program(
            free, np.concatenate([np.tile(alpha, (3, 1)), np.tile(beta, (3, 1))]),
            np.concatenate([price @ alpha, price @ beta]), np.full(6, 40.0), 40, 20,
        )
    ).found("the slot")  # fmt: skip
    chance = Random(0)
    for _ in range(1000):
        draft = rounding._drawn(gain * relaxed, chance)
        held += bool((draft[:3, None] * alpha + draft[3:, None] * beta <= free + 1e-9).all())
    assert held >= 900


def test_rounding_at_gain_1_finds_what_the_curve_finds_or_is_mended() -> None:
    chance, dearer = Random(3), 0
    for n in range(12):
        free = np.array([[chance.randint(0, 6), chance.randint(0, 12)] for _ in range(4)], float)
        price = np.array([[chance.random(), chance.random()] for _ in range(4)])
        found = round_slot(
            free, price, np.array([1.0, 2.0]), np.array([0.0, 1.0]), 3, 2, gain=1.0, seed=n, samples=60
        )
        if found is None:
            continue
        assert found.workers.sum() >= 3
        assert found.servers.sum() >= 2
        assert (
            found.workers[:, None] * [1.0, 2.0] + found.servers[:, None] * [0.0, 1.0] <= free + 1e-9
        ).all()
        assert found.cost >= found.relaxed - 1e-9
        dearer += found.cost > 1.5 * found.relaxed
    assert dearer <= 2


def test_rounding_with_the_gain_of_theory_covers_nothing_and_is_mended() -> None:
    free = np.full((100, 4), 8.0)
    found = Rounder("packing", 0.1, 0).place(0, free, np.ones((100, 4)), np.ones(4), np.zeros(4), 8, 0)
    assert found is not None
    assert found.feasible == 0
    assert found.repaired
    assert found.workers.sum() == 8


def test_no_placement_is_found_where_there_is_none() -> None:
    assert (
        round_slot(np.zeros((2, 1)), np.ones((2, 1)), np.ones(1), np.zeros(1), 1, 0, gain=1.0, seed=0) is None
    )


def duals(offers: list[JobOffer], capacity: np.ndarray, slots: int) -> list[DualJob]:
    """The same jobs for the bound, in slots, with hosts as kinds of their own."""
    found = []
    for o in offers:
        worth = np.array([-np.inf if t < o.arrival else o.worth(t - o.arrival + 1) for t in range(slots)])
        workers = np.outer(np.tile(o.workers, 2), o.alpha)
        servers = np.outer(np.tile(o.servers, 2), o.beta)
        inside = (workers + servers)[: len(o.workers), None, :] <= capacity[None] + 1e-9
        some = np.broadcast_to((o.alpha <= capacity).all(axis=1), (len(o.workers), len(capacity)))
        kinds = np.concatenate([inside.all(axis=2), some])
        used = kinds.any(axis=1)
        if used.any():
            rates = o.rates.ravel()[used]
            most = np.where(np.arange(slots) >= o.arrival, rates.max(), 0.0)
            together = np.repeat([True, False], len(o.workers))[used]
            found.append(
                DualJob(o.work, worth, 0.0, most, rates, workers[used], servers[used], kinds[used], together)
            )
    return found


def online(offers: list[JobOffer], capacity: np.ndarray, law: PriceLaw | None) -> tuple[float, Ledger]:
    """What PD-ORS reaches, job by job."""
    ledger, total = Ledger(capacity, SLOTS, law), 0.0
    for o in sorted(offers, key=lambda o: o.arrival):
        found = best_schedule(o, ledger, Fabric.flat(len(capacity)), since=o.arrival)
        if found is not None and found.payoff > 0:
            total += found.utility
            for p in found.slots:
                ledger.promise(p.slot, np.array(p.hosts), o.takes(np.array(p.workers), np.array(p.servers)))
        assert (ledger.used <= capacity + 1e-9).all()
    return total, ledger


def test_the_certificate_is_above_the_optimum_which_is_above_pd_ors() -> None:
    chance, ratios, beyond = Random(7), [], 0
    for _ in range(200):
        offers, capacity = drawn(chance, chance.randint(1, 4))
        best = offline_optimum(offers, capacity, SLOTS)
        law = law_in_theory(offers, capacity, SLOTS)
        reached, ledger = online(offers, capacity, law)
        begin = [None, ledger.price][chance.randrange(2)]
        found = certify(
            duals(offers, capacity, SLOTS), np.broadcast_to(capacity, (SLOTS, *capacity.shape)).copy(), reached,
            begin, steps=20,
        )  # fmt: skip
        assert found.bound >= best.objective * (1 - 1e-6)
        assert found.bound <= found.first + 1e-9
        assert reached <= best.bound * (1 + 1e-6)
        if best.objective > 0:
            beyond += best.objective > law.ratio * reached * (1 + 1e-6)
            ratios.append(found.bound / best.objective)
    assert np.median(ratios) < 2.0
    assert beyond <= 4  # jobs are lumps: the proof needs prices that reach U before a job finds no room


def test_prices_and_utilities_that_grow_alike_change_no_plan() -> None:
    chance = Random(11)
    for _ in range(10):
        offers, capacity = drawn(chance, 3)
        for o in offers:
            plans = []
            for factor in (1.0, 7.0):
                ledger = Ledger(capacity, SLOTS, PriceLaw.scaled(3.0, [factor * 2.0, factor]))
                scaled = JobOffer(
                    o.id, o.arrival, o.work, o.workers, o.servers, o.rates, o.alpha, o.beta,
                    lambda d, o=o, factor=factor: o.log_worth(d) + math.log(factor),
                )  # fmt: skip
                plans.append(best_schedule(scaled, ledger, Fabric.flat(2), since=o.arrival))
            one, other = plans
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert other.payoff == pytest.approx(7.0 * one.payoff)


def test_a_utility_that_underflows_prices_nothing_at_0() -> None:
    chance = Random(2)
    offers, capacity = drawn(chance, 2)
    critical = JobOffer(
        "c", 0, 2.0, offers[0].workers, offers[0].servers, offers[0].rates, offers[0].alpha, offers[0].beta,
        lambda d: -2000.0 * d,
    )  # fmt: skip
    law = law_in_theory([critical, offers[1]], capacity, SLOTS)
    assert max(law.kappa) <= 700
    assert (law.price(np.zeros((1, 2))) > 0).all()


def test_the_dynamic_program_equals_every_way_to_part_the_work() -> None:
    chance = Random(9)
    for _ in range(15):
        (offer,), capacity = drawn(chance, 1)
        ledger = Ledger(capacity, 3, PriceLaw.scaled(2.0, [4.0, 3.0]))
        for t in range(3):
            ledger.promise(t, np.array([0]), np.array([[t % 2, t]], float))
        ways = [[(0.0, 0.0)] for _ in range(3)]
        for t in range(3):
            for size in range(len(offer.workers)):
                for scope in (0, 1):
                    cost = least_cost(ledger.free[t], ledger.price[t], offer, size, inside=scope == 0)
                    if cost < math.inf:
                        ways[t].append((cost, float(offer.rates[scope, size])))
        best = -math.inf
        for way in product(*ways):
            done, end = 0.0, None
            for t, (_, rate) in enumerate(way):
                done += rate
                if done >= offer.work - 1e-9 and end is None:
                    end = t
            if end is not None:
                best = max(best, offer.worth(end - offer.arrival + 1) - sum(cost for cost, _ in way))
        early = JobOffer(
            offer.id, offer.arrival, offer.work, offer.workers, offer.servers, offer.rates, offer.alpha, offer.beta,
            offer.log_worth,
        )  # fmt: skip
        found = best_schedule(early, ledger, Fabric.flat(2), levels=400)
        if best == -math.inf:
            assert found is None or found.payoff <= best + 1e-6
        elif found is not None:
            assert found.payoff <= best + 1e-6
            assert found.payoff >= best - 0.15 * abs(best) - 0.2


def test_a_solver_out_of_budget_leaves_a_plan_that_says_so() -> None:
    free, price = np.full((6, 2), 4.0), np.array([[1.0 + h, 1.0] for h in range(6)])
    found = round_slot(
        free,
        price,
        np.array([1.0, 1.0]),
        np.array([0.0, 1.0]),
        5,
        2,
        gain=1.0,
        seed=0,
        budget=Budget(iterations=1),
    )
    assert found is not None
    assert found.exhausted
    assert (found.workers.sum(), found.servers.sum()) == (5, 2)


def test_a_resource_that_nobody_takes_costs_nothing_and_limits_nobody() -> None:
    workers, nothing = np.arange(1, 3), np.zeros(2)
    free = JobOffer(
        "x",
        0,
        2.0,
        workers,
        0 * workers,
        np.array([workers, workers], float),
        np.array([1.0, 0.0]),
        nothing,
        lambda d: 1.0,
    )
    capacity = np.array([[2.0, 0.0]])  # of the second there is none
    law = law_in_theory([free], capacity, 2)
    found = best_schedule(free, Ledger(capacity, 2, law), Fabric.flat(1))
    assert found is not None
    assert found.payoff > 0
    assert len(found.slots) == 1


def test_a_plan_says_what_the_rounding_had_to_do_for_it() -> None:
    workers = np.array([8])
    wide = JobOffer(
        "x",
        0,
        1.0,
        workers,
        0 * workers,
        np.array([[-np.inf], [1.0]]),
        np.ones(4),
        np.zeros(4),
        lambda d: 9.0,
    )
    ledger = Ledger(np.full((100, 4), 8.0), 1, PriceLaw.scaled(3.0, [1.0] * 4))
    found = best_schedule(wide, ledger, Fabric.flat(100), rounder=Rounder("packing", 0.1, 0))
    assert found is not None
    assert found.note == "1 of 1 slots mended after rounding"
    assert sum(found.slots[0].workers) == 8
