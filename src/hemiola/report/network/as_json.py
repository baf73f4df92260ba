"""A network's and a strategy's figures as JSON. What is not known, and what is unlimited, is null."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from hemiola.report.network.figures import HostGroup, NetworkFigures, Rate
from hemiola.report.network.sent import ScheduleFigures
from hemiola.trace.atomic import replacing

__all__ = ["NETWORK_SCHEMA", "STRATEGY_SCHEMA", "network_as_json", "strategy_as_json", "write_json"]

NETWORK_SCHEMA = "hemiola.network-inspection/1"
STRATEGY_SCHEMA = "hemiola.strategy-inspection/1"


def write_json(value: dict[str, Any], path: Path) -> None:
    """Write figures.

    Raises:
        InputError: if the path cannot be written.
    """
    text = msgspec.json.format(msgspec.json.encode(value), indent=2)
    with replacing(path) as stream:
        stream.write(text + b"\n")


def network_as_json(figures: NetworkFigures) -> dict[str, Any]:
    """A topology's figures as plain values; rates in bytes/s, hosts and domains by their names."""
    topology, slowest = figures.topology, figures.slowest
    return {
        "schema": NETWORK_SCHEMA,
        "name": topology.name,
        "source": topology.source,
        "measured": figures.is_measured,
        "hosts": len(topology.hosts),
        "gpus": topology.gpus,
        "median_bytes_per_s": _finite(figures.median_bytes_per_s),
        "slowest": {"link": slowest.name, **_rate(slowest.rate), "hosts": slowest.hosts},
        "groups": [_group(figures, group) for group in figures.groups],
        "levels": [
            {
                "name": level.name,
                "domains": [
                    {
                        "names": [level.domains[number] for number in one.numbers],
                        "hosts_each": one.hosts,
                        "uplink": _rate(one.uplink),
                        "oversubscription": one.oversubscription or None,
                    }
                    for one in every
                ],
            }
            for level, every in zip(topology.levels, figures.domains, strict=True)
        ],
    }


def _group(figures: NetworkFigures, group: HostGroup) -> dict[str, Any]:
    return {
        "hosts": [figures.topology.hosts.names[host] for host in group.hosts],
        "out": _rate(group.out),
        "in": _rate(group.into),
        "latency_s": group.latency_s,
        "gpus_each": group.gpus,
        "gpu_type": group.gpu_type,
    }


def _rate(rate: Rate) -> dict[str, float | None]:
    low, high = (rate.low, rate.high) if rate.is_measured else (math.nan, math.nan)
    return {"bytes_per_s": _finite(rate.bytes_per_s), "low": _finite(low), "high": _finite(high)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def strategy_as_json(figures: ScheduleFigures) -> dict[str, Any]:
    """A strategy's figures as plain values; what is sent as a multiple of the data."""
    strategy = figures.strategy
    value: dict[str, Any] = {
        "schema": STRATEGY_SCHEMA,
        **{
            name: getattr(strategy, name) for name in ("name", "collective", "ranks", "chunks", "chunk_bytes")
        },
        **{name: getattr(strategy, name) for name in ("weights", "in_place", "root", "source")},
        "moves": len(strategy.moves),
        "problem": figures.problem.what if figures.problem else None,
    }
    if figures.problem:
        return value
    return value | {
        "hops": figures.hops,
        "busiest": figures.busiest,
        "moves_sent": figures.sent,
        "groups": [
            {"ranks": one.ranks, "sends": one.sends, "receives": one.receives, "to": one.to, "from": one.of}
            for one in figures.groups
        ],
        "between": [
            {"from": source, "to": target, "share": share}
            for (source, target), share in sorted((figures.between or {}).items())
        ],
        "trees": [
            {"share": tree.share, "root": tree.root, "parents": tree.parents, "chunks": tree.chunks}
            for tree in figures.trees
        ],
    }
