"""What `hemiola doctor --engine ray` looks at in Ray: by questions alone, nothing is changed or tried."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

import msgspec

from hemiola.core.errors import DAMAGED, EngineError, HemiolaError
from hemiola.core.hostlist import compress
from hemiola.core.topology import Topology
from hemiola.live.check import Check, problem_check
from hemiola.live.engines.ray.client import Ray
from hemiola.live.engines.ray.kv_store import HOLDS, WRAPPER, Wrapper, use_token
from hemiola.live.engines.ray.snapshot import ray_topology
from hemiola.live.engines.ray.wire import ENDED, RayNodeRow, RayReply, read_answer

__all__ = ["ray_checks"]

LEAST = (2, 60)
SLOW_S = 2.0


def ray_checks(ray: Ray, topology: Topology | None, mode: str) -> Iterator[Check]:
    """All of them; where Ray does not answer, one.

    Args:
        topology: the cluster, if it is not the one that the labels of Ray's nodes describe.
        mode: of the daemon, "" where it is not known.
    """
    try:
        ray.ask("names")  # the agent starts, and that takes seconds
        began_s = time.monotonic()
        answer = read_answer(ray.ask("look", []))
    except EngineError as problem:
        yield problem_check("ray", problem)
        return
    yield _version(ray.version, time.monotonic() - began_s)
    yield _token()
    try:
        yield from _cluster(topology or ray_topology(ray), answer.nodes)
    except HemiolaError as problem:
        yield problem_check("topology", problem)
    yield _jobs(answer, mode)


def _version(version: str, took_s: float) -> Check:
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    said = f"Ray {version} answers within {took_s:.2f} s"
    if numbers < LEAST:
        wanted = ".".join(map(str, LEAST))
        return Check(
            "WARN",
            "ray",
            f"{said}; older than {wanted}, it was not tried",
            f"pip install 'ray[default]>={wanted}'",
        )
    if took_s > SLOW_S:
        return Check("WARN", "ray", f"{said}: Hemiola looks as seldom", "is the head short of processors?")
    return Check("OK", "ray", said)


def _token() -> Check:
    environ = dict(os.environ)
    use_token(environ)
    if environ.get("RAY_AUTH_MODE") == "token":
        return Check("OK", "token", "Ray's token authentication is on here")
    return Check(
        "WARN", "token", "Ray's token authentication is off: whoever reaches its ports runs commands as its user",
        "RAY_AUTH_MODE=token, with the token in ~/.ray/auth_token, on every node",
    )  # fmt: skip


def _cluster(topology: Topology, nodes: tuple[RayNodeRow, ...]) -> Iterator[Check]:
    """The topology against Ray's nodes and their GPUs."""
    names = topology.hosts.names
    by_name = {name: node for node in nodes for name in reversed(node.names)}
    used = {by_name[name].id for name in names if name in by_name}
    missing = [name for name in names if name not in by_name]
    strangers = sorted(node.names[0] for node in nodes if node.gpus and node.id not in used)
    if missing:
        yield Check(
            "WARN", "nodes", f"Ray has no {compress(missing)}: down, or called otherwise",
            "ray start --node-name=NAME; they count as down",
        )  # fmt: skip
    if strangers:
        yield Check(
            "WARN", "nodes", f"{compress(strangers)} is not in the topology, and is not used",
            "add it to the topology's file",
        )  # fmt: skip
    ours = dict(zip(names, map(int, topology.hosts.gpus), strict=True))
    wrong = [name for name in names if name in by_name and by_name[name].gpus != ours[name]]
    if wrong:
        first = wrong[0]
        yield Check(
            "WARN", "gpus", f"Ray counts {by_name[first].gpus} GPUs on {first}, the topology {ours[first]}"
            + (f"; so on {len(wrong) - 1} more" if len(wrong) > 1 else ""), "ray start --num-gpus",
        )  # fmt: skip
    if draining := sorted(node.names[0] for node in nodes if node.draining):
        yield Check(
            "WARN", "nodes", f"{compress(draining)} {'is' if len(draining) == 1 else 'are'} being drained: nothing new starts there",
            "it leaves once its jobs have ended; start Ray there again when it is well",
        )  # fmt: skip
    elif not (missing or strangers or wrong):
        levels = ", ".join(f"{len(level.domains)} {level.name}s" for level in topology.levels) or "no racks"
        yield Check(
            "OK", "nodes", f"{len(names)} nodes in {levels}, {topology.gpus} GPUs, as Ray counts them"
        )


def _jobs(answer: RayReply, mode: str) -> Check:
    """Whether jobs wait for somebody who is there."""
    states = []
    live = {WRAPPER + row.id for row in answer.jobs if row.status not in ENDED}
    for key, text in answer.notes.items():
        if key in live:
            try:
                states.append(msgspec.json.decode(text, type=Wrapper).state)
            except DAMAGED:
                return Check(
                    "WARN", "jobs", f"the note {key[:80]!r} cannot be read", "its job waits; stop it"
                )
    waiting = states.count("waits")
    said = f"{waiting} of {len(states)} jobs under hemiola hold wait"
    if waiting and HOLDS in answer.notes and mode != "enforce":
        return Check(
            "WARN", "jobs", f"{said} for Hemiola, and no daemon enforces",
            "start one, or let Ray place them: hemiola release --engine ray",
        )  # fmt: skip
    return Check("OK", "jobs", said)
