"""What the iteration executor executes: tasks that wait for each other and share resources and links.

One type for predictions, planners and job profiles. A task may hold a serial resource (a GPU's
stream, a process' thread, a channel of a collective library), may move bytes over links that it
shares with others, or both. CPU cores shared by several processes are a link too: its "bytes" are
core-seconds, its bandwidth the number of cores, and no task draws more than it has threads.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hemiola.core.errors import InputError

__all__ = [
    "Execution",
    "Row",
    "Tasks",
    "columns_of",
    "refusal",
    "tasks_from_columns",
    "tasks_from_rows",
    "unfinished",
]


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Number = TypeVar("Number", bound=np.generic)
LinkSharing = Literal["fair", "priority"]


@dataclass(frozen=True, eq=False)
class Tasks:
    """One entry per task in every column; a task depends on any others, but without a cycle.

    A task becomes ready when all it waits for has ended and `release_s` has passed. If it holds a
    resource, it then queues for it; a resource serves one task at a time, without pre-emption. Once
    it starts it takes `duration_s`, and after that moves `size_bytes` over its path, if it has any.

    Attributes:
        duration_s: fixed time; before the first byte (latency) where the task also moves bytes.
        resource: index of the serial resource that it holds from start to end; -1 for none.
        priority: of the ready tasks that queue for a resource the lowest goes first, then the one ready
            first, then the lowest index. On links under "priority" the lowest pre-empts.
        release_s: not before.
        size_bytes: to move; 0 for none.
        rate_max_bytes_per_s: no faster than this, however free the links are; inf for no limit.
        path_start, path: task i moves over the links `path[path_start[i] : path_start[i + 1]]`.
        dep_start, dep: task i waits for `dep[dep_start[i] : dep_start[i + 1]]`.
        resources: number of serial resources.
        in_order: per resource, whether it serves by readiness alone (a queue) and not by priority.
        link_bytes_per_s: bandwidth of every link.
        sharing: "fair" (max-min over the flows on the links) or "priority" (a flow gets what those of
            lower number leave; equals share max-min).
    """

    duration_s: Floats
    resource: Ints
    priority: Ints
    release_s: Floats
    size_bytes: Floats
    rate_max_bytes_per_s: Floats
    path_start: Ints
    path: Ints
    dep_start: Ints
    dep: Ints
    resources: int
    in_order: NDArray[np.bool_]
    link_bytes_per_s: Floats
    sharing: LinkSharing = "fair"

    def __len__(self) -> int:
        return len(self.duration_s)


@dataclass(frozen=True, eq=False)
class Execution:
    """When each task ran, one entry per task in every column; to be read, not written into.

    Attributes:
        start_s: it got its resource (or became ready, where it holds none).
        first_byte_s: it began to move bytes; its end where it moves none.
        end_s: it was done.
        blocker: the task whose end let it start, the last it waited for or the one that held its
            resource; -1 if nothing did. Of several that ended at that instant, one of them. Followed back
            from the last task it is the critical path.
        bound_s: lower bound on the end of all, whatever the order: the longest path or the busiest
            resource or link.
    """

    start_s: Floats
    first_byte_s: Floats
    end_s: Floats
    blocker: Ints
    bound_s: float

    @property
    def makespan_s(self) -> float:
        """When the last task ended; 0 without tasks."""
        return float(self.end_s.max(initial=0.0))


@dataclass(frozen=True)
class Row:
    """One task by names, for `tasks_from_rows`; the fields are those of `Tasks`.

    Attributes:
        name: what others call it in `after`.
        resource: name of the resource that it holds; "" for none.
        path: names of the links that its bytes cross.
        after: names of the tasks that it waits for.
    """

    name: str
    duration_s: float = 0.0
    resource: str = ""
    priority: int = 0
    release_s: float = 0.0
    size_bytes: float = 0.0
    rate_max_bytes_per_s: float = math.inf
    path: Sequence[str] = ()
    after: Sequence[str] = ()


def tasks_from_rows(
    rows: Sequence[Row],
    link_bytes_per_s: Mapping[str, float],
    *,
    in_order: Collection[str] = (),
    sharing: LinkSharing = "fair",
) -> Tasks:
    """Few tasks, written down by name; a task's index is its place in `rows`.

    Resources are numbered as they first appear, links as in `link_bytes_per_s`.

    Raises:
        InputError: for two rows of one name, and for a task, link or resource that is not there.
    """
    tasks = {row.name: index for index, row in enumerate(rows)}
    if len(tasks) < len(rows):
        raise InputError("two tasks have one name", "give each row a name of its own")
    links = {name: index for index, name in enumerate(link_bytes_per_s)}
    resources = {
        name: index for index, name in enumerate(dict.fromkeys(r.resource for r in rows if r.resource))
    }
    _numbers("in_order", in_order, resources)
    after = [_numbers(row.name, row.after, tasks) for row in rows]
    path = [_numbers(row.name, row.path, links) for row in rows]
    return tasks_from_columns(
        [row.duration_s for row in rows],
        resource=[resources.get(row.resource, -1) for row in rows],
        priority=[row.priority for row in rows],
        release_s=[row.release_s for row in rows],
        size_bytes=[row.size_bytes for row in rows],
        rate_max_bytes_per_s=[row.rate_max_bytes_per_s for row in rows],
        crosses=(
            [task for task, names in enumerate(path) for _ in names],
            [k for names in path for k in names],
        ),
        waits=(
            [task for task, names in enumerate(after) for _ in names],
            [k for names in after for k in names],
        ),
        resources=len(resources),
        in_order=[name in in_order for name in resources],
        link_bytes_per_s=list(link_bytes_per_s.values()),
        sharing=sharing,
    )


def tasks_from_columns(
    duration_s: ArrayLike,
    *,
    resource: ArrayLike = -1,
    priority: ArrayLike = 0,
    release_s: ArrayLike = 0.0,
    size_bytes: ArrayLike = 0.0,
    rate_max_bytes_per_s: ArrayLike = math.inf,
    crosses: tuple[ArrayLike, ArrayLike] = ((), ()),
    waits: tuple[ArrayLike, ArrayLike] = ((), ()),
    resources: int = 0,
    in_order: ArrayLike = False,
    link_bytes_per_s: ArrayLike = (),
    sharing: LinkSharing = "fair",
) -> Tasks:
    """Many tasks, from arrays; a number in place of a column holds for all.

    Args:
        duration_s: one entry per task; the columns that are not named here are those of `Tasks`.
        crosses: (tasks, links), pair by pair: which task's bytes cross which link.
        waits: (tasks, dependencies), pair by pair: which task waits for which other one.

    Raises:
        InputError: for a pair whose task is not there. The rest is checked where tasks are executed.
    """
    duration = np.asarray(duration_s, dtype=np.float64)
    count = len(duration)
    path_start, path = _by_task("crosses", crosses, count)
    dep_start, dep = _by_task("waits", waits, count)
    return Tasks(
        duration_s=duration,
        resource=_column(resource, np.int64, count),
        priority=_column(priority, np.int64, count),
        release_s=_column(release_s, np.float64, count),
        size_bytes=_column(size_bytes, np.float64, count),
        rate_max_bytes_per_s=_column(rate_max_bytes_per_s, np.float64, count),
        path_start=path_start,
        path=path,
        dep_start=dep_start,
        dep=dep,
        resources=resources,
        in_order=_column(in_order, np.bool_, resources),
        link_bytes_per_s=np.asarray(link_bytes_per_s, dtype=np.float64),
        sharing=sharing,
    )


def _numbers(who: str, names: Collection[str], known: Mapping[str, int]) -> list[int]:
    for name in names:
        if name not in known:
            raise InputError(f"{who!r} names {name!r}, which is not there", f"there are {', '.join(known)}")
    return [known[name] for name in names]


def _column(given: ArrayLike, kind: type[Number], count: int) -> NDArray[Number]:
    column = np.asarray(given, dtype=kind)
    return np.full(count, column) if column.ndim == 0 else column


def _by_task(what: str, pairs: tuple[ArrayLike, ArrayLike], count: int) -> tuple[Ints, Ints]:
    """Starts and entries, ordered by task; pairs of one task keep their order."""
    tasks, entries = (np.asarray(side, dtype=np.int64) for side in pairs)
    if len(tasks) and not (tasks.min() >= 0 and tasks.max() < count):
        raise InputError(f"{what} names a task that is not there", f"give numbers from 0 to {count - 1}")
    start = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(tasks, minlength=count), out=start[1:])
    return start, entries[np.argsort(tasks, kind="stable")]


# What the executor refuses, in words, and the columns in the one form that compiled code takes.

REMEDIES = {
    "duration_s": "give seconds, 0 or more",
    "release_s": "give seconds, 0 or more",
    "size_bytes": "give bytes, 0 or more",
    "rate_max_bytes_per_s": "give bytes/s above 0, or inf for no limit",
    "link_bytes_per_s": "give bytes/s, 0 or more, or inf",
}
PRIORITIES = 1 << 31  # so many fit into the key of a queue
INDICES = 1 << 29  # so many fit into 32 bits, with room


class Columns(NamedTuple):
    """The columns of `Tasks`, contiguous, in the order in which `kernels.executor.kernel` takes them."""

    duration_s: Floats
    resource: Ints
    priority: Ints
    release_s: Floats
    size_bytes: Floats
    rate_max_bytes_per_s: Floats
    path_start: Ints
    path: Ints
    dep_start: Ints
    dep: Ints
    in_order: NDArray[np.bool_]
    link_bytes_per_s: Floats


# `faults.first_fault` names a column by its place, or one of these.
TWICE, STOPPED = len(Columns._fields), len(Columns._fields) + 1


def columns_of(tasks: Tasks) -> Columns:
    """The columns in one form, the priorities as numbers that fit into a key.

    Raises:
        InputError: for columns of different lengths, and for fractions where indices belong.
    """
    if tasks.sharing not in ("fair", "priority"):
        raise InputError(f"sharing is {tasks.sharing!r}", 'give "fair" or "priority"')
    count = len(tasks)
    return Columns(
        duration_s=_checked_column(tasks, "duration_s", np.float64, count),
        resource=_checked_column(tasks, "resource", np.int64, count),
        priority=_ranks(_checked_column(tasks, "priority", np.int64, count)),
        release_s=_checked_column(tasks, "release_s", np.float64, count),
        size_bytes=_checked_column(tasks, "size_bytes", np.float64, count),
        rate_max_bytes_per_s=_checked_column(tasks, "rate_max_bytes_per_s", np.float64, count),
        path_start=_checked_column(tasks, "path_start", np.int64, count + 1),
        path=_checked_column(tasks, "path", np.int64),
        dep_start=_checked_column(tasks, "dep_start", np.int64, count + 1),
        dep=_checked_column(tasks, "dep", np.int64),
        in_order=_checked_column(tasks, "in_order", np.bool_, tasks.resources),
        link_bytes_per_s=_checked_column(tasks, "link_bytes_per_s", np.float64),
    )


def _checked_column(
    tasks: Tasks, name: str, kind: type[Number], length: int | None = None
) -> NDArray[Number]:
    given = np.asarray(getattr(tasks, name))
    if given.ndim != 1 or (length is not None and len(given) != length):
        raise InputError(
            f"{name} has the shape {given.shape}, for {len(tasks)} tasks and {tasks.resources} resources",
            "give one dimension" if length is None else f"give {length} entries in one dimension",
        )
    if len(given) >= INDICES:
        raise InputError(f"{name} has {len(given):,} entries", f"execute fewer than {INDICES:,} at a time")
    if len(given) and not np.can_cast(given.dtype, kind, "same_kind"):
        raise InputError(f"{name} holds {given.dtype}", f"give {np.dtype(kind)}")
    return np.ascontiguousarray(given, dtype=kind)


def _ranks(priority: Ints) -> Ints:
    """Priorities that fit into a key, in the same order."""
    if len(priority) == 0 or (priority.min() >= 0 and priority.max() < PRIORITIES):
        return priority
    ranks: Ints = np.unique(priority, return_inverse=True)[1]
    return ranks


def refusal(fault: int, task: int, entry: int, tasks: Tasks) -> InputError:
    """The error for what `faults.first_fault` found."""
    if fault == TWICE:
        return InputError(f"task {task} crosses link {entry} twice", "name each link of a path once")
    if fault == STOPPED:
        what = f"link {entry} has 0 bytes/s, and task {task} moves bytes over it"
        return InputError(what, "give the link a bandwidth, or the task another path")
    name = Columns._fields[fault]
    if name in ("path_start", "dep_start"):
        what = f"{name}[{entry}] = {getattr(tasks, name)[entry]} is no start of a task's entries"
        return InputError(what, "begin with 0, never fall, end with the number of entries")
    if name in ("path", "dep"):
        kind, known = ("link", len(tasks.link_bytes_per_s)) if name == "path" else ("task", len(tasks))
        return InputError(f"{name} of task {task} names {kind} {entry} of {known}", f"give 0 to {known - 1}")
    if name == "resource":
        what = f"task {task} holds resource {tasks.resource[task]} of {tasks.resources}"
        return InputError(what, f"give 0 to {tasks.resources - 1}, or -1 for none")
    who = f"link {entry}" if name == "link_bytes_per_s" else f"task {task}"
    return InputError(f"{who} has {name} = {getattr(tasks, name)[entry]}", REMEDIES[name])


def unfinished(tasks: Tasks, awaited: NDArray[np.int32]) -> InputError:
    """The error for tasks that never end: they wait in a circle, or for longer than a float can say.

    Args:
        tasks: what was executed.
        awaited: how many of its dependencies each task still waits for.
    """
    circle = _circle(tasks, awaited)
    if not circle:
        what = "the end is more seconds away than a float can say"
        return InputError(what, "give durations in s, sizes in bytes and bandwidths in bytes/s")
    names = " after ".join(f"task {task}" for task in [*circle[:8], circle[0]])
    more = f" (first 8 of {len(circle)})" if len(circle) > 8 else ""
    return InputError(f"tasks wait in a circle: {names}{more}", "take one of these dependencies out")


def _circle(tasks: Tasks, awaited: NDArray[np.int32]) -> list[int]:
    """Tasks of which each waits for the next and the last for the first; empty if the walk finds none."""
    waiting = np.flatnonzero(awaited)
    place: dict[int, int] = {}
    task = int(waiting[0]) if len(waiting) else -1
    while task >= 0 and task not in place:
        place[task] = len(place)
        dependencies = tasks.dep[tasks.dep_start[task] : tasks.dep_start[task + 1]]
        task = next((int(other) for other in dependencies if awaited[other]), -1)
    return list(place)[place[task] :] if task >= 0 else []
