"""The process that speaks Ray for the daemon: requests on its input, answers on its output, each a line of JSON.

It stands apart because a process that uses Ray ends when its node or the head does, and some calls have no time limit.
The daemon ends it if it is late, and starts another one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from hemiola.live.engines.ray.kv_store import (
    GROUP,
    GROUPS,
    HOLDS,
    JOB,
    NAMESPACE,
    NODE,
    PLACE,
    WRAPPER,
    RayStore,
)

__all__ = ["RayAgent", "main"]

JOBS, JOBS_SPACE = "_ray_internal_job_info_", "job"
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
SETTLED_S = 1.0
"""Of a group that stands Ray is asked so much less often."""
ENDED_S = 30.0
"""So much later an ended job's record is read again: its id may be another job's."""


class RayAgent:
    """Requests by name; each takes and gives what JSON can hold.

    Args:
        address: of Ray's head.
    """

    def __init__(self, address: str) -> None:
        import ray
        from ray._private.state import state

        ray.init(
            address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False, logging_level="ERROR",
        )  # fmt: skip
        self._ray, self._state = ray, state
        self._board = RayStore(address)
        self._groups: dict[str, tuple[float, dict[str, Any]]] = {}
        self._ended: dict[str, tuple[float, dict[str, Any]]] = {}
        self._find_groups()
        self.requests: dict[str, Callable[..., Any]] = {
            "look": self.look,
            "group": self._group,
            "names": self.names,
            "put": self.put,
            "delete": self._board.delete,
            "make": self.make,
            "make_own": self.make_own,
            "labels": self.labels,
            "remove": self.remove,
        }

    def _find_groups(self) -> None:
        """Note groups of ours that nobody has noted: the list of all, ended ones too, is long and read once."""
        noted = set(self._board.keys(GROUPS))
        for row in self._state.placement_group_table().values():
            if (
                row["state"] != "REMOVED"
                and GROUP.fullmatch(row["name"])
                and GROUPS + row["name"] not in noted
            ):
                self._board.put(GROUPS + row["name"], b"")

    def look(self, known: list[str]) -> dict[str, Any]:
        """Everything; of jobs those that wait or run, and the known ones.

        Groups come before the notes, those before the jobs, and those before the nodes: what one of them says
        is at most older than what the next one does.
        """
        names = [key.removeprefix(GROUPS) for key in self._board.keys(GROUPS)]
        groups = [self._group(name) for name in names if GROUP.fullmatch(name)]
        keys = [*self._board.keys(WRAPPER), *self._board.keys(PLACE), HOLDS]
        notes = {key: value.decode(errors="replace") for key, value in self._board.many(keys).items()}
        jobs = self._jobs(set(known), {key.removeprefix(WRAPPER) for key in keys if key.startswith(WRAPPER)})
        free, draining = self._state.available_resources_per_node(), self._state.get_draining_nodes()
        nodes = [
            {
                "id": node["NodeID"], "names": _names(node), "gpus": int(node["Resources"].get("GPU", 0)),
                "free_gpus": free.get(node["NodeID"], {}).get("GPU", 0.0), "labels": node["Labels"],
                "draining": node["NodeID"] in draining, "cpus": node["Resources"].get("CPU", 0.0),
                "free_cpus": free.get(node["NodeID"], {}).get("CPU", 0.0),
            }
            for node in self._ray.nodes() if node["Alive"]
        ]  # fmt: skip
        return {"groups": groups, "notes": notes, "jobs": jobs, "nodes": nodes}

    def names(self) -> dict[str, str]:
        """Of nodes, by id."""
        return {node["NodeID"]: _names(node)[0] for node in self._ray.nodes()}

    def labels(self) -> list[dict[str, str]]:
        """Of each node with GPUs."""
        return [
            node["Labels"] for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("GPU")
        ]

    def _group(self, name: str) -> dict[str, Any]:
        now = time.monotonic()
        read_s, row = self._groups.get(name, (0.0, {}))
        if row.get("state") == "CREATED" and now - read_s < SETTLED_S:
            return row
        found = self._state.get_placement_group_by_name(name, NAMESPACE)
        if found is None:
            row = {"name": name, "state": "REMOVED"}
        else:
            nodes = found["bundles_to_node_id"]
            row = {
                "name": name, "id": found["placement_group_id"], "state": found["state"],
                "nodes": [nodes[index] for index in sorted(nodes)],
            }  # fmt: skip
        self._groups[name] = now, row
        return row

    def _jobs(self, known: set[str], held: set[str]) -> list[dict[str, Any]]:
        """Those that are known, wait or run; a record of an ended one whose id is in use (`held`) is read again."""
        now = time.monotonic()
        keys = self._board.keys(JOBS, JOBS_SPACE)
        stale = [
            key for key in keys
            if key not in self._ended or now - self._ended[key][0] > ENDED_S or key.removeprefix(JOBS) in held
        ]  # fmt: skip
        self._ended = {key: self._ended[key] for key in keys if key in self._ended}
        jobs = []
        for key, text in self._board.many(stale, JOBS_SPACE).items():
            row = _job(key.removeprefix(JOBS), text)
            if row["status"] in ENDED:
                self._ended[key] = now, row
            else:
                self._ended.pop(key, None)
                jobs.append(row)
        jobs += [row for _, row in self._ended.values() if row["id"] in known]
        return [row for row in jobs if row["words"] is not None and JOB.fullmatch(row["id"])]

    def put(self, key: str, value: str) -> None:
        """Leave a note."""
        self._board.put(key, value.encode())

    def make(self, name: str, bundles: list[dict[str, float]], nodes: list[str]) -> str:
        """A placement group, each bundle on its node; its id."""
        return self._make(name, bundles, "PACK", [{NODE: node} for node in nodes], "detached")

    def make_own(
        self, name: str, bundles: list[dict[str, float]], strategy: str, labels: list[dict[str, str]]
    ) -> str:
        """A placement group that ends with this process, where Ray wants it.

        Args:
            labels: that the node of each bundle has to have.
        """
        return self._make(name, bundles, strategy, labels, None)

    def _make(
        self, name: str, bundles: list[dict[str, float]], strategy: str, labels: list[dict[str, str]], lifetime: str | None
    ) -> str:  # fmt: skip
        self._board.put(GROUPS + name, b"")
        group = self._ray.util.placement_group(
            bundles, strategy=strategy, name=name, lifetime=lifetime,
            bundle_label_selector=labels if any(labels) else None,
        )  # fmt: skip
        self._board.put(GROUPS + name, b"")  # somebody may have tidied up between the two
        return str(group.id.hex())

    def remove(self, name: str) -> None:
        """The group, and then the note of it."""
        found = self._state.get_placement_group_by_name(name, NAMESPACE)
        if found is not None and found["state"] != "REMOVED":
            self._ray.util.remove_placement_group(self._ray.util.get_placement_group(name))
        self._board.delete(GROUPS + name)
        self._groups.pop(name, None)


def _names(node: dict[str, Any]) -> list[str]:
    """What a node may be called, the most deliberate name first."""
    names = [
        node["Labels"].get("node"),
        node["NodeName"],
        node["NodeManagerHostname"],
        node["NodeManagerAddress"],
    ]
    return [str(name) for name in names if name]


def _job(job_id: str, text: bytes) -> dict[str, Any]:
    info = json.loads(text)
    metadata = info.get("metadata") or {}
    return {
        "id": job_id, "status": info["status"], "start_ms": info.get("start_time") or 0,
        "exit_code": info.get("driver_exit_code"), "words": metadata.get("hemiola"), "end_ms": info.get("end_time") or 0,
    }  # fmt: skip


def main() -> None:
    """Answer until the input ends. The first line says who answers; an error is an answer, too."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever Ray prints is no answer

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        agent = RayAgent(sys.argv[1])
    except Exception as problem:
        say({"error": f"{type(problem).__name__}: {problem}"})
        return
    say({"value": agent._ray.__version__})
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            say({"value": agent.requests[name](*arguments)})
        except Exception as problem:
            say({"error": f"{type(problem).__name__}: {problem}"})


if __name__ == "__main__":
    main()
