"""Which lent servers go back: idle ones, those that only lose workers, then those that cost least. Names in, names out.

Lyra (Li et al., EuroSys'23, section 4): a server's cost is the sum over its jobs of 1 / the servers that the job has, as a job
that is stopped leaves all of them. That is a heuristic: `fewest_stopped` finds by trying all what it can miss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from itertools import combinations
from typing import TypeVar

__all__ = ["fewest_stopped", "reclaim_greedily", "spread_cost"]

Server = TypeVar("Server", int, str)
Cost = Callable[[Set[str], Mapping[str, int]], float]
"""What it costs to stop these jobs, given how many servers each has."""


def spread_cost(jobs: Set[str], servers_of: Mapping[str, int]) -> float:
    """Lyra's: each job counts 1 / the servers that it has."""
    return sum(1.0 / servers_of[job] for job in sorted(jobs))


def reclaim_greedily(
    jobs_on: Mapping[Server, Set[str]],
    count: int,
    cost: Cost = spread_cost,
    *,
    shrinking: Set[Server] = frozenset(),
) -> tuple[list[Server], list[str]]:
    """Servers to take back one by one, the cheapest first, and the jobs that are stopped for it, in this order.

    A job that is stopped leaves all of its servers: others may be idle then, and cost nothing.

    Args:
        jobs_on: by lent server, the jobs that would have to be stopped.
        count: servers wanted; all there are if these are fewer.
        shrinking: servers on which jobs only lose workers; they go after idle ones, before all that stop somebody.

    Example:
        >>> lent = {"s1": {"a", "b"}, "s2": {"a"}, "s3": {"b", "c"}, "s4": {"c", "d"}, "s5": {"d"}}
        >>> reclaim_greedily(lent, 2)
        (['s2', 's1'], ['a', 'b'])
    """
    left = {server: set(jobs) for server, jobs in jobs_on.items()}
    taken: list[Server] = []
    stopped: list[str] = []
    while left and len(taken) < count:
        servers_of: dict[str, int] = {}
        for jobs in left.values():
            for job in jobs:
                servers_of[job] = servers_of.get(job, 0) + 1
        best = min(
            left,
            key=lambda server: (
                bool(left[server]),
                server in shrinking,
                cost(left[server], servers_of),
                server,
            ),
        )
        leaving = left.pop(best)
        taken.append(best)
        stopped += sorted(leaving)
        for jobs in left.values():
            jobs -= leaving
    return taken, stopped


def fewest_stopped(jobs_on: Mapping[Server, Set[str]], count: int) -> int:
    """The fewest jobs that have to be stopped for so many servers, by trying all sets of servers: for small cases."""
    sets = combinations(sorted(jobs_on), min(count, len(jobs_on)))
    return min((len(set().union(*(jobs_on[server] for server in chosen))) for chosen in sets), default=0)
