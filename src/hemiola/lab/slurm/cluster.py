"""The Slurm lab as a Python object: a real Slurm on this machine, whose parts can be killed and started."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from hemiola.core.errors import LabError
from hemiola.lab.guardian import Guardian
from hemiola.lab.slurm import config, daemons
from hemiola.lab.slurm.config import check_programs, check_rest
from hemiola.lab.slurm.record import Record, base_of, claim, load, read, save
from hemiola.lab.slurm.spec import SlurmSpec
from hemiola.lab.slurm.teardown import clear_up, tear_down

__all__ = ["SlurmLab", "attach"]

READY_S = 60.0
END_S = 10.0


class SlurmLab:
    """A Slurm with a controller and several nodes, for as long as a `with` block lasts.

    When the block ends, by an error, by Ctrl-C or because the process is killed, the Slurm and all its
    jobs go too. `hemiola lab slurm up` makes one that stays.

    Args:
        nodes: how many; they are named h0, h1, ...
        gpus: per node: stand-ins that Slurm counts and hands out (CUDA_VISIBLE_DEVICES).
        gpu_types: of the racks' GPUs, in turn, such as ("h100", "a100"); none: Slurm knows no types.
        racks: leaf switches rack0, rack1, ... in Slurm's topology, with equal shares of the nodes.
        rate: give each node a network of its own, on which it sends and receives at this rate; needs root.
        uplink: what each rack can exchange with the others; needed with `rate` and two racks or more.
        name: the Slurm's name; one that is free unless given.
        partition: the default one, which Hemiola manages; `other` has the same nodes and is left alone.
        hold: hold jobs of that partition at submission, until an operator releases them.
        settings: lines of slurm.conf over the lab's own, such as {"MinJobAge": "5"}.
        rest: run slurmrestd, too, with tokens (JWT); needs `hemiola.lab.slurm.config.REST_PACKAGES`.

    Raises:
        LabError: a value that cannot be; on entering also a Slurm that cannot be built here.
    """

    def __init__(
        self,
        nodes: int,
        *,
        gpus: int = 8,
        racks: int = 1,
        rate: str | None = None,
        uplink: str | None = None,
        name: str | None = None,
        partition: str = "hemiola",
        hold: bool = True,
        settings: Mapping[str, str] | None = None,
        gpu_types: Sequence[str] = (),
        rest: bool = False,
    ) -> None:
        self._spec = SlurmSpec.of(
            name=name if name is not None else _free_name(),
            nodes=nodes,
            gpus=gpus,
            racks=racks,
            rate=rate,
            uplink=uplink,
            partition=partition,
            hold=hold,
            settings=settings or {},
            gpu_types=gpu_types,
            rest=rest,
        )
        self._record: Record | None = None
        self._guardian: Guardian | None = None
        self._started: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Self:
        return self.up()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def up(self, *, stays: bool = False) -> Self:
        """Build it, and return when every node is idle with all its GPUs.

        Args:
            stays: let it outlive this process; else it goes when this process ends.

        Raises:
            LabError: a program is missing, the name is taken, or Slurm does not come up.
        """
        check_programs()
        if self._spec.rest:
            check_rest()
        if self._record is not None:
            raise LabError(f"the Slurm {self.name!r} is up already", "stop it first, or make another")
        if self._spec.rate is not None:
            from hemiola.lab.state import check_rights

            check_rights()
        id_ = secrets.token_hex(8)
        self._guardian = Guardian(  # before there is anything to leave
            f"{clear_up.__module__}:{clear_up.__name__}", str(base_of(self._spec)), id_
        )
        try:
            self._record = claim(self._spec, id_)
            self._build()
            self._record = msgspec.structs.replace(
                self._record, built=True, owner=None if stays else self._record.owner
            )
            save(self._record)
            if stays:
                self._dismiss_guardian()
        except BaseException as error:
            logs = daemons.see_logs(self._record) if self._record else None
            self.stop()
            if isinstance(error, LabError) and error.remedy == logs:
                raise LabError(
                    error.what, "Slurm's own words stand above; its logs are gone again"
                ) from error
            raise
        return self

    def stop(self) -> None:
        """End its jobs and daemons and remove all of it; nothing happens if it is down already."""
        if self._record is not None:
            written = read(self._record.folder)  # it knows how far `up` came
            tear_down(written if written and written.id == self._record.id else self._record)
            for process in self._started:
                process.wait()
            self._started.clear()
            self._record = None
        self._dismiss_guardian()

    @property
    def name(self) -> str:
        """The Slurm's name, which is also its ClusterName."""
        return self._spec.name

    @property
    def spec(self) -> SlurmSpec:
        """What was asked for."""
        return self._spec

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes' names: h0, h1, ..."""
        return self._spec.nodes

    @property
    def base(self) -> Path:
        """The folder with its configuration, logs and state."""
        return self._up.folder

    @property
    def environ(self) -> dict[str, str]:
        """The variables with which sbatch, squeue and the rest find this Slurm."""
        return daemons.environ(self._up)

    def run(self, command: Sequence[str], *, limit_s: float = daemons.ASK_S) -> str:
        """Run one of Slurm's commands, and return what it printed.

        Raises:
            LabError: it failed, or took longer than `limit_s`.
        """
        return daemons.ask(self._up, command, limit_s=limit_s)

    def node_states(self) -> dict[str, str]:
        """Each node's state as sinfo has it: "idle", "allocated", "down*", ..."""
        return daemons.node_states(self._up)

    def processes(self) -> dict[int, daemons.Role]:
        """All processes of this Slurm now, by number, with what each is."""
        return daemons.find(self._up)

    def wait_ready(self, nodes: Sequence[str] = (), *, limit_s: float = READY_S) -> None:
        """Wait until these nodes (all unless given) take jobs, with all their GPUs.

        Raises:
            LabError: they do not in `limit_s`.
        """
        wanted, seen = tuple(nodes) or self.nodes, dict[str, str]()

        def ready() -> bool:
            try:
                seen.update(daemons.node_states(self._up))
            except LabError:  # the controller may be on its way
                return False
            return all(seen.get(node) in daemons.GOOD for node in wanted)

        def lacking() -> str:
            node = next((node for node in wanted if seen.get(node) not in daemons.GOOD), wanted[0])
            state = seen.get(node, "not known to a controller")
            return f"{node} is {state}: {daemons.last_lines(self._up, f'slurmd.{node}.log')}"

        daemons.wait_until(self._up, ready, limit_s=limit_s, what=lacking)

    def kill_controller(self) -> None:
        """SIGKILL slurmctld; running jobs go on, and whoever asks it gets no answer."""
        daemons.end(self._up, lambda role: role.kind in daemons.CONTROLLER_PROGRAM, grace_s=0.0)
        self._reap()

    def start_controller(self) -> None:
        """Start slurmctld from the state it saved; return when it answers."""
        record = self._up
        if daemons.find(record, lambda role: role.kind == "slurmctld"):
            raise LabError("slurmctld runs already", "kill_controller() ends it")
        self._started.append(daemons.start_controller(record))
        daemons.wait_until(
            record, lambda: daemons.answers(record), limit_s=READY_S, what=lambda: "slurmctld does not answer"
        )

    def restart_controller(self) -> None:
        """Have slurmctld save its state and end (SIGTERM), and start it again."""
        daemons.end(self._up, lambda role: role.kind == "slurmctld", grace_s=END_S)
        self.kill_controller()  # and its helper, if that is slow
        self.start_controller()

    @property
    def wake(self) -> Path:
        """The file that is written when a job comes, for `hemiola serve --wake`."""
        return self._up.wake

    @property
    def rest_url(self) -> str:
        """Where slurmrestd listens; "" if the lab was made without."""
        return f"http://127.0.0.1:{self._up.rest_port}" if self._spec.rest else ""

    def token(self, user: str = "root", *, life_s: int = 86_400) -> str:
        """What proves to slurmrestd that one is this user.

        Raises:
            LabError: the lab was made without slurmrestd, or its controller does not answer.
        """
        return (
            self.run(["scontrol", "token", f"username={user}", f"lifespan={life_s}"])
            .strip()
            .partition("=")[2]
        )

    def kill_rest(self) -> None:
        """SIGKILL slurmrestd: whoever waits for its answer gets half of it or none."""
        daemons.end(self._up, lambda role: role == daemons.REST, grace_s=0.0)
        self._reap()

    def start_rest(self) -> None:
        """Start slurmrestd again; return when it takes connections."""
        if daemons.find(self._up, lambda role: role == daemons.REST):
            raise LabError("slurmrestd runs already", "kill_rest() ends it")
        self._started.append(daemons.start_rest(self._up))

    def kill_node(self, node: str) -> None:
        """End all that runs on a node at once, as a power cut does; Slurm notices after SlurmdTimeout."""
        self._known(node)
        daemons.end(self._up, lambda role: role.node == node, grace_s=0.0)
        self._reap()

    def kill_slurmd(self, node: str) -> None:
        """SIGKILL only a node's slurmd; its jobs go on, and Slurm loses sight of them."""
        self._known(node)
        daemons.end(self._up, lambda role: role == daemons.Role("slurmd", node), grace_s=0.0)
        self._reap()

    def start_node(self, node: str, *, wait: bool = True) -> None:
        """Start a node's slurmd again.

        Args:
            wait: return only when the node takes jobs, which needs the controller.
        """
        self._known(node)
        if daemons.find(self._up, lambda role: role == daemons.Role("slurmd", node)):
            raise LabError(f"slurmd of {node} runs already", "kill_node() ends it")
        process = daemons.start_node(self._up, node)
        self._started.append(process)
        if wait:
            daemons.wait_for_node(self._up, node, process)
            self.wait_ready([node])

    def _build(self) -> None:
        if self._spec.rate is not None:
            from hemiola.lab.slurm import network  # needs pyroute2

            self._record = network.build(self._up)
        record = self._up
        config.write(record)
        self._started.append(daemons.start_munged(record))
        self._started.append(daemons.start_controller(record))
        for node in self.nodes:
            self._started.append(daemons.start_node(record, node))
        if self._spec.rest:
            self._started.append(daemons.start_rest(record))
        self.wait_ready()

    @property
    def _up(self) -> Record:
        if self._record is None:
            raise LabError(f"the Slurm {self.name!r} is not up", "use it inside: with SlurmLab(...) as slurm")
        present = read(self._record.folder)
        if present is None or present.id != self._record.id:
            raise LabError(
                f"the Slurm {self.name!r} was taken down",
                f"attach({self.name!r}) finds another one of its name",
            )
        return self._record

    def _known(self, node: str) -> None:
        if node not in self.nodes:
            raise LabError(f"there is no node {node!r}", f"the nodes: {', '.join(self.nodes)}")

    def _reap(self) -> None:
        """Let go of the daemons that have ended."""
        self._started = [process for process in self._started if process.poll() is None]

    def _dismiss_guardian(self) -> None:
        if self._guardian is not None:
            self._guardian.dismiss()
            self._guardian = None

    def _adopt(self, found: Record) -> Self:
        self._spec, self._record = found.spec, found
        return self


def attach(name: str) -> SlurmLab:
    """A Slurm that another process made; it stays when this process ends.

    Raises:
        LabError: there is none of this name.
    """
    found = load(name)
    return SlurmLab(found.spec.node_count, name=name)._adopt(found)


def _free_name() -> str:
    return f"py-{os.getpid()}-{secrets.token_hex(3)}"
