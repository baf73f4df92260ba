"""What the executor refuses, in words, and the columns in the one form that compiled code takes."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import InputError
from hemiola.kernels.tasks import Tasks

__all__ = ["Columns", "columns_of", "refusal", "unfinished"]

Number = TypeVar("Number", bound=np.generic)
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

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
    """The columns of `Tasks`, contiguous, in the order in which `executor_kernel` takes them."""

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


# `executor_kernel.first_fault` names a column by its place, or one of these.
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
        duration_s=_column(tasks, "duration_s", np.float64, count),
        resource=_column(tasks, "resource", np.int64, count),
        priority=_ranks(_column(tasks, "priority", np.int64, count)),
        release_s=_column(tasks, "release_s", np.float64, count),
        size_bytes=_column(tasks, "size_bytes", np.float64, count),
        rate_max_bytes_per_s=_column(tasks, "rate_max_bytes_per_s", np.float64, count),
        path_start=_column(tasks, "path_start", np.int64, count + 1),
        path=_column(tasks, "path", np.int64),
        dep_start=_column(tasks, "dep_start", np.int64, count + 1),
        dep=_column(tasks, "dep", np.int64),
        in_order=_column(tasks, "in_order", np.bool_, tasks.resources),
        link_bytes_per_s=_column(tasks, "link_bytes_per_s", np.float64),
    )


def _column(tasks: Tasks, name: str, kind: type[Number], length: int | None = None) -> NDArray[Number]:
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
    """The error for what `executor_kernel.first_fault` found."""
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
