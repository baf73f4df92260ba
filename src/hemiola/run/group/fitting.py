"""How a group comes to its strategies: measured, from a topology, or given. The first rank decides for all."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hemiola.core.errors import HemiolaError, InputError
from hemiola.core.strategy import Collective, Strategy
from hemiola.run.group.fitted import Fitted
from hemiola.run.transport import Endpoint

__all__ = ["VARIABLE", "fitting", "own_names"]

VARIABLE = "HEMIOLA_STRATEGY"
Plan = Callable[[Collective, float, int], Strategy | None]


class _Told(msgspec.Struct):
    """What the first rank tells the others: a strategy, none for the usual way, or what went wrong."""

    strategy: Strategy | None = None
    problem: str = ""
    hint: str = ""


def own_names() -> list[str]:
    """What this host may be called in a topology."""
    name = socket.gethostname()
    told = os.environ.get("HEMIOLA_LAB_HOST", "")
    return [*([told] if told else []), name, name.split(".")[0]]


def fitting(store: Any, end: Endpoint, names: Sequence[Sequence[str]], timeout_s: float) -> Fitted | None:
    """As the first rank's HEMIOLA_STRATEGY says: "" or "usual", "auto", or a file.

    Args:
        names: of every rank's host: what a topology may call it; the first one is different for each host.

    Raises:
        InputError: it says something else, or its file is wrong; at every rank.
    """
    if end.rank == 0:
        store.set("hemiola/strategy", os.environ.get(VARIABLE, ""))
    wanted = bytes(store.get("hemiola/strategy")).decode()
    if wanted in ("", "usual"):
        return None
    plan: Plan | None = None
    told = _Told()
    try:
        plan = _measured(end, names, timeout_s) if wanted == "auto" else _given(wanted, end, names)
    except HemiolaError as problem:
        if wanted == "auto":
            raise
        told = _Told(problem=problem.what, hint=problem.remedy)
    told = _agreed(store, "hemiola/strategy/begin", told if end.rank == 0 else None)
    if told.problem:
        raise InputError(f"{VARIABLE}={wanted}: {told.problem}", told.hint)
    return Fitted(end, _Chooser(store, plan), timeout_s)


class _Chooser:
    """Asks the first rank once for every kind of collective, size and root."""

    def __init__(self, store: Any, plan: Plan | None) -> None:
        self._store, self._plan = store, plan
        self._known: dict[tuple[str, int, int], Strategy | None] = {}

    def __call__(self, collective: Collective, size_bytes: int, root: int) -> Strategy | None:
        from hemiola.plan.collectives.planner import size_class

        key = (collective, size_class(size_bytes), root)
        if key not in self._known:
            told = None
            if self._plan is not None:
                told = _Told(self._plan(collective, key[1], root))
            where = f"hemiola/strategy/{collective}/{key[1]}/{root}"
            found = _agreed(self._store, where, told)
            self._known[key] = found.strategy
        return self._known[key]


def _agreed(store: Any, key: str, told: _Told | None) -> _Told:
    """The first rank's word."""
    if told is not None:
        store.set(key, msgspec.json.encode(told))
        return told
    return msgspec.json.decode(bytes(store.get(key)), type=_Told)


def _given(path: str, end: Endpoint, names: Sequence[Sequence[str]]) -> Plan | None:
    """By a file, which only the first rank needs to have."""
    if end.rank:
        return None
    from hemiola.plan.collectives.planner import Planner

    file = Path(path)
    if file.suffix in (".json", ".xml"):
        from hemiola.trace.msccl import read_msccl
        from hemiola.trace.strategy_json import read_strategy

        strategy = (read_msccl(file) if file.suffix == ".xml" else read_strategy(file)).verify()
        strategy.check_ranks(end.ranks)

        def plan(collective: Collective, size_bytes: float, root: int) -> Strategy | None:
            fits = strategy.collective == collective and strategy.root == root
            return strategy if fits else None

        return plan
    from hemiola.trace.topologies import read_topology

    topology = read_topology(path)
    known = set(topology.hosts.names)
    planner = Planner(topology, [next((name for name in own if name in known), own[0]) for own in names])
    return planner.strategy


def _measured(end: Endpoint, names: Sequence[Sequence[str]], timeout_s: float) -> Plan | None:
    """By measuring now, between the first ranks of all hosts."""
    from hemiola.run.probe.measure import Prober
    from hemiola.run.probe.result import measured_topology

    homes = [own[0] for own in names]
    firsts = [rank for rank, home in enumerate(homes) if home not in homes[:rank]]
    if end.rank not in firsts or len(firsts) < 2:
        return _usual if end.rank == 0 else None
    found = Prober(end, firsts, timeout_s).measure(passes_most=1)
    if end.rank:
        return None
    from hemiola.plan.collectives.planner import Planner

    called = [names[rank][1] for rank in firsts]
    if len(set(called)) < len(firsts):
        called = [homes[rank] for rank in firsts]
    topology = measured_topology(found, called, [homes.count(homes[rank]) for rank in firsts])
    name_of = dict(zip((homes[rank] for rank in firsts), called, strict=True))
    return Planner(topology, [name_of[home] for home in homes]).strategy


def _usual(collective: Collective, size_bytes: float, root: int) -> None:
    """The usual way."""
