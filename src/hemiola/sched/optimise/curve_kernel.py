"""The compiled inside of `curve`: the cheapest places for every number of workers at once, and the cheapest slots.

Knows arrays only. Importing it imports Numba, so `curve` does so with the first plan. The slow, clear version is `exact`.

    free          float64 (slots, hosts, resources)
    each_price, server_price   float64 (slots, hosts): of one worker and of one server
    order, server_order        int64 (slots, hosts): hosts by these prices
    alpha, beta   float64 (resources,): what a worker and a server take; *_inside: if all are on one host
    sizes, extra  int64 (sizes,): workers, ascending, and servers to each
    domains       int64 (levels, hosts): the domain of each host, the last level has one
    open_to       bool (scopes,): whether all of one host (first), of one domain of a level may be used
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["cheapest_places", "cheapest_slots", "fill", "fill_host"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Function = TypeVar("Function", bound=Callable[..., object])
TOLERANCE = 1e-9
NOBODY = -1


def compiled(function: Function) -> Function:
    """Compile on first call; keep the result between processes where a folder for it can be written."""
    try:
        made: Function = numba.njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # Numba finds no place for its cache
        made = numba.njit(error_model="numpy")(function)
    return made


@compiled
def room(free: Floats, taken: Floats, most: int) -> int:
    """How many members that take so much fit into what is free on a host, at most `most`."""
    found = most
    for r in range(len(taken)):
        if taken[r] > 0.0:
            fits = int(np.floor(free[r] / taken[r] + TOLERANCE))
            if fits < found:
                found = fits
    return max(found, 0)


@compiled
def caps(free: Floats, alpha: Floats, most: int, each: int, allowed: Bools) -> Ints:
    """Workers that each host has room for: `each` or none, where the job says how many."""
    found = np.zeros(len(free), np.int64)
    for h in range(len(free)):
        if allowed[h]:
            here = room(free[h], alpha, most)
            found[h] = here if each == 0 else (each if here >= each else 0)
    return found


@compiled
def servers_cost(
    free: Floats,
    beta: Floats,
    price: Floats,
    order: Ints,
    alpha: Floats,
    workers: Ints,
    wanted: int,
    allowed: Bools,
) -> float:
    """The cost of so many servers beside these workers, on the cheapest hosts first; inf if there is no room."""
    cost, left = 0.0, wanted
    rest = np.empty(len(beta))
    for h in order:
        if left == 0:
            break
        if not allowed[h]:
            continue
        for r in range(len(beta)):
            rest[r] = free[h, r] - workers[h] * alpha[r]
        here = room(rest, beta, left)
        cost += here * price[h]
        left -= here
    return cost if left == 0 else np.inf


@compiled
def filled(cap: Ints, order: Ints, wanted: int, within: Ints, domain: int) -> Ints:
    """Workers on each host of a domain, on those first in order first."""
    found = np.zeros(len(cap), np.int64)
    left = wanted
    for h in order:
        if left == 0:
            break
        if within[h] == domain and cap[h]:
            found[h] = min(cap[h], left)
            left -= found[h]
    return found


@compiled
def on_one_host(
    free: Floats,
    cap: Ints,
    each_price: Floats,
    server_price: Floats,
    alpha: Floats,
    beta: Floats,
    sizes: Ints,
    extra: Ints,
    for_servers: Bools,
    cost: Floats,
    where: Ints,
) -> None:
    """For every size the cheapest host that has room for all of it, of equals that with the least room."""
    for h in range(len(free)):
        if cap[h] == 0:
            continue
        for j in range(len(sizes)):
            if cap[h] < sizes[j] or (extra[j] and not for_servers[h]):
                break
            fits = True
            if extra[j]:
                for r in range(len(alpha)):
                    if sizes[j] * alpha[r] + extra[j] * beta[r] > free[h, r] + TOLERANCE:
                        fits = False
            found = sizes[j] * each_price[h] + extra[j] * server_price[h]
            if fits and (found < cost[j] or (found == cost[j] and cap[h] < cap[where[j]])):
                cost[j], where[j] = found, h


@compiled
def in_domains(
    free: Floats,
    cap: Ints,
    order: Ints,
    each_price: Floats,
    server_order: Ints,
    server_price: Floats,
    alpha: Floats,
    beta: Floats,
    sizes: Ints,
    extra: Ints,
    within: Ints,
    count: int,
    each: int,
    for_servers: Bools,
    cost: Floats,
    where: Ints,
) -> None:
    """For every size the cheapest domain: its hosts are filled by price, all sizes in one go."""
    taken, spent = np.zeros(count, np.int64), np.zeros(count)
    following = np.zeros(count, np.int64)
    for h in order:
        if cap[h] == 0:
            continue
        d = within[h]
        while following[d] < len(sizes) and taken[d] + cap[h] >= sizes[following[d]]:
            j = following[d]
            following[d] += 1
            if each and sizes[j] % each:
                continue
            found = spent[d] + (sizes[j] - taken[d]) * each_price[h]
            if extra[j] and found < cost[j]:
                workers = filled(cap, order, sizes[j], within, d)
                found += servers_cost(
                    free, beta, server_price, server_order, alpha, workers, extra[j], for_servers
                )
            if found < cost[j]:
                cost[j], where[j] = found, d
        taken[d] += cap[h]
        spent[d] += cap[h] * each_price[h]


@compiled
def cheapest_places(
    free: Floats,
    each_price: Floats,
    server_price: Floats,
    order: Ints,
    server_order: Ints,
    alpha: Floats,
    beta: Floats,
    sizes: Ints,
    extra: Ints,
    domains: Ints,
    counts: Ints,
    open_to: Bools,
    each: int,
    allowed: Bools,
    for_servers: Bools,
    alpha_inside: Floats,
    beta_inside: Floats,
    each_inside: Floats,
    server_inside: Floats,
) -> tuple[Floats, Ints]:
    """(slots, scopes, sizes): what every size costs in every slot, and the host or the domain where."""
    slots, scopes = len(free), len(domains) + 1
    cost = np.full((slots, scopes, len(sizes)), np.inf)
    where = np.full((slots, scopes, len(sizes)), NOBODY)
    for t in range(slots):
        cap = caps(free[t], alpha, sizes[-1], each, allowed)
        if open_to[0]:
            on_one_host(
                free[t],
                caps(free[t], alpha_inside, sizes[-1], each, allowed),
                each_inside[t],
                server_inside[t],
                alpha_inside,
                beta_inside,
                sizes,
                extra,
                for_servers,
                cost[t, 0],
                where[t, 0],
            )
        for level in range(len(domains)):
            if open_to[level + 1]:
                in_domains(
                    free[t],
                    cap,
                    order[t],
                    each_price[t],
                    server_order[t],
                    server_price[t],
                    alpha,
                    beta,
                    sizes,
                    extra,
                    domains[level],
                    counts[level],
                    each,
                    for_servers,
                    cost[t, level + 1],
                    where[t, level + 1],
                )
    return cost, where


@compiled
def cheapest_slots(cost: Floats, steps: Ints, volume: int) -> tuple[Floats, Ints]:
    """Theta(t, v): the least cost of v steps of work in the slots up to t, and what is done in each.

    Args:
        cost: (slots, choices), inf where a choice cannot be.
        steps: (choices,) of work.

    Returns:
        (slots, volume + 1) costs, and the choice in slot t; -1 for none.
    """
    slots, choices = cost.shape
    theta = np.full((slots, volume + 1), np.inf)
    taken = np.full((slots, volume + 1), NOBODY)
    before = np.full(volume + 1, np.inf)
    before[0] = 0.0
    for t in range(slots):
        theta[t] = before
        for c in range(choices):
            if steps[c] == 0 or cost[t, c] == np.inf:
                continue
            for v in range(1, volume + 1):
                found = cost[t, c] + before[max(0, v - steps[c])]
                if found < theta[t, v]:
                    theta[t, v], taken[t, v] = found, c
        before = theta[t]
    return theta, taken


@compiled
def fill_host(hosts: int, host: int, workers: int, servers: int) -> tuple[Ints, Ints]:
    """Workers and servers on each host: all on this one."""
    placed, served = np.zeros(hosts, np.int64), np.zeros(hosts, np.int64)
    placed[host], served[host] = workers, servers
    return placed, served


@compiled
def fill(
    free: Floats,
    order: Ints,
    server_order: Ints,
    alpha: Floats,
    beta: Floats,
    workers: int,
    servers: int,
    most: int,
    within: Ints,
    domain: int,
    each: int,
    allowed: Bools,
    for_servers: Bools,
) -> tuple[Ints, Ints]:
    """Workers and servers on each host, as `in_domains` has reckoned them."""
    cap = caps(free, alpha, most, each, allowed)
    placed = filled(cap, order, workers, within, domain)
    served, left = np.zeros(len(free), np.int64), servers
    if servers:
        for h in server_order:
            if left and for_servers[h]:
                served[h] = room(free[h] - placed[h] * alpha, beta, left)
                left -= served[h]
    return placed, served
