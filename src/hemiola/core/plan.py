"""A plan: which pieces of which gradients ranks exchange together, in which order of urgency, and how.

A plan is made for one graph and one number of ranks, by `hemiola.plan` or by hand; predictions execute
it, and so does a training job. It says nothing of time. Files are `trace`'s business.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import PlanError
from hemiola.core.graph import Graph, Parameter
from hemiola.core.topology import Topology

__all__ = [
    "ACCELERATION_SCHEMA",
    "ALGORITHMS",
    "PLAN_SCHEMA",
    "ROWS_MOST",
    "Acceleration",
    "Part",
    "Piece",
    "Plan",
    "PlannedTransfer",
    "State",
]


PLAN_SCHEMA = "hemiola.plan/1"
ALGORITHMS = ("", "ring", "halving-doubling", "direct")
"""How an all-reduce may be done; "" leaves the choice to who executes it."""

Update = Literal["together", "on-arrival"]
Part = Literal["all", "rows", "head"]
ROWS_MOST = 0.9
"""If more of a table's rows are touched, all of it goes: that needs no copies."""
SMALL_BYTES, FEW = 16 << 10, 8
"""Up to so much, among up to so many ranks, what names no algorithm goes from everybody to everybody: one step instead of two."""


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stretch of one parameter's gradient.

    Attributes:
        parameter: its name, the first where it has several.
        start, stop: elements of the flattened tensor; `stop` is not among them.
    """

    parameter: str
    start: int
    stop: int


class PlannedTransfer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pieces that are reduced as one, once the last of them is ready.

    Attributes:
        name: what to call it.
        pieces: laid one behind the other in the buffer.
        priority: the lowest that is ready goes first, and pauses what is on its way; equals go as they become ready.
        algorithm: of the all-reduce, one of `ALGORITHMS`.
        part: what of the pieces goes. "all": everything. "rows": of one whole table the rows that are not zero on some
            rank, which ranks first tell each other. "head": of a table that is the output layer's weight too, that
            layer's part of the gradient, as soon as backward has it, in the rows that no rank has looked up; its
            "rows" are then the others.
    """

    name: str
    pieces: tuple[Piece, ...]
    priority: int = 0
    algorithm: str = ""
    part: Part = "all"

    def ready(self, known: Mapping[str, Parameter]) -> int:
        """The operation after which all of it is there.

        Args:
            known: the graph's parameters by name.

        Raises:
            PlanError: it is the head's part of what has no head.
        """
        members = [known[piece.parameter] for piece in self.pieces]
        if self.part != "head":
            return max(parameter.gradient_ready for parameter in members)
        if without := next((p.name for p in members if p.head_ready < 0), None):
            raise PlanError(
                f"transfer {self.name!r}: {without!r} is not the output layer's weight too, as far as the graph knows",
                "leave out transfers of the part 'head'",
            )
        return max(parameter.head_ready for parameter in members)

    def size_bytes(self, known: Mapping[str, Parameter]) -> float:
        """Bytes to be reduced; of rows as many as are expected, and a bit for each to say which."""
        members = [(known[piece.parameter], piece) for piece in self.pieces]
        if self.part == "all":
            return sum(p.size_bytes * (piece.stop - piece.start) / math.prod(p.shape) for p, piece in members)
        table, _ = members[0]
        share = table.touched if self.part == "rows" else 1 - table.touched
        return table.size_bytes * share + table.shape[0] / 8


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks of a data-parallel job exchange gradients in every iteration.

    Attributes:
        name: what to call it.
        graph: the name of the graph that it was made for.
        ranks: for how many it was made.
        update: "together", once everything is reduced, before the next iteration; or "on-arrival": each parameter
            by itself before its first use in the next forward.
        chunk_bytes: so much goes on its way at a time, or less; what is more urgent waits for no more than that.
        transfers: all of them, in any order.
        operation_order: the graph's operations in the order in which they are to be executed; () as they stand.
        changes: what was changed against the usual way, and why, in sentences.
        source: what made it.
    """

    name: str
    graph: str
    ranks: int
    update: Update
    chunk_bytes: int
    transfers: tuple[PlannedTransfer, ...]
    operation_order: tuple[int, ...] = ()
    changes: tuple[str, ...] = ()
    source: str = ""

    def dense(self) -> Plan:
        """The same with all of every gradient, for who cannot do with parts of it."""
        transfers = tuple(
            msgspec.structs.replace(transfer, part="all")
            for transfer in self.transfers
            if transfer.part != "head"
        )
        return msgspec.structs.replace(self, transfers=transfers)

    def verify(
        self, graph: Graph, topology: Topology | None = None, placement: Sequence[int] | None = None
    ) -> Plan:
        """Return this plan, having proved that it trains the graph rightly, and that its ranks have room where they are to be.

        Every element of every gradient is reduced exactly once, with others of its type only, and before the
        parameter is read again (where a head's part goes before, what changes after it follows): a transfer
        waits for gradients of one iteration alone, and is waited for by every parameter in it before that is
        updated, so no order of transfers can make it late or block. The order of operations respects what each
        of them waits for. In a topology every rank has a GPU, and every link between hosts of ranks has bandwidth.

        Args:
            topology: where it is to run; None where that is not known.
            placement: ranks of each host of the topology in order; None fills one host's GPUs before the next one's.

        Raises:
            PlanError: naming the parameter, transfer, operation, host or link for which that is not so.
        """
        if self.ranks < 1 or self.chunk_bytes < 1:
            raise PlanError(
                f"the plan {self.name!r} is for {self.ranks} ranks in chunks of {self.chunk_bytes} bytes",
                "give at least one of both",
            )
        known = {parameter.name: parameter for parameter in graph.parameters}
        reduced: dict[str, list[tuple[int, int]]] = {}
        for transfer in self.transfers:
            _check_transfer(transfer, known)
            for piece in transfer.pieces if transfer.part != "head" else ():
                reduced.setdefault(piece.parameter, []).append((piece.start, piece.stop))
        for parameter in graph.parameters:
            if parameter.gradient_ready >= 0:
                _check_covered(parameter, reduced.get(parameter.name, []))
        by_rows = {t.pieces[0].parameter for t in self.transfers if t.part == "rows"}
        heads = [t.pieces[0].parameter for t in self.transfers if t.part == "head"]
        for number, name in enumerate(heads):
            if name not in by_rows or name in heads[:number]:
                fault = "twice" if name in by_rows else "without a transfer for its other rows"
                raise PlanError(
                    f"{name!r}: the output layer's part is reduced {fault}",
                    "have one transfer of the part 'head' and one of 'rows' for it",
                )
        if self.operation_order:
            _check_order(self.operation_order, graph)
        if topology is not None:
            _check_links(self, topology, _ranks_of_hosts(self, topology, placement))
        return self


def _check_transfer(transfer: PlannedTransfer, known: dict[str, Parameter]) -> None:
    if transfer.algorithm not in ALGORITHMS:
        offered = ", ".join(repr(name) for name in ALGORITHMS)
        raise PlanError(
            f"transfer {transfer.name!r}: there is no algorithm {transfer.algorithm!r}",
            f"use one of {offered}",
        )
    if not transfer.pieces:
        raise PlanError(f"transfer {transfer.name!r} holds nothing", "leave it out")
    for piece in transfer.pieces:
        parameter = known.get(piece.parameter)
        if parameter is None or parameter.gradient_ready < 0:
            what = "is no parameter of the graph" if parameter is None else "gets no gradient"
            raise PlanError(
                f"transfer {transfer.name!r}: {piece.parameter!r} {what}",
                "make the plan anew from this graph",
            )
    if transfer.part != "all":
        _check_part(transfer, known)
    dtypes = sorted({known[piece.parameter].dtype for piece in transfer.pieces})
    if len(dtypes) > 1:
        raise PlanError(
            f"transfer {transfer.name!r} mixes {' and '.join(dtypes)}", "reduce each type by itself"
        )


def _check_part(transfer: PlannedTransfer, known: dict[str, Parameter]) -> None:
    if transfer.part not in ("rows", "head"):
        raise PlanError(
            f"transfer {transfer.name!r}: there is no part {transfer.part!r}", "use 'all', 'rows' or 'head'"
        )
    first = transfer.pieces[0]
    shape = known[first.parameter].shape
    if len(transfer.pieces) > 1 or len(shape) != 2:
        raise PlanError(
            f"transfer {transfer.name!r} is the part {transfer.part!r} of "
            + ("several pieces" if len(transfer.pieces) > 1 else f"a parameter of {len(shape)} dimensions"),
            "give it one piece of a table, which has two dimensions",
        )
    if (first.start, first.stop) != (0, math.prod(shape)):
        raise PlanError(
            f"transfer {transfer.name!r} is of the elements {first.start} to {first.stop} of {math.prod(shape)}",
            "give it the whole table",
        )


def _check_covered(parameter: Parameter, pieces: Iterable[tuple[int, int]]) -> None:
    count, reached = math.prod(parameter.shape), 0
    for start, stop in sorted(pieces):
        if start != reached or stop <= start:
            fault = "twice" if start < reached else "not at all"
            raise PlanError(
                f"{parameter.name!r}: elements from {min(start, reached)} are reduced {fault}"
                if stop > start
                else f"{parameter.name!r}: a piece from {start} to {stop}",
                "let each element be in exactly one piece",
            )
        reached = stop
    if reached != count:
        raise PlanError(
            f"{parameter.name!r} has {count} elements, of which {reached} are reduced",
            "let each element be in exactly one piece",
        )


def _check_order(order: tuple[int, ...], graph: Graph) -> None:
    count = len(graph.operations)
    if sorted(order) != list(range(count)):
        raise PlanError(
            f"the order has {len(order)} entries, not each of the {count} operations once",
            "make the plan anew from this graph",
        )
    place = np.empty(count, dtype=np.int64)
    place[list(order)] = np.arange(count)
    operations = graph.operations
    owner = np.repeat(np.arange(count), np.diff(operations.dep_start))
    late = np.flatnonzero(place[operations.dep] >= place[owner])
    if late.size:
        first = int(late[0])
        raise PlanError(
            f"operation {int(owner[first])} ({operations.name[int(owner[first])]}) comes before operation"
            f" {int(operations.dep[first])}, which it waits for",
            "order operations after what they wait for",
        )


def _ranks_of_hosts(plan: Plan, topology: Topology, placement: Sequence[int] | None) -> NDArray[np.int64]:
    """The ranks of each host that has a place for some."""
    gpus = topology.hosts.gpus
    if plan.ranks > topology.gpus:
        raise PlanError(
            f"the plan {plan.name!r} is for {plan.ranks} ranks, and {topology.name!r} has {topology.gpus} GPUs",
            f"give a topology with as many, or plan anew for {topology.gpus} ranks or fewer",
        )
    if placement is None:
        before = np.concatenate([[0], np.cumsum(gpus)[:-1]])
        filled: NDArray[np.int64] = np.clip(plan.ranks - before, 0, gpus)
        return filled
    if len(placement) > len(gpus):
        raise PlanError(
            f"the placement {tuple(placement)} names {len(placement)} hosts, and {topology.name!r} has {len(gpus)}",
            "give the ranks of each host in order",
        )
    for host, count in enumerate(placement):
        if not 0 <= count <= gpus[host]:
            raise PlanError(
                f"the placement {tuple(placement)} puts {count} ranks on host {topology.hosts.names[host]!r}, "
                f"which has {gpus[host]} GPUs",
                "give it from 0 to as many ranks as it has GPUs",
            )
    if sum(placement) != plan.ranks:
        raise PlanError(
            f"the placement {tuple(placement)} is of {sum(placement)} ranks, and the plan {plan.name!r} is for {plan.ranks}",
            "place as many ranks as the plan is for, or plan anew",
        )
    return np.array([*placement, *[0] * (len(gpus) - len(placement))], dtype=np.int64)


def _check_links(plan: Plan, topology: Topology, ranks: NDArray[np.int64]) -> None:
    """Of hosts that exchange, the way into the network, and of domains that do, the one to the level above."""
    used = np.flatnonzero(ranks)
    if len(used) < 2:
        return
    for host in used:
        if not topology.hosts.nic_bytes_per_s[host] > 0:
            raise _no_link(plan, f"host {topology.hosts.names[host]!r}", topology.hosts.nic_bytes_per_s[host])
    for level in topology.levels:
        domains = np.unique(level.domain_of_host[used])
        for domain in domains if len(domains) > 1 else ():
            if not level.uplink_bytes_per_s[domain] > 0:
                where = f"{level.name} {level.domains[domain]!r}"
                raise _no_link(plan, where, level.uplink_bytes_per_s[domain])


def _no_link(plan: Plan, where: str, bytes_per_s: float) -> PlanError:
    return PlanError(
        f"the plan {plan.name!r} sends by the link of {where}, which carries {bytes_per_s:g} bytes/s",
        "give the link a bandwidth, or place the ranks elsewhere",
    )


# What accelerating a training job has brought so far, as `hemiola.accelerate` states it and `hemiola run`
# shows it.

ACCELERATION_SCHEMA = "hemiola.acceleration/1"

State = Literal["off", "profiling", "on", "reverted"]


class Acceleration(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job's acceleration stands; times are seconds per iteration, None where they are not known (yet).

    Attributes:
        state: "off": under DistributedDataParallel, perhaps in other buckets; "profiling": so far only measured;
            "on": by the plan; "reverted": the plan did not gain what it should, and the job runs under
            DistributedDataParallel again.
        iterations: so many have been run.
        before_s: measured, as DistributedDataParallel.
        predicted_before_s: predicted, as DistributedDataParallel.
        predicted_s: predicted, by the plan or in other buckets.
        bound_s: no order of the same work takes less.
        measured_s: median iteration by the plan: the slowest rank's when it was judged, the first rank's latest since.
        exposed_before_s: of `before_s`, how long ranks waited for communication.
        exposed_s: the same of `measured_s`, on the first rank.
        words: all of that in one sentence.
    """

    state: State
    iterations: int
    before_s: float | None = None
    predicted_before_s: float | None = None
    predicted_s: float | None = None
    bound_s: float | None = None
    measured_s: float | None = None
    exposed_before_s: float | None = None
    exposed_s: float | None = None
    words: str = ""
